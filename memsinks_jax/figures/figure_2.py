"""Figure 2: methods that find memorization in a finished standard model, and how it gets there.

2a and 2b: what pruning and integrated gradients make a model forget, and at what cost, if it memorized natural text
(TS-Repetition) or random tokens (TS-Canary). 2c: held-out and repeated loss over training.
"""

import pathlib

from memsinks_jax.figures import losses, post_hoc
from memsinks_jax.figures import sections as shared
from memsinks_jax.figures.figure import ByHand
from memsinks_jax.figures.runs import Run, Variation, by_variant
from memsinks_jax.reporting import report
from memsinks_jax.reporting.claims import Claim, rank_correlation
from memsinks_jax.reporting.pictures import plt, save
from memsinks_jax.runs import workdir as workdirs

TITLE = "Figure 2: what is memorized naturally is hard to take out afterwards"
CONFIG = "ts_repetition.py"
VARIANTS = {
    "repetition": Variation("standard"),
    "canary": Variation("standard", {"canaries.documents": -1}, "ts_canary.py"),  # all of them, as in the paper
}

ANSWER = (
    "Post-hoc methods search a finished model for the neurons of memorized documents. They should find them if the "
    "memorized text is unlike all other text. Natural text that was repeated too often is in neurons that all other text "
    "needs as well."
)

TABLE_NOTE = (
    "Losses in nats per token, and the rise of the held-out loss once a method has removed as much as half of "
    "TS-Repetition's gap between held-out and repeated loss; for TS-Canary on whole documents, and on its canaries alone."
)

LABELS = {"repetition": "TS-Repetition, standard", "canary": "TS-Canary, standard"}
_PRUNING, _GRADIENTS = post_hoc.OF_THE_PAPER
# What to forget: (name of a claim, words, variant, which of its curves).
_SETTINGS = (
    ("repetition", "TS-Repetition", "repetition", "repeated"),
    ("canary", "TS-Canary, whole documents", "canary", "repeated"),
    ("canary_alone", "TS-Canary, canaries alone", "canary", "canary"),
)
_COLOURS = {"repetition": "#c0392b", "canary": "#1f618d", "canary_alone": "#5dade2"}


def note(runs: list[Run]) -> str:
    """The text under the plot."""
    return (
        f"{shared.mean_over_seeds(runs)}; in 2a and 2b each seed is faint, in 2c the band is from the "
        "lowest to the highest. Degradation is held-out loss before minus after, as in the paper: higher is better. A dot "
        "is a dropped share of every layer. 2a and 2b end once TS-Repetition has lost its whole gap. "
        f"{shared.floor_sentence(runs)}"
    )


def _matched(standard: Run) -> float:
    """Forgetting at which curves are compared, in nats: half of the gap between held-out and repeated loss."""
    return (standard.metrics["held_out_loss"] - standard.metrics["repeated_loss"]) / 2


def table(runs: list[Run]) -> tuple[list[str], list[list[list[float]]]]:
    """Final numbers -> (names of columns, one row per variant; a cell holds one value per seed, none if undefined)."""
    groups = by_variant(runs)
    matched = {seed: _matched(run) for seed, run in groups.get("repetition", {}).items()}
    columns = ["held-out", "repeated", "canaries"]
    columns += [f"rise, {name}{alone}" for name in ("pruning", "gradients") for alone in ("", ", canaries")]
    rows = []
    for group in groups.values():
        row = [[run.metrics[name] for run in group.values() if name in run.metrics]
               for name in ("held_out_loss", "repeated_loss", "canary_loss")]  # fmt: skip
        for method in post_hoc.OF_THE_PAPER:
            for of in ("repeated", "canary"):
                row.append([
                    post_hoc.cost_at(run, [method], matched[seed], of)
                    for seed, run in group.items() if seed in matched and of in run.details[method]
                ])  # fmt: skip
        rows.append([*row, [run.metrics["step"] for run in group.values()]])
    return [*columns, "steps"], rows


def _least_rank_correlation(*runs: Run, method: str) -> float:
    """Rank correlation of the dropped share with repeated and with held-out loss. 1: both rise with every step."""
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


