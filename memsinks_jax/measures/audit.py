"""A whole audit: all measures of every subject, over all members and over those that were seen
equally often.
"""

import logging
import math
import pathlib
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tqdm

from memsinks_jax.config import InputError
from memsinks_jax.data.corpus import Corpus
from memsinks_jax.measures import (
    exposure,
    extraction,
    forced,
    intervals,
    membership,
    open_unlearning,
)
from memsinks_jax.measures.documents import Documents
from memsinks_jax.measures.extraction import PREFIXES, SUFFIX, Prompts
from memsinks_jax.measures.forced import Reading
from memsinks_jax.measures.intervals import Measured
from memsinks_jax.measures.membership import SCORES
from memsinks_jax.measures.subjects import (
    ORACLE,
    Subject,
    check_documents,
    corpus_of,
    documents_of,
    shortened,
    subjects_of,
)
from memsinks_jax.models.trained import Trained

logger = logging.getLogger(__name__)

SAMPLES = 8
ALL, OFTEN = "all", "seen 8 times or more"
_OFTEN = 8
DRAWN = (1, 100, 10_000)  # continuations, for the chance that one of them is exact

# documents: with as many members and non-members the interval of an AUC of 0.5 is 0.33 to 0.67
FEW = 20
UNEQUAL = 0.6  # AUC of the lengths from which they are called unequal, if the interval is above 0.5


class Sides(NamedTuple):
    """What the models have read, and similar documents that they have not."""

    members: Documents
    non_members: Documents

    def read(self, subject: Subject) -> "Readings":
        return Readings(*(forced.read(subject, documents) for documents in self))

    def longest(self) -> int:
        return max(len(tokens) for documents in self for tokens in documents.tokens)

    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """How many tokens of each document count."""
        return tuple(
            np.array([np.count_nonzero(of) for of in documents.counted()]) for documents in self
        )


class Readings(NamedTuple):
    """A model's readings of both sides."""

    members: list[Reading]
    non_members: list[Reading]

    def counted(self, sides: Sides) -> "Readings":
        """Of what counts in the loss: without prompts."""
        return Readings(
            *(
                [one.of(counts) for one, counts in zip(of, documents.counted(), strict=True)]
                for of, documents in zip(self, sides, strict=True)
            )
        )


def audit(
    workdir: pathlib.Path,
    members_files: str = "",
    non_members_files: str = "",
    standard: pathlib.Path | None = None,
    oracle: pathlib.Path | None = None,
    prefixes: tuple[int, ...] = PREFIXES,
    suffix: int = SUFFIX,
    samples: int = SAMPLES,
    open_unlearning_files: pathlib.Path | None = None,
) -> dict:
    """Measures one model in every mode of its sinks, and those that it is compared with.

    Args:
      members_files, non_members_files: globs; empty for the run's own repeated and held-out
        documents. standard, oracle: models trained on the same documents without sinks, and without
        the members.
      prefixes: tokens of a document that are given; `suffix` more are asked for, and written
        `samples` times besides.
      open_unlearning_files: folder to write what open-unlearning needs to measure model and oracle
        itself.
    Returns:
      {"workdir", "standard", "oracle", "members", "non_members": numbers of documents,
      "encounters": {times: members seen so often} or None, "prefixes", "suffix", "samples",
      "reference": name of the reference model or None, "subjects": {name: {group: {measure:
      {"value", "ci95"}}}}, "warnings": of `warnings`}; see `measure`. The intervals
      are over documents.
    Raises:
      InputError: models or documents that cannot be compared.
    """
    subjects = subjects_of(workdir, standard, oracle)
    first = subjects[0].run
    prompts = _with_room(Prompts(tuple(prefixes), suffix, samples), first)
    corpus = corpus_of(first, members_files, non_members_files)
    sides = Sides(
        documents_of(first, "repeated", members_files, corpus),
        documents_of(first, "held_out", non_members_files, corpus),
    )
    if open_unlearning_files and any(documents.answers for documents in sides):
        raise InputError(
            "--open_unlearning: its files have no prompts, which these documents have; leave it out"
        )
    check_documents(*sides, subjects)
    subjects = shortened(subjects, max(sides.longest(), prompts.longest))
    if open_unlearning_files:
        models = {"model": first} | ({"oracle": subjects[-1].run} if oracle else {})
        open_unlearning.export_for_open_unlearning(open_unlearning_files, models, *sides)
    has_canaries = corpus is not None and not members_files and bool(len(corpus.mixture.canaries))
    found = _measured(subjects, sides, prompts, corpus if has_canaries else None)
    misleading = warnings(found, *sides.lengths())
    for warning in misleading:
        logger.warning("%s", warning)
    return {
        "workdir": str(workdir),
        "standard": standard and str(standard),
        "oracle": oracle and str(oracle),
        "prefixes": list(prompts.prefixes),
        "suffix": suffix,
        "samples": samples,
        "members": len(sides.members.tokens),
        "non_members": len(sides.non_members.tokens),
        "encounters": _times(sides.members.encounters),
        "reference": ORACLE if subjects[-1].name == ORACLE else None,
        "subjects": found,
        "warnings": misleading,
    }


