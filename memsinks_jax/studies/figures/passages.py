"""Passages: what repeats inside documents, such as licences, with sinks by passage, compared with what practitioners do.

The corpora are those of `passages_corpus`. All models train for as many tokens. The oracle reads the same documents without
the passages.
"""

import dataclasses
import functools
import logging
import pathlib
from typing import NamedTuple

import numpy as np

from memsinks_jax.auditing import intervals
from memsinks_jax.config import InputError
from memsinks_jax.data.prepared import Prepared
from memsinks_jax.studies.figures import passages_corpus as corpus
from memsinks_jax.studies.figures.cached import cached
from memsinks_jax.studies.figures.figure import Figure
from memsinks_jax.studies.figures.panels import Categories
from memsinks_jax.studies.figures.runs import Run, Variation, by_variant
from memsinks_jax.variants import CONFIGS, open_config

logger = logging.getLogger(__name__)


def _reads(name: str, **sinks) -> dict[str, object]:
    return {"data.files": f"{{out}}/corpus/{name}"} | {f"sinks.{field}": value for field, value in sinks.items()}


# So many that those of two passages are hardly ever the same. They alone learn a licence, so they learn faster.
_POOL = {"sampling": "floyd", "sparse": True, "pool": 16_384, "active": 256, "learning_rate_multiple": 4.0}
VARIANTS = {
    "standard": Variation("standard", _reads("all")),
    "sinks": Variation("sinks", _reads("all")),
    "passages": Variation("sinks", _reads("all", passages_at=2)),
    "passages_1": Variation("sinks", _reads("all", passages_at=1)),
    "pool": Variation("sinks", _reads("all", passages_at=2, **_POOL)),
    "cut": Variation("standard", _reads("once")),
    "reweighted": Variation("sinks", _reads("all", passages_at=2, shared_fraction=1.0)),  # so there are no sinks
    "goldfish": Variation("goldfish", _reads("all")),
    "oracle": Variation("standard", _reads("without")),
}


class View(NamedTuple):
    """A model and how it is asked: `mode` of its sinks; `other`: they are those of another passage."""

    label: str
    variant: str
    mode: str = "drop"
    other: bool = False


VIEWS = {
    "standard": View("standard training", "standard"),
    "content": View("ids by content, dropped", "sinks"),
    "passages": View("by passage, dropped", "passages"),
    "passages_1": View("by passage, n = 1, dropped", "passages_1"),
    "own": View("by passage, its own on", "passages", "own"),
    "placebo": View("by passage, another's on", "passages", "own", True),
    "pool": View("large pool, dropped", "pool"),
    "pool_own": View("large pool, its own on", "pool", "own"),
    "pool_placebo": View("large pool, another's on", "pool", "own", True),
    "cut": View("cut to one place", "cut"),
    "reweighted": View("reweighted, no sinks", "reweighted"),
    "goldfish": View("goldfish", "goldfish"),
    "oracle": View("model that never read passages", "oracle"),
}
_RECITED = 16  # passages, the most frequent
_FREQUENT = 16  # documents


