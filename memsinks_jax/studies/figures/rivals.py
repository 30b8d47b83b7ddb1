"""Sinks against rival methods: how much of the gap each closes, and at what held-out cost. One
frontier.

Each method is a curve with a knob. Some must know what is repeated before they train, some need
nothing. Post-hoc methods appear with the measurements of figure 4c. Algorithms and defaults:
studies/methods/ and baselines/.
"""

import dataclasses
import math
import pathlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from memsinks_jax.reporting import report
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.studies.figures import pool, post_hoc, step_times
from memsinks_jax.studies.figures import sections as shared
from memsinks_jax.studies.figures.cached import cached
from memsinks_jax.studies.figures.figure import Figure
from memsinks_jax.studies.figures.panels import AnyPanel, Curve, Scatter
from memsinks_jax.studies.figures.runs import Run, Variation, by_variant
from memsinks_jax.studies.figures.table import LOSSES, Table
from memsinks_jax.variants import VARIANTS as CHOICES

OURS = "on_return"  # the method whose default is compared with all others
NOTHING, LABELS, COPIES = "nothing", "which documents are repeated", "all copies"
COUNTS = "how often the document was read so far"
LATER = "nothing; after training, which documents"


class Method(NamedTuple):
    """A curve: {variant: (its knob, how it is trained)} in the knob's order; `whole` if its other
    end is standard training.

    What is no training but a name is that other variant, evaluated with its shared neurons scaled
    up by published code's factor.
    """

    label: str
    knows: str  # before a document is read
    colour: str
    points: dict[str, tuple[str, Variation | str]]
    whole: bool = False
    style: str = "o-"


_CAPPED, _CAPS = "data.repeats_at_most", (64, 32, 16, 8, 4, 2, 1)
_FROZEN = "memsinks_jax.studies.methods.gradient_masking:SelectiveFrozen"
_SAME_STEPS = {"training.count_removed_repeats": True}
_SIZES = {name: size for name, size in pool.POOLS.items() if 154 < size <= 4096}


def _varied(name: str, choice: str, field: str, values: Sequence[float], **same) -> dict:
    """Points NAME_VALUE, whose knobs are the values."""
    return {f"{name}_{of}": (str(of), Variation(choice, {field: of} | same)) for of in values}


def _method(choice: str, **settings: float) -> dict:
    """The field that trains by the method of a variant with other settings of the method."""
    method = CHOICES[choice]["training.method"].split(",")[0]
    given = (f"{name}={value}" for name, value in settings.items())
    return {"training.method": ",".join([method, *given])}


def _alone(name: str) -> dict:
    """The point of a method without a knob."""
    return {name: ("", Variation(name))}


