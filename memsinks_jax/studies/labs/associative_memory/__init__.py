"""Lab: scaling laws for associative memories (Cabannes, Dohmatob, Bietti 2023), and the capacity of
sinks that follows.

    python -m memsinks_jax.labs.associative_memory --figure=laws --out=runs/laws

`model` is the memory, `laws` has the theorems, `optimization` the training, `sinks` the memory with
a mask tied to every document. `schemes` and `training` have the paper's figures, `figure_laws` and
`figure_sinks` one each.
"""
