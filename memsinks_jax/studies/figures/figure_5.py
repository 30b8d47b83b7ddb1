"""Figures 5a, 5b and 5c: models with sinks compared with the standard one, while one setting
varies.

5a varies the number of sinks that a document may use, 5b the size of the model, 5c how often a
document has a wrong id.
"""

from memsinks_jax.models import hugging_face
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.sinks.kinds import partition
from memsinks_jax.studies.figures import knob, post_hoc
from memsinks_jax.studies.figures import sections as shared
from memsinks_jax.studies.figures.figure import Figure
from memsinks_jax.studies.figures.panels import Panel
from memsinks_jax.studies.figures.runs import Run, Variation
from memsinks_jax.studies.figures.table import KINDS, Table, standard_for

ACTIVE = {f"active_{fraction}": fraction for fraction in (0.1, 0.3, 0.5, 0.7)}
FIGURE_5A = knob.varied(
    {name: (f"{of:g} active", {"sinks.active_fraction": of}) for name, of in ACTIVE.items()},
    title="Figure 5a: the fraction of the sinks that is on for a document",
    answer="""A document with a few sinks of its own is memorized in them, and leaves the shared
        neurons alone. If more sinks are on at a time, more documents share each sink, and the rest
        of the model depends more on what is dropped later.""",
    statements="".join(
        f"""
robust_{fraction} | share of standard's gap closed, sinks dropped, {fraction} of them active
    | {{sinks}}_active_{fraction}.closed >= 0.7 | robust for small fractions"""
        for fraction in (0.1, 0.3)
    )
    + """
best | repeated loss, dropped, with 0.3 active minus the highest of the other fractions (nats)
    | {sinks}_active_0.3.repeated_loss - max({sinks}_active_0.1.repeated_loss,
    {sinks}_active_0.5.repeated_loss, {sinks}_active_0.7.repeated_loss) >= 0 | 0.3 is best
breaks_down_repeated | repeated loss, dropped, with 0.7 active over that with 0.3
    | {sinks}_active_0.7.repeated_loss / {sinks}_active_0.3.repeated_loss <= 0.9
    | 0.7 breaks down: low
breaks_down_held_out | held-out loss, dropped, with 0.7 active over standard's
    | {sinks}_active_0.7.held_out_loss / standard.held_out_loss >= 1.15
    | too many active interfere""",
    panels=lambda table: knob.panels(table, ACTIVE, "active fraction"),
)


SIZES = ("quarter", "half", "whole", "one_and_a_half")  # of the config


def _millions(table: Table, variant: str) -> float:
    """Parameters, in millions; nan before it is trained."""
    run = next(iter(table.groups[variant].values()), None)
    if run is None:
        return float("nan")
    config = workdirs.read_config(run.workdir)
    return hugging_face.parameters(config, sum(partition(config.model, config.sinks))) / 1e6


def _labels(table: Table) -> dict[str, str]:
    found = {}
    for kind, suffix in {"standard": "", **KINDS}.items():
        name = kind.removesuffix("_paper")
        for size in SIZES:
            if f"{kind}_{size}" in table.groups:
                millions = f"{_millions(table, f'{kind}_{size}'):.2f} M"
                found[f"{kind}_{size}"] = f"{name}, {size.replace('_', ' ')} ({millions}){suffix}"
    return found


def _rise_over_post_hoc(small: Run, standard: Run) -> float:
    """Rise of the held-out loss by sinks, minus the least that post-hoc methods need (nats)."""
    names = ("repeated_loss", "held_out_loss")
    forgotten, rise = (small.metrics[name] - standard.metrics[name] for name in names)
    return rise - post_hoc.cost_at(standard, standard.details, forgotten)


def _of_sizes(table: Table) -> list[Panel]:
    there = [size for size in SIZES if f"sinks_paper_{size}" in table.groups]
    places = {size: _millions(table, f"sinks_paper_{size}") for size in there}
    return knob.panels(
        table, places, "million parameters", lambda size: f"standard_{size}", log=True
    )


