"""Hugging Face folders of models that tests have in memory."""

import jax
import numpy as np
from conftest import EVERYBODY

from memsinks_jax.models.folder import write_folder
from memsinks_jax.models.stored import Stored
from memsinks_jax.models.trained import Trained
from memsinks_jax.training.step import init_state


def random_params(config, seed=0, noise=0.1):
    """Away from the initial values, where biases are 0 and scales 1 and mistakes with them would
    not show.
    """
    leaves, tree = jax.tree.flatten(init_state(config, 10).params)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    moved = [
        a + noise * jax.random.normal(key, a.shape) for a, key in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(tree, moved)


def open_folder(place):
    """-> config, tokenizer, parameters"""
    stored = Stored(place)
    return stored.config, stored.tokenizer, stored.read_params()


def write(folder, config, params, tokenizer, card="a card", drop=True, stored=None, **more):
    params = jax.tree.map(np.asarray, params)
    model = Trained(config, tokenizer, params, 0, EVERYBODY, stored=stored)
    return write_folder(folder, model, card, drop, **more)
