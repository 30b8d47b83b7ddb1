"""One file per measure. Measures import the model, never the training loop."""