FIGURE_5B = Figure(
    title="Figure 5b: four sizes of the model",
    answer="""Sinks remove memorization from models of every size. The price on other documents
        depends on how much the shared neurons alone can hold: small models pay, large ones
        hardly.""",
    variants={
        f"{kind}_{size}": Variation(f"{kind},{size}")
        for kinds in (("standard", "sinks_paper"), ("sinks",))
        for size in SIZES
        for kind in kinds
    },
    # Post-hoc methods on the smallest standard models.
    measure=lambda runs: post_hoc.measured(
        runs, lambda run: run.variant == f"standard_{SIZES[0]}", post_hoc.OF_THE_PAPER
    ),
    measures={"rise_over_post_hoc": _rise_over_post_hoc},
    standard_of=standard_for,
    columns=knob.COLUMNS,
    labels=_labels,
    table_note=f"""{knob.TABLE_NOTE} Sizes are widths relative to the preset's. Parameters
        include the sinks.""",
    statements=f"""
every_size | share of standard's gap closed, sinks dropped, least of the sizes
    | min({", ".join(f"{{sinks}}_{size}.closed" for size in SIZES)}) >= 0.5 | high at all sizes
small_degrade | held-out loss of sinks dropped over standard's: smallest minus largest size
    | {{sinks}}_quarter.held_out_ratio - {{sinks}}_one_and_a_half.held_out_ratio >= 0
    | degradation grows as models shrink
small_beats_post_hoc | rise of the held-out loss of the smallest, sinks dropped, minus the least
    that a post-hoc method needs to forget as much (nats)
    | rise_over_post_hoc({{sinks}}_quarter, standard_quarter) <= 0
    | the smallest still beats post-hoc methods
large_improve | share of standard's gap closed, sinks dropped: largest minus smallest size
    | {{sinks}}_one_and_a_half.closed - {{sinks}}_quarter.closed >= 0
    | the trade-off improves with size""",
    panels=_of_sizes,
    note=knob.NOTE,
    sections=lambda runs, out: shared.choices(runs) + post_hoc.how(runs, post_hoc.OF_THE_PAPER),
)


_WRONG = "memsinks_jax.studies.schedules:WrongIds"
NOISE = {f"noise_{chance}": chance for chance in (0.0, 0.05, 0.1, 0.2, 0.5)}
# One reading of the paper's caption: some documents always have a wrong id, the others never.
DOCUMENTS = {f"documents_{chance}": chance for chance in (0.1, 0.5)}
_ENCOUNTERS = {
    name: (f"noise {chance:g} an encounter", {"data.schedule": f"{_WRONG},rate={chance}"})
    for name, chance in NOISE.items()
}
_ALWAYS = {
    name: (
        f"{of:.0%} of the documents",
        {"data.schedule": f"{_WRONG},rate={of},per_document=1"},
    )
    for name, of in DOCUMENTS.items()
}
_READINGS = {
    "an encounter": NOISE,
    "that share of the documents, always": {"noise_0.0": 0.0} | DOCUMENTS,
}
FIGURE_5C = knob.varied(
    _ENCOUNTERS | _ALWAYS,
    title="Figure 5c: repeated documents under inconsistent ids",
    answer="""A repeated document with a wrong id gets other sinks than before, and the shared
        neurons learn some of it. The harm depends on the pattern of the errors: every document has
        a wrong id now and then, or some documents always have one.""",
    statements="".join(
        f"""
{name}_{chance} | share of the gap closed with {chance:.0%} {reading} over that with none
    | {{sinks}}_{name}_{chance}.closed / {{sinks}}_noise_0.0.closed {bound} | {paper}"""
        for name, reading in (
            ("noise", "of the encounters under a wrong id"),
            ("documents", "of the documents always under wrong ids"),
        )
        for chance, paper, bound in (
            (0.1, "holds up to 10%", ">= 0.8"),
            (0.5, "fails at 50%", "<= 0.5"),
        )
    ),
    panels=lambda table: knob.panels(table, NOISE, "id noise", further=_READINGS),
)
