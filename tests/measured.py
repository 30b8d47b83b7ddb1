"""Runs for tests of figures: tiny trained ones, and made-up results of post-hoc methods."""

import pathlib
from collections.abc import Iterable

from memsinks_jax.config import Config
from memsinks_jax.loop import train_and_evaluate
from memsinks_jax.studies.baselines.removal import Point
from memsinks_jax.studies.figures import post_hoc
from memsinks_jax.studies.figures.runs import Run
from memsinks_jax.training.metrics import read_metrics


def trained(config: Config, workdir: pathlib.Path, variant: str) -> Run:
    """Trains a run, as figures read it."""
    train_and_evaluate(config, workdir)
    lines = read_metrics(workdir)
    metrics = {name: value for line in lines for name, value in line.items()}
    return Run(variant, 0, workdir, metrics, lines)


def settings_of(flags: Iterable[str]) -> dict[str, str]:
    """--config.NAME=VALUE -> {NAME: VALUE}."""
    return dict(flag.removeprefix("--config.").split("=", 1) for flag in flags)


def details(curves, before=(0.0, 0.0), found=None):
    """{method: [(forgetting, rise), ...]} or {method: {"repeated": [...], "canary": [...]}} ->
    details of a run.

    `before`: the model's loss on repeated and on held-out documents.
    """
    found = found or {"strength": 100.0, "iterations": 100}
    made = {}
    for method, of in curves.items():
        sets = of if isinstance(of, dict) else {"repeated": of}
        made[method] = {
            "asked": post_hoc._asked(method),
            "found": found if method == "hard_concrete" else {},
        }
        made[method] |= {
            name: [
                Point(
                    0.1 * number, forgets, rises, before[0] + forgets, before[1] + rises
                )._asdict()
                for number, (forgets, rises) in enumerate(points, start=1)
            ]
            for name, points in sets.items()
        }
    return made
