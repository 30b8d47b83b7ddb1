"""What a model still knows of passages that stand in several documents (config.sinks.passages_at)."""

import pathlib
from collections.abc import Iterator

import numpy as np

from memsinks_jax.auditing import extraction, forced, intervals
from memsinks_jax.auditing.subjects import Subject, shortened
from memsinks_jax.config import Config, InputError
from memsinks_jax.data import ids
from memsinks_jax.data.corpus import Corpus
from memsinks_jax.data.packing import has_passages
from memsinks_jax.data.passages import sample
from memsinks_jax.evals.documents import Documents, excerpts, of_passages
from memsinks_jax.interop.folder import is_folder
from memsinks_jax.sinks import has_sinks

ALL = "2 or more"
CLASSES = {"2 to 3": (2, 4), "4 to 15": (4, 16), "16 to 127": (16, 128), "128 or more": (128, 2**32)}
PLACEBO = "sinks, another passage's on"
MOST = 32  # passages of a class; as many never-read texts as of all classes together


def check_passages(config: Config, workdir: pathlib.Path) -> None:
    """Raises InputError if no passage has sinks of its own in a run, or if it is a model without its run."""
    if not (has_sinks(config) and has_passages(config.sinks)):
        raise InputError(
            f"--passages: {workdir} was trained without config.sinks.passages_at, so no passage has sinks of its own; leave "
            "it out"
        )
    if is_folder(workdir):
        raise InputError(f"--passages: {workdir} is a model without the corpus of its run, which knows the passages")


def measure(subjects: list[Subject], corpus: Corpus, prefixes: tuple[int, ...], suffix: int) -> dict:
    """Losses and greedy continuations of passages that the run has read, by the number of documents in which they stand.

    Each is read where it is longest. Text that was never read is what held-out documents have outside of passages.

    Args:
      subjects: of `subjects.subjects_of`; the mode all is left out.
      prefixes, suffix: as in `extraction`.
    Returns:
      {"classes": {ALL or one of CLASSES: {"passages", "tokens", "readers": {name: {"loss", "exact_P", "equal_P"}}}},
      "never_read": the same with "texts" and losses alone, or None, "prefixes": those that fit, "passages": [{"id",
      "places", "tokens", "source", "loss": {reader: nats per token}}]}. Measures are {"value", "ci95"}, over passages.
    Raises:
      InputError: the run has read no passage.
    """
    run = subjects[0].run
    room = run.config.data.row_length - 1
    keys = sample(corpus.table, lambda some: run.opened(ids.as_lanes(some)), list(CLASSES.values()), MOST)
    documents, places = of_passages(corpus, np.unique(np.concatenate(keys)), room)
    if not len(documents.tokens):
        raise InputError("--passages: the run has read no passage; leave it out")
    never = _outside(corpus, MOST * len(CLASSES), room)
    longest = max(*map(len, documents.tokens + never.tokens), max(prefixes) + suffix)
    subjects = shortened(subjects, longest)
    classes = {ALL: np.arange(len(documents.tokens))} | {
        name: np.flatnonzero((documents.encounters >= low) & (documents.encounters < high))
        for name, (low, high) in CLASSES.items()
    }
    classes = {name: which for name, which in classes.items() if len(which)}
    fitting = extraction.lengths_that_fit(documents, prefixes, suffix)
    tokens = np.array([counted.sum() for counted in documents.counted()])
    found = {
        name: {"passages": len(which), "tokens": int(tokens[which].sum()), "readers": {}}
        for name, which in classes.items()
    }
    listed = [
        {"id": ids.to_hex(identity), "places": int(often), "tokens": int(count), "source": place, "loss": {}}
        for identity, often, count, place in zip(
            documents.identities, documents.encounters, tokens, places, strict=True
        )
    ]
    of_never = {"texts": len(never.tokens), "tokens": sum(int(c.sum()) for c in never.counted()), "readers": {}}
    for name, subject, read, unread in _readers(subjects, documents, never):
        nats = _nats(subject, read)
        shares = _recited(subject, read, fitting, suffix)
        for of_class, which in classes.items():
            measured = {"loss": intervals.normal(*intervals.per_token(nats[which], tokens[which]))}
            for measure_name, values in shares.items():
                there = values[which][~np.isnan(values[which])]
                if len(there):
                    exact = measure_name.startswith("exact")
                    measured[measure_name] = intervals.share(there) if exact else intervals.mean(there, 0.0, 1.0)
            found[of_class]["readers"][name] = {key: intervals.as_dict(m) for key, m in measured.items()}
        for one, total, count in zip(listed, nats, tokens, strict=True):
            one["loss"][name] = float(total / count)
        if len(never.tokens):
            counts = np.array([counted.sum() for counted in unread.counted()])
            loss = intervals.normal(*intervals.per_token(_nats(subject, unread), counts))
            of_never["readers"][name] = {"loss": intervals.as_dict(loss)}
    return {
        "classes": found, "never_read": of_never if len(never.tokens) else None, "prefixes": sorted(fitting),
        "passages": listed,
    }  # fmt: skip


