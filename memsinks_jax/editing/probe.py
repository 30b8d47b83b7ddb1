"""Probes and edits a model with its sinks dropped. Compiles one program per shape of prompts.

B prompts, T positions, L layers, W width of a site without its sinks, V vocabulary, M memories, N
bounds.
"""

import copy
import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from memsinks_jax.config import Config
from memsinks_jax.editing.memory import Memory, distances, interventions
from memsinks_jax.editing.prompts import Prompts
from memsinks_jax.model import placement
from memsinks_jax.model.decoder import build_model, compose, recorded
from memsinks_jax.model.losses import logits, token_losses
from memsinks_jax.sinks.interventions import sink_interventions


class Trace(NamedTuple):
    """Activations at a site, gradients of the target's loss there: float32 (B, L, T, W)."""

    activations: np.ndarray
    gradients: np.ndarray


class Answers(NamedTuple):
    """The likeliest token int32 (B,), loss of a target (B,) in nats, all logits (B, V)."""

    tokens: np.ndarray
    losses: np.ndarray
    logits: np.ndarray


class Probe:
    """Reads and changes the activations of a model of `config` with `params`."""

    def __init__(self, config: Config, params: dict):
        self.config, self.params = config, params
        self._model, self.parts = build_model(config)
        self._gates = sink_interventions(config, "drop", None, config.seed, None)

        def at_bound(params, prompts, target_B, memory, bounds_M):
            memories = (dataclasses.replace(memory, bounds=bounds_M),)
            return self._answer_with(params, prompts, target_B, memories)

        def loss(*given):
            return self._answer_with(*given, ())[1].sum()

        self._answer = placement.jit(self._answer_with)
        self._trace = placement.jit(self._trace_at, static_argnames="site")
        self._distances = placement.jit(self._distances_from)
        self._patch = placement.jit(self._patch_at, static_argnames="site")
        self._text_losses = placement.jit(self._text_losses_with)
        self._gradient = placement.jit(jax.grad(loss))
        self._write = placement.jit(self._write_with, static_argnames="count")
        self._over_bounds = placement.jit(jax.vmap(at_bound, in_axes=(None, None, None, None, 0)))

    def width(self, site: str) -> int:
        """Width W of a site."""
        return self.config.model.attention_width if site == "attention" else self.parts.shared

    def answers(
        self, prompts: Prompts, target: int | np.ndarray = 0, memories: Sequence[Memory] = ()
    ) -> Answers:
        """Predicts after every prompt. Losses are of `target`: one token for all prompts, or
        (B,).
        """
        target_B = _of_each(prompts, target)
        return _answers(self._answer(self.params, prompts, target_B, tuple(memories)))

    def answers_over_bounds(
        self, prompts: Prompts, target: int, memory: Memory, bounds: np.ndarray
    ) -> Answers:
        """As `answers`, with each bound for all memories -> (N, B), (N, B), (N, B, V)."""
        target_B = _of_each(prompts, target)
        bounds_NM = np.repeat(np.float32(bounds)[:, None], len(memory.bounds), axis=1)
        return _answers(self._over_bounds(self.params, prompts, target_B, memory, bounds_NM))

    def write(self, prompts: Prompts, count: int, memories: Sequence[Memory] = ()) -> np.ndarray:
        """Generates `count` tokens greedily after each prompt -> int32 (B, count). Recomputes the
        whole prompt for every token. Prompts must leave room for them.
        """
        assert prompts.last.max() + count <= prompts.tokens.shape[1]
        return np.asarray(self._write(self.params, prompts, tuple(memories), count=count))

    def text_losses(
        self, prompts: Prompts, memories: Sequence[Memory] = ()
    ) -> tuple[np.ndarray, np.ndarray]:
        """Summed loss of each text's tokens after the first, and their number -> (B,), (B,)."""
        return tuple(map(np.asarray, self._text_losses(self.params, prompts, tuple(memories))))

    def gradient(self, prompts: Prompts, target: int) -> dict:
        """Gradient of the target's loss, summed over prompts, in all parameters."""
        return self._gradient(self.params, prompts, _of_each(prompts, target))

    def with_params(self, params: dict) -> "Probe":
        """The same model with other parameters. Does not compile again."""
        other = copy.copy(self)
        other.params = params
        return other

    def trace(self, prompts: Prompts, target: int | np.ndarray, site: str) -> Trace:
        """Activations and gradients at a site, from one forward and backward pass. The gradients
        are of the loss after the last position, summed over prompts.
        """
        both = self._trace(self.params, prompts, _of_each(prompts, target), site=site)
        return Trace(*(np.asarray(x).swapaxes(0, 1) for x in both))

    def patched(self, prompt: Prompts, target: int, site: str, layers, places, deltas) -> Answers:
        """Patches a prompt in R ways: r adds deltas[r], (W,), at layers[r] and places[r]."""
        # positions after the last one do not matter
        rows = prompt.cropped().take(np.zeros(len(layers), int))
        patches = (np.int32(layers), np.int32(places), np.asarray(deltas, np.float32))
        target_R = _of_each(rows, target)
        return _answers(self._patch(self.params, rows, target_R, *patches, site=site))

    def distances(self, prompts: Prompts, memory: Memory) -> np.ndarray:
        """Distance from keys before any memory acts -> (B, T, M); infinite at padding."""
        return np.asarray(self._distances(self.params, prompts, memory))

    # What is compiled. All of it takes `params`, so that other parameters use the same program.

    def _apply(self, params: dict, prompts: Prompts, changes: dict, read_out) -> jax.Array:
        changes = compose(self._gates, changes)
        return self._model(params, *prompts[:3], changes, read_out=read_out)

    def _outcome(self, params: dict, prompts: Prompts, changes: dict, target_B) -> tuple:
        """Of each prompt: the likeliest next token, the loss of its target, all logits."""
        rows = jnp.arange(prompts.tokens.shape[0])

        def after_last(x_BTD, head_DV):
            return logits(x_BTD[rows, prompts.last], head_DV)

        logits_BV = self._apply(params, prompts, changes, after_last)
        log_chance_BV = jax.nn.log_softmax(logits_BV)
        losses_B = -jnp.take_along_axis(log_chance_BV, target_B[:, None], axis=-1)[:, 0]
        return logits_BV.argmax(axis=-1), losses_B, logits_BV

    def _answer_with(
        self, params: dict, prompts: Prompts, target_B, memories: tuple[Memory, ...]
    ) -> tuple:
        last_BT = prompts.positions == prompts.last[:, None]
        changes = interventions(memories, prompts.segments > 0, last_BT)
        return self._outcome(params, prompts, changes, target_B)

    def _write_with(
        self, params: dict, prompts: Prompts, memories: tuple[Memory, ...], count: int
    ) -> jax.Array:
        rows = jnp.arange(prompts.tokens.shape[0])

        def write_one(written: Prompts, _) -> tuple[Prompts, jax.Array]:
            tokens_B = self._answer_with(params, written, jnp.zeros_like(written.last), memories)[0]
            place_B = written.last + 1
            return Prompts(
                written.tokens.at[rows, place_B].set(tokens_B),
                written.segments.at[rows, place_B].set(1),
                written.positions,
                place_B,
            ), tokens_B

        return jax.lax.scan(write_one, Prompts(*map(jnp.asarray, prompts)), length=count)[1].T

    def _text_losses_with(
        self, params: dict, prompts: Prompts, memories: tuple[Memory, ...]
    ) -> tuple:
        weights_BT = (prompts.positions < prompts.last[:, None]).astype(jnp.float32)
        of_tokens = functools.partial(
            token_losses,
            targets_BT=jnp.roll(prompts.tokens, -1, axis=1),
            weights_BT=weights_BT,
        )
        changes = interventions(memories, prompts.segments > 0, None)
        losses_BT = self._apply(params, prompts, changes, of_tokens)
        return losses_BT.sum(axis=1), weights_BT.sum(axis=1)

    def _trace_at(
        self, params: dict, prompts: Prompts, target_B, site: str
    ) -> tuple[jax.Array, jax.Array]:
        width = self.width(site)
        nothing = jnp.zeros((self.config.model.layers, *prompts.tokens.shape, width))

        def loss(shift_LBTW, record_LBTW):
            def record(x_BTW, layer):
                seen = recorded(x_BTW[..., :width], record_LBTW[layer])
                seen = seen + shift_LBTW[layer].astype(x_BTW.dtype)
                return jnp.concatenate([seen, x_BTW[..., width:]], axis=-1)

            return self._outcome(params, prompts, {site: record}, target_B)[1].sum()

        gradients, activations = jax.grad(loss, argnums=(0, 1))(nothing, nothing)
        return activations, gradients

    def _distances_from(self, params: dict, prompts: Prompts, memory: Memory) -> jax.Array:
        # Records them through a trace: an intervention can only return what it changes.
        target_B = jnp.zeros_like(prompts.last)
        activations_LBTW, _ = self._trace_at(params, prompts, target_B, memory.site)
        from_keys = functools.partial(distances, memory.distance, keys_MW=memory.keys)
        x_BTML = jnp.moveaxis(jax.vmap(from_keys)(activations_LBTW), 0, -1)
        x_BTM = x_BTML[..., jnp.arange(len(memory.layers)), memory.layers]
        return jnp.where(prompts.segments[:, :, None] > 0, x_BTM, jnp.inf)

    def _patch_at(
        self, params: dict, rows: Prompts, target_R, layers_R, places_R, deltas_RW, site: str
    ) -> tuple:
        here_RT = rows.positions == places_R[:, None]

        def patch(x_RTW, layer):
            added = (here_RT & (layers_R == layer)[:, None])[:, :, None] * deltas_RW[:, None]
            return x_RTW.at[..., : deltas_RW.shape[-1]].add(added.astype(x_RTW.dtype))

        return self._outcome(params, rows, {site: patch}, target_R)


def _of_each(prompts: Prompts, target: int | np.ndarray) -> np.ndarray:
    return np.broadcast_to(np.int32(target), prompts.last.shape)


def _answers(compiled: tuple) -> Answers:
    return Answers(*map(np.asarray, compiled))
