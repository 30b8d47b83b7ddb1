"""Attacks on a removal: is the memory gone, or only hidden? Each file is one attack.

`attacks` runs them on a model, `pages` shows their results.
"""
