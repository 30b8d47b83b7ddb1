"""The birth of an induction head: python -m memsinks_jax.labs.induction_head --experiment=E1 --out=runs/induction_head

Trains and measures the runs of the experiment. Writes results.json, experiment_NAME.png and index.html once everything is
done. Training saves its state to runs/ beside them: the same command resumes from there, and experiments with the same
--out share their runs.
"""

import contextlib
import dataclasses
import functools
import logging
import pathlib
import signal
import sys
import threading
import time

import tqdm
from absl import flags

from memsinks_jax.runs import command_line, host_memory, interruption
from memsinks_jax.studies.labs import study as shared
from memsinks_jax.studies.labs.induction_head import bigrams, presets, sinks, training
from memsinks_jax.studies.labs.induction_head.bigrams import Statistics
from memsinks_jax.studies.labs.induction_head.experiments import EXPERIMENTS
from memsinks_jax.studies.labs.induction_head.presets import Preset
from memsinks_jax.studies.labs.induction_head.sinks import World
from memsinks_jax.studies.labs.induction_head.study import Experiment
from memsinks_jax.studies.labs.induction_head.training import Recipe, Run
from memsinks_jax.studies.labs.study import Study

logger = logging.getLogger("memsinks_jax.labs.induction_head")

# Live probes, shown with the progress bar.
SHOWN = ("acc_clean", "fresh own acc_clean", "wo1", "wk1", "wk0_64", "wk0", "ff1")


def train(recipe: Recipe | World, statistics: Statistics, seed: int, folder: pathlib.Path, name: str) -> Run:
    """One run, with a progress bar that shows its name. Can be stopped."""
    path = folder / f"{training.digest(recipe, statistics, seed)}.npz"
    folder.mkdir(parents=True, exist_ok=True)
    begun, quiet = time.monotonic(), not sys.stderr.isatty()
    with stop_on_signals() as stop, tqdm.tqdm(total=recipe.steps, unit="step", disable=quiet, leave=False) as bar:
        bar.set_description(name)

        def tell(step, point):
            bar.update(step - bar.n)
            bar.set_postfix({probe: f"{point[probe]:.2f}" for probe in SHOWN if probe in point})
            if stop.is_set():
                raise interruption.Interrupted(f"{name}, at step {step}")

        run = (sinks if isinstance(recipe, World) else training).train(recipe, statistics, seed, path, tell)
    if quiet:
        logger.info("%s: %d steps, %.0f s", name, recipe.steps, time.monotonic() - begun)
    return run


def measure(preset: Preset, names: list[str], out: pathlib.Path) -> list[Study]:
    """Runs the experiments one after the other. A run that several of them have is trained once."""
    host_memory.keep_freed_memory()
    done: dict[tuple[Recipe | World, int], Run] = {}

    def study(experiment: Experiment) -> Study:
        recipes = experiment.recipes(preset)
        for label, recipe in recipes.items():
            for seed in preset.seeds:
                if (recipe, seed) not in done:
                    name = f"{label}, seed {seed}"
                    done[recipe, seed] = train(recipe, preset.statistics, seed, out / "runs", name)
        runs = {label: [done[recipe, seed] for seed in preset.seeds] for label, recipe in recipes.items()}
        return experiment.study(preset, runs)

    return shared.measure("experiment", {name: functools.partial(study, EXPERIMENTS[name]) for name in names})


def forecast(preset: Preset, names: list[str]) -> str:
    """The number of runs and steps, and an estimate of the time."""
    recipes = list(dict.fromkeys(recipe for name in names for recipe in EXPERIMENTS[name].recipes(preset).values()))
    if not recipes:
        return f"preset {preset.name}: nothing to train, minutes"
    seconds = presets.predicted_seconds(preset, recipes) * len(preset.seeds)
    sizes = sorted({(recipe.steps, recipe.batch, recipe.law.length, recipe.model.d) for recipe in recipes})
    all_sizes = "; ".join(f"{s} steps of {b} sequences of {t} tokens at width {d}" for s, b, t, d in sizes)
    length = f"{seconds / 3600:.1f} hours" if seconds > 5400 else f"{seconds / 60:.0f} minutes"
    runs = len(recipes) * len(preset.seeds)
    return f"preset {preset.name}: {runs} runs ({all_sizes}), about {length} on this machine"


def write(out: pathlib.Path, experiment: str, preset: Preset, studies: list[Study], command: str) -> dict:
    """Writes everything -> the content of results.json."""
    about = {"experiment": experiment, "preset": preset.name, "seeds": list(preset.seeds)}
    if len(studies) > 1:
        studies = [dataclasses.replace(study, title=f"{study.name}: {study.title}") for study in studies]
    return shared.write(out, about, "The birth of an induction head", studies, command)


@contextlib.contextmanager
def stop_on_signals():
    """Makes SIGTERM and Ctrl-C set the given event during training, which then saves its state. At other times they end
    the command as usual: there is nothing to save."""
    stop, signals = threading.Event(), (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: stop.set()) for number in signals]
    try:
        yield stop
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


def main() -> None:
    experiment_flag = flags.DEFINE_enum("experiment", None, [*EXPERIMENTS, "all"], "Experiment.", required=True)
    out_flag = flags.DEFINE_string("out", None, "Folder for results.json, the pictures and index.html.", required=True)
    text_flag = flags.DEFINE_string("text", None, "Text file to count bigrams in; default: the bundled table.")
    preset_flag = flags.DEFINE_enum("preset", "laptop", ["laptop", "paper"], "Size of model and training.")
    seeds_flag = flags.DEFINE_list("seeds", ["0", "1", "2"], "Whole numbers; three or more give intervals.")
    choices = {
        "k": flags.DEFINE_integer("k", None, "Triggers per sequence; default 5."),
        "d": flags.DEFINE_integer("d", None, "Width; default: the preset's."),
        "batch": flags.DEFINE_integer("batch", None, "Sequences per step; default: the preset's."),
        "steps": flags.DEFINE_integer("steps", None, "Steps of a run; default: the experiment's."),
    }

    def run() -> dict:
        chosen = {name: flag.value for name, flag in choices.items() if flag.value is not None}
        seeds = command_line.seeds(seeds_flag.value)
        statistics = bigrams.bundled() if text_flag.value is None else bigrams.read_text(text_flag.value)
        preset = Preset(preset_flag.value, statistics, seeds, **chosen).check()
        names = list(EXPERIMENTS) if experiment_flag.value == "all" else [experiment_flag.value]
        for name in names:
            for recipe in EXPERIMENTS[name].recipes(preset).values():
                recipe.law.check(statistics)
        out = shared.folder(out_flag.value)
        if preset.name == "paper" or sys.stderr.isatty():
            logger.info("%s", forecast(preset, names))
        studies = measure(preset, names, out)
        command = f"python -m memsinks_jax.labs.induction_head --experiment={experiment_flag.value}"
        command += f" --preset={preset.name} --seeds={','.join(map(str, seeds))}"
        command += "".join(f" --{name}={value}" for name, value in chosen.items())
        command += f" --text={text_flag.value}" if text_flag.value else ""
        return write(out, experiment_flag.value, preset, studies, f"{command} --out={out}")

    command_line.run(run)


if __name__ == "__main__":
    main()