def claims(runs: list[Run]) -> list[Claim]:
    """The claims of figure 2, paired by seed. Omits claims about variants that were not run."""
    rows = []
    both, words = ["repetition", "canary"], {name: said for name, said, _, _ in _SETTINGS}

    def rise(method: str, name: str, repetition: Run, canary: Run) -> float:
        of_run = {"repetition": repetition, "canary": canary}
        _, _, variant, of = next(setting for setting in _SETTINGS if setting[0] == name)
        return post_hoc.cost_at(of_run[variant], [method], _matched(repetition), of)

    def more(method: str, name: str, *pair: Run) -> float:
        """How much more TS-Repetition degrades, in nats."""
        return rise(method, "repetition", *pair) - rise(method, name, *pair)

    for method in post_hoc.OF_THE_PAPER:
        label = post_hoc.LABELS[method]
        rows += losses.paired(
            runs, f"{method}_forgets", f"{label}: rank correlation of the share dropped with repeated and held-out loss, "
            "least of both and of both settings", "partial success: forgets, and degrades", both,
            lambda *pair, m=method: _least_rank_correlation(*pair, method=m), at_least=0.8,
        )  # fmt: skip
        for name in ("canary", "canary_alone"):
            rows += losses.paired(
                runs, f"{method}_{name}", f"{label}: rise of the held-out loss at matched forgetting, TS-Repetition less "
                f"{words[name]} (nats)", "TS-Repetition degrades more", both,
                lambda *pair, m=method, n=name: more(m, n, *pair), at_least=0.0,
            )  # fmt: skip
    for name in words:
        rows += losses.paired(
            runs, f"gradients_less_{name}", f"rise at matched forgetting, {post_hoc.LABELS[_PRUNING]} less "
            f"{post_hoc.LABELS[_GRADIENTS]}, {words[name]} (nats)", "integrated gradients degrade less", both,
            lambda *pair, n=name: rise(_PRUNING, n, *pair) - rise(_GRADIENTS, n, *pair), at_least=0.0,
        )  # fmt: skip
    for name in ("canary", "canary_alone"):
        rows += losses.paired(
            runs, f"pronounced_{name}", f"difference between TS-Repetition and {words[name]}, "
            f"{post_hoc.LABELS[_GRADIENTS]} less {post_hoc.LABELS[_PRUNING]} (nats)", "pronounced for integrated gradients",
            both, lambda *pair, n=name: more(_GRADIENTS, n, *pair) - more(_PRUNING, n, *pair), at_least=0.0,
        )  # fmt: skip
    rows += losses.paired(
        runs, "together", "rank correlation of held-out and repeated loss over the first half of training, TS-Repetition",
        "no phase of its own for memorization (2c)", ["repetition"], together, at_least=0.5,
    )  # fmt: skip
    rows += losses.paired(
        runs, "no_rise", "rise of the held-out loss from its lowest point to the end, TS-Repetition (nats)",
        "held-out loss still falls (2c)", ["repetition"],
        lambda run: run.metrics["held_out_loss"] - min(run.curve("held_out_loss")[1]), at_most=0.01,
    )  # fmt: skip
    return rows


def sections(runs: list[Run], out: pathlib.Path) -> list[str]:
    """Further sections of the page: how the methods work, and what the paper leaves open about canaries."""
    found = post_hoc.how(runs, post_hoc.OF_THE_PAPER)
    canary = next((run for run in runs if run.variant == "canary"), None)
    if canary is None:
        return [report.heading("Choices"), *found]
    settings = workdirs.read_config(canary.workdir).canaries
    choices = [
        ["canaries", f"{settings.length} random tokens of the vocabulary at the {settings.place} of all "
                     "the repeated documents"],
        ["repeated loss of TS-Canary", "both shown: of whole documents, and of the canaries' tokens alone"],
        ["what the methods are to find on TS-Canary", "whole documents"],
        ["where curves are compared", "half of TS-Repetition's gap between held-out and repeated loss, in nats"],
    ]  # fmt: skip
    rows = [[report.text(cell) for cell in row] for row in choices]
    return [report.heading("Choices"), *found, report.table(["the paper leaves open", "here"], rows, ["", ""])]


def draw(runs: list[Run], path: pathlib.Path) -> None:
    """2a and 2b: forgetting against degradation, one panel per method. 2c: both losses over training."""
    groups = by_variant(runs)
    figure, (*planes, training) = plt.subplots(1, 3, figsize=(15, 4.6), layout="constrained")
    for axis, method, panel in zip(planes, post_hoc.OF_THE_PAPER, ("2a", "2b"), strict=True):
        for name, words, variant, of in _SETTINGS:
            several = [run for run in groups.get(variant, {}).values() if of in run.details[method]]
            if several:
                style = "o--" if of == "canary" else "o-"
                post_hoc.draw(axis, several, method, words, _COLOURS[name], style, of)
        post_hoc.finish(axis, f"{panel}: {post_hoc.LABELS[method]}")
    _same_limits(planes, list(groups.get("repetition", {}).values()))
    planes[0].set_ylabel("degradation (nats; higher is better)")
    planes[0].legend(frameon=False, fontsize=8.5, loc="lower left")
    standard = list(groups.get("repetition", {}).values())
    if standard:
        losses.curve(training, standard, "held_out_loss", "held-out", "#1f618d")
        losses.curve(training, standard, "repeated_loss", "repeated", "#c0392b")
    losses.finish(training, standard, "2c: TS-Repetition over training", "step")
    training.set_ylabel("loss (nats per token)")
    if standard:
        training.legend(frameon=False, fontsize=8.5)
    save(figure, path)


def _same_limits(planes, standard: list[Run]) -> None:
    """Sets limits: forgetting up to TS-Repetition's gap, degradation down to where its curves are by then."""
    if not standard:
        return
    gap = 2 * max(map(_matched, standard))
    lowest = max(post_hoc.cost_at(run, [method], gap) for run in standard for method in post_hoc.OF_THE_PAPER)
    for axis in planes:
        axis.set(xlim=(-0.03 * gap, 1.05 * gap), ylim=(-1.1 * max(lowest, 0.1), 0.12 * max(lowest, 0.1)))


FIGURE = ByHand(
    title=TITLE, config=CONFIG, variants=VARIANTS, answer=ANSWER, table_note=TABLE_NOTE,
    measure=lambda runs: post_hoc.measured(runs, lambda run: True, post_hoc.OF_THE_PAPER),
    row_labels=lambda runs: [LABELS[variant] for variant in by_variant(runs)],
    old_claims=claims, old_table=table, old_draw=draw, note=note, sections=sections,
)  # fmt: skip
