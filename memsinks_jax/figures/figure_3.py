"""Figure 3: gradient masking holds the whole model back, and its parts come to depend on each other.

Held-out loss over training for standard training, and for gradient masking with its sinks kept and dropped. Shows both
kinds of masking (training/gradient_masking.py), and the sinks of this project as a control for the paper's argument.
"""

import pathlib

import numpy as np
from matplotlib.ticker import LogLocator, NullFormatter

from memsinks_jax.figures import losses
from memsinks_jax.figures import sections as shared
from memsinks_jax.figures.figure import Figure
from memsinks_jax.figures.runs import Run, Variation, by_variant
from memsinks_jax.reporting import report
from memsinks_jax.reporting.claims import Claim
from memsinks_jax.reporting.pictures import plt, save, tidy
from memsinks_jax.runs import workdir as workdirs

TITLE = "Figure 3: gradient masking"
CONFIG = "ts_repetition.py"
VARIANTS = {
    **{name: Variation(name) for name in ("standard", "gradient_masking", "gradient_detach")},
    "sinks": Variation("sinks_paper"),
}

ANSWER = (
    "With gradient masking, repeated documents train only some neurons, and all other documents only the rest. If this "
    "isolated memorization, training would lose nothing, and those neurons could be dropped without harm."
)

TABLE_NOTE = (
    "Losses in nats per token. Kept: the neurons for repeated documents are on, as in training; dropped: they are off. "
    "Gap: held-out loss dropped minus held-out loss kept. It shows how much the rest depends on those neurons."
)

LABELS = {
    "standard": "standard, with repeats",
    "gradient_masking": "gradient masking",
    "gradient_detach": "masking of activations",
    "sinks": "control: sinks",
}
_COLOURS = {
    "standard": "#c0392b", "gradient_masking": "#6c3483", "gradient_detach": "#d68910", "sinks": "#1f618d",
}  # fmt: skip
MASKED = ("gradient_masking", "gradient_detach")


def note(runs: list[Run]) -> str:
    """The text under the plot."""
    return (
        f"{shared.mean_over_seeds(runs)}, band from the lowest to the highest. "
        f"{shared.floor_sentence(runs)} With sinks, kept means each document's own."
    )


def sections(runs: list[Run], out: pathlib.Path) -> list[str]:
    """Further sections of the page: what the paper leaves open about gradient masking, and the choices here."""
    config = workdirs.read_config(runs[0].workdir)
    choices = [
        ["what is masked", "both: the gradients of an MLP's weights, as in the text and the theory; its activations, as in "
                           "the code that the paper follows"],
        ["share of the neurons for all other documents", f"{config.sinks.shared_fraction:g}"],
        ["which documents train attention, embeddings and norms", "all"],
        ["batches without a repeated document, or with only these", "weights: a block that no document trains stays as it "
                                                                    "is, moments too; activations: AdamW still moves it"],
    ]  # fmt: skip
    rows = [[report.text(cell) for cell in row] for row in choices]
    return [report.table(["the paper leaves open", "here"], rows, ["", ""])]


def gap(run: Run) -> list[float]:
    """Held-out loss with sinks dropped minus kept, at every evaluation, in nats."""
    (_, dropped), (_, kept) = run.curve("held_out_loss"), run.curve("held_out_loss_own")
    return [d - k for d, k in zip(dropped, kept, strict=True)]


