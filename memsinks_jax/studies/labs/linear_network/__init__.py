"""Lab: the theorems of Memorization Sinks (Ghosal, Maini, Raghunathan 2025) as stated and as
corrected, both measured.

    python -m memsinks_jax.labs.linear_network --theorem=all --out=runs/linear_network

One module per theorem; its docstring has the equations and the errors. `opening` derives what is
not in the paper: sinks that open when a document comes back. `trials` is shared by all, `readout`
is the trained layer of appendix H. Everything is plain numpy in double precision; identities must
hold to 1e-12.
"""
