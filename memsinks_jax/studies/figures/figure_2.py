"""Figure 2: methods that find memorization in a finished standard model, and how it gets there.

2a and 2b: what pruning and integrated gradients make a model forget, and at what cost, if it
memorized natural text (TS-Repetition) or random tokens (TS-Canary). 2c: held-out and repeated loss
over training.
"""

import pathlib

from memsinks_jax.reporting import report
from memsinks_jax.reporting.claims import rank_correlation
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.studies.figures import post_hoc
from memsinks_jax.studies.figures import sections as shared
from memsinks_jax.studies.figures.figure import Figure
from memsinks_jax.studies.figures.panels import HELD_OUT, REPEATED, AnyPanel, Line, Panel, Scatter
from memsinks_jax.studies.figures.runs import Run, Variation
from memsinks_jax.studies.figures.table import Table

VARIANTS = {
    "repetition": Variation("standard"),
    # all of them, as in the paper
    "canary": Variation("standard", {"canaries.documents": -1}, "ts_canary.py"),
}

# What to forget: (name of a claim, words, variant, which of its curves).
_SETTINGS = (
    ("repetition", "TS-Repetition", "repetition", "repeated"),
    ("canary", "TS-Canary, whole documents", "canary", "repeated"),
    ("canary_alone", "TS-Canary, canaries alone", "canary", "canary"),
)
_COLOURS = {"repetition": "#c0392b", "canary": "#1f618d", "canary_alone": "#5dade2"}


def _matched(standard: Run) -> float:
    """Forgetting at which curves are compared, in nats: half of the standard model's gap."""
    return (standard.metrics["held_out_loss"] - standard.metrics["repeated_loss"]) / 2


def rise(method: str, of: str, run: Run, repetition: Run) -> float:
    """Rise of held-out loss at matched forgetting, in nats. KeyError without such documents."""
    return post_hoc.cost_at(run, [method], _matched(repetition), of)


def _least_rank_correlation(method: str, *runs: Run) -> float:
    """Rank correlation of the dropped share with both losses. 1: both rise with every step."""
    return min(
        rank_correlation([p.ratio for p in points], [getattr(p, name) for p in points])
        for points in (post_hoc.curve(run, method) for run in runs)
        for name in ("repeated_loss", "held_out_loss")
    )


