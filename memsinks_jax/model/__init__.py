"""From tokens to logits, losses and text: the decoder, what it is made of, and where its activations lie."""