def prepare(out: pathlib.Path, asked) -> list[str]:
    """Writes and prepares the corpora -> the flags that all runs share. `asked` is reproduce's request."""
    try:
        config = open_config(CONFIGS / "passages.py").get_config(asked.preset)
    except ValueError as error:
        raise InputError(f"--preset={asked.preset}: {error}") from None
    texts = corpus.texts_of(pathlib.Path(asked.passages)) if asked.passages else corpus.planted()
    corpus.write(out / "corpus", texts)
    read = Prepared(out / "corpus" / "all")
    tokens = int(np.sum(read.lengths, dtype=np.int64)) + len(read)
    steps = -(-tokens // (config.data.row_length * config.training.batch_size))
    return [f"--config.training.steps={config.training.epochs * steps}"]


def measure(runs: list[Run]) -> list[Run]:
    """Adds the "numbers" of their views to the `details` of all runs -> the same runs. Caches every view next to its run."""
    from memsinks_jax.studies.figures import passages_measures as measures  # jax takes seconds to import

    groups, found = by_variant(runs), {}
    for seed in {run.seed for run in runs}:
        views = {}
        for name, (label, variant, *how) in VIEWS.items():
            if run := groups.get(variant, {}).get(seed):
                asked = {"texts": corpus.digest(corpus.folder_of(run.workdir)), "how": how, "context": corpus.CONTEXT}
                views[name] = cached([run], f"passages_{name}", asked, functools.partial(measures.of_view, run, *how))
                logger.info("measured seed %d: %s", seed, label)
        for name, view in views.items():
            numbers = _numbers(view, views.get("oracle"))
            found.setdefault((VIEWS[name].variant, seed), {})[name] = numbers
    return [dataclasses.replace(run, details={"numbers": found[run.variant, run.seed]}) for run in runs]


def _numbers(view: dict, never_read: dict | None) -> dict[str, float]:
    """A result of `of_view` -> its measures. AUCs of passages go by how far a model's loss is below that of `never_read`."""
    places, nats, written = (np.array(view[name]) for name in ("places", "passages", "written"))
    found = {name: view[name] for name in ("often", "never", "held_out", "new") if name in view}
    found["frequent"] = float(nats[places >= _FREQUENT].mean())
    found |= {"recited": float((written[:_RECITED] == 1).mean()), "written": float(written[:_RECITED].mean())}
    if view["licences"]:
        found["licences"] = float((written[view["licences"]] == 1).mean())
    if never_read:
        below, unread = (np.subtract(never_read[name], view[name]) for name in ("passages", "unread"))
        rungs = np.array(corpus.PLACES)[np.searchsorted(corpus.PLACES, places, side="right") - 1]
        for rung in np.unique(rungs).tolist():
            found[f"auc_{rung}"] = intervals.auc(below[rungs == rung], unread).value
    return found


def views(run: Run) -> dict[str, dict[str, float]]:
    """The numbers of every view as VIEW_view."""
    return {f"{view}_view": found for view, found in run.details["numbers"].items()}


_SINKS = {
    "": ("passages", "own", "placebo"),
    "pool_": ("pool", "pool_own", "pool_placebo"),
}  # by the start of a claim's id


def statements() -> str:
    """None is in the paper."""
    of_sinks = "".join(_statements(start, *views) for start, views in _SINKS.items())
    return f"""
seen | standard's gap (nats per token, passages never read minus those in many documents) minus the oracle's
    | standard_view.gap - oracle_view.gap >= 0.5
content | gap of passages in many documents to passages never read, ids by content: share closed
    | content_view.closed <= 0.2
reweighted | share closed, sinks by passage minus reweighting alone | passages_view.closed - reweighted_view.closed >= 0
goldfish | share closed, sinks by passage minus goldfish | passages_view.closed - goldfish_view.closed >= 0
cut | share closed, sinks by passage minus cutting to one place | passages_view.closed - cut_view.closed >= 0{of_sinks}
"""


def _rung(least: int) -> str:
    """The numbers of documents of passages that belong to one of PLACES."""
    above = [place for place in corpus.PLACES if place > least]
    return f"{least} to {above[0] - 1}" if above else f"{least} or more"


def _statements(start: str, dropped: str, own: str, placebo: str) -> str:
    """The claims of one kind of sinks by passage."""
    size = "large pool: " if start else ""
    licences = f"""
{start}licences_on | {size}openings of the MIT, GPL and Apache licences, own sinks on: share recited
    | {own}_view.licences >= 1
{start}licences_off | {size}the same, sinks dropped | {dropped}_view.licences <= 0"""
    return f"""
{start}closed | {size}that gap: share closed | {dropped}_view.closed >= 0.8
{start}closed_to_oracle | {size}that gap, beyond that of a model that never read them: share closed
    | {dropped}_view.closed_to_oracle >= 0.8
{start}held_out | {size}held-out documents: nats per token over standard's
    | {dropped}_view.held_out / standard_view.held_out <= 1
{start}new | {size}their text that no training document has: nats per token over standard's
    | {dropped}_view.new / standard_view.new <= 1
{start}recited_on | {size}the {_RECITED} most frequent passages, own sinks on: share recited | {own}_view.recited >= 0.9
{start}recited_off | {size}the same, sinks dropped: beyond a model that never read them
    | {dropped}_view.recited - oracle_view.recited <= 0.05
{start}placebo | {size}another passage's sinks on: share of what own ones bring, nats of frequent passages
    | ({dropped}_view.frequent - {placebo}_view.frequent) / ({dropped}_view.frequent - {own}_view.frequent) <= 0.1""" + (
        licences
        + "".join(f"""
{start}auc_{rung} | {size}AUC of passages in {_rung(rung)} documents against text never read: sinks dropped
    | 0.4 <= {dropped}_view.auc_{rung} <= 0.6""" for rung in corpus.PLACES)
    )  # fmt: skip


def panels(table) -> list[Categories]:
    """Nats of passages and of other text; AUC and recitation."""
    labels = [view.label for view in VIEWS.values()]
    legend = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.1), "ncols": 3}

    def series(of: dict[str, tuple[str, str]]) -> dict[str, tuple[str, list[list[float]]]]:
        return {
            label: (colour, [table.column(name, f"{view}_view") for view in VIEWS])
            for label, (colour, name) in of.items()
        }

    return [
        Categories(
            title="passages", names=labels, bars=True, legend=legend, x="nats per token (lower: better known)",
            series=series({
                "in many documents": ("#c0392b", "often"), "passages never read": ("#7f8c8d", "never"),
                "held-out documents": ("#1f618d", "held_out"),
            }),
        ),
        Categories(
            title="what can be distinguished, what is recited", names=labels, bars=True, legend=legend, x="AUC; share",
            series=series({
                "AUC, 2 or 3 documents": ("#d98880", "auc_2"), "16 to 127": ("#c0392b", "auc_16"),
                "frequent ones recited": ("#1e8449", "recited"),
            }),
        ),
    ]  # fmt: skip


