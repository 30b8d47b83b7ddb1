"""All attacks on one model.

The references are a model that remembers (the standard one, or with own sinks on) and, if there is
one, the oracle.
"""

import logging
import pathlib
from collections.abc import Collection

import numpy as np

from memsinks_jax.config import InputError
from memsinks_jax.measures import intervals, rows
from memsinks_jax.measures.documents import Documents
from memsinks_jax.measures.subjects import (
    ORACLE,
    STANDARD,
    Subject,
    in_matrices,
    of_role,
    shortened,
    subjects_of,
)
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.sinks.kinds import has_sinks
from memsinks_jax.studies.attacks import relearning
from memsinks_jax.studies.attacks.calibration import calibrate
from memsinks_jax.studies.attacks.quantization import quantize
from memsinks_jax.studies.attacks.reactivation import reactivate
from memsinks_jax.studies.attacks.residue import residue

logger = logging.getLogger(__name__)

KINDS = ("relearning", "calibration", "benign", "quantization", "reactivation", "residue")
# documents that no model has seen: half for fine-tuning or for the means, half to be measured
_LEAST = 8


def attack_run(
    workdir: pathlib.Path,
    standard: pathlib.Path | None,
    oracle: pathlib.Path | None,
    kinds: Collection[str] = KINDS,
) -> dict:
    """Attacks a run on its own documents: the repeated ones, and the held-out ones.

    Args:
      standard, oracle: models trained without sinks, and without the repeated documents.
      kinds: of KINDS.
    Returns:
      As `attack`.
    """
    subjects, corpus = subjects_of(workdir, standard, oracle), workdirs.read_corpus(workdir)
    members, non_members = (
        of_role(corpus, role, str(workdir)) for role in ("repeated", "held_out")
    )
    longest = max(map(len, members.tokens + non_members.tokens))
    return attack(shortened(subjects, longest), members, non_members, kinds)


def attack(
    subjects: list[Subject],
    members: Documents,
    non_members: Documents,
    kinds: Collection[str] = KINDS,
) -> dict:
    """Attacks the first of `subjects.subjects_of`. Sparse sinks are attacked as neurons, so all of
    them are computed.

    Returns:
      {"relearning": {"members", "never_seen": {kind: {"steps": {model: {"value", "ci95"}}, "ratio",
      "ratio_from_equal", "documents"}}}, "calibration": {model: {"before", "after": {"members",
      "non_members": loss}}}, "benign": {model: {"members", "non_members": change of the loss,
      {"value", "ci95"}}}, "quantization": {model: {"float", "int8", "int4": {"members",
      "non_members": loss}}}, "reactivation": {attack: {"loss", "recovered"}}, "residue": {model:
      {"gap": loss of non-members minus members, "components": {name: how much further members rise
      than non-members where it is ablated until those have lost `residue.DAMAGE`}}}}. In nats per
      token, intervals over documents. An attack that is not in `kinds` is None; so is one that
      these models or documents do not allow, which is logged.
    """
    subjects = [in_matrices(subject) for subject in subjects]
    by_name = {subject.name: subject for subject in subjects}
    attacked, oracle = subjects[0], by_name.get(ORACLE)
    remembering = by_name.get(STANDARD) or next((s for s in subjects[1:] if s.mode == "own"), None)
    compared = [subject for subject in (attacked, oracle) if subject]
    held_by = [subject for subject in (attacked, by_name.get(STANDARD), oracle) if subject]
    found, count = dict.fromkeys(KINDS), len(non_members.tokens)
    if count < _LEAST:
        logger.warning("%d non-members are too few for attacks; give %d", count, _LEAST)
        return found
    halves = [non_members.chosen(np.arange(count) % 2 == part) for part in range(2)]
    sides = members, *halves
    if "relearning" in kinds and remembering is None:
        logger.warning("the relearning attack needs a model that remembers: give --standard")
    elif "relearning" in kinds:
        try:
            targets = relearning.targets_of(attacked, remembering, members)
        except InputError as error:
            logger.warning("no relearning attack: %s", error)
        else:
            control = relearning.never_seen(attacked, non_members, targets)
            of = {"members": targets, "never_seen": control}
            found["relearning"] = {name: _relearned(compared, each) for name, each in of.items()}
    if "calibration" in kinds and len(members.tokens) < 2:
        why = "it is fitted on half of the members and evaluated on the rest; give two"
        logger.warning("no calibration: %s", why)
    elif "calibration" in kinds:
        found["calibration"] = {s.name: calibrate(s, members, non_members) for s in held_by}
    if "benign" in kinds:
        found["benign"] = {subject.name: _benign(subject, *sides) for subject in compared}
    if "quantization" in kinds:
        found["quantization"] = {s.name: quantize(s, members, halves[1]) for s in held_by}
    config = attacked.run.config
    if "reactivation" in kinds and has_sinks(config) and not config.sinks.traits.by_context:
        found["reactivation"] = reactivate(attacked, members)
    if "residue" in kinds:
        found["residue"] = {subject.name: _residue(subject, *sides) for subject in held_by}
    return found


def _relearned(compared: list[Subject], targets: relearning.Targets) -> dict:
    results = {subject.name: relearning.relearn(subject, targets) for subject in compared}

    def steps(of: dict) -> dict[str, float]:
        # A document that did not come back counts with the maximum number of steps, a lower bound.
        counts = [relearning.STEPS if count is None else count for count in of["steps"]]
        return intervals.mean(np.array(counts), 0.0)._asdict()

    found = {}
    for kind in relearning.KINDS:
        found[kind] = {"steps": {name: steps(of[kind]) for name, of in results.items()}}
        found[kind] |= dict.fromkeys(("ratio", "ratio_from_equal", "documents"))
        if len(results) == 2:
            found[kind] |= relearning.ratios(*results.values())[kind]
    return found


def _benign(
    subject: Subject, members: Documents, practised: Documents, measured: Documents
) -> dict:
    result = relearning.benign(subject, members, practised, measured)
    found = {}
    for name, of in (("members", "repeated"), ("non_members", "held_out")):
        change_R = np.array(result[of]["after"]) - np.array(result[of]["losses"])
        found[name] = intervals.mean(change_R)._asdict()
    return found


def _residue(
    subject: Subject, members: Documents, reference: Documents, measured: Documents
) -> dict:
    groups = [rows.rows_of(documents, subject.run) for documents in (members, measured, reference)]
    result = residue(subject, *groups)
    closed = {name: of["gap_closed"] for name, of in result["components"].items()}
    return {"gap": result["gap"], "components": closed}
