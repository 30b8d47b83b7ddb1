"""The two sizes at which every experiment can run.

laptop: width 128, 4096 tokens per step in sequences of 256 (E1, E8), else 2048 in sequences of 128
(the head alone) or 64 (all tokens). Gradients are clipped to norm 1, so that small batches can
learn at a high rate. paper: width 256, 512 sequences of 256 tokens, rates as in the study's code,
no clipping. The time of a step is predicted from its multiplications.
"""

import dataclasses
import time

import jax

from memsinks_jax.config import InputError
from memsinks_jax.studies.labs.induction_head import training
from memsinks_jax.studies.labs.induction_head.bigrams import Statistics
from memsinks_jax.studies.labs.induction_head.law import Law
from memsinks_jax.studies.labs.induction_head.model import Full, TwoLayers
from memsinks_jax.studies.labs.induction_head.sinks import World
from memsinks_jax.studies.labs.induction_head.training import Recipe


@dataclasses.dataclass(frozen=True)
class Preset:
    """Where experiments take their recipes from.

    Attributes:
      name: 'laptop' or 'paper'. statistics: of the text. k: triggers, if an experiment does not
        vary them. d, batch, length: sizes. seeds. steps: of the head alone. d, batch and steps:
        None takes the preset's own.
    """

    name: str
    statistics: Statistics
    seeds: tuple[int, ...] = (0, 1, 2)
    k: int = 5
    d: int | None = None
    batch: int | None = None
    steps: int | None = None

    @property
    def small(self) -> bool:
        return self.name == "laptop"

    @property
    def width(self) -> int:
        return self.d or (128 if self.small else 256)

    def _steps(self, laptop: int, paper: int) -> int:
        return self.steps or (laptop if self.small else paper)

    def alone(self, length: int | None = None, **law) -> Recipe:
        """Trains the head alone: fixed triggers, loss on predictable tokens, no feed-forward
        layer.
        """
        length = length or (128 if self.small else 256)
        steps = self._steps(1200 if length == 256 else 600, 1000)
        # Longer sequences do better at half the rate. Short ones finish in half the steps.
        rate, batch = 0.05 if length == 256 else 0.1, self.batch or (16 if self.small else 512)
        rate = {"learning_rate": rate, "clip": 1.0} if self.small else {"learning_rate": 0.03}
        law = Law(**{"k": self.k, "length": length, **law})
        return Recipe(law, TwoLayers(self.width), steps, batch, **rate)

    def world(self, **law) -> Recipe:
        """Trains on all tokens, with a linear feed-forward layer: bigrams and the head together."""
        rate = {"learning_rate": 0.1, "clip": 1.0} if self.small else {"learning_rate": 0.2}
        law = Law(**{"k": self.k, "length": 64 if self.small else 256, **law})
        model = TwoLayers(self.width, feed_forward="linear")
        batch = self.batch or (32 if self.small else 512)
        return Recipe(law, model, self.steps or 1000, batch, everywhere=True, **rate)

    def full(self, **model) -> Recipe:
        """Trains the ordinary transformer on all tokens, with random triggers."""
        law = Law(self.k, fixed=False, length=64 if self.small else 256)
        batch, rate = self.batch or (32 if self.small else 64), 0.002 if self.small else 0.01
        adamw = {"optimizer": "adamw", "weight_decay": 0.01, "everywhere": True}
        return Recipe(
            law, Full(self.d or 128, **model), self._steps(700, 1000), batch, rate, **adamw
        )

    def check(self) -> "Preset":
        """Returns itself. Raises an InputError that names the flag."""
        Law(self.k).check(self.statistics)

        def refuse(flag: str, wrong: bool, problem: str) -> None:
            if wrong:
                raise InputError(f"--{flag}={getattr(self, flag)}: give {problem}")

        refuse("seeds", max(self.seeds) >= 2**31, "whole numbers up to 2147483647")
        if self.d is not None:  # a multiple of 4 for the heads, and pairs of rotary positions
            refuse("d", self.d % 4 or not 8 <= self.d <= 2048, "a multiple of 4, 8 to 2048")
        if self.batch is not None:
            most = training.AT_ONCE
            refuse("batch", self.batch < 1, "a whole number from 1")
            wrong = self.batch > most and self.batch % most
            refuse("batch", wrong, f"a multiple of {most}, or less than that")
        refuse("steps", self.steps is not None and self.steps < 10, "a whole number from 10")
        return self


def work(recipe: Recipe | World) -> float:
    """Rough number of multiplications in a run: weights and attention, forward and backward."""
    length, d, model = recipe.law.length, recipe.model.d, recipe.model
    if isinstance(model, Full):
        a_token = model.layers * (12 * d * d + 2 * length * d)
    else:
        hidden = 2 * (model.hidden or 4 * d) * d if model.feed_forward == "mlp" else 0
        a_token = 4 * d * d + 4 * length * d + hidden
    return 3.0 * a_token * length * recipe.batch * recipe.steps


def predicted_seconds(preset: Preset, recipes: list[Recipe | World]) -> float:
    """Predicted seconds of these runs here: times a few small steps of one, scaled by `work`."""
    timed = next((r for r in recipes if isinstance(r, Recipe)), preset.alone())
    statistics = preset.statistics
    small = dataclasses.replace(timed, batch=min(timed.batch, 16))
    trained, others, state = training.start(small, statistics, 0)
    key = jax.random.key(0)
    carry, _ = jax.block_until_ready(
        training.steps(small, statistics, (trained, state), others, key, 0, 3)
    )
    begun = time.monotonic()
    jax.block_until_ready(training.steps(small, statistics, carry, others, key, 3, 3))
    rate = work(dataclasses.replace(small, steps=3)) / (time.monotonic() - begun)
    return sum(map(work, recipes)) / rate
