"""Memory by context, compared with sinks by document and with what a sceptic would do instead.

Every model reads the same documents once. Further documents are read several times, as often as a
cell of CELLS says; in the model that never read them they are left out. No text is read for others.
"""

import dataclasses
import functools
import logging
from typing import NamedTuple

from memsinks_jax.reporting import report
from memsinks_jax.studies.figures import sections as shared
from memsinks_jax.studies.figures.cached import cached
from memsinks_jax.studies.figures.figure import Figure
from memsinks_jax.studies.figures.panels import Categories, Line, Panel
from memsinks_jax.studies.figures.runs import Run, Variation, by_variant

logger = logging.getLogger(__name__)

# Documents that are read several times, and how often. Beside 1,500 that are read once, the first
# four are 17% to 20% of what is read.
CELLS = {
    "4": (80, 4),
    "8": (40, 8),
    "32": (10, 32),
    "128": (3, 128),
    "few": (3, 32),
    "many": (40, 32),
}
READS = ("4", "8", "32", "128")
MAIN = "32"
GIVEN, RECITED = (16, 50), 32  # tokens before those to recite; tokens to recite


class Method(NamedTuple):
    """A training, the modes of its sinks that are measured, and the cells in which it is."""

    label: str
    choice: str
    settings: dict[str, object] = {}
    modes: tuple[str, ...] = ("drop",)
    everywhere: bool = False


_BOTH = ("drop", "own")
# The same contexts. Without a rate the table stays 0; the lookup is of the text that was read.
_CAP = {"contexts.rate": 0.0, "contexts.reads": 1}
METHODS = {
    "standard": Method("standard training", "standard", everywhere=True),
    "never": Method("never read", "no_repeat", everywhere=True),
    "context": Method("memory by context", "context", {}, _BOTH, True),
    "sinks": Method("sinks by document", "sinks", {}, _BOTH, True),
    "paper": Method("sinks as published", "sinks_paper", {}, _BOTH),
    "faster": Method(
        "sinks at 8 times the rate", "sinks", {"sinks.learning_rate_multiple": 8.0}, _BOTH
    ),
    "cap": Method("documents capped at one read", "standard", {"data.repeats_at_most": 1}),
    "cap_1": Method("contexts capped at one read", "context", _CAP, ("drop", "text")),
    "cap_2": Method(
        "contexts capped at two reads", "context", _CAP | {"contexts.reads": 2}, ("drop", "text")
    ),
    "words_2": Method("contexts of 2 words", "context", {"contexts.length": 2}, _BOTH),
    "words_3": Method("contexts of 3 words", "context", {"contexts.length": 3}, _BOTH),
    "goldfish": Method("goldfish", "goldfish"),
}
MODES = {"drop": "", "own": ", on", "text": " + lookup of the text"}
PLACES = [
    (cell, name)
    for cell in CELLS
    for name, method in METHODS.items()
    if method.everywhere or cell == MAIN
]
VIEWS = {
    f"{name}_{cell}_{mode}": f"{METHODS[name].label}{MODES[mode]}"
    for cell, name in PLACES
    for mode in METHODS[name].modes
}
ATTACKED = ("context", "sinks", "cap_1")  # are relearned


def _variation(cell: str, name: str) -> Variation:
    documents, reads = CELLS[cell]
    about = {"data.repeated_documents": documents, "data.repetitions": reads}
    return Variation(METHODS[name].choice, about | METHODS[name].settings)


VARIANTS = {f"{name}_{cell}": _variation(cell, name) for cell, name in PLACES}


def cell_of(view: str) -> str:
    """NAME_CELL_MODE -> CELL."""
    return view.split("_")[-2]


def measure(runs: list[Run]) -> list[Run]:
    """Adds the numbers of its views to the `details` of runs whose never-read twin was trained."""
    # jax takes seconds to import
    from memsinks_jax.studies.figures import contexts_measures as measures
    from memsinks_jax.studies.figures.rivals_measures import leaks

    groups, found = by_variant(runs), []
    for run in runs:
        name, _, cell = run.variant.rpartition("_")
        standard = groups.get(f"standard_{cell}", {}).get(run.seed)
        never = groups.get(f"never_{cell}", {}).get(run.seed)
        context = groups.get(f"context_{cell}", {}).get(run.seed)
        if never is None:
            found.append(run)
            continue
        views = {}
        for mode in METHODS[name].modes:
            asked = {"mode": mode, "given": GIVEN, "recited": RECITED}
            make = functools.partial(measures.of_view, run, never, context, mode)
            read = [run, never, *filter(None, [context])]
            views[mode] = cached(read, f"contexts_{mode}", asked, make)
        if cell == MAIN and name in ATTACKED and standard:
            leaked = leaks(run, standard, never)
            more = {key: leaked[key] for key in ("relearned",) if key in leaked}
            views["drop"] = views["drop"] | more
        logger.info("measured %s, seed %d", run.variant, run.seed)
        found.append(dataclasses.replace(run, details={"views": views}))
    return found


def views(run: Run) -> dict[str, dict[str, float]]:
    return {f"{run.variant}_{mode}": found for mode, found in run.details.get("views", {}).items()}


