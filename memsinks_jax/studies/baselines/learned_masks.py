"""Hard Concrete and slimming: learn masks of the hidden neurons that keep few neurons but still
recite a document.

The model is frozen. Training minimizes the mean loss of the document's targets, in nats, plus
`strength` times the share of neurons that are kept. The neurons kept at the end are the document's.
Follows Chang, Thomason and Jia, "Do Localization Methods Actually Localize Memorized Data in LLMs?"
(2024), with their defaults; `tuning` has the paper's grid.

G masks, one per document or a joint one; R rows, L layers, F hidden neurons.
"""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from memsinks_jax.config import Config
from memsinks_jax.measures.documents import rows_at_once
from memsinks_jax.model import placement
from memsinks_jax.studies.baselines.reading import Reader, documents_of, in_groups, masked

ROWS_AT_ONCE = 32
CHECK_EVERY = 10  # iterations between checks whether to stop
_CALL = 100  # iterations per call to the device, which cannot be interrupted
_LOW, _HIGH = -0.1, 1.1  # hard concrete values are stretched to this range, then clipped
_EDGE = 1e-4  # uniform draws keep this distance from 0 and 1


@jax.custom_vjp
def inclusive_clip(x: jax.Array) -> jax.Array:
    """Clips x to [0, 1], with gradient 1 inside and at both bounds.

    At the bounds jnp.clip has gradient 1/2 and lax.clamp 0, but slimming starts at a bound.
    """
    return jnp.clip(x, 0.0, 1.0)


inclusive_clip.defvjp(
    lambda x: (inclusive_clip(x), (x >= 0) & (x <= 1)),
    lambda inside, gradient: (jnp.where(inside, gradient, 0),),
)


def stretched(share: jax.Array) -> jax.Array:
    """Stretches (0, 1) to [0, 1] with both ends; of a sigmoid, the mask without noise."""
    return inclusive_clip(share * (_HIGH - _LOW) + _LOW)


@dataclasses.dataclass(frozen=True)
class HardConcrete:
    """Settings of `hard_concrete`. Its L0 penalty is the expected share of nonzero neurons."""

    strength: float = 1000.0  # lambda, weight of the penalty
    iterations: int = 2000
    learning_rate: float = 1e-3
    start: float = 0.9  # mask_p: initial value of the whole mask without noise
    temperature: float = 0.33  # beta
    stop_below: float = 0.4  # a mask is finished below this penalty; 0: never
    joint: bool = False  # one mask for all documents instead of one each
    seed: int = 0

    def initial(self) -> float:
        share = (self.start - _LOW) / (_HIGH - _LOW)
        return math.log(share / (1 - share))

    def mask(self, values: jax.Array, iteration: jax.Array) -> jax.Array:
        """Samples the masks of an iteration, with the same noise for every mask."""
        key = jax.random.fold_in(jax.random.key(self.seed, impl="threefry2x32"), iteration)
        u = jnp.clip(jax.random.uniform(key, values.shape[-2:]), _EDGE, 1 - _EDGE)
        return stretched(jax.nn.sigmoid((jnp.log(u) - jnp.log1p(-u) + values) / self.temperature))

    def penalty(self, values: jax.Array) -> jax.Array:
        """Averages over the last two axes, layers and neurons."""
        kept = jax.nn.sigmoid(values - self.temperature * math.log(-_LOW / _HIGH))
        return kept.mean(axis=(-2, -1))

    def score(self, values: jax.Array) -> jax.Array:
        return jax.nn.sigmoid(values)


@dataclasses.dataclass(frozen=True)
class Slimming:
    """Settings of `slimming`. Its penalty is the mean absolute value of the coefficients."""

    strength: float = 30_000.0
    iterations: int = 55
    learning_rate: float = 1e-2
    stop_below: float = 0.0
    joint: bool = False

    def initial(self) -> float:
        return 1.0

    def mask(self, values: jax.Array, iteration: jax.Array) -> jax.Array:
        return inclusive_clip(values)

    def penalty(self, values: jax.Array) -> jax.Array:
        return jnp.abs(values).mean(axis=(-2, -1))

    def score(self, values: jax.Array) -> jax.Array:
        return inclusive_clip(values)


def hard_concrete(
    config: Config, params: dict, batches: list[dict], settings: HardConcrete | None = None
) -> np.ndarray:
    """Scores by Hard Concrete masks -> float32 (documents, L, F) in (0, 1), or (1, L, F) with a
    joint mask.

    Args:
      batches: of `documents.document_batches`.
    Raises:
      InputError: no document has a target.
    """
    settings = settings or HardConcrete()
    return learn(config, params, batches, settings)[settings.strength, settings.iterations]


