"""Measures a trained model: python -m memsinks_jax.evaluate --workdir=runs/sinks --sinks=drop [--files='texts/*.txt']

Reports the loss in nats per token, end of text included, of documents that stand alone in their context. Without --files
these are the run's own: --documents=held_out, repeated or unique.
"""

import functools
import logging
import pathlib

import numpy as np
from absl import flags

from memsinks_jax import sinks
from memsinks_jax.auditing.subjects import opened_in
from memsinks_jax.config import InputError
from memsinks_jax.data import ids
from memsinks_jax.data.corpus import entropy_floor, tokenise
from memsinks_jax.data.documents import in_words, read_documents
from memsinks_jax.data.packing import reads_whole
from memsinks_jax.data.table import truncated
from memsinks_jax.editing.memory import interventions
from memsinks_jax.editing.memory_file import load_all
from memsinks_jax.evals.document_loss import DocumentLoss, document_batches, rows_at_once
from memsinks_jax.interop.folder import is_folder
from memsinks_jax.model import placement
from memsinks_jax.runs import command_line
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.runs.trained import Trained, open_run

logger = logging.getLogger("memsinks_jax.evaluate")

ROLES = ("held_out", "repeated", "unique")


def evaluate(
    workdir: pathlib.Path, mode: str, files: str = "", role: str = "held_out", memories: tuple[str, ...] = ()
) -> dict:
    """Loss of documents under one mode of the sinks.

    Args:
      mode: one of sinks.MODES.
      files: glob of the documents to measure; empty for the run's own documents of `role`.
      memories: files that edit has written, all of which are in the model.
    Returns:
      {"loss": nats per token over all documents, "documents", "tokens", "sinks", "per_document": [{"source", "id",
      "tokens", "loss"}], "entropy_floor": nats per token where it is known}.
    """
    run = open_run(workdir)
    floor = None
    if files:
        documents = read_documents(files)
        tokens = tokenise(documents, run.tokenizer)
        identities = identities_of_texts(workdir, run, tokens, mode)
    elif is_folder(workdir):
        raise InputError(f"{workdir} is a model without the documents of a run; give others by --files=GLOB")
    else:
        corpus = workdirs.read_corpus(workdir)
        indices = corpus.mixture.documents(role)
        if not len(indices):
            raise InputError(f"{workdir} has no {role} documents; choose another of --documents={'|'.join(ROLES)}")
        documents, tokens = [corpus.document(i) for i in indices], [corpus.tokens(i) for i in indices]
        identities, floor = corpus.identities(indices), entropy_floor(corpus, indices)
    nats, counts = document_losses(workdir, run, tokens, identities, mode, memories)
    if not sinks.partition(run.config.model, run.config.sinks).sinks:
        logger.info("this model has no sinks: --sinks=%s changes nothing", mode)
    per_document = [
        {"source": document.source, "id": ids.to_hex(identity), "tokens": int(count), "loss": float(nat / count)}
        for document, identity, nat, count in zip(documents, identities, nats, counts, strict=True)
    ]
    result = {"loss": float(nats.sum() / counts.sum()), "documents": len(documents), "tokens": int(counts.sum())}
    return result | {"sinks": mode, "per_document": per_document, "entropy_floor": floor}


def identities_of_texts(workdir: pathlib.Path, run: Trained, tokens: list[np.ndarray], mode: str) -> np.ndarray:
    """Ids of documents that are known by their text alone -> uint32 (documents, 2).

    Raises:
      InputError: the mode needs ids, and those of the run are not of the text.
    """
    kind = run.config.data.ids
    if kind != "content" and mode in ("own", "other"):
        raise InputError(f"{workdir} was trained with ids by {kind}: sinks={mode} is not defined for other documents")
    return np.stack([ids.content_id(document) for document in tokens])


def document_losses(
    workdir: pathlib.Path, run: Trained, tokens: list[np.ndarray], identities: np.ndarray, mode: str,
    memories: tuple[str, ...] = (),
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """(nats, number of tokens) of every document, each alone in its context: float64 and int64 (documents,).

    Args:
      run: of `workdir`.
      tokens: int32 (tokens,) of each. identities: uint32 (documents, 2).
      mode, memories: as in `evaluate`.
    """
    rows, whole = rows_at_once(run.config, placement.mesh_of(run.params)), reads_whole(run.config.data)
    about = (tokens, identities, run.config.data.row_length, run.tokenizer.end_of_text)
    opened = opened_in(workdir, run.config, identities)
    batches = document_batches(*about, rows, whole, opened, run.tokenizer.begin_of_text)
    change = functools.partial(interventions, load_all(memories, run.config, run.params))
    longer, _ = truncated(np.array([len(document) for document in tokens]), run.config.data.row_length)
    if longer:
        what = "measured in windows of it" if whole else "truncated, as in training"
        logger.warning("longer than the context, %s: %d of %s", what, longer, in_words(len(tokens), "document"))
    return DocumentLoss(run.config, change=change)(run.params, batches, mode)


def main() -> None:
    workdir_flag = flags.DEFINE_string("workdir", None, "Folder of a training run, or a Hugging Face folder.")
    sinks_flag = flags.DEFINE_enum("sinks", "drop", sinks.MODES, "Which sinks are on.")
    files_flag = flags.DEFINE_string("files", "", "Path or glob of files; empty: the run's own documents.")
    documents_flag = flags.DEFINE_enum("documents", "held_out", ROLES, "Which of the run's own documents.")
    memory_flag = flags.DEFINE_list("memory", [], "Files of memories, written by edit, to add to the model.")
    per_document_flag = flags.DEFINE_bool("per_document", False, "Also report the loss of every document.")

    def run() -> dict:
        command_line.require(workdir_flag)
        workdir = pathlib.Path(workdir_flag.value)
        result = evaluate(workdir, sinks_flag.value, files_flag.value, documents_flag.value, tuple(memory_flag.value))
        if not per_document_flag.value:
            del result["per_document"]
        else:
            for row in result["per_document"]:
                logger.info("%.4f  %4d tokens  %s  %s", row["loss"], row["tokens"], row["id"], row["source"])
        floor = result["entropy_floor"]
        logger.info(
            "loss %.4f nats per token over %s, %s, sinks %s%s", result["loss"],
            in_words(result["documents"], "document"), in_words(result["tokens"], "token"), result["sinks"],
            "" if floor is None else f"; entropy floor {floor:.4f}",
        )  # fmt: skip
        return result

    command_line.run(run)


if __name__ == "__main__":
    main()
