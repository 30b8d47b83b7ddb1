"""The update: optimizer, sharding, step, checkpoints, metrics."""
