"""How large should a pool of sinks be? In a large one, nearly every document has its own sinks, at no cost if sparse."""

import dataclasses
import pathlib

import numpy as np

from memsinks_jax.figures import forgetting_capacity, knob, losses, step_times
from memsinks_jax.figures.figure import Figure
from memsinks_jax.figures.runs import Run, Variation, by_variant
from memsinks_jax.reporting.claims import Claim
from memsinks_jax.reporting.pictures import plt, save
from memsinks_jax.runs import workdir as workdirs

TITLE = "Pool: how many sinks documents draw theirs from"
CONFIG = "ts_repetition.py"
ACTIVE = 50  # sinks per document
ATTACKS = {"best": "best id", "optimised": "optimised"}
MEASURABLE = 1e-4  # nats per token; lower limit of the others' rise
POOLS = {f"pool_{size}": size for size in (154, 1024, 4096, 65_536)}
ATTACKED = 4096  # largest pool to attack: the attacker computes all sinks
_SPARSE = {"sinks.sampling": "floyd", "sinks.sparse": True, "sinks.active": ACTIVE}
VARIANTS = {
    "standard": Variation("standard"),
    "masked": Variation("sinks"),
    **{name: Variation("sinks", _SPARSE | {"sinks.pool": size}) for name, size in POOLS.items()},
}
ANSWER = (
    f"Every document has {ACTIVE} sinks on. The larger the pool, the fewer documents share a sink, so forgetting one "
    "document leaves the others alone. Only sinks that are on are computed, so a step takes the same time for any pool."
)
TABLE_NOTE = (
    f"{knob.TABLE_NOTE} Selectivity: rise of the loss of a repeated document whose sinks are removed, divided by that of "
    f"the others with their own sinks on (at least {MEASURABLE:g} nats per token). Step: milliseconds of a training step, "
    "with the runs of a seed taking turns. Recovered: an attacker has the sinks and half of a repeated document, but not "
    "its id. The share of what its own sinks know of the other half that the best of 64 random ids brings back, and that "
    "optimising which are on brings back."
)


def measure(runs: list[Run]) -> list[Run]:
    """Adds to `details` the time of a step, and for runs with sinks the cost of removing a document for others, and what
    an attacker with the sinks but without its id recovers of a document -> the same runs."""
    for seed in dict.fromkeys(run.seed for run in runs):
        timed = {run.variant: run for run in step_times.measure([run for run in runs if run.seed == seed])}
        runs = [timed[run.variant] if run.seed == seed else run for run in runs]
    measured = {(run.variant, run.seed): run for run in forgetting_capacity.measure(runs)}
    measured = [measured.get((run.variant, run.seed), run) for run in runs]
    return [
        dataclasses.replace(run, details=run.details | {"recovered": _recovered(run)})
        if "capacity" in run.details and POOLS.get(run.variant, 0) <= ATTACKED
        else run
        for run in measured
    ]


def _recovered(run: Run) -> dict[str, float]:
    """{attack: recovered share of what the repeated documents' own sinks hold}, see `auditing.reactivation`."""
    # Imported here: jax takes seconds to import, and only measuring needs it.
    from memsinks_jax.auditing.reactivation import reactivate
    from memsinks_jax.auditing.subjects import Subject, in_matrices, of_role
    from memsinks_jax.runs.trained import open_run

    opened = open_run(run.workdir)
    repeated = of_role(workdirs.read_corpus(run.workdir), opened.config, "repeated", str(run.workdir))
    found = reactivate(in_matrices(Subject(run.variant, opened, "drop")), repeated)["attacks"]
    return {attack: found[attack]["recovered"] for attack in ATTACKS}


def selectivity(run: Run) -> float:
    """Selectivity of removing one document."""
    one = next(row for row in run.details["capacity"] if row["removed"] == 1)
    return one["target_rise"] / max(one["others_rise"], MEASURABLE)


def step_ratio(run: Run, other: Run) -> float:
    """Ratio of step times of two runs of a seed: the median over the rounds that both took part in."""
    return float(np.median(np.divide(run.details["step_ms"], other.details["step_ms"])))


def row_labels(runs: list[Run]) -> list[str]:
    names = {"masked": "sinks, 154, masked"} | {name: f"sinks, {size:,}, sparse" for name, size in POOLS.items()}
    return [names.get(name, name) for name in by_variant(runs)]