_PAPER = {
    "sinks_paper_active_0.1": ("0.1", Variation("sinks_paper", {"sinks.active_fraction": 0.1})),
    "sinks_paper": ("0.3", Variation("sinks_paper")),
    "sinks_paper_active_0.5": ("0.5", Variation("sinks_paper", {"sinks.active_fraction": 0.5})),
}
_OURS = {
    "sinks_slows_0": ("never slowed", Variation("sinks", {"sinks.slows_at": 0})),
    "sinks_slows_32": ("32", Variation("sinks", {"sinks.slows_at": 32})),
    "sinks": ("16", Variation("sinks")),
    "sinks_slows_8": ("8", Variation("sinks", {"sinks.slows_at": 8})),
}
_POOLS = {name: (f"{size:,}", pool.VARIANTS[name]) for name, size in _SIZES.items()}
_SCALED = {f"rescaled_{share}": (share, name) for name, (share, _) in _PAPER.items()}
_CAP_STEPS = _varied("cap_steps", "standard", _CAPPED, _CAPS, **_SAME_STEPS)
_CAP_EPOCHS = _varied("cap_epochs", "standard", _CAPPED, _CAPS)
_ONCE, _ONCE_STEPS = _alone("no_repeat"), _alone("no_repeat_steps")
METHODS = {
    OURS: Method("sinks that open on return", COUNTS, "#1f618d", _OURS),
    "pool": Method("the same, sparse", COUNTS, "#148f77", _POOLS, style="^-"),
    "paper": Method("sinks as published", NOTHING, "#5dade2", _PAPER, style="s-"),
    "rescaled": Method("as published, the rest scaled up", NOTHING, "#aed6f1", _SCALED, style="s:"),
    "cap_steps": Method("repeats capped, same steps", COPIES, "#1c2833", _CAP_STEPS, True),
    "cap_epochs": Method("repeats capped, same epochs", COPIES, "#7f8c8d", _CAP_EPOCHS, True),
    "no_repeat": Method("no repeats, same epochs", COPIES, "#7f8c8d", _ONCE, style="X-"),
    "no_repeat_steps": Method("no repeats, same steps", COPIES, "#1c2833", _ONCE_STEPS, style="X-"),
    "goldfish": Method(
        "goldfish",
        NOTHING,
        "#d68910",
        {
            f"goldfish_{k}": (f"{k}", Variation("goldfish", _method("goldfish", every=k)))
            for k in (8, 4, 3, 2)
        },
        True,
    ),
    "dp_sgd": Method(
        "DP-SGD",
        NOTHING,
        "#117a65",
        {
            f"dp_{noise}": (
                f"{noise}",
                Variation("dp_sgd", _method("dp_sgd", noise_multiplier=noise)),
            )
            for noise in (0.01, 0.1)
        },
    ),
    "sgtm": Method(
        "SGTM",
        LABELS,
        "#6c3483",
        {
            f"sgtm_{p}": (f"{p}%", Variation("sgtm", _method("sgtm", undiscovered=p / 100)))
            for p in (40, 20, 0)
        },
    ),
    "sgtm_frozen": Method(
        "SGTM, moments frozen",
        LABELS,
        "#a569bd",
        {
            "sgtm_frozen": (
                "",
                Variation("sgtm", {"training.method": _FROZEN}),
            )
        },
        style="s-",
    ),
    "sgtm_narrow": Method(
        "SGTM, 3% of the neurons",
        LABELS,
        "#bb8fce",
        {"sgtm_narrow": ("", Variation("sgtm", {"sinks.shared_fraction": 0.97}))},
        style="^-",
    ),
    "gradient_masking": Method(
        "gradient masking", LABELS, "#c0392b", _alone("gradient_masking"), style="D-"
    ),
    "gradient_detach": Method(
        "masking of activations", LABELS, "#e59866", _alone("gradient_detach"), style="D-"
    ),
}
_POINTS = {name: of for method in METHODS.values() for name, (_, of) in method.points.items()}
RESCALED = {name: of for name, of in _POINTS.items() if isinstance(of, str)}
VARIANTS = {"standard": Variation("standard")} | {
    name: of for name, of in _POINTS.items() if name not in RESCALED
}
# One of each training program: their steps are timed.
TIMED = ("standard", "sinks_paper", "sinks", *_SIZES, "dp_0.1", "sgtm_0")
TIMED += ("gradient_masking", "gradient_detach")
# One point of each method: an audit compares what it leaks with the oracle.
ASKED = ("standard", "sinks", "pool_4096", "sinks_paper", "cap_steps_8", "no_repeat_steps")
ASKED += ("goldfish_4", "dp_0.1", "sgtm_0", "gradient_masking")
GIVEN = 50  # tokens that recitation begins with
LEAKS = {"AUC, loss": "auc_loss", "recited": f"exact_{GIVEN}"}
_ATTACKED = {"relearning": "relearned", "gap": "gap_before", "gap, calibrated": "gap_after"}
_ALLOWED = np.linspace(1, 1.3, 13)  # held-out losses over standard's at which curves are drawn
_POST_HOC = post_hoc.LABELS | post_hoc.EDITS
_DASHED = {
    "hard_concrete": "#d7bde2",
    "integrated_gradients": "#aeb6bf",
    "slimming": "#edbb99",
    "zero_out": "#a2d9ce",
    "activation": "#aed6f1",
    "random": "#d5d8dc",
    "kfac": "#922b21",
    "svd": "#e74c3c",
    "balanced_subnet": "#7d6608",
}


class Place(NamedTuple):
    """A model relative to the standard one of its seed."""

    held_out: float  # its held-out loss over standard's
    closed: float  # of the gap


def place(run: Run, standard: Run) -> Place:
    closed = 1 - _gap(run) / _gap(standard) if _gap(standard) else math.nan
    return Place(run.metrics["held_out_loss"] / standard.metrics["held_out_loss"], closed)


def _gap(run: Run) -> float:
    return run.metrics["held_out_loss"] - run.metrics["repeated_loss"]


