"""Caches slow measurements beside their run, and repeats them if a run they read or the question has changed."""

import dataclasses
import json
from collections.abc import Callable, Sequence

from memsinks_jax.figures.runs import Run
from memsinks_jax.reporting import report
from memsinks_jax.runs import workdir as workdirs


def kept(runs: Sequence[Run], name: str, asked: dict, measure: Callable[[], dict]) -> dict:
    """The result of `measure`, or that in RUN.NAME.json if runs and question are the same.

    Args:
      runs: all that the measurement reads; RUN is the first.
      asked: everything besides the runs that it depends on.
    """
    path = runs[0].workdir.with_name(f"{runs[0].workdir.name}.{name}.json")
    models = [
        {"config": dataclasses.asdict(workdirs.read_config(run.workdir)), "step": run.metrics["step"]} for run in runs
    ]
    of = json.loads(json.dumps({"runs": models, "asked": asked}))  # as it is read back
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        content = {}
    if content.get("of") != of:
        content = {"of": of, "measured": json.loads(json.dumps(measure()))}
        report.write_json(path, content)
    return content["measured"]