def table(runs: list[Run]) -> tuple[list[str], list[list[list[float]]]]:
    columns, rows = losses.table(runs, lambda variant: "standard")
    groups = by_variant(runs)
    for row, group in zip(rows, groups.values(), strict=True):
        row.append([selectivity(run) for run in group.values() if "capacity" in run.details])
        row.append([float(np.median(run.details["step_ms"])) for run in group.values()])
        row += [[run.details["recovered"][a] for run in group.values() if "recovered" in run.details] for a in ATTACKS]
    return [*columns, "selectivity", "step, ms", *(f"recovered, {said}" for said in ATTACKS.values())], rows


def draw(runs: list[Run], path: pathlib.Path) -> None:
    """Gap closed, held-out loss over standard's, selectivity and step time against the size of the pool."""
    groups = by_variant(runs)
    standard, shown = groups.get("standard", {}), [name for name in POOLS if name in groups]
    panels = (
        ("share of the gap closed", lambda run: losses.gap_closed(run, standard[run.seed])),
        ("held-out loss over standard's", lambda run: losses.held_out_ratio(run, standard[run.seed])),
        ("selectivity of removing one document", selectivity),
        ("time of a step over standard's", lambda run: step_ratio(run, standard[run.seed])),
    )
    figure, axes = plt.subplots(1, len(panels), figsize=(15, 3.8), layout="constrained")
    for axis, (title, measured) in zip(axes, panels, strict=True):
        if shown and (standard or measured is selectivity):
            values = np.array([[measured(run) for run in groups[name].values()] for name in shown]).T
            losses.band(axis, [POOLS[name] for name in shown], values, "sparse", "#1f618d", "o-")
            masked = [measured(run) for run in groups.get("masked", {}).values()]
            if masked:
                axis.axhline(np.mean(masked), color="#7f8c8d", linestyle="--", label="154, masked")
        axis.set_xscale("log")
        losses.finish(axis, [], title, "sinks of an MLP")
        axis.set_yscale("log" if measured is selectivity else "linear")
        axis.autoscale(axis="y")  # `finish` starts at 0, far from these ratios
        if axis.get_legend_handles_labels()[0]:
            axis.legend(frameon=False, fontsize=8.5)
    axes[0].set_ylim(0, 1)
    save(figure, path)


def claims(runs: list[Run]) -> list[Claim]:
    """Paired by seed: the benefit of a large pool, and that it costs nothing."""
    large = "pool_4096"
    return [
        *losses.paired(
            runs, "selective", "rise of one removed document over the others', pool of 4,096", "at least 100", [large],
            selectivity, at_least=100.0,
        ),
        *losses.paired(
            runs, "closed", "share of the gap that dropping closes: pool of 4,096 minus masked", "not below",
            [large, "masked", "standard"],
            lambda run, masked, standard: losses.gap_closed(run, standard) - losses.gap_closed(masked, standard),
            at_least=0.0,
        ),
        *losses.paired(
            runs, "held_out", "held-out loss, dropped: pool of 4,096 over masked", "not above", [large, "masked"],
            losses.held_out_ratio, at_most=1.0,
        ),
        *losses.paired(
            runs, "step_time", "time of a step, side by side: pool of 65,536 over 4,096", "at most 1.05",
            ["pool_65536", large], step_ratio, at_most=1.05,
        ),
        *losses.paired(
            runs, "best_id", "sinks kept: share of what a document's own sinks hold that the best of 64 ids recovers, pool "
            "of 4,096", "at most 0.1", [large], lambda run: run.details["recovered"]["best"], at_most=0.1,
        ),
        *losses.paired(
            runs, "optimised", "the same by optimising which sinks are on: pool of 4,096 minus masked", "less",
            [large, "masked"], lambda *pair: float(np.subtract(*(run.details["recovered"]["optimised"] for run in pair))),
            at_most=0.0,
        ),
    ]  # fmt: skip


FIGURE = Figure(
    title=TITLE, config=CONFIG, variants=VARIANTS, answer=ANSWER, table_note=TABLE_NOTE,
    row_labels=row_labels, measure=measure, claims=claims, table=table, draw=draw, note=knob.note, sections=knob.sections,
)  # fmt: skip
