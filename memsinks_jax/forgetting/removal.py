"""Removes documents: writes the model without their sinks, and the receipt."""

import dataclasses
import os
import pathlib
import shutil

import jax
import numpy as np

from memsinks_jax.config import Config, InputError
from memsinks_jax.data.documents import in_words
from memsinks_jax.data.prepared import numbered_ids
from memsinks_jax.forgetting import contexts, neurons
from memsinks_jax.forgetting import receipt as receipts
from memsinks_jax.forgetting.request import (
    Found,
    Request,
    check_remaining,
    find,
    left_open,
    placebos,
    spare_others,
)
from memsinks_jax.model import sparse_sinks
from memsinks_jax.models.folder import write_folder
from memsinks_jax.models.origin import front_matter, origin
from memsinks_jax.models.trained import Trained, open_run
from memsinks_jax.runs import output
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.runs.interruption import atomic_folder
from memsinks_jax.sinks.kinds import partition


def forget(
    workdir: pathlib.Path,
    asked: Request,
    out: pathlib.Path,
    others: str = "",
    held_out: str = "",
    spare: int | None = None,
    evidence: pathlib.Path | None = None,
    shared: bool = False,
) -> dict:
    """Writes the model without the sinks of the documents, and the receipt -> the receipt.

    A folder with source files is copied without the group's file.

    Args:
      others, held_out: globs of what else is measured; empty for the run's own documents.
      spare: sinks that more than this many of the others use stay; None: all go.
      shared: with sinks by context, also those of contexts that stand in other texts.
      evidence: folder of `reproduce --figure=removal`, whose claims the receipt repeats.
    Returns:
      {"removed_documents": number,
      "removed": {"mlp": {"sinks", "removed", "by_layer": [[neuron]]}},
      "losses": {set: {mode: {"before", "after", "rise", "rise_ci95", ...}}},
      "selectivity": {mode: {"value", "ci95"}},
      "placebo": {of what ids: {mode: {"placebo_rise", "effect", "effect_ci95"}, ...}},
      "documents": [those measured], ...}, losses in nats per token.
    With source files also {"deleted": the file}. Of a text it has "removed_texts" instead of
    "removed_documents".

    Raises:
      InputError: nothing is written.
    """
    output.check_free(out)
    tested = {"evidence": receipts.read_evidence(evidence)} if evidence else {}
    run = open_run(workdir)
    found = find(workdir, run, asked, others, held_out)
    if run.config.sinks.traits.by_context:
        return _forget_contexts(workdir, out, run, found, spare, shared, tested)
    if shared:
        raise InputError(
            f"--shared is of sinks by context, and {workdir} has sinks by document; leave it out"
        )
    removed = neurons.neurons_of(run.config, np.unique(found.identities, axis=0))
    files = run.stored.sources
    withdrawn = files.find(asked.group).path if files else None
    if not withdrawn:
        check_remaining(run.config, removed, len(found.identities), found.noun)
    if spare is not None:
        removed = spare_others(run.config, removed, found, spare)
    with atomic_folder(out) as scratch:
        folder = scratch / out.name
        params = neurons.without(run.config, run.params, removed)
        if withdrawn:
            shutil.copytree(
                workdir,
                folder,
                ignore=lambda place, _: (
                    [withdrawn.name] * (withdrawn.parent == pathlib.Path(place))
                ),
            )
            _verify(_without_rows(run.config, run.params, removed), open_run(folder).params, folder)
        else:
            _write(folder, workdir, dataclasses.replace(run, params=params), found, spare)
        receipt = {
            "workdir": str(workdir),
            "step": run.step,
            f"removed_{found.noun}s": len(found.identities),
        }
        receipt |= {"removed": receipts.removed_neurons(run.config, removed)}
        if withdrawn:
            receipt |= {"deleted": str(withdrawn.relative_to(workdir))}
        receipt |= receipts.measure(run, params, found, placebos(run, found, spare)) | tested
        receipts.write(folder, workdir, out, receipt)
        os.replace(folder, out)
    return receipt


def _forget_contexts(
    workdir: pathlib.Path,
    out: pathlib.Path,
    run: Trained,
    found: Found,
    spare: int | None,
    shared: bool,
    tested: dict,
) -> dict:
    """`forget` of sinks by context."""
    if spare is not None:
        raise InputError(
            "--spare is of sinks that documents share; contexts that other texts hold stay "
            "without it"
        )
    removed = contexts.removed(run, found, shared)
    with atomic_folder(out) as scratch:
        folder = scratch / out.name
        _write(folder, workdir, contexts.left(run, removed), found, None)
        receipt = {
            "workdir": str(workdir),
            "step": run.step,
            f"removed_{found.noun}s": len(found.identities),
        }
        receipt |= {"removed": {"contexts": contexts.counted(run, removed)}}
        params = contexts.without(run.params, removed)
        receipt |= (
            receipts.measure(run, params, found, contexts.placebos(run, found), contexts.without)
            | tested
        )
        receipts.write(folder, workdir, out, receipt)
        os.replace(folder, out)
    return receipt


def _write(
    folder: pathlib.Path, workdir: pathlib.Path, run: Trained, found: Found, spare: int | None
):
    """Writes the model, with what is left of its sinks, as a Hugging Face folder, all sinks on."""
    head = front_matter(run.origin, origin(run.origin), "the texts") if run.origin else []
    card = "\n".join(["---", *head, "---", "", ""]) if head else ""
    card += (
        f"# {folder.name}\n\nThe model of `{workdir}` after {run.step} steps, from which "
        "memsinks_jax has removed the "
    )
    card += (
        f"sinks of {in_words(len(found.identities), found.noun)}; the others are all on. See "
        "receipt.json.\n"
    )
    opened = left_open(run, found, spare)
    write_folder(folder, dataclasses.replace(run, opened=opened), card, drop=False)
    if run.groups:
        left = opened(numbered_ids(run.groups))
        workdirs.write_groups(folder, run.groups, run.nearest.without(~left))
    _verify(
        sparse_sinks.without_tables(run.config.model, run.params), open_run(folder).params, folder
    )


def _without_rows(config: Config, params: dict, removed_LF: np.ndarray) -> dict:
    """The parameters without the rows of the removed sinks; without tables if no row is left."""
    left_M = ~removed_LF[0, partition(config.model, config.sinks).shared :]
    tables = {
        name: np.asarray(params[name])[left_M] for name in sparse_sinks.tables_of(config.model)
    }
    base = {name: leaf for name, leaf in params.items() if name not in tables}
    return base | tables if left_M.any() else base


def _verify(meant: dict, written: dict, where: pathlib.Path) -> None:
    """Raises RuntimeError where the files do not hold, bit for bit, what was meant to be in
    them.
    """
    same = jax.tree.map(
        lambda one, other: np.array_equal(np.asarray(one), np.asarray(other)), meant, written
    )
    if not jax.tree.all(same):
        raise RuntimeError(f"{where} does not hold the parameters that were written to it")