def places_after(standard: Run, method: str) -> list[Place]:
    """Where a post-hoc method takes the standard model, on the documents it was evaluated on."""
    found = []
    for point in post_hoc.curve(standard, method):
        repeated = point.repeated_loss - point.forgetting
        held_out = point.held_out_loss - point.delta_val
        gap = (point.held_out_loss - point.repeated_loss) / (held_out - repeated)
        found.append(Place(point.held_out_loss / held_out, 1 - gap))
    return found


def lead(ours: Sequence[Place], theirs: Sequence[Place], held_out: float, whole: bool) -> float:
    """How much more of the gap one curve closes than another at the same held-out loss, `held_out`
    times standard's.

    If the other curve is nowhere as low, compares both where it is lowest. Standard training is a
    point of it if `whole`. A gap of the other sign distinguishes the documents as well, so to close
    1.1 of it counts as to close 0.9.
    """
    allowed = max(held_out, min([*(p.held_out for p in theirs), *[1.0] * whole]))
    mine, other = ([p._replace(closed=1 - abs(1 - p.closed)) for p in of] for of in (ours, theirs))
    return closed_at(mine, allowed) - closed_at(other, allowed)


def closed_at(places: Sequence[Place], held_out: float) -> float:
    """The most that a curve closes at a held-out loss of at most `held_out` times standard's.

    Interpolates linearly between the points, from the standard model on.
    """
    from memsinks_jax.studies.baselines.removal import delta_val_at

    return -delta_val_at(_points([(1 - p.held_out, -p.closed) for p in places]), 1 - held_out)


def known_at(places: Sequence[Place], repeated: Sequence[float], closed: float) -> float:
    """The lowest repeated loss, over standard's (nats), that closes at least `closed`, or inf."""
    from memsinks_jax.studies.baselines.removal import delta_val_at

    pairs = [(p.closed, more) for p, more in zip(places, repeated, strict=True)]
    return delta_val_at(_points(pairs), closed)


def _points(pairs: Sequence[tuple[float, float]]) -> list:
    """Points in the form and order that `removal.delta_val_at` expects."""
    from memsinks_jax.studies.baselines.removal import point

    return [point((0.0, 0.0), pair, number) for number, pair in enumerate(pairs)]


def known(run: Run) -> float:
    """Loss on repeated documents for users who may know them: own sinks on."""
    return run.metrics.get("repeated_loss_own", run.metrics["repeated_loss"])


def measure(runs: list[Run]) -> list[Run]:
    """Adds to `details`: post-hoc results of standard runs, "leaks" of ASKED, "step_ms" of TIMED
    (one seed) -> the same runs, and those of RESCALED.
    """
    groups = by_variant(runs)
    if set(groups) != set(VARIANTS):
        return runs  # takes minutes: only with all variants
    from memsinks_jax.studies.figures import rivals_measures as measures  # jax takes seconds

    methods = (*post_hoc.METHODS, *post_hoc.EDITS)
    runs = post_hoc.measured(runs, lambda run: run.variant == "standard", methods)
    more: dict[pathlib.Path, dict] = {run.workdir: {} for run in runs}
    for run in runs:
        if run.variant in ASKED:
            others = (groups[name][run.seed] for name in ("standard", "no_repeat"))
            more[run.workdir]["leaks"] = measures.leaks(run, *others)
    timed = [run for run in runs if run.variant in TIMED and run.seed == runs[0].seed]

    def time() -> dict[str, list[float]]:
        return {run.variant: run.details["step_ms"] for run in step_times.measure(timed)}

    milliseconds = cached(timed, "step_times", {}, time)
    for run in timed:
        more[run.workdir]["step_ms"] = milliseconds[run.variant]
    rescaled = [
        measures.rescaled(run, name) for name, of in RESCALED.items() for run in groups[of].values()
    ]
    runs = [dataclasses.replace(run, details=run.details | more[run.workdir]) for run in runs]
    return runs + rescaled


def _lead_over(rival: str, standard: Run, *runs: Run) -> float:
    """Our lead over a rival at our default's held-out loss; `runs` of our curve, then of its."""
    ours, of_method = METHODS[OURS].points, METHODS.get(rival)
    places = [place(run, standard) for run in runs]
    mine, theirs = places[: len(ours)], places[len(ours) :]
    held_out = mine[list(ours).index("sinks")].held_out
    if of_method is None:
        return lead(mine, places_after(standard, rival), held_out, True)
    return lead(mine, theirs, held_out, of_method.whole)


