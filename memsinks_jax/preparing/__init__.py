"""Prepares a corpus from files of any supported kind. `inputs` finds files and pieces, `steps`
turns tokens into shards, `near_duplicates` finds clusters. `stages` runs them on this machine or a
cluster. `finish` completes the corpus with `columns`, which have an entry for every record.

The engine is datatrove: its tasks and their completion, its executors, its MinHash stages. The
processing of records is ours. Only `memsinks_jax.prepare` imports this room.
"""