def _with_room(prompts: Prompts, run: Trained) -> Prompts:
    """Those with prefixes that fit a document in the context together with the suffix; warns of the
    others.
    """
    room, suffix = run.config.data.row_length - 1, prompts.suffix
    if (asked := min(prompts.prefixes) + suffix) > room:
        raise InputError(
            f"--prefixes={min(prompts.prefixes)} and --suffix={suffix} take {asked} tokens, and "
            "the "
            f"context of {run.stored.place} has room for {room} of a document; lower one of them"
        )
    fitting = tuple(length for length in prompts.prefixes if length + suffix <= room)
    if too_long := [length for length in prompts.prefixes if length not in fitting]:
        listed = ",".join(map(str, too_long))
        logger.warning(
            "--prefixes=%s leave no room for --suffix=%d in the context: skipped", listed, suffix
        )
    return prompts._replace(prefixes=fitting)


def _times(encounters: np.ndarray | None) -> dict[str, int] | None:
    """{times: members seen so often}, the most frequent first."""
    if encounters is None:
        return None
    times, counts = np.unique(encounters, return_counts=True)
    return {str(time): int(count) for time, count in zip(times[::-1], counts[::-1], strict=True)}


def _measured(
    subjects: list[Subject], sides: Sides, prompts: Prompts, corpus: Corpus | None
) -> dict[str, dict[str, dict[str, dict]]]:
    """{subject: of `measure`}. `corpus`: the members', if they have canaries."""
    reference = sides.read(subjects[-1]) if subjects[-1].name == ORACLE else None
    if reference is None:
        logger.warning("no --oracle: no baseline that never read the members, no reference score")
    if not prompts.fitting(sides.members):
        logger.warning(
            "no member has %d tokens: extraction is skipped", min(prompts.prefixes) + prompts.suffix
        )
    found = {}
    for subject in tqdm.tqdm(subjects, desc="audit", unit="model", disable=None):
        is_oracle, exposures = subject.name == ORACLE, None
        readings = reference if is_oracle else sides.read(subject)
        if corpus:
            exposures = np.full(len(sides.members.tokens), np.nan)
            exposures[: len(corpus.mixture.canaries)] = exposure.exposures(subject, corpus)
        compared = None if is_oracle else reference
        groups = measure(subject, sides, prompts, readings, compared, exposures)
        found[subject.name] = {
            group: {name: one._asdict() for name, one in measured.items()}
            for group, measured in groups.items()
        }
    return found


def groups_of(encounters: np.ndarray | None, count: int) -> dict[str, np.ndarray]:
    """{name: which of `count` members}: all. If it is known how often each was seen, also those
    seen often; if the numbers differ, also "128", "64" ... for those seen that many times.
    """
    groups = {ALL: np.arange(count)}
    if encounters is not None:
        rungs = sorted(set(encounters.tolist()), reverse=True)
        if max(rungs) >= _OFTEN:
            groups[OFTEN] = np.flatnonzero(encounters >= _OFTEN)
        if len(rungs) > 1:
            groups |= {str(rung): np.flatnonzero(encounters == rung) for rung in rungs}
    return groups


def measure(
    subject: Subject,
    sides: Sides,
    prompts: Prompts,
    readings: Readings,
    reference: Readings | None = None,
    exposures: np.ndarray | None = None,
) -> dict[str, dict[str, Measured]]:
    """{group of `groups_of`: {measure: value with interval}}.

    Measures, if they are defined: member_loss, non_member_loss, loss_gap (nats per token; a gap
    over 0: members have a lower loss), member_perplexity, non_member_perplexity; auc_NAME of
    membership.SCORES; length_auc, that of the number of tokens alone, the larger of both
    directions, for which no model is needed; extraction_strength, exact_memorization; for each
    prefix P exact_P, equal_P, edit_distance_P of the greedy continuation, nearest_of_samples_P (the
    least edit distance of the samples), exact_in_N_samples_P; exposure.

    Args:
      readings, reference: by the subject, and by a model that knows none of the documents.
      exposures: float64 (members,), nan for members without a canary; None without canaries.
    """
    counted = readings.counted(sides)
    compared = reference.counted(sides) if reference else (None, None)
    own, others = (
        membership.scores(of, _texts(subject.run, documents), before)
        for of, documents, before in zip(counted, sides, compared, strict=True)
    )
    own["length"], others["length"] = sides.lengths()
    per_member = _recited(subject, sides.members, prompts, readings.members, counted.members)
    if exposures is not None:
        per_member["exposure"] = exposures
    found = {}
    for name, group in groups_of(sides.members.encounters, len(sides.members.tokens)).items():
        found[name] = _losses([counted.members[i] for i in group], counted.non_members)
        aucs = {score: intervals.auc(own[score][group], others[score]) for score in own}
        length_auc = intervals.either(aucs.pop("length"))
        found[name] |= {f"auc_{score}": auc for score, auc in aucs.items()}
        found[name]["length_auc"] = length_auc
        for measure_name, values in per_member.items():
            if len(there := values[group][~np.isnan(values[group])]):
                found[name][measure_name] = _mean(measure_name, there)
    return found


