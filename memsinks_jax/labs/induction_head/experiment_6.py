"""E6: the number of triggers, fixed or new in every sequence."""

from memsinks_jax.labs.induction_head.presets import Preset
from memsinks_jax.labs.induction_head.study import COLOURS, at_end, bars, curve, minus, records
from memsinks_jax.labs.study import BLUE, RED, Study, finish, panels, save
from memsinks_jax.reporting.claims import Claim, with_interval

TITLE = "Few triggers or many, fixed or random"
COUNTS = (1, 5, 20)


def _counts(preset: Preset) -> list[int]:
    return sorted({min(k, len(preset.statistics.characters)) for k in (*COUNTS, preset.k)})


def recipes(preset: Preset):
    return {
        f"K={k} {kind}": preset.alone(k=k, fixed=kind == "fixed")
        for kind in ("fixed", "random")
        for k in _counts(preset)
    }


def study(preset: Preset, runs) -> Study:
    counts = _counts(preset)
    ends = {label: at_end(several, "acc_clean") for label, several in runs.items()}
    claims = [
        Claim(f"fixed: K={k}", f"clean accuracy with {k} fixed triggers", "learned", ends[f"K={k} fixed"], at_least=0.8)
        for k in counts
    ] + [
        Claim(f"random-harder: K={k}", f"clean accuracy, fixed minus random, K = {k}", "random is harder",
              minus(ends[f"K={k} fixed"], ends[f"K={k} random"]), at_least=0.0)
        for k in counts
    ]  # fmt: skip
    return Study(
        "E6", TITLE,
        "Clean accuracy at the end: " + ", ".join(f"{label} {with_interval(v, 2)}" for label, v in ends.items()) + ".",
        "Head alone: loss on outputs that can be known. With random triggers W_K^2 must store every character.",
        records(runs), claims, lambda path: _draw(runs, counts, ends, path),
    )  # fmt: skip


def _draw(runs, counts, ends, path) -> None:
    figure, axes = panels(3)
    for axis, kind in zip(axes, ("fixed", "random"), strict=False):
        for k, colour in zip(counts, COLOURS, strict=False):
            curve(axis, runs[f"K={k} {kind}"], "acc_clean", f"{k} triggers", colour)
        finish(axis, f"{kind.capitalize()} triggers", "step", "clean accuracy", len(counts), ylim=(0, 1.02))
    groups = {kind: [ends[f"K={k} {kind}"] for k in counts] for kind in ("fixed", "random")}
    bars(axes[2], [f"{k} triggers" for k in counts], groups, (BLUE, RED))
    finish(axes[2], "At the end", "", "clean accuracy", 2, ylim=(0, 1.02))
    save(figure, path)
