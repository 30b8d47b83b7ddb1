"""A whole audit: all measures of every subject, over all members and over those that were seen equally
often.
"""

import logging
import math
import pathlib
import statistics
from collections.abc import Sequence

import numpy as np
import tqdm

from memsinks_jax.config import InputError
from memsinks_jax.data.tokenizer import AnyTokenizer
from memsinks_jax.measures import (
    exposure,
    extraction,
    forced,
    intervals,
    membership,
    open_unlearning,
)
from memsinks_jax.measures.documents import Documents
from memsinks_jax.measures.extraction import PREFIXES, SUFFIX, lengths_that_fit
from memsinks_jax.measures.forced import Reading
from memsinks_jax.measures.intervals import Measured
from memsinks_jax.measures.membership import SCORE_LABELS
from memsinks_jax.measures.subjects import (
    ORACLE,
    Subject,
    check_documents,
    corpus_of,
    documents_of,
    shortened,
    subjects_of,
)

logger = logging.getLogger(__name__)

SAMPLES = 8
ALL, OFTEN = "all", "seen 8 times or more"
_OFTEN = 8
DRAWN = (1, 100, 10_000)  # continuations, for the chance that one of them is exact

Readings = tuple[list[Reading], list[Reading]]  # of the members, of the non-members
# documents: with as many members and non-members the interval of an AUC of 0.5 is 0.33 to 0.67
FEW = 20
UNEQUAL = 0.6  # AUC of the lengths from which they are called unequal, if the interval is above 0.5


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
    prefixes = _lengths_with_room(workdir, prefixes, suffix, first.config.data.row_length - 1)
    corpus = corpus_of(first, members_files, non_members_files)
    about = {
        "workdir": str(workdir),
        "standard": standard and str(standard),
        "oracle": oracle and str(oracle),
        "prefixes": list(prefixes),
        "suffix": suffix,
        "samples": samples,
    }
    members = documents_of(first, "repeated", members_files, corpus)
    non_members = documents_of(first, "held_out", non_members_files, corpus)
    if open_unlearning_files and (members.answers or non_members.answers):
        raise InputError(
            "--open_unlearning: its files have no prompts, which these documents have; leave it out"
        )
    check_documents(members, non_members, subjects)
    longest = max(*map(len, members.tokens + non_members.tokens), max(prefixes) + suffix)
    subjects = shortened(subjects, longest)
    if open_unlearning_files:
        open_unlearning.export_for_open_unlearning(
            open_unlearning_files,
            {"model": first} | ({"oracle": subjects[-1].run} if oracle else {}),
            members,
            non_members,
        )
    has_canaries = corpus is not None and not members_files and bool(len(corpus.mixture.canaries))
    reference = (
        read_all(subjects[-1], members, non_members) if subjects[-1].name == ORACLE else None
    )
    if reference is None:
        logger.warning("no --oracle: no baseline that never read the members, no reference score")
    if not lengths_that_fit(members, prefixes, suffix):
        logger.warning("no member has %d tokens: extraction is skipped", min(prefixes) + suffix)
    found = {}
    for subject in tqdm.tqdm(subjects, desc="audit", unit="model", disable=None):
        is_oracle = subject.name == ORACLE
        readings = reference if is_oracle else read_all(subject, members, non_members)
        exposures = None
        if has_canaries:
            exposures = np.full(len(members.tokens), np.nan)
            exposures[: len(corpus.mixture.canaries)] = exposure.exposures(subject, corpus)
        found[subject.name] = measure(
            subject,
            members,
            non_members,
            readings,
            None if is_oracle else reference,
            exposures,
            prefixes,
            suffix,
            samples,
        )
    times = None if members.encounters is None else members.encounters.tolist()
    subjects_found = {
        name: {
            group: {key: intervals.as_dict(one) for key, one in measured.items()}
            for group, measured in groups.items()
        }
        for name, groups in found.items()
    }
    lengths = [[int(counted.sum()) for counted in of.counted()] for of in (members, non_members)]
    found_wanting = warnings(subjects_found, *lengths)
    for warning in found_wanting:
        logger.warning("%s", warning)
    return about | {
        "members": len(members.tokens),
        "non_members": len(non_members.tokens),
        "encounters": times
        and {str(time): times.count(time) for time in sorted(set(times), reverse=True)},
        "reference": ORACLE if reference else None,
        "subjects": subjects_found,
        "warnings": found_wanting,
    }


def _lengths_with_room(
    workdir: pathlib.Path, prefixes: tuple[int, ...], suffix: int, room: int
) -> tuple[int, ...]:
    """The prefixes that a context with `room` tokens for a document can hold with a suffix; warns
    of the others.
    """
    if (asked := min(prefixes) + suffix) > room:
        raise InputError(
            f"--prefixes={min(prefixes)} and --suffix={suffix} take {asked} tokens, and the "
            f"context of {workdir} has "
            f"room for {room} of a document; lower one of them"
        )
    if too_long := [length for length in prefixes if length + suffix > room]:
        listed = ",".join(map(str, too_long))
        logger.warning(
            "--prefixes=%s leave no room for --suffix=%d in the context: skipped", listed, suffix
        )
    return tuple(length for length in prefixes if length not in too_long)


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


def read_all(subject: Subject, members: Documents, non_members: Documents) -> Readings:
    return forced.read(subject, members), forced.read(subject, non_members)


