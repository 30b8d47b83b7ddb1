"""Finds where one gradient step makes a prompt answer with the target.

A patch adds -step * gradient to the activation at one layer and one token. L layers, T prompt
tokens, W width.
"""

from typing import NamedTuple

import numpy as np

from memsinks_jax.config import InputError
from memsinks_jax.editing.memory import Memory, memory_of
from memsinks_jax.editing.probe import Probe, Trace
from memsinks_jax.editing.prompts import Prompts

# Steps to try around the ratio of mean activation to mean gradient, in half powers of ten. One of
# the article's was a tenth of this ratio, the other about equal to it. Small models need the small
# ones.
LADDER = 10.0 ** np.arange(-1, 2.01, 0.5)
ENOUGH_LAYERS = 3  # a step needs successful patches of the last token in this many layers


class PatchMap(NamedTuple):
    """The effect of every single patch.

    Attributes:
      losses: loss of the target in nats, float (L, T). tokens: most likely next token, (L, T).
      successes: bool (L, T). base_loss, base_token: without a patch. step, site, target: the
        settings of these patches.
    """

    losses: np.ndarray
    tokens: np.ndarray
    base_loss: float
    base_token: int
    step: float
    site: str
    target: int

    @property
    def successes(self) -> np.ndarray:
        return self.tokens == self.target


def middle_step(trace: Trace, known: int) -> float:
    """Ratio of mean activation size to mean gradient size, over all layers and known tokens."""
    sizes = [
        np.linalg.norm(x[0, :, :known], axis=-1).mean()
        for x in (trace.activations, trace.gradients)
    ]
    return float(sizes[0] / max(sizes[1], np.finfo(np.float32).tiny))


def choose_step(
    probe: Probe, prompt: Prompts, target: int, site: str, trace: Trace, layer: int | None = None
) -> float:
    """The first step of the ladder at which patches of the last token succeed in three layers (or
    in all), or in `layer`. If none does, the one that succeeds in most layers, the smaller one of a
    tie.
    """
    last = int(prompt.last[0])
    layers_L = np.arange(trace.gradients.shape[1]) if layer is None else np.array([layer])
    steps_S = middle_step(trace, last + 1) * LADDER
    deltas_SLW = -steps_S[:, None, None] * trace.gradients[0, layers_L, last]
    count = len(steps_S) * len(layers_L)
    layers_R, places_R = np.tile(layers_L, len(steps_S)), np.full(count, last)
    deltas_RW = deltas_SLW.reshape(count, -1)
    answers = probe.patched(prompt, target, site, layers_R, places_R, deltas_RW)
    successes_S = (answers.tokens == target).reshape(len(steps_S), len(layers_L)).sum(axis=1)
    enough = np.flatnonzero(successes_S >= min(ENOUGH_LAYERS, len(layers_L)))
    return float(steps_S[enough[0] if len(enough) else successes_S.argmax()])


def patch_map(
    probe: Probe, prompt: Prompts, target: int, site: str, trace: Trace, step: float
) -> PatchMap:
    """Tries all single patches of one prompt, at every layer and token, in one batch."""
    known, layers = int(prompt.last[0]) + 1, trace.gradients.shape[1]
    places = prompt.cropped().tokens.shape[1]  # one program serves prompts of several lengths
    deltas_LTW = -step * trace.gradients[0, :, :places]
    # The last row is the unpatched prompt: its layer does not exist, so nothing is added.
    layers_R = np.append(np.repeat(np.arange(layers), places), -1)
    places_R = np.append(np.tile(np.arange(places), layers), 0)
    deltas_RW = np.concatenate(
        [deltas_LTW.reshape(-1, deltas_LTW.shape[-1]), np.zeros_like(deltas_LTW[0, :1])]
    )
    answers = probe.patched(prompt, target, site, layers_R, places_R, deltas_RW)
    losses_LT, tokens_LT = (
        x[:-1].reshape(layers, places)[:, :known] for x in (answers.losses, answers.tokens)
    )
    return PatchMap(
        losses_LT, tokens_LT, float(answers.losses[-1]), int(answers.tokens[-1]), step, site, target
    )


def choose_layer(found: PatchMap) -> int | None:
    """The lowest layer at which the patch of the last token succeeds, or None."""
    layers = np.flatnonzero(found.successes[:, -1])
    return int(layers[0]) if len(layers) else None


def remember(
    trace: Trace, prompt: Prompts, site: str, layer: int, step: float, bound: float, **settings
) -> Memory:
    """The memory of one prompt: its key is the last token's activation, its value a step along the
    gradient. Raises InputError if the loss does not depend on this activation.
    """
    last = int(prompt.last[0])
    key, gradient = trace.activations[0, layer, last], trace.gradients[0, layer, last]
    if not np.any(key) or not np.any(gradient):
        raise InputError(
            f"activation or gradient at the {site} of layer {layer} is 0; take another layer or "
            "site"
        )
    return memory_of(site, layer, key, -step * gradient, bound, **settings)
