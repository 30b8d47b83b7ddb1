"""Language models whose memorization can be switched off (Memorization Sinks) in JAX."""
