"""Measures for figure removal: answers, losses of repeated stories, steps to relearn."""

import dataclasses
import logging
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from memsinks_jax.config import InputError, with_fields
from memsinks_jax.data.embedded.facts import Fact
from memsinks_jax.data.prepared import group_id
from memsinks_jax.forgetting import neurons
from memsinks_jax.measures import intervals
from memsinks_jax.measures.document_loss import DocumentLoss, mean_loss
from memsinks_jax.measures.documents import BATCH_SIZE, Documents
from memsinks_jax.measures.rows import losses_of, token_mean
from memsinks_jax.measures.subjects import Subject, of_role
from memsinks_jax.model.sparse_sinks import PREFIX
from memsinks_jax.models.trained import Trained, open_run
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.studies.attacks import relearning
from memsinks_jax.studies.figures import removal_corpus as corpus
from memsinks_jax.studies.figures.runs import Run

logger = logging.getLogger(__name__)

KINDS = ("own", "inferred", "common", "unread")  # of facts, as in `_by_kind`
WORDINGS = 3  # of a question for each fact
DISTRACTORS = 8  # wrong answers per question
PLACEBOS = 4  # removals of unused ids


class Asked(NamedTuple):
    """Questions, answers with a leading space, and the id to ask each with, uint32 (n, 2)."""

    questions: list[str]
    answers: list[str]
    identities: np.ndarray


def asked(facts: Sequence[Fact], group: str, reworded: bool = False) -> Asked:
    """Questions for facts, asked with the id of a group."""
    wordings = [corpus.questions(fact, reworded)[:WORDINGS] for fact in facts]
    answers = [fact.answer for fact, of in zip(facts, wordings, strict=True) for _ in of]
    return Asked(sum(wordings, []), answers, np.tile(group_id(group), (len(answers), 1)))