def measure(
    subject: Subject,
    members: Documents,
    non_members: Documents,
    readings: Readings,
    reference: Readings | None,
    exposures: np.ndarray | None,
    prefixes: tuple[int, ...],
    suffix: int,
    samples: int,
) -> dict[str, dict[str, Measured]]:
    """{group of `groups_of`: {measure: value with interval}}.

    Measures, if they are defined: member_loss, non_member_loss, loss_gap (nats per token; a gap
    over 0: members have a lower loss), member_perplexity, non_member_perplexity; auc_NAME of
    membership.SCORES; length_auc, that of the number of tokens alone, the larger of both
    directions, for which no model is needed; extraction_strength, exact_memorization; for each
    prefix P exact_P, equal_P, edit_distance_P of the greedy continuation, nearest_of_samples_P (the
    least edit distance of the samples), exact_in_N_samples_P; exposure.

    Args:
      readings, reference: from `read_all`, by the subject and by a model that knows none of the
        documents.
      exposures: float64 (members,), nan for members without a canary; None without canaries.
      prefixes, suffix, samples: as in `extraction`.
    """
    sides = members, non_members
    counted = _counted(readings, sides)
    compared = reference and _counted(reference, sides)
    own = [
        _scores(subject.run.tokenizer, documents, counted[side], compared and compared[side])
        for side, documents in enumerate(sides)
    ]
    lengths = [np.array([len(reading.nats) for reading in of]) for of in counted]
    per_member = _recited(subject, members, readings[0], counted[0], prefixes, suffix, samples)
    found = {}
    for name, group in groups_of(members.encounters, len(members.tokens)).items():
        found[name] = _losses([counted[0][i] for i in group], counted[1])
        found[name] |= {
            f"auc_{score}": intervals.auc(own[0][score][group], own[1][score]) for score in own[0]
        }
        found[name]["length_auc"] = intervals.either(intervals.auc(lengths[0][group], lengths[1]))
        for measure_name, values in per_member.items():
            there = values[group][~np.isnan(values[group])]
            if len(there):
                # Shares of documents are often 0 or 1, for which Student's interval would be a
                # point.
                recited = measure_name.startswith("exact_") and measure_name[-1].isdigit()
                found[name][measure_name] = (
                    intervals.share(there) if recited else intervals.mean(there, 0.0, 1.0)
                )
        if exposures is not None and not np.isnan(exposures[group]).all():
            there = exposures[group][~np.isnan(exposures[group])]
            found[name]["exposure"] = intervals.mean(there, 0.0)
    return found


def _counted(readings: Readings, sides: tuple[Documents, Documents]) -> Readings:
    """Readings of what counts in the loss: without prompts."""
    pairs = zip(readings, sides, strict=True)
    return tuple(
        [r.of(c) for r, c in zip(of, documents.counted(), strict=True)] for of, documents in pairs
    )


def _scores(
    tokenizer: AnyTokenizer, documents: Documents, readings, reference
) -> dict[str, np.ndarray]:
    texts = [
        tokenizer.decode(t[counted])
        for t, counted in zip(documents.tokens, documents.counted(), strict=True)
    ]
    return membership.scores(readings, texts, reference)


def _losses(members: list[Reading], non_members: list[Reading]) -> dict[str, Measured]:
    found, sides = {}, []
    for name, readings in (("member", members), ("non_member", non_members)):
        nats, tokens = (
            np.array(x) for x in zip(*((r.nats.sum(), len(r.nats)) for r in readings), strict=True)
        )
        sides.append(intervals.per_token(nats, tokens))
        loss = intervals.normal(*sides[-1])
        bounds = loss.ci95 and tuple(map(math.exp, loss.ci95))
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
    readings: list[Reading],
    counted: list[Reading],
    prefixes: tuple[int, ...],
    suffix: int,
    samples: int,
) -> dict[str, np.ndarray]:
    """Shares from 0 to 1, float64 (members,), nan for members that are too short."""
    found = {
        "extraction_strength": np.array(
            [extraction.extraction_strength(reading) for reading in counted]
        ),
        "exact_memorization": np.array(
            [extraction.exact_memorization(reading) for reading in counted]
        ),
    }
    openings = members.openings.tolist()
    fitting = extraction.lengths_that_fit(members, prefixes, suffix)
    written = (
        extraction.continuations(subject, members, fitting, suffix, samples) if fitting else {}
    )
    for prefix, indices in fitting.items():
        rows = {}
        for i, (greedy, *drawn) in zip(indices, written[prefix], strict=True):
            start = openings[i] + prefix
            truth = members.tokens[i][start : start + suffix]
            row = {
                "exact": float(np.array_equal(greedy, truth)),
                "equal": extraction.equal_share(greedy, truth),
                "edit_distance": extraction.edit_distance(greedy, truth),
            }
            if drawn:
                row["nearest_of_samples"] = min(
                    extraction.edit_distance(text, truth) for text in drawn
                )
            for count in DRAWN:
                chance = extraction.chance_in_samples(readings[i], start, suffix, count)
                row[f"exact_in_{count}_samples"] = chance
            rows[i] = row
        for name in next(iter(rows.values())):
            values = np.full(len(readings), np.nan)
            values[indices] = [rows[i][name] for i in indices]
            found[f"{name}_{prefix}"] = values
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
        medians = [f"{statistics.median(lengths):g}" for lengths in (members, non_members)]
        found.append(
            f"the number of tokens alone distinguishes members (median {medians[0]}) from "
            "non-members "
            f"({medians[1]}), without any model: AUC {length['value']:.2f}; give documents of "
            "equal lengths"
        )
    for name, groups in subjects.items():
        for score, label in SCORE_LABELS.items():
            if (auc := groups[ALL].get(f"auc_{score}")) and auc["ci95"][1] < 0.5:
                found.append(
                    f"{name}: the AUC of {label} is {auc['value']:.2f}; turned around, the score "
                    "distinguishes "
                    f"members with {1 - auc['value']:.2f}"
                )
    return found
