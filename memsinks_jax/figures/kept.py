"""What takes minutes to measure stays beside its run, and is measured again where the run or the question has changed."""

import dataclasses
import json
from collections.abc import Callable

from memsinks_jax.figures.runs import Run
from memsinks_jax.reporting import report
from memsinks_jax.runs import workdir as workdirs


def kept(run: Run, name: str, asked: dict, measure: Callable[[], dict]) -> dict:
    """What `measure` finds on a run, from RUN.NAME.json where that is of the same run and question.

    Args:
      asked: what decides the measurement, besides the run.
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