def _more_known(standard: Run, sinks: Run, *capped: Run) -> float:
    """How much more is known of repeated documents with sinks than with a cap, in nats."""
    places = [place(run, standard) for run in capped]
    more = [known(run) - known(standard) for run in capped]
    closed = min(place(sinks, standard).closed, max(p.closed for p in places))
    return known_at(places, more, closed) - (known(sinks) - known(standard))


def statements() -> str:
    """Our lead over each rival at equal held-out loss, and in knowledge over capped repeats."""
    ours = METHODS[OURS]
    rivals = {
        name: (of.label, of.knows, of.points)
        for name, of in METHODS.items()
        if name not in (OURS, "pool")
    }
    rivals |= {name: (label, LATER, ()) for name, label in _POST_HOC.items()}
    return "".join(
        f"""
beats_{name} | share of the gap closed at the same held-out loss: {ours.label} minus {label} (knows
    beforehand: {knows})
    | lead_over('{name}', {", ".join(["standard", *ours.points, *points])}) >= 0"""
        for name, (label, knows, points) in rivals.items()
    ) + "".join(
        f"""
known_{name} | repeated loss for users who may know, at the same share of the gap closed or the most
    that a cap closes: {METHODS[name].label} minus {ours.label}, own on (nats)
    | more_known({", ".join(["standard", "sinks", *METHODS[name].points])}) >= 0"""
        for name in ("cap_steps", "cap_epochs")
    )


def _label(variant: str) -> str:
    for method in METHODS.values():
        if variant in method.points:
            knob, _ = method.points[variant]
            return f"{method.label} ({knob})" if knob else method.label
    return variant


def sections(runs: list[Run], out: pathlib.Path) -> list[str]:
    """What every method costs and must know, the post-hoc methods, and the choices."""
    groups = by_variant(runs)
    parts = [report.heading("What it costs, and what must be known beforehand"), _costs(groups)]
    parts += _what_leaks(groups)
    standard = list(groups.get("standard", {}).values())
    if how := post_hoc.how(standard, post_hoc.METHODS):
        parts += [report.heading("Post hoc methods"), *how, post_hoc.how_edits(standard)]
    return parts + shared.choices(runs)


def _what_leaks(groups: dict[str, dict[int, Run]]) -> list[str]:
    rows, shown = {}, LEAKS | _ATTACKED
    for name in ASKED:
        found = [run.details.get("leaks") for run in groups.get(name, {}).values()]
        found = [of for of in found if of is not None]
        if found:
            rows[_label(name)] = [[of[key] for of in found if key in of] for key in shown.values()]
    if not rows:
        return []
    return [
        report.heading("What still leaks"),
        shared.with_intervals(list(shown), rows, of="model without its sinks"),
        shared.note(f"""AUC: probability that a repeated document has a lower loss than a held-out
            one. Recited: given {GIVEN} tokens, the next 32 exactly. Relearning: steps of
            fine-tuning until half of what was lost is back, over those of the model that never saw
            it, divided by the same ratio for documents that neither has read; at 1 it is learned
            anew. Gap: held-out minus repeated loss, on every other document, before and after a
            bias of the logits was trained on the rest. Mean and half of the 95% interval over
            seeds."""),
    ]


def _costs(groups: dict[str, dict[int, Run]]) -> str:
    """A table: step time and memory over standard's, and what each method must know."""
    from memsinks_jax.training.memory import needed

    standard, rows = next(iter(groups.get("standard", {}).values()), None), []
    for method in METHODS.values():
        mine = [next(iter(groups[name].values())) for name in method.points if name in groups]
        time_ratio = memory_ratio = "–"
        if standard and mine:
            one, other = (workdirs.read_config(run.workdir) for run in (mine[-1], standard))
            memory_ratio = f"{sum(needed(one, 1).values()) / sum(needed(other, 1).values()):.2f}"
            timed = [run.details["step_ms"] for run in mine if "step_ms" in run.details]
            if timed and "step_ms" in standard.details:
                time_ratio = f"{np.median(np.divide(timed[-1], standard.details['step_ms'])):.2f}"
            elif (one.sinks, one.optimizer) == (other.sinks, other.optimizer):
                time_ratio = "1"  # the same program
        rows.append([method.label, time_ratio, memory_ratio, method.knows])
    rows.append(["post hoc methods", "1", "1", LATER])
    ratios = ["time of a step over standard's", "memory of a step over standard's"]
    rows = [list(map(report.text, row)) for row in rows]
    kinds = ["", "number", "number", ""]
    return report.table(["method", *ratios, "must know beforehand"], rows, kinds)


