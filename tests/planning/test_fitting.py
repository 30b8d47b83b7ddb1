"""The search for what fits, with a fake compiler that does arithmetic."""

import pytest

from memsinks_jax.config import Config, with_fields
from memsinks_jax.planning.estimate import Estimate, TooBig
from memsinks_jax.planning.fitting import what_fits

STATE, LIMIT, PARTS = 1.0, 16.0, 4
SAVED = {"none": 4.0, "products": 2.0, "attention": 1.0, "full": 0.5}  # GiB a row of a turn


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
        return Estimate(
            chips=PARTS,
            chip="made up",
            mesh={},
            hbm_gib={"temporaries": temporaries, "state": STATE},
            evaluation_hbm_gib_per_chip=STATE,
            hbm_limit_gib=LIMIT,
            flops_per_step=1.0,
            flops_per_step_causal=1.0,
            least_ms={},
            collectives=[],
            compile_s=0.0,
            tokens=config.training.batch_size * 2048,
        )


def config_of(rows, remat="none"):
    return with_fields(Config(), {"training.batch_size": rows * PARTS, "compute.remat": remat})


@pytest.mark.parametrize("rows", [8, 30, 64, 1024])
def test_what_would_fit_is_found_by_few_compilations(rows):
    compiler = Compiler(logits=1.0)
    with pytest.raises(TooBig) as error:
        compiler(config_of(rows, "none"))
    fitting = what_fits(config_of(rows, "none"), compiler, PARTS, STATE, error.value)
    assert not Compiler(logits=1.0)(fitting).too_big
    assert fitting.training.batch_size == rows * PARTS
    assert len(compiler.asked) <= 4


def test_nothing_fits_when_one_row_does_not():
    compiler = Compiler(logits=1000.0)
    with pytest.raises(TooBig) as error:
        compiler(config_of(1))
    assert what_fits(config_of(1), compiler, PARTS, STATE, error.value) is None
