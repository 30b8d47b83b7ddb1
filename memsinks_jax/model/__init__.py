"""From tokens to logits, losses and text: the decoder, its parts, and the placement of its
activations.
"""
