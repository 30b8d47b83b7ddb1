"""Language models whose memorization can be switched off (Memorization Sinks) in JAX."""

__version__ = "0.1.0"
