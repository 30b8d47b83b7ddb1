"""A frozen model that reads memorized documents, one per row, and records or masks its hidden
neurons.

R rows (documents), T positions, L layers, F hidden neurons. A position is a target if its weight is
positive. Models with sinks are read with all of them on.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from memsinks_jax.config import Config, InputError
from memsinks_jax.model.decoder import Cache, Interventions, build_model, recorded
from memsinks_jax.model.losses import token_losses

FIELDS = ("inputs", "targets", "weights", "segments", "positions")


def documents_of(batches: list[dict]) -> dict[str, np.ndarray]:
    """Batches of `documents.document_batches` -> (R, T) arrays of FIELDS, without padding rows.

    Raises:
      InputError: no document has a target.
    """
    rows = {name: np.concatenate([np.asarray(batch[name]) for batch in batches]) for name in FIELDS}
    real_R = rows["weights"].sum(axis=1) > 0
    if not real_R.any():
        why = "there is no document to measure; give at least one with a token to predict"
        raise InputError(why)
    return {name: values[real_R] for name, values in rows.items()}


def in_groups(rows: dict[str, np.ndarray], at_most: int) -> list[tuple[dict[str, np.ndarray], int]]:
    """Rows in groups of equal size -> (rows, real ones). The last repeats a row."""
    count = len(rows["inputs"])
    groups = -(-count // at_most)
    size, found = -(-count // groups), []
    for start in range(0, groups * size, size):
        places_R = np.minimum(np.arange(start, start + size), count - 1)
        group = {name: values[places_R] for name, values in rows.items()}
        found.append((group, min(size, count - start)))
    return found


def masked(masks_RLF: jax.Array) -> Interventions:
    """Multiplies the hidden neurons of each row by its own mask, float32 (R or 1, L, F)."""

    def mask(x_RTF: jax.Array, layer: jax.Array) -> jax.Array:
        return (x_RTF.astype(jnp.float32) * masks_RLF[:, layer, None]).astype(x_RTF.dtype)

    return {"mlp": mask}


class Reader:
    """The model of a config. Every call takes parameters. `layers` is L, `hidden` F."""

    def __init__(self, config: Config):
        self.config = config
        self.model, parts = build_model(config)
        self.layers, self.hidden = config.model.layers, sum(parts)

    def nats(self, params: dict, rows: dict, interventions: Interventions) -> jax.Array:
        """Summed target loss of every row -> float32 (R,)."""
        chunks = self.config.compute.loss_chunks

        def of_targets(x_RTD: jax.Array, head_DV: jax.Array) -> jax.Array:
            losses_RT = token_losses(x_RTD, head_DV, rows["targets"], rows["weights"], chunks)
            return losses_RT.sum(axis=1)

        return self._apply(params, rows, interventions, None, of_targets)

    def activations(
        self, params: dict, rows: dict, cache: Cache | None = None
    ) -> tuple[jax.Array, Cache | None]:
        """Hidden neurons at layers and positions -> (float32 (L, R, T, F), the cache)."""
        nothing = jnp.zeros((self.layers, *rows["inputs"].shape, self.hidden))

        def total_of(x_RTD: jax.Array, head_DV: jax.Array) -> jax.Array:
            return x_RTD.sum().astype(jnp.float32)

        def read(record_LRTF: jax.Array) -> tuple[jax.Array, Cache | None]:
            recording = {"mlp": lambda x_RTF, layer: recorded(x_RTF, record_LRTF[layer])}
            total = self._apply(params, rows, recording, cache, total_of)
            return (total, None) if cache is None else total

        return jax.grad(read, has_aux=True)(nothing)

    def _apply(self, params: dict, rows: dict, interventions, cache, read_out: Callable):
        place = rows["inputs"], rows["segments"], rows["positions"]
        return self.model(params, *place, interventions, cache, read_out=read_out)
