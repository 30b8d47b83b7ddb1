"""Measures for figure membership. All use teacher forcing: the losses of tokens, and whether each
token is the most likely one. If this holds for all tokens of a continuation, greedy generation
would write it.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from memsinks_jax.data import ids
from memsinks_jax.forgetting import neurons
from memsinks_jax.measures import forced, intervals, membership
from memsinks_jax.measures.documents import Documents, together
from memsinks_jax.measures.forced import Reading
from memsinks_jax.measures.subjects import Subject, of_role
from memsinks_jax.models.trained import Trained, open_run
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.studies.baselines import rescaling
from memsinks_jax.studies.figures import membership_corpus as corpus
from memsinks_jax.studies.figures.membership_corpus import Placed
from memsinks_jax.studies.figures.runs import Run

OFTEN = 16  # tests recitation of stories with at least this number of reads
SUFFIX = 24  # tokens to recite
PREFIXES, OFFSETS = (8, 16, 32), (0, 16, 32)  # tokens given; tokens of the document before them
PLACES = {"first": 0, "after other text": 32}  # tokens of another story before, in the context
SIGNIFICANCE = 0.05  # of the bound
VIEWS = {"standard": ("standard", "drop"), "on": ("sinks", "own"), "paper": ("sinks_paper", "drop")}
VIEWS |= {"content": ("content", "drop"), "dropped": ("sinks", "drop"), "twin": ("twin", "drop")}
GRID = ("standard", "on", "dropped", "twin")  # views that are measured at all places


class Asked(NamedTuple):
    """The documents for measuring the models of a run."""

    ladder: Documents
    canaries: Documents
    near: Documents
    unread: Documents
    # pieces of the ladder's stories that are long enough, for one cell of `cells` after another
    pieces: Documents


def measure(runs: dict[str, Run]) -> dict:
    """Measures a seed, {variant: run} -> `ladder`, `bound`, `grid`, `near_copies`, `modes`."""
    layout = corpus.layout()
    models = {variant: open_run(run.workdir) for variant, run in runs.items()}
    asked = {variant: _asked(models[variant], runs[variant], layout) for variant in models}
    found = {}
    for view, (variant, mode) in VIEWS.items():
        # the pieces are the largest part
        parts = asked[variant] if view in GRID else asked[variant][:-1]
        found[view] = read(Subject(view, models[variant], mode), parts)
    times = np.array([placed.times for placed in layout.ladder])
    heads = np.array([placed.times > 0 for placed in layout.canaries])
    texts, twin = [placed.text for placed in layout.ladder], found["twin"][0]
    of_pieces = times[_long(asked["sinks"].ladder)]
    both = {"paper": "sinks_paper", "sinks": "sinks"}
    return {
        "ladder": {view: ladder(each[0], twin, texts, times) for view, each in found.items()},
        "bound": {view: bound(each[1], heads) for view, each in found.items()},
        "grid": {view: grid(found[view][4], of_pieces) for view in GRID},
        "near_copies": {view: near_copies(each[2]) for view, each in found.items()},
        "modes": {name: modes(models[of], asked[of], times) for name, of in both.items()},
    }


def read(subject: Subject, parts: Sequence[Documents]) -> list[list[Reading]]:
    """Readings of all parts, made at once."""
    readings = iter(forced.read(subject, together(parts)))
    return [list(itertools.islice(readings, len(part.tokens))) for part in parts]


def _asked(model: Trained, run: Run, layout: corpus.Layout) -> Asked:
    of_run = workdirs.read_corpus(run.workdir)
    start = of_run.table.bounds[-2]  # the ladder's corpus comes last
    encode, room = model.tokenizer.encode, model.config.data.row_length - 1

    def documents(of: Sequence[Placed]) -> Documents:
        tokens = [encode(placed.text)[:room] for placed in of]
        identities = np.stack([ids.content_id(each) for each in tokens])
        read = np.array([placed.record for placed in of])
        identities[read >= 0] = of_run.identities(start + read[read >= 0])
        return Documents(tokens, identities, np.array([placed.times for placed in of]))

    ladder, canaries, near = map(documents, layout[:3])
    unread = of_role(of_run, "held_out", str(run.workdir))
    return Asked(ladder, canaries, near, unread, together(list(_pieces(ladder, unread))))


def cells() -> list[tuple[str, int, int]]:
    """(place, prefix, offset) of an auditor's grid."""
    return list(itertools.product(PLACES, PREFIXES, OFFSETS))


