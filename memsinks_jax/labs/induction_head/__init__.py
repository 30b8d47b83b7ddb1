"""Lab: the birth of an induction head (Bietti, Cabannes, Bouchacourt, Jegou, Bottou 2023), and sinks beside it.

    python -m memsinks_jax.labs.induction_head --experiment=E1 --out=runs/induction_head

`bigrams` are the text's statistics, `law` the data (and `oracle` the same in plain numpy), `model` and `full` what is
trained, `construction` the memories of the theory, `measures` and `baselines` what is measured, `training` the loop,
`sinks` the model with neurons of every sequence's own; one module an experiment.
"""
