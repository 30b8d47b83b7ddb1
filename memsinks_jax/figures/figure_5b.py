"""Figure 5b: sinks in models of four sizes, each compared with a standard model of the same size."""

import pathlib

from memsinks_jax import sinks
from memsinks_jax.figures import knob, losses, on_return, post_hoc
from memsinks_jax.figures.figure import Figure
from memsinks_jax.figures.runs import Run, Variation, by_variant
from memsinks_jax.interop import hugging_face
from memsinks_jax.reporting.claims import Claim
from memsinks_jax.runs import workdir as workdirs

TITLE = "Figure 5b: four sizes of the model"
CONFIG = "ts_repetition.py"
SIZES = ("quarter", "half", "whole", "one_and_a_half")  # of the config
VARIANTS = on_return.both({
    f"{name}_{size}": Variation(f"{variant},{size}")
    for size in SIZES for name, variant in {"standard": "standard", "sinks": "sinks_paper"}.items()
})  # fmt: skip
ANSWER = (
    "Sinks remove memorization from models of every size. The price on other documents depends on how much the shared "
    "neurons alone can hold: small models pay, large ones hardly."
)
TABLE_NOTE = f"{knob.TABLE_NOTE} Sizes are widths relative to the preset's. Parameters include the sinks."


def measure(runs: list[Run]) -> list[Run]:
    """Adds the results of post-hoc methods to `details` of the smallest standard models -> the same runs."""
    return post_hoc.measured(runs, lambda run: run.variant == f"standard_{SIZES[0]}", post_hoc.OF_THE_PAPER)


def sections(runs: list[Run], out: pathlib.Path) -> list[str]:
    """Further sections of the page."""
    looked_at = [run for run in runs if run.details]
    return knob.sections(runs, out) + (post_hoc.how(looked_at, post_hoc.OF_THE_PAPER) if looked_at else [])


def _standard_of(variant: str) -> str:
    return on_return.published(variant).replace("sinks_", "standard_")


def _parameters(run: Run) -> int:
    config = workdirs.read_config(run.workdir)
    return hugging_face.parameters(config, sum(sinks.partition(config.model, config.sinks)))


def row_labels(runs: list[Run]) -> list[str]:
    labels = {}
    for name, group in by_variant(runs).items():
        variant, size = on_return.published(name).split("_", 1)
        parameters = _parameters(next(iter(group.values())))
        labels[on_return.published(name)] = f"{variant}, {size.replace('_', ' ')} ({parameters / 1e6:.2f} M)"
    return on_return.labels(runs, labels)


def draw(runs: list[Run], path: pathlib.Path) -> None:
    places = {
        name: _parameters(next(iter(group.values()))) / 1e6
        for name, group in by_variant(on_return.of_the_paper(runs)).items()
        if name.startswith("sinks_")
    }
    knob.draw(runs, path, places, _standard_of, "million parameters", log=True)


@on_return.beside
def claims(runs: list[Run]) -> list[Claim]:
    """Section 5.3, paired by seed."""
    pairs = [name for size in SIZES for name in (f"sinks_{size}", f"standard_{size}")]

    def closed(*of_sizes: Run) -> list[float]:
        return [losses.gap_closed(run, standard) for run, standard in zip(of_sizes[::2], of_sizes[1::2], strict=True)]

    def rise_over_post_hoc(small: Run, standard: Run) -> float:
        forgotten, rise = (small.metrics[n] - standard.metrics[n] for n in ("repeated_loss", "held_out_loss"))
        return rise - post_hoc.cost_at(standard, standard.details, forgotten)

    ends = ["sinks_quarter", "standard_quarter", "sinks_one_and_a_half", "standard_one_and_a_half"]
    return [
        *losses.paired(
            runs, "every_size", "share of the gap that dropping closes, least of the sizes", "high at all sizes", pairs,
            lambda *of_sizes: min(closed(*of_sizes)), at_least=0.5,
        ),
        *losses.paired(
            runs, "small_degrade", "held-out loss of sinks dropped over standard's: smallest minus largest size",
            "degradation grows as models shrink", ends,
            lambda small, standard, large, other: (
                losses.held_out_ratio(small, standard) - losses.held_out_ratio(large, other)
            ),
            at_least=0.0,
        ),
        *losses.paired(
            runs, "small_beats_post_hoc", "rise of the held-out loss of the smallest, sinks dropped, minus the least that "
            "a post-hoc method needs to forget as much (nats)", "the smallest still beats post-hoc methods", ends[:2],
            rise_over_post_hoc, at_most=0.0,
        ),
        *losses.paired(
            runs, "large_improve", "share of the gap that dropping closes: largest minus smallest size",
            "the trade-off improves with size", ends, lambda *four: closed(*four)[1] - closed(*four)[0], at_least=0.0,
        ),
    ]  # fmt: skip


FIGURE = Figure(
    title=TITLE, config=CONFIG, variants=VARIANTS, answer=ANSWER, table_note=TABLE_NOTE,
    table=lambda runs: losses.table(runs, _standard_of),
    row_labels=row_labels, measure=measure, claims=claims, draw=draw, note=knob.note, sections=sections,
)  # fmt: skip
