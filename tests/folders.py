"""Hugging Face folders of models that tests have in memory."""

import jax
import numpy as np
from conftest import EVERYBODY

from memsinks_jax.models.folder import write_folder
from memsinks_jax.models.stored import Stored
from memsinks_jax.models.trained import Trained


def open_folder(place):
    """-> config, tokenizer, parameters"""
    stored = Stored(place)
    return stored.config, stored.tokenizer, stored.read_params()


def write(folder, config, params, tokenizer, card="a card", drop=True, stored=None, **more):
    params = jax.tree.map(np.asarray, params)
    model = Trained(config, tokenizer, params, 0, EVERYBODY, stored=stored)
    return write_folder(folder, model, card, drop, **more)