def statements() -> str:
    """None is in the paper. The bounds are for shares of at most 20%."""
    where = {
        cell: f"{documents} documents read {reads} times"
        for cell, (documents, reads) in CELLS.items()
    }
    of_cells = "".join(
        f"""
closed_{cell} | {where[cell]}: share of the gap closed, over that of a model that never read them
    | context_{cell}_drop.closed / min(never_{cell}_drop.closed, 1) >= 0.95
held_out_{cell} | {where[cell]}: held-out loss over standard's, off
    | context_{cell}_drop.held_out_ratio <= 1
held_out_on_{cell} | {where[cell]}: held-out loss over standard's, on
    | context_{cell}_own.held_out_ratio <= 1
auc_{cell} | {where[cell]}: AUC by loss, off, minus that of the model that never read them
    | context_{cell}_drop.auc - never_{cell}_drop.auc <= 0.05"""
        for cell in CELLS
        if cell != "many"
    )
    return f"""{of_cells}
known | {where[MAIN]}: nats per token, on | context_{MAIN}_own.repeated_loss <= 0.1
relearned | {where[MAIN]}: relearning, over that of a text that nobody read
    | context_{MAIN}_drop.relearned >= 0.9
cap_held_out | held-out loss, off: contexts capped at one read minus memory by context (nats)
    | cap_1_{MAIN}_drop.held_out_loss - context_{MAIN}_drop.held_out_loss >= 0
cap_known | loss on what was read often: contexts capped at one read + lookup minus memory by
    context, on (nats)
    | cap_1_{MAIN}_text.repeated_loss - context_{MAIN}_own.repeated_loss >= 0
"""


def panels(table) -> list:
    """By the number of reads: gap closed, and what is known with memory on. All methods at one."""
    places = {reads: cell for cell, (_, reads) in CELLS.items() if cell in READS}
    colours = {"context": "#1e8449", "sinks": "#1f618d", "never": "#7f8c8d", "standard": "#c0392b"}
    by_reads = {"x": "times read", "log": True, "ticks": {reads: str(reads) for reads in places}}

    def line(name: str, mode: str, shown: str, style: str = "o-") -> Line:
        of = {reads: f"{name}_{cell}_{mode}" for reads, cell in places.items()}
        return Line(of, shown, f"{METHODS[name].label}{MODES[mode]}", colours[name], style)

    known = [
        ("standard", "drop"),
        ("sinks", "own"),
        ("context", "own"),
        ("context", "drop"),
        ("never", "drop"),
    ]
    main = {
        view: label
        for view, label in VIEWS.items()
        if cell_of(view) == MAIN and view in table.groups
    }
    ratios = [table.column("held_out_ratio", view) for view in main]
    of_methods = Categories(
        title=f"read {MAIN} times",
        names=list(main.values()),
        bars=True,
        legend=None,
        series={"": ("#1f618d", ratios)},
        levels={1: "black"},
        x="held-out loss over standard's",
        settings={"xlim": (0.95, 1.1)},
    )
    return [
        Panel(
            title="share of the gap closed",
            **by_reads,
            levels={1: "black"},
            lines=[line(name, "drop", "closed") for name in ("context", "sinks", "never")],
            settings={"ylim": (-0.1, 1.3)},
            legend={"loc": "lower right"},
        ),
        Panel(
            title="loss on what was read often",
            y="nats per token",
            **by_reads,
            lines=[
                line(name, mode, "repeated_loss", "s--" if mode == "own" else "o-")
                for name, mode in known
            ],
        ),
        *([of_methods] if main else []),
    ]


def sections(runs: list[Run], out) -> list[str]:
    """A table of every cell."""
    table, parts = FIGURE.of(runs), []
    for cell, (documents, reads) in CELLS.items():
        shown = {
            label: [table.column(column, view) for column in FIGURE.columns.values()]
            for view, label in VIEWS.items()
            if cell_of(view) == cell != MAIN and view in table.groups
        }
        if shown:
            of_cell = shared.with_intervals(list(FIGURE.columns), shown, of="model")
            parts += [report.heading(f"{documents} documents read {reads} times"), of_cell]
    return parts + shared.choices(runs)


FIGURE = Figure(
    title="Memory by context",
    answer="""What repeats is remembered in a table of contexts, on for all text at once or off.
        Below it is compared with sinks by document, with a model that never read what is repeated,
        and with what needs no sinks: to leave a context out of the loss after its first reads, and
        to look the stored text up.""",
    variants=VARIANTS,
    measure=measure,
    views=views,
    seen=VIEWS,
    standard_of=lambda view: f"standard_{cell_of(view)}_drop",
    metrics=["auc", "auc_reference", "relearned", "new_loss"]
    + [f"recited_{given}" for given in GIVEN],
    columns={
        "held-out": "held_out_loss",
        "repeated": "repeated_loss",
        "gap closed": "closed",
        "held-out over standard's": "held_out_ratio",
        "held-out, new contexts": "new_loss",
        "AUC": "auc",
        "AUC, reference": "auc_reference",
        **{f"recited after {given}": f"recited_{given}" for given in GIVEN},
        "relearning": "relearned",
    },
    labels={view: label for view, label in VIEWS.items() if cell_of(view) == MAIN},
    table_note=f"""{CELLS[MAIN][0]} documents read {CELLS[MAIN][1]} times. Nats per token. New
        contexts: of held-out text, what follows contexts that are not repeated in what was read.
        AUC: that a document read often has a lower loss than a held-out one, and by
        how far the loss is below that of the model that never read them. Recited: share of the
        documents of which the next {RECITED} tokens are all the likeliest. Relearning: steps until
        half of what was lost is back, over those of the model that never read it, over the same for
        text that neither read. Lookup: where the text that was read has the context n times, its
        next token has the probability n / (n + 1).""",
    statements=statements(),
    paper="not asked",
    panels=panels,
    sections=sections,
    size=(16, 5.4),
    note="{mean}, bands and whiskers from the lowest to the highest.",
)
