"""Greedy generation without a cache: the reference for generation, and its baseline for speed."""

import jax
import jax.numpy as jnp
import numpy as np

from memsinks_jax.config import Config
from memsinks_jax.model.decoder import build_model
from memsinks_jax.sinks.gates import apply_gates, gates_for_mode


class Continuation:
    """Greedy continuation of many openings at once, compiled once for each mode.

    Every token runs the whole row again.
    """

    def __init__(self, config: Config, length: int, end_of_text: int):
        """`length`: of openings and what follows together, in tokens; at most the context.
        `end_of_text`: tokenizer's.
        """
        self._config, self._end_of_text = config, end_of_text
        self._length = min(length + 1, config.data.row_length)  # end of text opens every row
        self._model, self._parts = build_model(config)
        self._compiled = jax.jit(self._fill, static_argnames="mode")

    def _fill(self, params: dict, rows_BT, known_B, identities_B12, seed, mode: str):
        gates = gates_for_mode(mode, identities_B12, seed, self._parts, self._config.sinks)
        segments_BT = jnp.ones_like(rows_BT)
        positions_BT = jnp.broadcast_to(jnp.arange(rows_BT.shape[1]), rows_BT.shape)
        interventions = apply_gates(gates, segments_BT)

        def write_one(place, rows_BT):
            logits_BTV = self._model(params, rows_BT, segments_BT, positions_BT, interventions)
            logits_BV = jax.lax.dynamic_index_in_dim(logits_BTV, place - 1, axis=1, keepdims=False)
            allowed_B = jax.lax.dynamic_index_in_dim(rows_BT, place, axis=1, keepdims=False)
            written_B = jnp.where(place < known_B, allowed_B, logits_BV.argmax(axis=-1))
            return jax.lax.dynamic_update_index_in_dim(
                rows_BT, written_B.astype(rows_BT.dtype), place, axis=1
            )

        # Causal attention: what stands to the right of `place` cannot change what is written there.
        return jax.lax.fori_loop(known_B.min(), rows_BT.shape[1], write_one, rows_BT)

    def __call__(
        self, params: dict, openings: list[np.ndarray], identities: np.ndarray, mode: str
    ) -> list[np.ndarray]:
        """Openings, int32 (tokens,) without end of text -> what follows each, up to end of text or
        `length`.

        Args:
          identities: uint32 (openings, 2); ids of the documents the openings are from, for the
            modes own and other.
        """
        rows = np.zeros((len(openings), self._length), np.int32)
        rows[:, 0] = self._end_of_text
        for row, opening in zip(rows, openings, strict=True):
            row[1 : 1 + len(opening)] = opening
        known = np.array([1 + len(opening) for opening in openings], np.int32)
        seed = np.uint32(self._config.seed)
        written = np.asarray(
            self._compiled(params, rows, known, identities[:, None], seed, mode=mode)
        )
        tails = [row[start:] for row, start in zip(written, known, strict=True)]
        ends = [np.append(tail, self._end_of_text) == self._end_of_text for tail in tails]
        return [tail[: np.argmax(end)] for tail, end in zip(tails, ends, strict=True)]