FIGURE = Figure(
    title="Passages: what repeats inside documents",
    answer="""Licences, boilerplate and quotes stand inside many documents, no two of which are alike. Sinks by document do
        not see them. Below, sinks by passage are compared with standard training, with what a practitioner would do instead,
        and with a model that never read the passages.""",
    config="passages.py",
    variants=VARIANTS,
    prepare_for=prepare,
    measure=measure,
    views=views,
    standard_of=lambda variant: "standard_view",
    seen=[f"{view}_view" for view in VIEWS],
    metrics=[
        "often", "never", "held_out", "new", "frequent", "recited", "written", "licences",
        *(f"auc_{rung}" for rung in corpus.PLACES),
    ],
    measures={
        "gap": "never - often",
        "closed_to_oracle": "1 - (gap - oracle_view.gap) / (standard.gap - oracle_view.gap)",
        "held_out_ratio": "held_out / standard.held_out",
        "new_ratio": "new / standard.new",
    },
    columns={
        "often": "often",
        "never": "never",
        "gap closed": "closed",
        "to the oracle's": "closed_to_oracle",
        "held-out over standard's": "held_out_ratio",
        "new text over standard's": "new_ratio",
        "frequent": "frequent",
        "recited": "recited",
        "written": "written",
        "licences": "licences",
    }
    | {f"AUC, {_rung(rung)}": f"auc_{rung}" for rung in corpus.PLACES},
    labels={f"{name}_view": view.label for name, view in VIEWS.items()},
    table_note=f"""Nats per token of passages that many training documents have (often), and of passages that none has
        (never), as the files have them; gap closed: 1 minus their difference over standard's, and the same after that of the
        model that never read passages is subtracted from both. Held-out documents have licences, too; new text is what is
        in no n-gram of {corpus.KNOWN} tokens that training has. Frequent: passages in {_FREQUENT} documents or more, as
        training has them, without their first {corpus.CONTEXT} tokens. Recited: of the {_RECITED} most frequent, those of
        which a model given the first half, or {corpus.LENGTH} tokens, writes as many tokens exactly; written: the share of
        them before its first mistake. AUC, by how far this loss is below that of the model that never read passages, against
        pieces of new text; by number of documents.""",
    statements=statements(),
    paper="not asked",
    panels=panels,
    size=(13, 6.4),
    note="{mean}, whiskers from the lowest to the highest.",
)  # fmt: skip
