"""All theorems of the lab, by name."""

import functools

from memsinks_jax.studies.labs import study as shared
from memsinks_jax.studies.labs.linear_network import (
    accumulation,
    coadaptation,
    disentangled,
    forgetting,
    opening,
    softmax,
    threshold,
)
from memsinks_jax.studies.labs.study import Study

THEOREMS = {
    "disentangled": disentangled,
    "coadaptation": coadaptation,
    "softmax": softmax,
    "forgetting": forgetting,
    "accumulation": accumulation,
    "threshold": threshold,
    "opening": opening,
}


def measure(names: list[str], seeds: tuple[int, ...]) -> list[Study]:
    return shared.measure(
        "theorem", {name: functools.partial(THEOREMS[name].study, seeds) for name in names}
    )
