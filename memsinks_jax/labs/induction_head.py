"""The birth of an induction head: python -m memsinks_jax.labs.induction_head --experiment=E1
--out=runs/induction_head

Trains and measures the runs of the experiment. Writes results.json, experiment_NAME.png and
index.html once everything is done. Training saves its state to runs/ next to them: the same command
resumes from there, and experiments with the same --out share their runs.
"""

import dataclasses
import functools
import logging
import pathlib
import signal
import sys
import threading
import time

import tqdm

from memsinks_jax.model import host_memory
from memsinks_jax.runs import command_line, interruption
from memsinks_jax.runs.command_line import option
from memsinks_jax.studies.labs import study as shared
from memsinks_jax.studies.labs.induction_head import bigrams, presets, sinks, training
from memsinks_jax.studies.labs.induction_head.bigrams import Statistics
from memsinks_jax.studies.labs.induction_head.experiments import EXPERIMENTS
from memsinks_jax.studies.labs.induction_head.presets import Preset
from memsinks_jax.studies.labs.induction_head.sinks import World
from memsinks_jax.studies.labs.induction_head.study import Experiment
from memsinks_jax.studies.labs.induction_head.training import Recipe, Run

logger = logging.getLogger("memsinks_jax.labs.induction_head")
TITLE = "The birth of an induction head"

# Live probes, shown with the progress bar.
SHOWN = ("acc_clean", "fresh own acc_clean", "wo1", "wk1", "wk0_64", "wk0", "ff1")


def train(
    recipe: Recipe | World, statistics: Statistics, seed: int, folder: pathlib.Path, name: str
) -> Run:
    """One run, with a progress bar that shows its name.

    During it SIGTERM and Ctrl-C save the state. At other times there is nothing to save.
    """
    path = folder / f"{training.digest(recipe, statistics, seed)}.npz"
    folder.mkdir(parents=True, exist_ok=True)
    begun, quiet, stop = time.monotonic(), not sys.stderr.isatty(), threading.Event()
    before = [signal.signal(number, lambda *_: stop.set()) for number in interruption.SIGNALS]
    try:
        with tqdm.tqdm(
            total=recipe.steps, unit="step", desc=name, disable=quiet, leave=False
        ) as bar:

            def report(step, point):
                bar.update(step - bar.n)
                bar.set_postfix({probe: f"{point[probe]:.2f}" for probe in SHOWN if probe in point})
                if stop.is_set():
                    raise interruption.Interrupted(f"{name}, at step {step}")

            run = (sinks if isinstance(recipe, World) else training).train(
                recipe, statistics, seed, path, report
            )
    finally:
        for number, handler in zip(interruption.SIGNALS, before, strict=True):
            signal.signal(number, handler)
    if quiet:
        logger.info("%s: %d steps, %.0f s", name, recipe.steps, time.monotonic() - begun)
    return run


def measure(preset: Preset, names: list[str], out: pathlib.Path) -> list[shared.Study]:
    """Runs the experiments one after the other. A run that several of them have is trained once."""
    host_memory.keep_freed_memory()

    done: dict[tuple[Recipe | World, int], Run] = {}

    def study(experiment: Experiment) -> shared.Study:
        recipes = experiment.recipes(preset)
        for label, recipe in recipes.items():
            for seed in preset.seeds:
                if (recipe, seed) not in done:
                    name = f"{label}, seed {seed}"
                    done[recipe, seed] = train(recipe, preset.statistics, seed, out / "runs", name)
        return experiment.study(
            preset, {k: [done[one, seed] for seed in preset.seeds] for k, one in recipes.items()}
        )

    return shared.measure(
        "experiment", {name: functools.partial(study, EXPERIMENTS[name]) for name in names}
    )


def forecast(preset: Preset, names: list[str]) -> str:
    """The number of runs and steps, and an estimate of the time."""
    recipes = list(
        dict.fromkeys(
            recipe for name in names for recipe in EXPERIMENTS[name].recipes(preset).values()
        )
    )
    if not recipes:
        return f"preset {preset.name}: nothing to train, minutes"
    seconds = presets.predicted_seconds(preset, recipes) * len(preset.seeds)
    runs = len(recipes) * len(preset.seeds)
    sizes = sorted(
        {(recipe.steps, recipe.batch, recipe.law.length, recipe.model.d) for recipe in recipes}
    )
    all_sizes = "; ".join(
        f"{s} steps of {b} sequences of {t} tokens at width {d}" for s, b, t, d in sizes
    )
    length = f"{seconds / 3600:.1f} hours" if seconds > 5400 else f"{seconds / 60:.0f} minutes"
    return f"preset {preset.name}: {runs} runs ({all_sizes}), about {length} on this machine"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    experiment: str = option(None, "Experiment.", choices=[*EXPERIMENTS, "all"], required=True)
    text: str | None = option(None, "Text file to count bigrams in; default: the bundled table.")
    preset: str = option("laptop", "Size of model and training.", choices=["laptop", "paper"])
    k: int | None = option(None, "Triggers per sequence; default 5.")
    d: int | None = option(None, "Width; default: the preset's.")
    batch: int | None = option(None, "Sequences per step; default: the preset's.")
    steps: int | None = option(None, "Steps of a run; default: the experiment's.")
    out: str = option(None, "Folder for results.json, the pictures and index.html.", required=True)
    seeds: tuple[str, ...] = option(("0", "1", "2"), "Whole numbers; three or more give intervals.")


def main(options: Options) -> dict:
    given = {name: getattr(options, name) for name in ("k", "d", "batch", "steps")}
    chosen = {name: value for name, value in given.items() if value is not None}
    seeds = command_line.seeds(options.seeds)
    statistics = bigrams.bundled() if options.text is None else bigrams.read_text(options.text)
    preset = Preset(options.preset, statistics, seeds, **chosen).check()
    names = list(EXPERIMENTS) if options.experiment == "all" else [options.experiment]
    for name in names:
        for recipe in EXPERIMENTS[name].recipes(preset).values():
            recipe.law.check(statistics)
    if preset.name == "paper" or sys.stderr.isatty():
        logger.info("%s", forecast(preset, names))
    about = {"experiment": options.experiment, "preset": preset.name, "seeds": list(seeds)}
    with shared.folder(options.out) as path:
        studies, command = measure(preset, names, path), command_line.command("labs.induction_head")
        return shared.write(path, about, TITLE, studies, command)


if __name__ == "__main__":
    command_line.run(main, Options)
