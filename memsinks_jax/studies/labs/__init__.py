"""Small studies of the same question. Each runs by itself; none imports the trainer."""
