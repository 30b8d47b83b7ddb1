"""Language models whose memorization can be switched off (Memorization Sinks) in JAX."""

import sys

__version__ = "0.1.0"
__all__ = ["InputError", "Model", "open_model"]


def _is_a_command() -> bool:
    """Whether Python is importing the package for one of its commands: `python -m
    memsinks_jax.COMMAND`.
    """
    after = sys.orig_argv[sys.orig_argv.index("-m") + 1 :] if "-m" in sys.orig_argv else []
    return sys.argv[:1] == ["-m"] and after[:1] != [] and after[0].split(".")[0] == __name__


if _is_a_command():  # which is still to be imported: that takes seconds, in which Ctrl-C may come
    from memsinks_jax.runs import interruption

    interruption.end_at_once()


def __getattr__(name: str):
    """What api.py offers, which imports jax: not before it is asked for."""
    if name in __all__:
        from memsinks_jax import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
