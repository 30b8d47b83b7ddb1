"""One file per measure. They see the model, never the training loop."""
