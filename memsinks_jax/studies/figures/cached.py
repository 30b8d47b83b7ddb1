"""Caches slow measurements next to their run. Repeats them for other weights or questions."""

import dataclasses
import functools
import json
import logging
from collections.abc import Callable, Sequence

from memsinks_jax.reporting import report
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.studies.figures.runs import Run, by_variant

logger = logging.getLogger(__name__)


def cached(runs: Sequence[Run], name: str, asked: dict, measure: Callable[[], dict]) -> dict:
    """The result of `measure`, or that in RUN.NAME.json if models and question are the same.

    Args:
      runs: all that the measurement reads; RUN is the first.
      asked: everything besides the runs that it depends on.
    """
    path = runs[0].workdir.with_name(f"{runs[0].workdir.name}.{name}.json")
    models = []
    for run in runs:
        config = dataclasses.asdict(workdirs.read_config(run.workdir))
        models.append({"config": config, "weights": workdirs.newest_weights(run.workdir)})
    of = json.loads(json.dumps({"runs": models, "asked": asked}))  # as it is read back
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        content = {}
    if content.get("of") != of:
        content = {"of": of, "measured": json.loads(json.dumps(measure()))}
        report.write_json(path, content)
    return content["measured"]


def of_seeds(
    runs: list[Run],
    variants: Sequence[str],
    name: str,
    asked: dict,
    measure: Callable[[dict], dict],
) -> list[Run]:
    """The runs, with `measure({variant: run})` in the `details` of the first of `variants`."""
    groups, found = by_variant(runs), {}
    for seed in groups[variants[0]]:
        models = {variant: groups[variant][seed] for variant in variants}
        found[seed] = cached(list(models.values()), name, asked, functools.partial(measure, models))
        logger.info("measured seed %d", seed)
    return [
        dataclasses.replace(r, details=found[r.seed]) if r.variant == variants[0] else r
        for r in runs
    ]