def _mean(name: str, values: np.ndarray) -> Measured:
    # Shares of documents are often 0 or 1, for which Student's interval would be a point.
    if name.startswith("exact_") and name[-1].isdigit():
        return intervals.share(values)
    return intervals.mean(values, 0.0, math.inf if name == "exposure" else 1.0)


def _texts(run: Trained, documents: Documents) -> list[str]:
    """What counts of each document."""
    pairs = zip(documents.tokens, documents.counted(), strict=True)
    return [run.tokenizer.decode(tokens[counted]) for tokens, counted in pairs]


def _losses(members: list[Reading], non_members: list[Reading]) -> dict[str, Measured]:
    found, sides = {}, []
    for name, readings in (("member", members), ("non_member", non_members)):
        nats, tokens = (
            np.array(x) for x in zip(*((r.nats.sum(), len(r.nats)) for r in readings), strict=True)
        )
        sides.append(intervals.mean_and_error(nats, tokens))
        loss = intervals.normal(*sides[-1])
        bounds = loss.ci95 and list(map(math.exp, loss.ci95))
        found |= {
            f"{name}_loss": loss,
            f"{name}_perplexity": Measured(math.exp(loss.value), bounds),
        }
    (known, known_error), (new, new_error) = sides
    error = None if None in (known_error, new_error) else math.hypot(known_error, new_error)
    return found | {"loss_gap": intervals.normal(new - known, error)}


def _recited(
    subject: Subject,
    members: Documents,
    prompts: Prompts,
    readings: list[Reading],
    counted: list[Reading],
) -> dict[str, np.ndarray]:
    """Shares from 0 to 1, float64 (members,), nan for members that are too short."""
    found = {
        name: np.array([getattr(extraction, name)(reading) for reading in counted])
        for name in ("extraction_strength", "exact_memorization")
    }
    openings = members.openings.tolist()
    for prefix, of_prefix in extraction.continuations(subject, members, prompts).items():
        for i, (greedy, *drawn) in of_prefix.items():
            start, suffix = openings[i] + prefix, prompts.suffix
            truth = members.tokens[i][start : start + suffix]
            row = {
                "exact": float(np.array_equal(greedy, truth)),
                "equal": extraction.equal_share(greedy, truth),
                "edit_distance": extraction.edit_distance(greedy, truth),
            }
            if drawn:
                distances = [extraction.edit_distance(text, truth) for text in drawn]
                row["nearest_of_samples"] = min(distances)
            for count in DRAWN:
                chance = extraction.chance_in_samples(readings[i], start, suffix, count)
                row[f"exact_in_{count}_samples"] = chance
            for name, value in row.items():
                values = found.setdefault(f"{name}_{prefix}", np.full(len(readings), np.nan))
                values[i] = value
    return found


def warnings(subjects: dict, members: Sequence[int], non_members: Sequence[int]) -> list[str]:
    """What may mislead in the AUCs of an audit, in words.

    Args:
      subjects: of the result. members, non_members: numbers of tokens of the documents.
    """
    found = []
    for count, what in ((len(members), "members"), (len(non_members), "non-members")):
        if count < FEW:
            found.append(f"{count} {what} are few: a leak may not show in them; give {FEW} or more")
    length = next(iter(subjects.values()))[ALL]["length_auc"]
    if length["value"] >= UNEQUAL and length["ci95"][0] > 0.5:
        read, unread = (f"{statistics.median(lengths):g}" for lengths in (members, non_members))
        found.append(
            f"the number of tokens alone distinguishes members (median {read}) from non-members "
            f"({unread}), without "
            f"any model: AUC {length['value']:.2f}; give documents of equal lengths"
        )
    for name, groups in subjects.items():
        for score, label in SCORES.items():
            if (auc := groups[ALL].get(f"auc_{score}")) and auc["ci95"][1] < 0.5:
                found.append(
                    f"{name}: the AUC of {label} is {auc['value']:.2f}; turned around, the score "
                    "distinguishes "
                    f"members with {1 - auc['value']:.2f}"
                )
    return found