def _curves(table: Table) -> Iterator[tuple]:
    """(label, colour, style, names of the points, and of points P over seeds S: held-out loss over
    standard's, gap closed, loss of users who may know) of every method.
    """
    standard = table.groups.get("standard", {})
    for method in METHODS.values() if standard else ():
        if shown := [name for name in method.points if name in table.groups]:
            of_points = [
                [
                    (*place(run, standard[seed]), known(run))
                    for seed, run in table.groups[name].items()
                ]
                for name in shown
            ]
            knobs = [method.points[name][0] for name in shown]
            found = np.moveaxis(np.array(of_points), 2, 0)
            yield method.label, method.colour, method.style, knobs, *found
    for name, colour in _DASHED.items():
        if standard and all(name in run.details for run in standard.values()):
            # Its points differ between seeds: averages what each closes at the same held-out loss.
            places = [places_after(run, name) for run in standard.values()]
            closed = np.array([[closed_at(of, allowed) for of in places] for allowed in _ALLOWED])
            before = np.broadcast_to([known(run) for run in standard.values()], closed.shape)
            allowed = np.broadcast_to(_ALLOWED[:, None], closed.shape)
            yield _POST_HOC[name], colour, ".--", [], allowed, closed, before


def panels(table: Table) -> list[AnyPanel]:
    """The frontier, and knowledge if allowed against the rest of the gap."""
    frontier, ends, lowest = [], [], 0.92
    for label, colour, style, names, held_out, closed, before in _curves(table):
        frontier.append(Curve(label, colour, style, held_out, closed, names))
        ends.append(Curve(label, colour, style, 1 - closed, before))
        if names:
            lowest = min(lowest, held_out.mean(axis=1).min())
    limits = {"xlim": (-0.1, 1.05)}
    if unread := table.groups.get("no_repeat"):
        limits["ylim"] = (-0.05, 1.2 * max(map(known, unread.values())))
    return [
        Scatter(
            title="what is forgotten, and what that costs",
            x="held-out loss over standard's",
            y="share of the gap closed",
            curves=frontier,
            whiskers=True,
            upright={1: "black"},
            legend=None,
            settings={"xlim": (lowest - 0.02, _ALLOWED[-1]), "ylim": (-0.05, 1.1)},
        ),
        Scatter(
            title="both ends of the switch",
            x="share of the gap that is left when removed",
            y="loss on repeated documents when allowed (nats)",
            curves=ends,
            whiskers=True,
            settings=limits,
            legend={"loc": "center left", "bbox_to_anchor": (1, 0.5)},
        ),
    ]


FIGURE = Figure(
    title="Rivals: sinks compared with other methods",
    answer="""When does a sink beat a cap on repeats? When somebody may still know the repeated
        documents, or when nobody can say before training what will have to go: a cap takes the
        memory from everybody. Where the repeats are known and nobody may know them, a cap of one or
        two encounters closes as much of the gap or more, and other text gets the steps that it
        saves. Where no other text is to get them, held-out loss is higher with a cap than with
        sinks.""",
    variants=VARIANTS,
    measure=measure,
    seen=RESCALED,
    measures={"lead_over": _lead_over, "more_known": _more_known},
    columns=LOSSES | {"steps": "step"},
    labels={variant: _label(variant) for variant in (*VARIANTS, *RESCALED)},
    table_note="""Losses in nats per token, sinks and dedicated neurons dropped unless stated
        otherwise. Gap closed: share of the standard model's gap between held-out and repeated loss
        that is gone. The main setting is in brackets: the encounter from which a document trains
        the shared neurons less, the size of the pool, the share of sinks that are on, the
        encounters that are left, k if one token in k is left out, the noise relative to the
        clipping norm of a row's gradient, the share of repeated documents without a label.""",
    statements=statements(),
    paper="not in the paper",
    panels=panels,
    size=(15, 6),
    note="""{mean}, whiskers the 95% interval of the mean. Left: up and to the left is better.
        Right: the remaining gap against the repeated loss of users who may know the repeated
        documents. Post-hoc methods are dashed; their owner can keep the original model. Points
        outside the frame are in the table. {floor}""",
    sections=sections,
)
