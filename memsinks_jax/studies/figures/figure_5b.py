"""Figure 5b: sinks in models of four sizes, each compared with a standard model of the same size."""

from memsinks_jax import sinks
from memsinks_jax.interop import hugging_face
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.studies.figures import knob, post_hoc
from memsinks_jax.studies.figures import sections as shared
from memsinks_jax.studies.figures.figure import Figure
from memsinks_jax.studies.figures.runs import Run, Variation
from memsinks_jax.studies.figures.table import KINDS, Statement, Table, standard_beside

SIZES = ("quarter", "half", "whole", "one_and_a_half")  # of the config


def _millions(table: Table, variant: str) -> float:
    """Parameters, in millions."""
    config = workdirs.read_config(next(iter(table.groups[variant].values())).workdir)
    return hugging_face.parameters(config, sum(sinks.partition(config.model, config.sinks))) / 1e6


def _labels(table: Table) -> dict[str, str]:
    kinds = (("standard", "standard", ""), *((kind, "sinks", said) for kind, said in KINDS.items()))
    return {
        f"{kind}_{size}": f"{name}, {size.replace('_', ' ')} ({_millions(table, f'{kind}_{size}'):.2f} M){said}"
        for kind, name, said in kinds for size in SIZES if f"{kind}_{size}" in table.groups
    }  # fmt: skip


def _rise_over_post_hoc(small: Run, standard: Run) -> float:
    """Rise of the held-out loss by sinks, minus the least that a post-hoc method needs to forget as much, in nats."""
    forgotten, rise = (small.metrics[n] - standard.metrics[n] for n in ("repeated_loss", "held_out_loss"))
    return rise - post_hoc.cost_at(standard, standard.details, forgotten)


FIGURE = Figure(
    title="Figure 5b: four sizes of the model",
    answer=(
        "Sinks remove memorization from models of every size. The price on other documents depends on how much the shared "
        "neurons alone can hold: small models pay, large ones hardly."
    ),
    config="ts_repetition.py",
    variants={
        f"{kind}_{size}": Variation(f"{kind},{size}")
        for kinds in (("standard", "sinks_paper"), ("sinks",)) for size in SIZES for kind in kinds
    },
    # Post-hoc methods on the smallest standard models.
    measure=lambda runs: post_hoc.measured(runs, lambda run: run.variant == f"standard_{SIZES[0]}", post_hoc.OF_THE_PAPER),
    measures={"rise_over_post_hoc": _rise_over_post_hoc},
    standard_of=standard_beside,
    columns=knob.COLUMNS,
    labels=_labels,
    table_note=f"{knob.TABLE_NOTE} Sizes are widths relative to the preset's. Parameters include the sinks.",
    statements=(
        Statement(
            "every_size", "share of the gap that dropping closes, least of the sizes", "high at all sizes",
            f"min({', '.join(f'{{sinks}}_{size}.closed' for size in SIZES)})", at_least=0.5,
        ),
        Statement(
            "small_degrade", "held-out loss of sinks dropped over standard's: smallest minus largest size",
            "degradation grows as models shrink",
            "{sinks}_quarter.held_out_ratio - {sinks}_one_and_a_half.held_out_ratio", at_least=0.0,
        ),
        Statement(
            "small_beats_post_hoc", "rise of the held-out loss of the smallest, sinks dropped, minus the least that "
            "a post-hoc method needs to forget as much (nats)", "the smallest still beats post-hoc methods",
            "rise_over_post_hoc({sinks}_quarter, standard_quarter)", at_most=0.0,
        ),
        Statement(
            "large_improve", "share of the gap that dropping closes: largest minus smallest size",
            "the trade-off improves with size", "{sinks}_one_and_a_half.closed - {sinks}_quarter.closed", at_least=0.0,
        ),
    ),
    panels=lambda table: knob.panels(
        table, {size: _millions(table, f"sinks_paper_{size}") for size in SIZES if f"sinks_paper_{size}" in table.groups},
        "million parameters", lambda size: f"standard_{size}", log=True,
    ),
    note=knob.NOTE,
    sections=lambda runs, out: shared.choices(runs) + post_hoc.how(runs, post_hoc.OF_THE_PAPER),
)  # fmt: skip
