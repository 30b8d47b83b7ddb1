"""Lab: the theorems of Memorization Sinks (Ghosal, Maini, Raghunathan 2025) as stated and as corrected, both measured.

    python -m memsinks_jax.labs.linear_network --theorem=all --out=runs/linear_network

One module a theorem, its equations and what is wrong with them in its docstring; `opening` derives what the paper has not,
sinks that open when a document comes back. `trials` is what they share, `readout` the trained layer of appendix H. Plain
numpy in double precision: identities are held to 1e-12.
"""
