"""The search for what fits, with a fake compiler that does arithmetic."""

import dataclasses

import pytest

from memsinks_jax.config import Config, with_fields
from memsinks_jax.planning.estimate import Estimate, TooBig
from memsinks_jax.planning.search import MOST_COMPILES, Tries, search, settings, what_fits

STATE, LIMIT, PARTS = 1.0, 16.0, 4
SAVED = {"none": 4.0, "products": 2.0, "attention": 1.0, "full": 0.5}  # GiB a row of a turn
COST = {"none": 3.0, "products": 3.1, "attention": 3.8, "full": 4.0}


class Compiler:
    def __init__(self, logits=0.0):
        self.asked, self._logits = [], logits

    def __call__(self, config):
        self.asked.append(config)
        rows = config.training.batch_size / PARTS / config.compute.accumulate
        temporaries = rows * (
            SAVED[config.compute.remat] + self._logits / config.compute.loss_chunks
        )
        needed = STATE + temporaries
        if needed > LIMIT:
            raise TooBig(needed, LIMIT)
        milliseconds = (
            config.training.batch_size * COST[config.compute.remat] + config.compute.accumulate
        )
        return Estimate(
            chips=PARTS,
            chip="made up",
            mesh={},
            kinds_of_memory={"temporaries": temporaries},
            hbm_gib_per_chip=needed,
            evaluation_hbm_gib_per_chip=STATE,
            hbm_limit_gib=LIMIT,
            flops_per_step=1.0,
            flops_per_step_causal=1.0,
            cycles=1,
            compiled_ms=milliseconds,
            kernels_ms=0.0,
            kernel_flops=0.0,
            roofline_ms={"": 0.0},
            collectives=[],
            compile_s=0.0,
            unknown=[],
            tokens=config.training.batch_size * 2048,
        )


def config_of(rows, remat="none"):
    return with_fields(Config(), {"training.batch_size": rows * PARTS, "compute.remat": remat})


def test_a_batch_that_fits_with_nothing_computed_again_stays_so_and_grows():
    compiler = Compiler()
    (best, outcome), *_ = search(config_of(2, "full"), compiler, PARTS)
    assert best.compute.remat == "none" and outcome.fits
    assert best.training.batch_size == 3 * PARTS  # 4 GiB a row, 15 GiB free
    assert len(compiler.asked) == 2


def test_on_gpus_it_is_no_merit_that_small_arrays_may_stay_in_the_cache():
    """Settings are compared by all of their memory traffic, not by the lower bound of their time."""

    class OnGPUs(Compiler):
        def __call__(self, config):
            found = super().__call__(config)
            # the less, the more traffic there is
            bound = {"": 1e-12 * found.tokens**2 / found.compiled_ms}
            return dataclasses.replace(
                found,
                compiled_ms=0.0,
                roofline_ms=bound,
                at_least=True,
                all_traffic_ms=found.compiled_ms,
            )

    fitting = [
        one for _, one in search(config_of(16), OnGPUs(), PARTS) if isinstance(one, Estimate)
    ]
    per_token = [one.all_traffic_ms / one.tokens for one in fitting]
    assert len(per_token) > 2 and per_token == sorted(per_token)


def test_the_cheapest_of_what_fits_comes_first():
    found = search(config_of(16), Compiler(), PARTS)
    outcomes = [outcome for _, outcome in found]
    fitting = [outcome for outcome in outcomes if isinstance(outcome, Estimate)]
    per_token = [outcome.predicted_step_ms / outcome.tokens for outcome in fitting]
    assert per_token == sorted(per_token)
    # in parts: cheaper than computing again
    assert found[0][0].compute.remat in ("none", "products")
    assert any(isinstance(outcome, TooBig) for outcome in outcomes)


@pytest.mark.parametrize("rows", [1, 3, 16, 64, 4096])
def test_a_search_ends(rows):
    compiler = Compiler()
    search(config_of(rows), compiler, PARTS)
    assert len(compiler.asked) <= MOST_COMPILES
    assert len(compiler.asked) == len({settings(config) for config in compiler.asked})


def test_no_more_is_compiled_than_allowed():
    compiler = Compiler()
    tries = Tries(compiler, 1)
    assert tries(config_of(1)).fits
    assert tries(config_of(2)) is None
    assert len(compiler.asked) == 1


@pytest.mark.parametrize("rows", [8, 30, 64, 1024])
def test_what_would_fit_is_found_by_few_compilations(rows):
    compiler = Compiler(logits=1.0)
    with pytest.raises(TooBig) as error:
        compiler(config_of(rows, "none"))
    fitting = what_fits(config_of(rows, "none"), compiler, PARTS, STATE, error.value)
    assert Compiler(logits=1.0)(fitting).fits
    assert fitting.training.batch_size == rows * PARTS
    assert len(compiler.asked) <= 4


def test_nothing_fits_when_one_row_does_not():
    compiler = Compiler(logits=1000.0)
    with pytest.raises(TooBig) as error:
        compiler(config_of(1))
    assert what_fits(config_of(1), compiler, PARTS, STATE, error.value) is None
