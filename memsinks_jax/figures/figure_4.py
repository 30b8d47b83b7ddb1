"""Figure 4: sinks train as well as standard training with repeats, and do not recite once dropped.

Curves of held-out and repeated loss for standard training, training without repeats, sinks as in the paper, and sinks that
open when a document comes back. Two controls are not in the paper: a standard model of the width that is left after
dropping, and ordinary dropout of the same neurons. Figure 4c, sinks beside post-hoc methods, is in `trade_off`.
"""

import pathlib

from memsinks_jax.figures import losses, trade_off
from memsinks_jax.figures import sections as shared
from memsinks_jax.figures.figure import Figure
from memsinks_jax.figures.runs import Run, by_variant
from memsinks_jax.reporting import report
from memsinks_jax.reporting.claims import Claim
from memsinks_jax.reporting.pictures import plt, save

TITLE = "Figure 4: memorization that can be switched off"
CONFIG = "ts_repetition.py"
VARIANTS = ("standard", "no_repeat", "sinks_paper", "sinks", "no_repeat_steps", "narrow", "dropout")

ANSWER = (
    "A model trained with sinks learns as much as a model of standard training, including from repeats. Without its sinks "
    "it is a smaller, ordinary model that no longer recites the repeated documents."
)

TABLE_NOTE = (
    "Losses in nats per token. Gap closed: share of standard's gap between held-out and repeated loss that is gone. "
    "Recovery: repeated loss over that of the model without repeats."
)

LABELS = {
    "standard": "standard",
    "no_repeat": "no repeats, same epochs",
    "no_repeat_steps": "no repeats, same steps",
    "sinks_paper": "sinks as in the paper, dropped",
    "sinks": "sinks that open on return, dropped",
    "narrow": "control: narrow from the start",
    "dropout": "control: ordinary dropout, dropped",
}
_COLOURS = {
    "standard": "#c0392b", "no_repeat": "#7f8c8d", "no_repeat_steps": "#b2babb",
    "sinks_paper": "#5dade2", "sinks": "#1f618d", "narrow": "#d68910", "dropout": "#1e8449",
}  # fmt: skip
_STYLES = {"narrow": "--", "dropout": "-."}  # they lie on the standard line, which shows through


def measure(runs: list[Run]) -> list[Run]:
    """Adds the measurements of 4c -> the same runs. Takes minutes, so only the whole figure has them."""
    return trade_off.measure(runs) if set(by_variant(runs)) == set(VARIANTS) else runs


def note(runs: list[Run]) -> str:
    """The text under the plot."""
    return (
        f"{shared.mean_over_seeds(runs)}, band from the lowest to the highest. "
        f"{shared.floor_sentence(runs)} Every loss is measured on documents that stand alone in their context, with "
        "the sinks dropped unless it says otherwise."
    )


def sections(runs: list[Run], out: pathlib.Path) -> list[str]:
    """Further sections of the page."""
    return [
        *trade_off.sections(runs, out), report.heading("Does it recite?"), *shared.continuations(runs),
        *shared.token_by_token(runs, out),
        shared.open_choices(runs),
    ]  # fmt: skip


