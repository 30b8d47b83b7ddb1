"""Training methods of others: classes that `config.training.method` names (plugin.py)."""