def together(run: Run) -> float:
    """Rank correlation of held-out and repeated loss over the first half of the evaluations."""
    (_, held_out), (_, repeated) = run.curve("held_out_loss"), run.curve("repeated_loss")
    half = max(len(held_out) // 2, 2)
    return rank_correlation(held_out[:half], repeated[:half])


def _claims() -> str:
    pruning, gradients = post_hoc.OF_THE_PAPER
    labels, words = post_hoc.LABELS, {name: setting for name, setting, _, _ in _SETTINGS}

    def risen(method: str, name: str) -> str:
        variant, of = next(pair for at, _, *pair in _SETTINGS if at == name)
        return f"rise('{method}', '{of}', {variant}, repetition)"

    def more(method: str, name: str) -> str:
        return f"({risen(method, 'repetition')} - {risen(method, name)})"

    others, rows = [name for name in words if name != "repetition"], []
    for method in post_hoc.OF_THE_PAPER:
        rows += [
            f"""
{method}_forgets | {labels[method]}: rank correlation of the share dropped with repeated and
    held-out loss, least of both and of both settings
    | least_rank_correlation('{method}', repetition, canary) >= 0.8
    | partial success: forgets, and degrades""",
            *(
                f"""
{method}_{name} | {labels[method]}: rise of the held-out loss at matched forgetting, TS-Repetition
    minus {words[name]} (nats) | {more(method, name)} >= 0 | TS-Repetition degrades more"""
                for name in others
            ),
        ]
    rows += [
        f"""
gradients_less_{name} | rise at matched forgetting, {labels[pruning]} minus {labels[gradients]},
    {setting} (nats) | {risen(pruning, name)} - {risen(gradients, name)} >= 0
    | integrated gradients degrade less | canary"""
        for name, setting in words.items()
    ]
    rows += [
        f"""
pronounced_{name} | rise at matched forgetting, TS-Repetition minus {words[name]}:
    {labels[gradients]} minus {labels[pruning]} (nats)
    | {more(gradients, name)} - {more(pruning, name)} >= 0 | pronounced for integrated gradients"""
        for name in others
    ]
    return (
        "".join(rows)
        + """
together | rank correlation of held-out and repeated loss over the first half of training,
    TS-Repetition | repetition.together >= 0.5 | no phase of its own for memorization (2c)
no_rise | rise of the held-out loss from its lowest point to the end, TS-Repetition (nats)
    | repetition.held_out_loss - repetition.lowest_held_out <= 0.01
    | held-out loss still falls (2c)"""
    )


def sections(runs: list[Run], out: pathlib.Path) -> list[str]:
    """How the methods work, and what the paper leaves open about canaries."""
    parts = [report.heading("Choices"), *post_hoc.how(runs, post_hoc.OF_THE_PAPER)]
    canary = next((run for run in runs if run.variant == "canary"), None)
    if canary is None:
        return parts
    settings = workdirs.read_config(canary.workdir).canaries
    of_canaries = shared.left_open(f"""
        canaries | {settings.length} random tokens of the vocabulary at the end of all the repeated
            documents
        repeated loss of TS-Canary | both shown: of whole documents, and of the canaries' tokens
            alone
        what the methods are to find on TS-Canary | whole documents
        where curves are compared | half of TS-Repetition's gap between held-out and repeated loss,
            in nats
    """)
    return [*parts, of_canaries]


def panels(table: Table) -> list[AnyPanel]:
    """2a and 2b: forgetting against degradation, a panel per method. 2c: both losses."""
    standard, limits = list(table.groups.get("repetition", {}).values()), {}
    # forgetting up to TS-Repetition's gap, degradation down to where its curves are by then
    if standard:
        gap = 2 * max(map(_matched, standard))
        methods = [[one] for one in post_hoc.OF_THE_PAPER]
        costs = [post_hoc.cost_at(run, one, gap) for run in standard for one in methods]
        lowest = max(0.1, *costs)
        limits = {"xlim": (-0.03 * gap, 1.05 * gap), "ylim": (-1.1 * lowest, 0.12 * lowest)}

    def plane(method: str, panel: str) -> Scatter:
        curves = []
        for name, words, variant, of in _SETTINGS:
            every = table.groups.get(variant, {}).values()
            runs = [run for run in every if of in run.details[method]]
            style = "o--" if of == "canary" else "o-"
            if runs:
                curves.append(post_hoc.traced(runs, method, words, _COLOURS[name], style, of))
        return Scatter(
            title=f"{panel}: {post_hoc.LABELS[method]}",
            legend={"loc": "lower left"},
            settings=limits,
            **post_hoc.PLANE,
            curves=curves,
        )

    losses = [
        Line("repetition", "held_out_loss", "held-out", HELD_OUT),
        Line("repetition", "repeated_loss", "repeated", REPEATED),
    ]
    title, y = "2c: TS-Repetition over training", "loss (nats per token)"
    return [
        *map(plane, post_hoc.OF_THE_PAPER, ("2a", "2b")),
        Panel(title=title, y=y, floor=True, lines=losses),
    ]


FIGURE = Figure(
    title="Figure 2: what is memorized naturally is hard to take out afterwards",
    answer="""Post-hoc methods search a finished model for the neurons of memorized documents. They
        should find them if the memorized text is unlike all other text. Natural text that was
        repeated too often is in neurons that all other text needs as well.""",
    variants=VARIANTS,
    measure=lambda runs: post_hoc.measured(runs, lambda run: True, post_hoc.OF_THE_PAPER),
    measures={
        "rise": rise,
        "least_rank_correlation": _least_rank_correlation,
        "together": together,
        "lowest_held_out": lambda run: min(run.curve("held_out_loss")[1]),
    },
    columns={"held-out": "held_out_loss", "repeated": "repeated_loss", "canaries": "canary_loss"}
    | {
        f"rise, {name}{alone}": f"rise('{method}', '{of}', run, repetition.run)"
        for method, name in zip(post_hoc.OF_THE_PAPER, ("pruning", "gradients"), strict=True)
        for of, alone in (("repeated", ""), ("canary", ", canaries"))
    }
    | {"steps": "step"},
    labels={"repetition": "TS-Repetition, standard", "canary": "TS-Canary, standard"},
    table_note="""Losses in nats per token, and the rise of the held-out loss once a method has
        removed as much as half of TS-Repetition's gap between held-out and repeated loss; for
        TS-Canary on whole documents, and on its canaries alone.""",
    statements=_claims(),
    panels=panels,
    size=(15, 4.6),
    note="""{mean}; in 2a and 2b each seed is faint, in 2c the band is from the lowest to the
        highest. Degradation is held-out loss before minus after, as in the paper: higher is better.
        A dot is a dropped share of every layer. 2a and 2b end once TS-Repetition has lost its whole
        gap. {floor}""",
    sections=sections,
)
