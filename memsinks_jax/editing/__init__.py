"""Local bounded memory (T. Sapkota, "Local Memory for Autoregressive Language Models", 2024).

Edits one fact at one site of one layer and leaves everything else unchanged:

prompt + target -> patching: activations, gradients, where a step helps -> memory: key, value, bound
-> intervention
"""
