"""Lab: the birth of an induction head (Bietti, Cabannes, Bouchacourt, Jegou, Bottou 2023), with and
without sinks.

    python -m memsinks_jax.labs.induction_head --experiment=E1 --out=runs/induction_head

`bigrams` has the text's statistics, `law` the data, `model` the models, `construction` the memories
of the theory, `measures` the measures, `training` the loop, `sinks` the model with neurons for
every sequence, `experiments` what is trained, claimed and drawn, in the form of `study`.
"""
