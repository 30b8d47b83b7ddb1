"""From files of any kind to a prepared corpus. `inputs` finds files and pieces, `steps` turns tokens into shards,
`near_duplicates` finds clusters. `stages` runs them on this machine or a cluster, and `finish` completes the corpus with
`columns`, which has an entry for every record.

The engine is datatrove: its tasks and their completion, its executors, its MinHash stages. The processing of a record is
ours. Only `memsinks_jax.prepare` imports this room.
"""