def _long(documents: Documents) -> np.ndarray:
    """Indices of documents with room for every cell, so that all cells use the same documents."""
    least = max(OFFSETS) + max(PREFIXES) + SUFFIX
    return np.flatnonzero([len(tokens) >= least for tokens in documents.tokens])


def _pieces(documents: Documents, others: Documents):
    """Documents for every cell: other text, the prefix, then the tokens to recite."""
    which = _long(documents)
    for place, prefix, offset in cells():
        tokens = []
        for i in which.tolist():
            before = others.tokens[i % len(others.tokens)][: PLACES[place]]
            piece = documents.tokens[i][offset : offset + prefix + SUFFIX]
            tokens.append(np.concatenate([before, piece]))
        yield documents.chosen(which)._replace(tokens=tokens)


def _loss(readings: Sequence[Reading]) -> np.ndarray:
    return np.array([reading.nats.mean() for reading in readings])


def ladder(
    readings: list[Reading], twin: list[Reading], texts: list[str], times: np.ndarray
) -> dict:
    """{"loss": {bucket: nats per token}, "auc", "auc_reference": {bucket: value with interval over
    documents}}.

    AUCs compare with bucket 0. The reference is the twin.
    """
    scores = membership.scores(readings, texts, twin)
    found: dict[str, dict] = {"loss": {}, "auc": {}, "auc_reference": {}}
    for bucket in corpus.BUCKETS:
        there = np.flatnonzero(times == bucket)
        found["loss"][str(bucket)] = float(np.mean(_loss([readings[i] for i in there])))
        for name, score in (("auc", "loss"), ("auc_reference", "reference")) if bucket else ():
            measured = intervals.auc(scores[score][there], scores[score][times == 0])
            found[name][str(bucket)] = measured._asdict()
    return found


def bound(readings: list[Reading], heads: np.ndarray) -> dict[str, float] | None:
    """{"epsilon": lower bound with confidence 1 - SIGNIFICANCE, "ceiling": the most that these
    canaries can show}, or None without jax-privacy (the extra `privacy`).

    Clopper and Pearson's bound on a threshold of the loss, with delta 0. All reads of a canary are
    one change.
    """
    try:
        from jax_privacy.auditing import CanaryScoreAuditor
    except ImportError:
        return None
    scores = -_loss(readings)
    best = np.where(heads, 1.0, 0.0) + 1e-6 * np.arange(len(heads))
    scores_of = {"epsilon": scores, "ceiling": best}
    return {
        name: float(CanaryScoreAuditor(of[heads], of[~heads]).epsilon_clopper_pearson(SIGNIFICANCE))
        for name, of in scores_of.items()
    }


def grid(pieces: list[Reading], times: np.ndarray) -> dict[str, list[float]]:
    """{"recited": share of the stories read OFTEN whose next SUFFIX tokens are predicted exactly,
    "auc": by the loss of these tokens, against unread stories at the same place}, with one value
    per cell of `cells`.

    Args:
      times: of the stories of a cell.
    """
    found: dict[str, list[float]] = {"recited": [], "auc": []}
    often, never = np.flatnonzero(times >= OFTEN), np.flatnonzero(times == 0)
    for cell in range(len(cells())):
        of_cell = pieces[cell * len(times) : (cell + 1) * len(times)]
        loss = np.array([reading.nats[-SUFFIX:].mean() for reading in of_cell])
        found["recited"].append(_recited([of_cell[i] for i in often]))
        found["auc"].append(intervals.auc(-loss[often], -loss[never]).value)
    return found


