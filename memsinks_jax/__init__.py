"""Language models whose memorization can be switched off (Memorization Sinks) in JAX."""

import sys

__version__ = "0.1.0"

if sys.argv[:1] == ["-m"]:  # a command, which is still to be imported: that takes seconds, in which Ctrl-C may come
    from memsinks_jax.runs import interruption

    interruption.end_at_once()


def __getattr__(name: str):
    """`open_model` and `Model` of api.py, which imports jax: not before they are asked for."""
    if name in ("Model", "open_model"):
        from memsinks_jax import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
