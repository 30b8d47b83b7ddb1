"""The trade-off curves of post-hoc methods, which find memorization in a finished model, on a run.

Measuring takes minutes, so results are cached next to the run, in NAME-seedN.post_hoc.METHOD.json.
"""

import dataclasses
import functools
import itertools
import json
import logging
import math
import pathlib
import sys
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import tqdm

from memsinks_jax.reporting import report
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.studies.figures import sections as shared
from memsinks_jax.studies.figures.cached import cached
from memsinks_jax.studies.figures.panels import Curve
from memsinks_jax.studies.figures.runs import Run

logger = logging.getLogger(__name__)

OF_THE_PAPER = ("hard_concrete", "integrated_gradients")
METHODS = (*OF_THE_PAPER, "slimming", "zero_out", "activation", "random")
LABELS = {
    "hard_concrete": "pruning (Hard Concrete)",
    "integrated_gradients": "integrated gradients",
    "slimming": "slimming",
    "zero_out": "zero-out",
    "activation": "activation",
    "random": "random neurons",
}
# Edits of weights, for the figure of rivals. Settings are chosen on every other document and
# evaluated on the rest.
EDITS = {
    "kfac": "K-FAC weight editing",
    "svd": "control: singular values",
    "balanced_subnet": "BalancedSubnet",
}
SHARES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)  # of the mass to keep; the paper's are 0.6 to 0.9
MOST_LAYERS = 3  # adjacent layers to edit
RATIOS, WEIGHTS = (0.003, 0.01, 0.03, 0.1), (0.05, 0.5)  # from BalancedSubnet's grid
ORDINARY = 256  # documents that were read once: for the curvature, and for BalancedSubnet to keep
FEW = 5  # documents: to tune Hard Concrete, as in the paper, and for zero-out, which is slow
TUNED_ON_HELD_OUT = 32  # documents

# Tuned with a tenth of the paper's iterations at ten times the learning rate (both in Chang et
# al.'s grid): the same distance in minutes.
_FASTER = 10


def measured(runs: list[Run], wanted: Callable[[Run], bool], methods: Sequence[str]) -> list[Run]:
    """Adds results of `methods` to the `details` of wanted runs, {method: of `removals`}."""
    count, shown = sum(map(wanted, runs)) * len(methods), sys.stderr.isatty()
    with tqdm.tqdm(total=count, desc="post-hoc methods", unit="method", disable=not shown) as bar:
        return [
            dataclasses.replace(r, details=removals(r, methods, bar.update)) if wanted(r) else r
            for r in runs
        ]


def removals(
    run: Run, methods: Iterable[str], progress: Callable[[], object] = lambda: None
) -> dict[str, dict]:
    """Measures each method on the run's own documents. Calls `progress` after each.

    Returns:
      {method: {"asked": its settings, "found": what tuning chose, "repeated": its curve, "canary":
      the same on canaries alone, if there are any}}. A curve holds a `removal.Point` as a dict for
      each of removal.RATIOS.
    """
    subject = functools.cache(lambda: _Subject(run.workdir))

    def measure(method: str) -> dict:
        begun = time.monotonic()
        found = (subject().edit if method in EDITS else subject().removal)(method)
        seconds = time.monotonic() - begun
        logger.info("%s on %s, seed %d: %.0f s", method, run.variant, run.seed, seconds)
        return found

    there = {}
    for method in methods:
        asked, make = _asked(method), functools.partial(measure, method)
        there[method] = {"asked": asked} | cached([run], f"post_hoc.{method}", asked, make)
        progress()
    return there


def _asked(method: str) -> dict:
    """Everything besides the run that determines a measurement, as read back from JSON."""
    # Imported here and below: jax takes seconds to import, and only measuring needs it.
    from memsinks_jax.studies.baselines import balanced_subnet, learned_masks, removal, tuning
    from memsinks_jax.studies.baselines import integrated_gradients as gradients

    found = (
        {"shares": SHARES, "layers": MOST_LAYERS} if method in EDITS else {"ratios": removal.RATIOS}
    )
    if method == "hard_concrete":
        found |= dataclasses.asdict(_tuned())
        found |= {"strength": tuning.STRENGTHS, "iterations": _iterations()}
        found |= {"tuned_on": FEW, "tuned_on_held_out": TUNED_ON_HELD_OUT}
    elif method == "slimming":
        found |= dataclasses.asdict(learned_masks.Slimming())
    elif method == "integrated_gradients":
        found |= {"steps": gradients.STEPS}
    elif method == "zero_out":
        found |= {"documents": FEW}
    elif method == "kfac":
        found |= {"documents": ORDINARY}
    elif method == "balanced_subnet":
        found = {"ratios": RATIOS, "weights": WEIGHTS, "documents": ORDINARY}
        found |= dataclasses.asdict(balanced_subnet.BalancedSubnetSettings(ratio=0, weight=0))
    return json.loads(json.dumps(found))


