"""Removes the sinks of single documents from a model, and reports what was lost with them."""