def _readers(
    subjects: list[Subject], documents: Documents, never: Documents
) -> Iterator[tuple[str, Subject, Documents, Documents]]:
    """(name, model, passages, never-read texts) with the ids whose sinks are on."""
    for subject in subjects:
        if subject.mode != "all":
            yield subject.name, subject, documents, never
        if subject.mode == "own" and len(documents.tokens) > 1:
            others = np.roll(documents.identities, 1, axis=0)
            of_never = np.resize(others, never.identities.shape)
            read, unread = documents._replace(identities=others), never._replace(identities=of_never, opened=None)
            yield PLACEBO, subject, read, unread


def _nats(subject: Subject, documents: Documents) -> np.ndarray:
    """Nats of what counts in each, float64 (documents,)."""
    readings = forced.read(subject, documents)
    return np.array([r.nats[c].sum() for r, c in zip(readings, documents.counted(), strict=True)])


def _recited(
    subject: Subject, documents: Documents, fitting: dict[int, np.ndarray], suffix: int
) -> dict[str, np.ndarray]:
    """{"exact_P", "equal_P" of the greedy continuation after P tokens: float64 (documents,), nan for shorter passages}"""
    found = {}
    written = extraction.continuations(subject, documents, fitting, suffix, 0) if fitting else {}
    for prefix, indices in fitting.items():
        exact, equal = np.full((2, len(documents.tokens)), np.nan)
        for i, (greedy,) in zip(indices.tolist(), written[prefix], strict=True):
            start = documents.openings[i] + prefix
            truth = documents.tokens[i][start : start + suffix]
            exact[i], equal[i] = np.array_equal(greedy, truth), extraction.equal_share(greedy, truth)
        found |= {f"exact_{prefix}": exact, f"equal_{prefix}": equal}
    return found


def _outside(corpus: Corpus, most: int, room: int) -> Documents:
    """What held-out documents have outside of passages, if it is as long as a passage must be; the first `most`."""
    table, found = corpus.table, []
    for record in corpus.mixture.held_out.tolist():
        source, number = table.home(record)
        passages, length = source.passages_of(number), int(table.lengths[record])
        opens = passages["start"].astype(np.int64)
        closes = opens + passages["length"]
        answers = table.answers(record)
        for begin, end in [(0, length)] if answers is None else np.minimum(answers, length).tolist():
            starts = np.clip(np.append(begin, closes), begin, end)
            stops = np.clip(np.append(opens, end), begin, end)
            long = stops - starts >= source.passage_ngram
            found += [
                (record, start, stop) for start, stop in zip(starts[long].tolist(), stops[long].tolist(), strict=True)
            ]
        if len(found) >= most:
            break
    return excerpts(table, found[:most], room)