def growth(run: Run) -> float:
    """Mean gap over the last third of the evaluations minus that over the first third, in nats."""
    third = max(len(gap(run)) // 3, 1)
    return float(np.mean(gap(run)[-third:]) - np.mean(gap(run)[:third]))


def claims(runs: list[Run]) -> list[Claim]:
    """The claims of figure 3, paired by seed. Omits claims about variants that were not run."""
    rows = []
    for variant in MASKED:
        label = LABELS[variant]
        rows += losses.paired(
            runs, f"{variant}_kept", f"held-out loss of {label}, kept, over standard's", "significantly worse",
            [variant, "standard"], lambda m, s: m.metrics["held_out_loss_own"] / s.metrics["held_out_loss"], at_least=1.0,
        )  # fmt: skip
        rows += losses.paired(
            runs, f"{variant}_gap", f"held-out loss of {label}, dropped less kept (nats)", "dropping degrades", [variant],
            lambda m: gap(m)[-1], at_least=0.0,
        )  # fmt: skip
        rows += losses.paired(
            runs, f"{variant}_growth", f"growth of that gap, {label}: last third of training less first third (nats)",
            "as training progresses", [variant], growth, at_least=0.0,
        )  # fmt: skip
        rows += losses.paired(
            runs, f"{variant}_control", f"the gap of {label} less that of sinks (nats)", "not run in the paper",
            [variant, "sinks"], lambda m, s: gap(m)[-1] - gap(s)[-1], at_least=0.0,
        )  # fmt: skip
    return rows


def table(runs: list[Run]) -> tuple[list[str], list[list[list[float]]]]:
    """Final numbers -> (names of columns, one row per variant; a cell holds one value per seed, none if undefined)."""
    columns = ["held-out, kept", "held-out, dropped", "gap", "repeated, kept", "repeated, dropped", "steps"]
    rows = []
    for group in by_variant(runs).values():
        metrics = [run.metrics for run in group.values()]
        if "held_out_loss_own" not in metrics[0]:  # nothing to drop
            held_out, repeated = ([m[name] for m in metrics] for name in ("held_out_loss", "repeated_loss"))
            rows.append([held_out, [], [], repeated, [], [m["step"] for m in metrics]])
            continue
        rows.append([
            [m["held_out_loss_own"] for m in metrics],
            [m["held_out_loss"] for m in metrics],
            [gap(run)[-1] for run in group.values()],
            [m["repeated_loss_own"] for m in metrics],
            [m["repeated_loss"] for m in metrics],
            [m["step"] for m in metrics],
        ])  # fmt: skip
    return columns, rows


def draw(runs: list[Run], path: pathlib.Path) -> None:
    """Held-out loss, kept and dropped, and the gap between them, over training."""
    groups = by_variant(runs)
    figure, (held_out, gaps) = plt.subplots(1, 2, figsize=(13, 4.4), layout="constrained")
    for variant, group in groups.items():
        colour, several = _COLOURS[variant], list(group.values())
        if variant == "standard":
            losses.curve(held_out, several, "held_out_loss", LABELS[variant], colour)
            continue
        losses.curve(held_out, several, "held_out_loss_own", f"{LABELS[variant]}, kept", colour)
        losses.curve(held_out, several, "held_out_loss", f"{LABELS[variant]}, dropped", colour, ":")
        of_seeds = losses.at_same_steps([(run.curve("held_out_loss")[0], gap(run)) for run in several])
        losses.band(gaps, *of_seeds, LABELS[variant], colour)
    floors = [run.metrics["entropy_floor"] for run in runs if "entropy_floor" in run.metrics]
    if floors:
        held_out.axhline(np.mean(floors), color="black", linewidth=1, linestyle=(0, (4, 3)), label="entropy floor")
    # Dropped losses are many times the kept ones, which must stay distinguishable from standard's.
    held_out.set(title="held-out documents", ylabel="loss (nats per token)", yscale="log")
    held_out.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    held_out.yaxis.set_major_formatter("{x:g}")
    held_out.yaxis.set_minor_formatter(NullFormatter())
    gaps.axhline(0, color="black", linewidth=0.8)
    gaps.set(title="dropped less kept, held-out documents", ylabel="gap (nats per token)")
    for axis in (held_out, gaps):
        axis.set_xlabel("step")
        tidy(axis)
    figure.legend(*held_out.get_legend_handles_labels(), loc="outside right center", frameon=False)
    save(figure, path)


FIGURE = Figure(
    title=TITLE, config=CONFIG, variants=VARIANTS, answer=ANSWER, table_note=TABLE_NOTE,
    row_labels=lambda runs: [LABELS[variant] for variant in by_variant(runs)],
    claims=claims, table=table, draw=draw, note=note, sections=sections,
)  # fmt: skip