def slimming(
    config: Config, params: dict, batches: list[dict], settings: Slimming | None = None
) -> np.ndarray:
    """Slimming coefficients -> float32 (documents, L, F) in [0, 1]. As `hard_concrete`."""
    settings = settings or Slimming()
    return learn(config, params, batches, settings)[settings.strength, settings.iterations]


def learn(
    config: Config,
    params: dict,
    batches: list[dict],
    settings: HardConcrete | Slimming,
    strengths: tuple[float, ...] = (),
    iterations: tuple[int, ...] = (),
) -> dict[tuple[float, int], np.ndarray]:
    """Learns scores for every strength and number of iterations. If these are empty, takes those of
    the settings.

    Learns all strengths side by side, and reads out fewer iterations on the way to more. All masks
    see the same noise, so a mask depends neither on the other documents nor on the other strengths.

    Returns:
      {(strength, iterations): float32 (documents or 1, L, F)}.
    """
    strengths = strengths or (settings.strength,)
    iterations = sorted(set(iterations or (settings.iterations,)))
    reader, rows = Reader(config), documents_of(batches)
    count = len(rows["inputs"])
    masks = 1 if settings.joint else count
    copies = {name: np.concatenate([values] * len(strengths)) for name, values in rows.items()}
    strengths_G = np.repeat(np.float32(strengths), masks)
    if settings.joint:  # needs every row at every iteration
        which = copies | {"mask": np.repeat(np.arange(len(strengths)), count)}
        groups = [(strengths_G, which, len(strengths))]
    else:
        at_once = rows_at_once(config, placement.mesh_of(params), ROWS_AT_ONCE)
        groups = [
            (group.pop("strength"), group | {"mask": np.arange(len(group["inputs"]))}, counted)
            for group, counted in in_groups(copies | {"strength": strengths_G}, at_once)
        ]
    advance = placement.jit(lambda *given: _advance(reader, settings, *given))
    found: dict[int, list] = {iteration: [] for iteration in iterations}
    for group_strengths_G, group, counted in groups:
        state = _start(reader, settings, len(group_strengths_G))
        for end in sorted({*range(_CALL, iterations[-1], _CALL), *iterations}):
            state = advance(params, group, group_strengths_G, state, end)
            if end in found:
                found[end].append(np.asarray(settings.score(state.values_GLF))[:counted])
    return {
        (strength, end): np.concatenate(parts)[number * masks : (number + 1) * masks]
        for end, parts in found.items()
        for number, strength in enumerate(strengths)
    }


class _State(NamedTuple):
    iteration: jax.Array
    values_GLF: jax.Array
    moments: optax.OptState
    stopped_G: jax.Array


def _start(reader: Reader, settings: HardConcrete | Slimming, masks: int) -> _State:
    values_GLF = jnp.full((masks, reader.layers, reader.hidden), settings.initial(), jnp.float32)
    moments = optax.adam(settings.learning_rate).init(values_GLF)
    return _State(jnp.int32(0), values_GLF, moments, jnp.zeros(masks, bool))


def _advance(
    reader: Reader, settings, params: dict, rows: dict, strengths_G, state: _State, end: int
) -> _State:
    """Continues to iteration `end`, or until all masks are finished."""
    optimizer, masks = optax.adam(settings.learning_rate), len(strengths_G)
    tokens_G = jax.ops.segment_sum(rows["weights"].sum(axis=1), rows["mask"], masks)

    def objective(values_GLF: jax.Array, iteration: jax.Array) -> jax.Array:
        masks_GLF = settings.mask(values_GLF, iteration)
        nats_R = reader.nats(params, rows, masked(masks_GLF[rows["mask"]]))
        losses_G = jax.ops.segment_sum(nats_R, rows["mask"], masks) / tokens_G
        # The masks are independent: the gradient of the sum is the gradient of each.
        return (losses_G + strengths_G * settings.penalty(values_GLF)).sum()

    def step(state: _State) -> _State:
        iteration, values_GLF, moments, stopped_G = state
        low_G = settings.penalty(values_GLF) < settings.stop_below
        stopped_G = stopped_G | ((iteration % CHECK_EVERY == 0) & low_G)
        gradient_GLF = jax.grad(objective)(values_GLF, iteration)
        change_GLF, moments = optimizer.update(gradient_GLF, moments)
        values_GLF = jnp.where(stopped_G[:, None, None], values_GLF, values_GLF + change_GLF)
        return _State(iteration + 1, values_GLF, moments, stopped_G)

    def unfinished(state: _State) -> jax.Array:
        return (state.iteration < end) & ~state.stopped_G.all()

    return jax.lax.while_loop(unfinished, step, state)
