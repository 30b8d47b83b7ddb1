"""All measures of one subject, over all members and over those that were seen equally often."""

import math

import numpy as np

from memsinks_jax.data.tokenizer import AnyTokenizer
from memsinks_jax.measures import extraction, forced, intervals, membership
from memsinks_jax.measures.documents import Documents
from memsinks_jax.measures.forced import Reading
from memsinks_jax.measures.intervals import Measured
from memsinks_jax.measures.subjects import Subject

ALL, OFTEN = "all", "seen 8 times or more"
_OFTEN = 8
DRAWN = (1, 100, 10_000)  # continuations, for the chance that one of them is exact

Readings = tuple[list[Reading], list[Reading]]  # of the members, of the non-members


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
