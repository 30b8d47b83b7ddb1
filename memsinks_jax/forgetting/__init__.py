"""Taking the sinks of single documents out of a model, and saying what went with them."""
