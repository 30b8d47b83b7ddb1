"""Small studies of the same question, each runnable by itself; they know nothing of the trainer."""
