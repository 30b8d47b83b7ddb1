"""Text to packed rows with document ids. numpy only: this room never imports jax."""
