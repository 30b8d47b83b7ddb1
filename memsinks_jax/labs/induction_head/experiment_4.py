"""E4: uniform or bigram outputs, in training and at test time (the study's figure 4, centre)."""

import dataclasses

from memsinks_jax.labs.induction_head.presets import Preset
from memsinks_jax.labs.induction_head.study import at_end, bars, curve, minus, records
from memsinks_jax.labs.study import BLUE, RED, Study, finish, panels, save
from memsinks_jax.reporting.claims import Claim, with_interval

TITLE = "A head learned from one law of outputs, tried on another"


def recipes(preset: Preset):
    made = {}
    for name, bigram in (("uniform", False), ("bigram", True)):
        recipe = preset.world(fixed=False, bigram_outputs=bigram)
        made[name] = dataclasses.replace(recipe, test_law=dataclasses.replace(recipe.law, bigram_outputs=not bigram))
    return made


def study(preset: Preset, runs) -> Study:
    own = {name: at_end(runs[name], "acc_clean") for name in runs}
    other = {name: at_end(runs[name], "other_acc_clean") for name in runs}
    loss = {name: minus(other[name], own[name]) for name in runs}
    claims = [
        Claim("uniform-generalises", "clean accuracy on bigram outputs minus on uniform ones, trained on uniform",
              "uniform generalises to bigram", loss["uniform"], at_least=-0.1),
        Claim("bigram-generalises-worse", "clean accuracy on uniform outputs: trained on uniform minus trained on bigram",
              "bigram generalises worse", minus(own["uniform"], other["bigram"]),
              at_least=0.05),
    ]  # fmt: skip
    return Study(
        "E4", TITLE,
        f"Trained on uniform outputs: {with_interval(own['uniform'], 2)} on uniform, {with_interval(other['uniform'], 2)} "
        f"on bigram ones. Trained on bigram outputs: {with_interval(own['bigram'], 2)} on bigram, "
        f"{with_interval(other['bigram'], 2)} on uniform ones.",
        f"K = {preset.k} random triggers, linear W_F, loss on all tokens; accuracy without sequences caught in a cycle. "
        "Bigram outputs are often right by bigrams alone.",
        records(runs), claims, lambda path: _draw(runs, own, other, path),
    )  # fmt: skip


def _draw(runs, own, other, path) -> None:
    figure, axes = panels(3)
    for axis, (name, several), against in zip(axes, runs.items(), ("bigram", "uniform"), strict=False):
        curve(axis, several, "acc_clean", f"{name} outputs, as trained", BLUE)
        curve(axis, several, "other_acc_clean", f"{against} outputs", RED, "--")
        finish(axis, f"Trained on {name} outputs", "step", "clean accuracy", 2, ylim=(0, 1.02))
    tested = {"uniform outputs": [own["uniform"], other["bigram"]], "bigram outputs": [other["uniform"], own["bigram"]]}
    bars(axes[2], ["trained on uniform", "trained on bigram"], tested, (BLUE, RED))
    finish(axes[2], "At the end, by outputs tried", "", "clean accuracy", 2, ylim=(0, 1.02))
    save(figure, path)
