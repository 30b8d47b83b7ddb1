"""How large should a pool of sinks be? In a large one, nearly every document has its own sinks."""

import dataclasses

import numpy as np

from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.studies.figures import forgetting_capacity, knob, step_times
from memsinks_jax.studies.figures.figure import Figure
from memsinks_jax.studies.figures.panels import COLOURS, Line, Panel
from memsinks_jax.studies.figures.runs import Run, Variation
from memsinks_jax.studies.figures.table import LOSSES, Table

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


def measure(runs: list[Run]) -> list[Run]:
    """Adds to `details` the time of a step, and for runs with sinks the cost of removing a document
    for others, and what an attacker with the sinks but without its id recovers of a document -> the
    same runs.
    """
    timed: dict[tuple[str, int], Run] = {}
    for seed in dict.fromkeys(run.seed for run in runs):
        for run in step_times.measure([run for run in runs if run.seed == seed]):
            timed[run.variant, seed] = run
    runs = [timed[run.variant, run.seed] for run in runs]
    measured = {(run.variant, run.seed): run for run in forgetting_capacity.measure(runs)}
    measured = [measured.get((run.variant, run.seed), run) for run in runs]
    for place, run in enumerate(measured):
        if "capacity" in run.details and POOLS.get(run.variant, 0) <= ATTACKED:
            details = run.details | {"recovered": _recovered(run)}
            measured[place] = dataclasses.replace(run, details=details)
    return measured


def _recovered(run: Run) -> dict[str, float]:
    """{attack: recovered share of what own sinks hold}, see `attacks.reactivation`."""
    # Imported here: jax takes seconds to import, and only measuring needs it.
    from memsinks_jax.measures.subjects import Subject, in_matrices, of_role
    from memsinks_jax.models.trained import open_run
    from memsinks_jax.studies.attacks.reactivation import reactivate

    opened, corpus = open_run(run.workdir), workdirs.read_corpus(run.workdir)
    repeated = of_role(corpus, "repeated", str(run.workdir))
    found = reactivate(in_matrices(Subject(run.variant, opened, "drop")), repeated)
    return {attack: found[attack]["recovered"] for attack in ATTACKS}


def selectivity(run: Run) -> float:
    """Selectivity of removing one document."""
    one = next(row for row in run.details["capacity"] if row["removed"] == 1)
    return one["target_rise"] / max(one["others_rise"], MEASURABLE)


# over the rounds that two runs of a seed took part in
STEP_RATIO = "median({}.step_ms / {}.step_ms)"


def panels(table: Table) -> list[Panel]:
    """Gap closed, held-out loss, selectivity and step time against the size of the pool."""
    sizes = {size: name for name, size in POOLS.items()}
    masked = dict.fromkeys((min(sizes), max(sizes)), "masked")
    shown = (
        ("share of the gap closed", "closed", {"ylim": (0, 1)}),
        ("held-out loss over standard's", "held_out_ratio", {}),
        ("selectivity of removing one document", "selectivity", {"yscale": "log"}),
        ("time of a step over standard's", "median(step_ms / standard.step_ms)", {}),
    )
    return [
        Panel(
            title=title,
            x="sinks of an MLP",
            from_zero=False,
            settings={"xscale": "log"} | settings,
            lines=[
                Line(sizes, measure, "sparse", COLOURS["sinks"], "o-"),
                Line(masked, measure, "154, masked", COLOURS["no_repeat"], "--"),
            ],
        )
        for title, measure, settings in shown
    ]


FIGURE = Figure(
    title="Pool: how many sinks documents draw theirs from",
    answer=f"""Every document has {ACTIVE} sinks on. The larger the pool, the fewer documents share
        a sink, so forgetting one document leaves the others alone. Only sinks that are on are
        computed, so a step takes the same time for any pool.""",
    variants=VARIANTS,
    measure=measure,
    measures={
        "selectivity": selectivity,
        "step_ms": lambda run: np.array(run.details["step_ms"]),
        "best": lambda run: run.details["recovered"]["best"],
        "optimised": lambda run: run.details["recovered"]["optimised"],
    },
    columns=LOSSES
    | {"steps": "step", "selectivity": "selectivity", "step, ms": "median(step_ms)"}
    | {f"recovered, {label}": attack for attack, label in ATTACKS.items()},
    labels={"masked": "sinks, 154, masked"}
    | {name: f"sinks, {size:,}, sparse" for name, size in POOLS.items()},
    table_note=f"""{knob.TABLE_NOTE} Selectivity: rise of the loss of a repeated document whose
        sinks are removed, divided by that of the others with their own sinks on (at least
        {MEASURABLE:g} nats per token). Step: milliseconds of a training step, with the runs of a
        seed taking turns. Recovered: an attacker has the sinks and half of a repeated document, but
        not its id. The share of what its own sinks know of the other half that the best of 64
        random ids brings back, and that optimising which are on brings back.""",
    statements=f"""
selective | rise of a removed document's loss over that of the others', pool of 4,096
    | pool_4096.selectivity >= 100 | at least 100
closed | share of standard's gap closed, sinks dropped: pool of 4,096 minus masked
    | pool_4096.closed - masked.closed >= 0 | not below
held_out | held-out loss, dropped: pool of 4,096 over masked
    | pool_4096.held_out_loss / masked.held_out_loss <= 1 | not above
step_time | time of a step, side by side: pool of 65,536 over 4,096
    | {STEP_RATIO.format("pool_65536", "pool_4096")} <= 1.05 | at most 1.05
best_id | sinks kept: share of what a document's own sinks hold that the best of 64 ids recovers,
    pool of 4,096 | pool_4096.best <= 0.1 | at most 0.1
optimised | the same by optimising which sinks are on: pool of 4,096 minus masked
    | pool_4096.optimised - masked.optimised <= 0 | less""",
    panels=panels,
    size=(15, 3.8),
    note=knob.NOTE,
)
