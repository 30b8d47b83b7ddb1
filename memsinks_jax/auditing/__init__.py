"""Measures what a trained model still leaks, with its sinks dropped, own or all on, against a
standard model and an oracle that never saw the repeats.

`subjects` has the models and documents; every other file answers one question.
"""