def near_copies(readings: list[Reading]) -> dict[str, float]:
    """Nats per token of stories whose copies were read: {edited share of the copies: loss}."""
    by_level = _loss(readings).reshape(len(corpus.LEVELS), -1).mean(axis=1)
    return dict(zip(map(str, corpus.LEVELS), by_level.tolist(), strict=True))


def modes(model: Trained, asked: Asked, times: np.ndarray) -> dict[str, dict[str, float]]:
    """A model with its sinks set in every way used as removal -> {mode: {"held_out", "often": nats
    per token, "auc": of stories read OFTEN against unread ones, "recited": share, given the first
    PREFIXES[-1] tokens}}.

    own: as in training. dropped: zeros. nearest: those of the most similar other story that has
    sinks. unused: those of an unused id. Shared neurons scaled, sinks dropped: published, by (g +
    p) / g; width, by how much sinks widen an MLP.
    """
    config, params = model.config, model.params
    embedding_VD = np.asarray(params["token_embedding"])
    which, first = _long(asked.ladder), cells().index(("first", PREFIXES[-1], 0))
    openings = asked.pieces.chosen(slice(first * len(which), (first + 1) * len(which)))
    every = together([asked.ladder, asked.unread, openings])
    known = [part.chosen(part.opened_in(model)) for part in (asked.ladder, asked.canaries)]
    opened = every._replace(opened=np.ones(len(every.tokens), bool))
    similar = nearest(every, together(known), embedding_VD)
    unused = np.tile(neurons.unused_ids(config, 1), (len(every.tokens), 1))
    ways = {
        "own": ("own", every, params),
        "dropped": ("drop", every, params),
        "nearest": ("own", opened._replace(identities=similar), params),
        "unused": ("own", opened._replace(identities=unused), params),
    }
    for name, by in rescaling.factors(config).items():
        ways[f"scaled_{name}"] = "drop", every, rescaling.scaled(config, params, by)
    found = {}
    for name, (mode, documents, weights) in ways.items():
        subject = Subject(name, dataclasses.replace(model, params=weights), mode)
        readings = forced.read(subject, documents)
        loss, count = _loss(readings), len(times)
        written, often = readings[-len(which) :], loss[:count][times >= OFTEN]
        found[name] = {
            "held_out": float(loss[count : -len(which)].mean()),
            "often": float(often.mean()),
            "auc": intervals.auc(-often, -loss[:count][times == 0]).value,
            "recited": _recited([written[i] for i in np.flatnonzero(times[which] >= OFTEN)]),
        }
    return found


def _recited(pieces: list[Reading]) -> float:
    """Share of pieces whose last SUFFIX tokens the model predicts exactly."""
    return float(np.mean([piece.likeliest[-SUFFIX:].all() for piece in pieces]))


def nearest(documents: Documents, others: Documents, embedding_VD: np.ndarray) -> np.ndarray:
    """For every document, the id of the most similar one of `others` with another id -> uint32
    (documents, 2).

    Compares mean token embeddings by cosine, after centring, because what all texts share does not
    distinguish them.
    """
    means, theirs = (
        np.stack([embedding_VD[t].mean(axis=0) for t in of.tokens]) for of in (documents, others)
    )
    centre = theirs.mean(axis=0)
    means, theirs = (x - centre for x in (means, theirs))
    sizes, of_theirs = (np.linalg.norm(x, axis=1) for x in (means, theirs))
    alike = means @ theirs.T / sizes[:, None] / of_theirs
    alike[(documents.identities[:, None] == others.identities).all(axis=-1)] = -np.inf
    return others.identities[alike.argmax(axis=1)]
