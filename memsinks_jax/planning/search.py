"""Searches for other settings that fit: other ways to compute the same batch, and a larger one.
Compiles every candidate.
"""

import contextlib
from collections.abc import Callable

import tqdm

from memsinks_jax.config import Config, with_fields
from memsinks_jax.model.decoder import REMAT_POLICIES
from memsinks_jax.planning.estimate import Estimate, TooBig

POLICIES = tuple(REMAT_POLICIES)  # from most memory to least
MOST_COMPILES = 8  # of a search: about ten minutes on two cores

Compile = Callable[[Config], Estimate]


class Tries:
    """Compiles a limited number of configs and keeps each result: an Estimate or TooBig."""

    def __init__(self, compile_step: Compile, most: int):
        self._compile, self.left, self.done = compile_step, most, []
        self._bar = tqdm.tqdm(total=most, desc="compiling", unit="program", disable=None)

    def __call__(self, config: Config) -> Estimate | TooBig | None:
        """None if no try is left."""
        if not self.left:
            return None
        self.left -= 1
        self._bar.set_postfix_str(settings(config))
        try:
            outcome = self._compile(config)
            outcome = outcome.too_big or outcome
        except TooBig as error:
            outcome = error
        self._bar.update()
        self.done.append((config, outcome))
        return outcome

    def close(self) -> None:
        self._bar.close()


def settings(config: Config) -> str:
    """The settings that a search changes, as flags."""
    return (
        f"--config.compute.remat={config.compute.remat} "
        f"--config.compute.accumulate={config.compute.accumulate} "
        f"--config.compute.loss_chunks={config.compute.loss_chunks} "
        f"--config.training.batch_size={config.training.batch_size}"
    )


def what_fits(
    config: Config, compile_step: Compile, parts: int, state: float, too_big: TooBig
) -> Config | None:
    """A config near one that is too big, by at most three compilations; None if none of them fits.

    Smallest change first: recompute whole layers, then compute the loss in chunks, then use
    microbatches, then a smaller batch.

    Args:
      parts: devices that the batch is split over.
      state: GiB per chip of parameters, optimizer state and batch, which no change makes smaller.
    """
    with contextlib.closing(Tries(compile_step, 3)) as tries:
        if config.compute.remat != "full":
            config = with_fields(config, {"compute.remat": "full"})
            outcome = tries(config)
            if isinstance(outcome, Estimate):
                return config
            too_big = outcome or too_big
        config = with_fields(config, {"compute.loss_chunks": max(config.compute.loss_chunks, 8)})
        while tries.left:
            rows = config.training.batch_size // (parts * config.compute.accumulate)
            over = (
                (too_big.needed - state) / max(too_big.limit - state, 0.1)
                if too_big.needed
                else 4.0
            )
            if rows > 1:
                microbatches = next((n for n in _divisors(rows) if n >= min(over, rows)), rows)
                config = with_fields(
                    config, {"compute.accumulate": config.compute.accumulate * microbatches}
                )
            elif not tries.done or config == tries.done[-1][0]:
                return None
            outcome = tries(config)
            if isinstance(outcome, Estimate):
                return config
            too_big = outcome or too_big
        return None


def search(
    config: Config, compile_step: Compile, parts: int
) -> list[tuple[Config, Estimate | TooBig]]:
    """All compiled configs, the best first: of those that fit, by predicted time per token.

    First it tries the config's own batch: the policies from most memory to least, each with as few
    microbatches as its memory allows. Then, with the best of them, it tries as many rows per chip
    as seem to fit.
    """
    with contextlib.closing(Tries(compile_step, MOST_COMPILES)) as tries:
        for policy in POLICIES:
            asked = with_fields(config, {"compute.remat": policy, "compute.accumulate": 1})
            outcome = tries(asked)
            if isinstance(outcome, Estimate):
                break  # all further policies only recompute more
            rows = asked.training.batch_size // parts
            if isinstance(outcome, TooBig) and tries.left > 3 and rows > 1:
                over = outcome.needed / outcome.limit if outcome.needed else 4.0
                microbatches = next(
                    (n for n in _divisors(rows) if n >= min(1.25 * over, rows)), rows
                )
                if microbatches <= 16:  # with more microbatches, each is too small to be fast
                    tries(with_fields(asked, {"compute.accumulate": microbatches}))
        best = _fitting(tries)
        if best:
            chosen, found = best[0]
            rows = chosen.training.batch_size // (parts * chosen.compute.accumulate)
            free = found.hbm_limit_gib - found.hbm_gib_per_chip
            more = int(rows * free / max(found.kinds_of_memory["temporaries"], 1e-3) * 0.95)
            while tries.left and more > 0:
                size = (rows + more) * parts * chosen.compute.accumulate
                if isinstance(tries(with_fields(chosen, {"training.batch_size": size})), Estimate):
                    break
                more //= 2
        return _fitting(tries) + [done for done in tries.done if isinstance(done[1], TooBig)]


def _fitting(tries: Tries) -> list[tuple[Config, Estimate]]:
    found = [done for done in tries.done if isinstance(done[1], Estimate)]
    return sorted(found, key=lambda done: done[1].compared_ms / done[1].tokens)


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(2, number + 1) if number % divisor == 0]
