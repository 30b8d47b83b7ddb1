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
        raise InputError(
            "there is no document to measure; give at least one with a token to predict"
        )
    return {name: values[real_R] for name, values in rows.items()}


def in_groups(rows: dict[str, np.ndarray], at_most: int) -> list[tuple[dict[str, np.ndarray], int]]:
    """Splits rows into groups of equal size -> (rows, number of real ones). Repeats a row to fill
    up the last group.
    """
    count = len(rows["inputs"])
    groups = -(-count // at_most)
    size = -(-count // groups)
    places = np.minimum(np.arange(groups * size), count - 1).reshape(groups, size)
    return [
        (
            {name: values[places_R] for name, values in rows.items()},
            min(size, count - size * number),
        )
        for number, places_R in enumerate(places)
    ]


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

        def of_targets(x_RTD: jax.Array, head_DV: jax.Array) -> jax.Array:
            chunks = self.config.compute.loss_chunks
            return token_losses(x_RTD, head_DV, rows["targets"], rows["weights"], chunks).sum(
                axis=1
            )

        return self._apply(params, rows, interventions, None, of_targets)

    def activations(
        self, params: dict, rows: dict, cache: Cache | None = None
    ) -> tuple[jax.Array, Cache | None]:
        """Hidden neurons at every layer and position -> (float32 (L, R, T, F), the cache after
        reading).
        """
        nothing = jnp.zeros((self.layers, *rows["inputs"].shape, self.hidden))

        def read(record_LRTF: jax.Array) -> tuple[jax.Array, Cache | None]:
            recording = {"mlp": lambda x_RTF, layer: recorded(x_RTF, record_LRTF[layer])}
            total = self._apply(
                params,
                rows,
                recording,
                cache,
                lambda x_RTD, head_DV: x_RTD.sum().astype(jnp.float32),
            )
            return (total, None) if cache is None else total

        return jax.grad(read, has_aux=True)(nothing)

    def _apply(self, params: dict, rows: dict, interventions, cache, read_out: Callable):
        return self.model(
            params,
            rows["inputs"],
            rows["segments"],
            rows["positions"],
            interventions,
            cache,
            read_out=read_out,
        )