def _tuned():
    from memsinks_jax.studies.baselines.learned_masks import HardConcrete

    return HardConcrete(learning_rate=HardConcrete.learning_rate * _FASTER)


def _iterations() -> list[int]:
    from memsinks_jax.studies.baselines.tuning import ITERATIONS

    return [count // _FASTER for count in ITERATIONS]


class _Subject:
    """A finished run, opened, with the documents to find."""

    def __init__(self, workdir: pathlib.Path):
        from memsinks_jax.measures.document_loss import DocumentLoss
        from memsinks_jax.measures.documents import rows_at_once
        from memsinks_jax.measures.memorization import batches_by_role
        from memsinks_jax.model import placement
        from memsinks_jax.models.trained import open_run

        self._model = open_run(workdir)
        self._config, self._params = self._model.config, self._model.params
        self._corpus = workdirs.read_corpus(workdir)
        rows = rows_at_once(self._config, placement.mesh_of(self._params))
        self._batches = batches_by_role(self._corpus, self._model.opened, rows)
        self._loss = DocumentLoss(self._config)

    def removal(self, method: str) -> dict:
        from memsinks_jax.studies.baselines import removal, scores, tuning

        loss, params, settings, found = self._loss, self._params, {}, {}
        repeated, held_out = self._batches["repeated"], self._batches["held_out"]
        few = _first(repeated, FEW)
        if method == "hard_concrete":
            about = loss, self._config, params, few, _first(held_out, TUNED_ON_HELD_OUT), _tuned()
            best = tuning.tune(*about, iterations=_iterations())[0].settings
            settings = {"settings": best}
            found = {"strength": best.strength, "iterations": best.iterations}
        measured_on = few if method == "zero_out" else repeated
        scores_RLF = scores.METHODS[method](self._config, params, measured_on, **settings)
        names = [name for name in ("repeated", "canary") if name in self._batches]
        forgotten = {name: self._batches[name] for name in names}
        scores_LF = scores.over_documents(scores_RLF)
        curves = removal.tradeoff(loss, params, scores_LF, forgotten, held_out)
        return {"found": found} | {
            name: [point._asdict() for point in curve] for name, curve in curves.items()
        }

    def edit(self, method: str) -> dict:
        """As `removal`, but with the points of the Pareto front, and their settings as "found"."""
        from memsinks_jax.studies.baselines import fronts

        edits = self._subnets() if method == "balanced_subnet" else self._in_layers(method)
        sets = self._batches["repeated"], self._batches["held_out"]
        chosen = fronts.front(fronts.tried(self._loss, self._params, edits, *sets))
        points = [trial.evaluated._replace(ratio=number) for number, trial in enumerate(chosen, 1)]
        return {
            "found": [trial.settings for trial in chosen],
            "repeated": [point._asdict() for point in points],
        }

    def _in_layers(self, method: str) -> Iterable[tuple[dict, dict]]:
        from memsinks_jax.studies.baselines import curvature

        of = None
        if method == "kfac":
            of = curvature.factors(self._config, self._params, self._ordinary())
        entries = curvature.entries_of(self._params, of)
        count = self._config.model.layers
        for width in range(1, min(MOST_LAYERS, count) + 1):
            for first in range(count - width + 1):
                layers = tuple(range(first, first + width))
                for share in SHARES:
                    edited = curvature.edited(self._params, entries, layers, share)
                    yield {"layers": list(layers), "share": share}, edited

    def _subnets(self) -> Iterable[tuple[dict, dict]]:
        from memsinks_jax.studies.baselines import balanced_subnet, fronts

        lost, stays = fronts.half(self._batches["repeated"], 0), self._ordinary()
        for ratio, weight in itertools.product(RATIOS, WEIGHTS):
            chosen = {"ratio": ratio, "weight": weight}
            about = (
                self._config,
                self._params,
                lost,
                stays,
                balanced_subnet.BalancedSubnetSettings(**chosen),
            )
            yield chosen, balanced_subnet.balanced_subnet(*about)

    def _ordinary(self) -> list[dict]:
        """Batches of documents that were read once."""
        from memsinks_jax.measures.documents import corpus_batches

        corpus, size = self._corpus, len(self._batches["held_out"][0]["weights"])
        documents = corpus.mixture.documents("unique")[:ORDINARY]
        return corpus_batches(corpus, documents, size)


def _first(batches: list[dict], count: int) -> list[dict]:
    """The first documents."""
    size = len(batches[0]["weights"])
    parts = [
        {name: values[: count - number * size] for name, values in batch.items()}
        for number, batch in enumerate(batches)
    ]
    return parts[: -(-count // size)]


def curve(run: Run, method: str, of: str = "repeated") -> list:
    """Points of a measured run, for its "repeated" documents or the "canary" alone."""
    from memsinks_jax.studies.baselines.removal import Point

    return [Point(**point) for point in run.details[method][of]]


def cost_at(run: Run, methods: Iterable[str], forgetting: float, of: str = "repeated") -> float:
    """The least rise of the held-out loss (nats) at which one of the methods reaches `forgetting`.

    Where none does: the rise where the most is forgotten, which is too little to ask of it.
    """
    from memsinks_jax.studies.baselines.removal import delta_val_at

    curves = [curve(run, method, of) for method in methods]
    reached = min(delta_val_at(points, forgetting) for points in curves)
    if math.isfinite(reached):
        return reached
    return max(itertools.chain(*curves), key=lambda point: point.forgetting).delta_val


PLANE = {
    "x": "forgetting: rise on repeated documents (nats)",
    "y": "held-out loss before minus after (nats; higher is better)",
    "levels": {0: "black"},
}


def traced(
    runs: list[Run], method: str, label: str, colour: str, style: str = "o-", of: str = "repeated"
) -> Curve:
    """A method in the PLANE (degradation has the paper's sign), from the untouched model on."""
    curves = [[(p.forgetting, -p.delta_val) for p in curve(run, method, of)] for run in runs]
    points_SR2 = np.array([[(0.0, 0.0), *points] for points in curves])
    return Curve(label, colour, style, *points_SR2.transpose(2, 1, 0))


def how(runs: list[Run], methods: Sequence[str]) -> list[str]:
    """For a page: how the methods searched, from the runs that were measured; nothing if none
    was.
    """
    runs = [run for run in runs if methods[0] in run.details]
    if not runs:
        return []
    asked = {method: runs[0].details[method]["asked"] for method in methods}
    pruning, words = asked["hard_concrete"], "strength {strength:g}, {iterations} iterations"
    chosen = sorted({words.format(**run.details["hard_concrete"]["found"]) for run in runs})
    searched = report.rows(f"""
        hard_concrete | a mask for each repeated document; strength of
            {_listed(pruning["strength"])} and iterations of {_listed(pruning["iterations"])} chosen
            as in the paper, by the lowest held-out loss after dropping, on {pruning["tuned_on"]} of
            the repeated documents and {pruning["tuned_on_held_out"]} held-out ones. A tenth of the
            paper's iterations at ten times the learning rate ({pruning["learning_rate"]:g}), which
            goes as far. Chosen: {"; ".join(chosen)}
        integrated_gradients | {asked.get("integrated_gradients", {}).get("steps")} steps, every
            repeated document
        slimming | every repeated document, the settings of Chang et al. (2024) for their largest
            model
        zero_out | the first {FEW} repeated documents: each needs one forward pass per neuron
        activation | every repeated document
        random | chance alone
    """)
    rows = [[LABELS[method], words] for method, words in searched if method in methods]
    return [
        report.text_table(["method", "how it finds the neurons"], rows),
        shared.note(f"""A neuron's score is the mean over documents; all of their tokens are
            targets. Each method drops the neurons with the highest scores: the shares
            {_listed(pruning["ratios"])} of every layer."""),
    ]


def how_edits(runs: list[Run]) -> str:
    """For a page: how weights were edited, and the settings chosen in the first run."""
    edited = report.rows(f"""
        kfac | the first matrix of up to {MOST_LAYERS} MLPs side by side, {_listed(SHARES)} of the
            mass kept; curvature of {ORDINARY} documents that were read once, labels drawn by the
            model
        svd | the same matrices and shares, of the squares of their singular values
        balanced_subnet | {_listed(RATIOS)} of the weights of every MLP, w of {_listed(WEIGHTS)}; it
            reads half of the repeated documents and {ORDINARY} that were read once
    """)
    rows = []
    for method, how in edited:
        if method in runs[0].details:
            chosen = runs[0].details[method]["found"]
            listed = (", ".join(f"{name} {value}" for name, value in one.items()) for one in chosen)
            found = "; ".join(listed) or "nothing"
            rows.append([EDITS[method], f"{how}. Chosen on every other document: {found}"])
    return report.text_table(["method", "how it edits"], rows)


def _listed(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
