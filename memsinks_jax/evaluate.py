"""Measures a trained model: python -m memsinks_jax.evaluate --workdir=runs/sinks --sinks=drop [--files='texts/*.txt']

Reports the loss in nats per token, end of text included, of documents that stand alone in their context. Without --files
these are the run's own: --documents=held_out, repeated or unique.
"""

import logging
import pathlib

from absl import flags

from memsinks_jax import sinks
from memsinks_jax.api import Model
from memsinks_jax.config import InputError
from memsinks_jax.data import ids
from memsinks_jax.data.corpus import entropy_floor, tokenise
from memsinks_jax.data.documents import in_words, read_documents
from memsinks_jax.interop.folder import is_folder
from memsinks_jax.runs import command_line
from memsinks_jax.runs import workdir as workdirs

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
    model, floor = Model(workdir, memories), None
    config = model.run.config
    if files:
        documents = read_documents(files)
        documents, tokens = tokenise(documents, model.run.tokenizer)
        identities = model.identities(tokens, mode)
    elif is_folder(workdir):
        raise InputError(f"{workdir} is a model without the documents of a run; give others by --files=GLOB")
    else:
        corpus = workdirs.read_corpus(workdir)
        indices = corpus.mixture.documents(role)
        if not len(indices):
            raise InputError(f"{workdir} has no {role} documents; choose another of --documents={'|'.join(ROLES)}")
        documents, tokens = [corpus.document(i) for i in indices], [corpus.tokens(i) for i in indices]
        identities, floor = corpus.identities(indices), entropy_floor(corpus, indices)
    nats, counts = model.document_losses(tokens, identities, mode)
    if not sinks.has_sinks(config):
        logger.info("this model has no sinks: --sinks=%s changes nothing", mode)
    per_document = [
        {"source": document.source, "id": ids.to_hex(identity), "tokens": int(count), "loss": float(nat / count)}
        for document, identity, nat, count in zip(documents, identities, nats, counts, strict=True)
    ]
    result = {"loss": float(nats.sum() / counts.sum()), "documents": len(documents), "tokens": int(counts.sum())}
    return result | {"sinks": mode, "per_document": per_document, "entropy_floor": floor}


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
