"""Parameters by their paths, and ordered rules over them."""

import re

import jax

from memsinks_jax.config import InputError


def path_name(path: tuple) -> str:
    """A path as jax gives it, ('layers', 'up_kernel') -> 'layers/up_kernel'."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def first_match(rules: tuple, name: str):
    """The value of the first (regex, value) whose regex matches in `name`. Raises InputError if
    none does.
    """
    for pattern, value in rules:
        if re.search(pattern, name):
            return value
    raise InputError(
        f"parameter {name} is covered by no rule; add one to {[pattern for pattern, _ in rules]}"
    )
