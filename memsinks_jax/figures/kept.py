"""Caches slow measurements beside their run, and repeats them if the run or the question has changed."""

import dataclasses
import json
from collections.abc import Callable

from memsinks_jax.figures.runs import Run
from memsinks_jax.reporting import report
from memsinks_jax.runs import workdir as workdirs


def kept(run: Run, name: str, asked: dict, measure: Callable[[], dict]) -> dict:
    """The result of `measure` on a run, or that in RUN.NAME.json if run and question are the same.

    Args:
      asked: everything besides the run that the measurement depends on.
    """
    path = run.workdir.with_name(f"{run.workdir.name}.{name}.json")
    config = dataclasses.asdict(workdirs.read_config(run.workdir))
    of = json.loads(json.dumps({"config": config, "step": run.metrics["step"], "asked": asked}))  # as it is read back
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        content = {}
    if content.get("of") != of:
        content = {"of": of, "measured": json.loads(json.dumps(measure()))}
        report.write_json(path, content)
    return content["measured"]
