"""Measures what a trained model knows, with its sinks dropped, own or all on.

`document_loss` and what it needs import the model alone: training asks them too. `subjects` has the
models and documents of an audit; every other file answers one question.
"""