def claims(runs: list[Run]) -> list[Claim]:
    """Every claim of figure 4, paired by seed. Omits claims about variants that were not run.

    The paper's claims about sinks are tested on its own sinks, with sinks that open on return beside them.
    """
    rows = []

    def add(name, variants, statement, paper, measure, **bounds):
        rows.extend(losses.paired(runs, name, statement, paper, variants, measure, **bounds))

    add(
        "memorizes", ["standard"], "standard training memorizes: repeated loss over held-out loss",
        "close to 0", lambda s: s.metrics["repeated_loss"] / s.metrics["held_out_loss"], at_most=0.25,
    )  # fmt: skip
    for sinks, of, at_least in (("sinks_paper", "", 0.75), ("sinks", " of sinks that open on return", 0.9)):
        name = "_on_return" if of else ""
        add(
            f"gap_closed{name}", [sinks, "standard"],
            f"share of the gap between held-out and repeated loss that dropping{of} closes",
            ">= 0.5 (section 1, at 360M and 1.7B)", losses.gap_closed, at_least=at_least,
        )  # fmt: skip
        add(
            f"recovery{name}", [sinks, "no_repeat"],
            f"repeated loss{of} over that of the model without repeats, same epochs",
            "about 0.66", losses.recovery_ratio, at_least=0.6,
        )  # fmt: skip
        add(
            f"held_out_standard{name}", [sinks, "standard"], f"held-out loss{of or ' of sinks'} dropped over standard's",
            "about equal", losses.held_out_ratio, at_most=1.0 if of else 1.01,
        )  # fmt: skip
        add(
            f"held_out_no_repeat{name}", [sinks, "no_repeat"],
            f"held-out loss{of or ' of sinks'} dropped over no_repeat's, same epochs",
            "better", losses.held_out_ratio, at_most=1.0,
        )  # fmt: skip
    add(
        "gap_left", ["sinks", "sinks_paper"], "gap that is left, sinks that open on return over the paper's",
        "not in the paper", lambda ours, paper: losses.gap(ours) / losses.gap(paper), at_most=0.5,
    )  # fmt: skip
    add(
        "repeats_help", ["standard", "no_repeat"], "held-out loss of standard over no_repeat's, same epochs",
        "repeats help (4a)", losses.held_out_ratio, at_most=1.0,
    )  # fmt: skip
    add(
        "late_rise", ["sinks_paper"], "rise of the repeated loss, dropped, from its lowest point to the end (nats)",
        "rises late in training", lambda s: s.metrics["repeated_loss"] - min(s.curve("repeated_loss")[1]), at_least=0.01,
    )  # fmt: skip
    add(
        "control_narrow", ["sinks_paper", "narrow"], "repeated loss, sinks dropped over narrow from the start",
        "not run in the paper", lambda s, n: s.metrics["repeated_loss"] / n.metrics["repeated_loss"], at_least=1.5,
    )  # fmt: skip
    add(
        "control_dropout", ["sinks_paper", "dropout"], "repeated loss, sinks dropped over ordinary dropout dropped",
        "not run in the paper", lambda s, d: s.metrics["repeated_loss"] / d.metrics["repeated_loss"], at_least=1.5,
    )  # fmt: skip
    return rows + trade_off.claims(runs)


def draw(runs: list[Run], path: pathlib.Path) -> None:
    """Both panels: mean over seeds, band from the lowest to the highest seed, entropy floor if known."""
    groups = by_variant(runs)
    figure, axes = plt.subplots(1, 2, figsize=(11.5, 4.4), sharey=True, layout="constrained")
    panels = (("held_out_loss", "4a: held-out documents"), ("repeated_loss", "4b: repeated documents"))
    for axis, (name, title) in zip(axes, panels, strict=True):
        for variant, group in groups.items():
            losses.curve(
                axis, list(group.values()), name, LABELS[variant], _COLOURS[variant], _STYLES.get(variant, "-")
            )
        losses.finish(axis, runs, title, "step")
    for variant in [name for name in ("sinks_paper", "sinks") if name in groups]:
        label = LABELS[variant].replace("dropped", "own on")
        losses.curve(axes[1], list(groups[variant].values()), "repeated_loss_own", label, _COLOURS[variant], ":")
    axes[0].set_ylabel("loss (nats per token)")
    # The first evaluations of an untrained model would flatten everything else.
    highest = max(run.curve("held_out_loss")[1][min(1, len(run.curve("held_out_loss")[1]) - 1)] for run in runs)
    axes[0].set_ylim(0, highest * 1.05)
    losses.name_lines(axes[1])
    save(figure, path)


FIGURE = Figure(
    title=TITLE, config=CONFIG, variants=VARIANTS, answer=ANSWER, table_note=TABLE_NOTE,
    table=lambda runs: losses.table(runs, lambda variant: "standard", "no_repeat"),
    row_labels=lambda runs: [LABELS[variant] for variant in by_variant(runs)],
    measure=measure, claims=claims, draw=draw, note=note, sections=sections,
)  # fmt: skip