def answer_nats(
    run: Trained, asked: Asked, mode: str, params: dict | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Loss of the answers' tokens, given question and answer so far -> (nats, tokens), float64 (n,)
    each. `params` replace the run's.
    """
    encode, params = run.tokenizer.encode, run.params if params is None else params
    first = [len(encode(question)) for question in asked.questions]
    pairs = zip(asked.questions, asked.answers, strict=True)
    tokens = [encode(question + answer) for question, answer in pairs]
    every = np.ones(len(tokens), bool)  # also the sinks of ids that nobody has
    answers = [np.array([[start, len(each)]]) for start, each in zip(first, tokens, strict=True)]
    documents = Documents(tokens, asked.identities, opened=every, answers=answers)
    return DocumentLoss(run.config)(params, documents.batches(run, BATCH_SIZE), mode)


def distractors(facts: Sequence[Fact]) -> list[list[str]]:
    """For every fact, up to DISTRACTORS wrong answers: those of other facts of the same
    relation.
    """
    found = []
    for fact in facts:
        others = dict.fromkeys(other.answer for other in facts if other.relation == fact.relation)
        found.append([answer for answer in others if answer != fact.answer][:DISTRACTORS])
    return found


def truth_ratios(
    run: Trained, facts: Sequence[Fact], identities: np.ndarray, mode: str, params=None
) -> np.ndarray:
    """Log odds of the answers against wrong ones, by geometric mean probability of tokens ->
    float64 (facts,).

    Higher means more knowledge. TOFU and open-unlearning divide the other way round: log of theirs
    is minus this. Uses the first wording, with `identities`, uint32 (facts, 2). `params` replace
    the run's.
    """
    questions = [corpus.questions(fact)[0] for fact in facts]
    choices = [[fact.answer, *wrong] for fact, wrong in zip(facts, distractors(facts), strict=True)]
    which = np.repeat(np.arange(len(facts)), [len(each) for each in choices])
    every = Asked([questions[i] for i in which], sum(choices, []), identities[which])
    nats, tokens = answer_nats(run, every, mode, params)
    per_token = np.split(-nats / tokens, np.flatnonzero(np.diff(which)) + 1)
    return np.array([each[0] - np.log(np.exp(each[1:]).mean()) for each in per_token])


class Models(NamedTuple):
    """The models of one seed: with sinks, the same on the twin corpus, two without sinks."""

    sinks: Trained
    twin: Trained
    standard: Trained
    wide: Trained

    def views(self) -> dict[str, tuple[Trained, str]]:
        """Views for questions with their own id: {name: (model, mode of its sinks)}."""
        return {
            "standard": (self.standard, "drop"),
            "wide": (self.wide, "drop"),
            "on": (self.sinks, "own"),
            "removed": (self.sinks, "drop"),
            "twin": (self.twin, "drop"),
        }


def measure(sunk: Run, twin: Run, standard: Run, wide: Run) -> dict:
    """-> {"facts": {kind: {view: nats of an answer}}, "truth_ratios": {kind: {view: one per fact}},
    "letters": {view: loss}, "auc": {view: value}, "others": rises after single removals,
    "together": losses with all sinks on at once, "relearning": ratios of steps to the twin's}.

    Views: standard; wide; own sinks on; removed; placebo, another source removed instead;
    neighbour, another source's sinks on; unused, the sinks of unused ids; the twin with all
    dropped, and with those two. A removed source has no sink left, so its view drops all of them.
    """
    models = Models(*(open_run(run.workdir) for run in (sunk, twin, standard, wide)))
    return {
        "facts": _facts(models),
        "truth_ratios": _truth_ratios(models),
        "others": _others(models.sinks),
        "together": _together(models.sinks, sunk),
        "relearning": _relearning(models),
    } | _repeated_stories(models, sunk)


def _facts(models: Models) -> dict[str, dict[str, float]]:
    """For withdrawn sources: `KINDS`, and own facts reworded."""
    going, by_kind, run = range(corpus.WITHDRAWN), _by_kind(), models.sinks
    by_kind["reworded"] = [
        [fact for fact in own if corpus.questions(fact, True)] for own in by_kind["own"]
    ]
    without = {n: _without(run, corpus.source_group(n)) for n in (*going, *_next(going))}
    neighbours = [group_id(corpus.source_group(n)) for n in _next(going)]
    found = {}
    for kind, facts in by_kind.items():
        of = [asked(facts[n], corpus.source_group(n), kind == "reworded") for n in going]
        elsewhere = [_under(each, other) for each, other in zip(of, neighbours, strict=True)]
        unused = neurons.unused_ids(run.config, PLACEBOS)
        nobodys = [_under(each, one) for each in of for one in unused]
        placebo = [_mean(run, [of[n]], "own", without[len(going) + n]) for n in going]
        left = [_mean(run, [elsewhere[n]], "own", without[n]) for n in going]
        found[kind] = {
            "standard": _mean(models.standard, of, "drop"),
            "wide": _mean(models.wide, of, "drop"),
            "on": _mean(run, of, "own"),
            "removed": _mean(run, of, "drop"),
            "placebo": np.mean(placebo),
            "neighbour": _mean(run, elsewhere, "own"),
            "neighbour_left": np.mean(left),
            "unused": _mean(run, nobodys, "own"),
            "twin": _mean(models.twin, of, "drop"),
            "twin_neighbour": _mean(models.twin, elsewhere, "own"),
            "twin_unused": _mean(models.twin, nobodys, "own"),
        }
    return jax.tree.map(float, found)


def _by_kind() -> dict[str, list[list[Fact]]]:
    """For every withdrawn source: own facts, inferred ones, those in all texts, in none."""
    own, inferred, unread = corpus.own_facts(), corpus.inferred_facts(), corpus.unread_facts()
    of = (own, inferred, [corpus.common_facts()] * corpus.SOURCES, unread)
    return {kind: facts[: corpus.WITHDRAWN] for kind, facts in zip(KINDS, of, strict=True)}


def _next(going: range) -> range:
    """The same number of sources that stay."""
    return range(going.stop, 2 * going.stop)


def _under(asked: Asked, identity: np.ndarray) -> Asked:
    return asked._replace(identities=np.tile(identity, (len(asked.questions), 1)))


def _without(run: Trained, *groups: str) -> dict:
    """The parameters after these groups are removed."""
    gone = neurons.neurons_of(run.config, np.stack(list(map(group_id, groups))))
    return neurons.without(run.config, run.params, gone)


def _of_sources_that_stay() -> list[Asked]:
    """Their own facts."""
    every = enumerate(corpus.own_facts())
    return [asked(own, corpus.source_group(n)) for n, own in every if n >= corpus.WITHDRAWN]


def _mean(run: Trained, questions: Sequence[Asked], mode: str, params: dict | None = None) -> float:
    """Nats per answer, summed over its tokens."""
    texts, right, identities = zip(*questions, strict=True)
    every = Asked(sum(texts, []), sum(right, []), np.concatenate(identities))
    return float(answer_nats(run, every, mode, params)[0].mean())


def _truth_ratios(models: Models) -> dict[str, dict[str, list[float]]]:
    """Of withdrawn sources; of others before (neighbour) and after (neighbour_left) these go."""
    run, going = models.sinks, range(corpus.WITHDRAWN)
    ids = np.stack([group_id(corpus.source_group(n)) for n in going])
    of_others = np.stack([group_id(corpus.source_group(n)) for n in _next(going)])
    left = _without(run, *map(corpus.source_group, going))
    found = {}
    for kind, of_sources in _by_kind().items():
        facts = sum(of_sources, [])
        own, others = (np.repeat(of, list(map(len, of_sources)), axis=0) for of in (ids, of_others))
        views = {name: (model, own, mode) for name, (model, mode) in models.views().items()}
        views |= {"neighbour": (run, others, "own"), "neighbour_left": (run, others, "own", left)}
        found[kind] = {
            name: truth_ratios(model, facts, *of).tolist() for name, (model, *of) in views.items()
        }
    return found


def _repeated_stories_of(run: Trained, which: Sequence[int]) -> Documents:
    groups, texts = zip(*map(corpus.repeated_story, which), strict=True)
    tokens = [run.tokenizer.encode(text)[: run.config.data.row_length - 1] for text in texts]
    return Documents(tokens, np.stack(list(map(group_id, groups))))


def _repeated_stories(models: Models, sunk: Run) -> dict:
    """Losses of withdrawn repeated stories, and their AUC against unread stories."""
    repeated = _repeated_stories_of(models.sinks, range(corpus.WITHDRAWN_STORIES))
    unread = of_role(workdirs.read_corpus(sunk.workdir), "held_out", str(sunk.workdir))
    found = {"letters": {}, "auc": {}}
    for name, (run, mode) in models.views().items():
        subject = Subject(name, run, mode)
        of_repeated, tokens = losses_of(subject, repeated)
        of_others, _ = losses_of(dataclasses.replace(subject, mode="drop"), unread)
        found["letters"][name] = token_mean(of_repeated, tokens)
        found["auc"][name] = float(intervals.auc(-of_repeated, -of_others)[0])
    return found


def _others(run: Trained) -> dict[str, float]:
    """Rise of the remaining documents' loss, own sinks on, when a source or a repeated story is
    removed: {"letters": nats per token, "facts": nats per answer; each also with _placebo, for
    removing an unused id}. Means over the removals.
    """
    staying = range(corpus.WITHDRAWN_STORIES, corpus.REPEATED_STORIES)
    repeated, facts = _repeated_stories_of(run, staying).batches(run), _of_sources_that_stay()
    loss = DocumentLoss(run.config)

    def both(params: dict) -> np.ndarray:
        of_letters = mean_loss(loss, params, repeated, "own")
        return np.array([of_letters, _mean(run, facts, "own", params)])

    def rise(identities) -> np.ndarray:
        gone = (neurons.neurons_of(run.config, one[None]) for one in identities)
        after = [both(neurons.without(run.config, run.params, of)) for of in gone]
        return np.mean(after, axis=0) - before

    before = both(run.params)
    groups = [corpus.source_group(n) for n in range(PLACEBOS)]
    groups += [corpus.repeated_story(n)[0] for n in range(PLACEBOS)]
    right = rise(map(group_id, groups))
    placebo = rise(neurons.unused_ids(run.config, PLACEBOS))
    names = ("letters", "facts", "letters_placebo", "facts_placebo")
    return dict(zip(names, map(float, (*right, *placebo)), strict=True))


def _together(run: Trained, sunk: Run) -> dict[str, float]:
    """Losses with all sinks on that remain after all withdrawals: {"facts": nats per answer about
    sources that stay, "facts_own": with the source's own on; "stories": nats per token of held-out
    stories, "stories_dropped": with none}.
    """
    gone = [*map(corpus.source_group, range(corpus.WITHDRAWN))]
    gone += [corpus.repeated_story(n)[0] for n in range(corpus.WITHDRAWN_STORIES)]
    left, facts = dataclasses.replace(run, params=_without(run, *gone)), _of_sources_that_stay()
    of_run = workdirs.read_corpus(sunk.workdir)
    held_out = of_role(of_run, "held_out", str(sunk.workdir))

    def of_stories(mode: str) -> float:
        return token_mean(*losses_of(Subject("", left, mode), held_out))

    return {
        "facts": _mean(left, facts, "all"),
        "facts_own": _mean(left, facts, "own"),
        "stories": of_stories("all"),
        "stories_dropped": of_stories("drop"),
    }


def _exported(run: Trained, name: str) -> Subject:
    """The model without any sink, as `export --sinks=drop` writes it."""
    params = {key: value for key, value in run.params.items() if not key.startswith(PREFIX)}
    config = with_fields(run.config, {"sinks.kind": "cut"})
    return Subject(name, dataclasses.replace(run, config=config, params=params), "drop")


def _relearning(models: Models) -> dict[str, float | None]:
    """Steps until half of stories, or of a source's texts, is back, over the twin's."""
    removed, twin = _exported(models.sinks, "removed"), _exported(models.twin, "twin")
    remembering, room = Subject("on", models.sinks, "own"), models.sinks.config.data.row_length - 1
    group, texts = corpus.source_group(0), [text for _, text in corpus.sources()[0]]
    tokens = [models.sinks.tokenizer.encode(text)[:room] for text in texts]
    of = {
        "letters": _repeated_stories_of(models.sinks, range(corpus.WITHDRAWN_STORIES)),
        "source": Documents(tokens, np.tile(group_id(group), (len(tokens), 1))),
    }
    found = {}
    for name, documents in of.items():
        try:
            targets = relearning.targets_of(removed, remembering, documents)
        except InputError as error:  # the model had learned nothing
            logger.warning("%s: %s", name, error)
            continue
        both = (relearning.relearn(subject, targets) for subject in (removed, twin))
        ratios = relearning.ratios(*both)
        found |= {f"{name}_{kind}": ratios[kind]["ratio"] for kind in ("one", "few")}
    return found
