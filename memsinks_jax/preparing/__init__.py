"""From files of any kind to a prepared corpus: `inputs` (which files, which pieces), `steps`
(tokens to shards), `near_duplicates`, run by `stages` on this machine or a cluster, and put together by `finish`, of which
`columns` is the part that knows every record.

The engine is datatrove: its tasks and their completion, its executors, its MinHash stages. Ours is what happens to a
record. Only `memsinks_jax.prepare` imports this room.
"""
