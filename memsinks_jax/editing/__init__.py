"""Local bounded memory: one fact is edited at one site of one layer, everything else stays (T. Sapkota, "Local
Memory for Autoregressive Language Models", 2024).

prompt + target -> patching: activations, gradients, where a step helps -> memory: key, value, bound -> intervention
"""
