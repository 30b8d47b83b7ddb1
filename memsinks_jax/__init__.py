"""Language models whose memorization can be switched off (Memorization Sinks) in JAX."""

__version__ = "0.1.0"


def __getattr__(name: str):
    """`open_model` and `Model` of api.py, which imports jax: not before they are asked for."""
    if name in ("Model", "open_model"):
        from memsinks_jax import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
