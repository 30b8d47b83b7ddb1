"""Removes single documents: python -m memsinks_jax.forget --workdir=runs/sinks --documents='letters/*.txt' --out=models/rest

Only the sinks of these documents are removed, all others stay. They are named by their text (runs with ids by content), by
--ids=HEX,HEX (ids of the run's documents.jsonl), or by --group=NAME (runs with ids by group). What is written is a Hugging
Face folder that keeps its sinks, in which the weights of the removed ones are zero, with a receipt: which neurons they
were, and what was lost with them, of the documents, of other repeated ones, and of held-out text.
"""

import logging
import os
import pathlib
import shutil
import sys
from typing import NamedTuple

import matplotlib

matplotlib.use("agg")

import jax
import matplotlib.pyplot as plt
import numpy as np
from absl import flags

from memsinks_jax import sinks
from memsinks_jax.auditing import forgetting
from memsinks_jax.auditing.subjects import Documents
from memsinks_jax.config import Config, InputError
from memsinks_jax.data import ids
from memsinks_jax.data.corpus import Corpus, tokenise
from memsinks_jax.data.documents import read_documents
from memsinks_jax.data.prepared import group_id
from memsinks_jax.evals.document_loss import DocumentLoss
from memsinks_jax.interop.folder import is_folder, write_folder
from memsinks_jax.reporting import report
from memsinks_jax.runs import command_line
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.runs.trained import Trained, open_run

logger = logging.getLogger("memsinks_jax.forget")

MODES = ("own", "all")
_SAID = {"own": "each document's own sinks on", "all": "all sinks on"}
_MOST = 512  # documents of a set that are measured
_SETS = {
    "target": "the documents", "related": "never read, same id", "others": "other documents", "held_out": "held-out text",
}  # fmt: skip


class Request(NamedTuple):
    """Whose sinks are removed: one of the three is given."""

    documents: str = ""  # glob
    ids: tuple[str, ...] = ()  # hexadecimal
    group: str = ""


def forget(
    workdir: pathlib.Path, asked: Request, out: pathlib.Path, others: str = "", held_out: str = "",
    spare: int | None = None,
) -> dict:  # fmt: skip
    """Writes the model without the sinks of the documents, and the receipt -> the receipt.

    Args:
      others, held_out: globs of what else is measured; empty for the run's own documents.
      spare: sinks that more than so many of the others use stay; None: all go.
    Returns:
      {"removed_documents": number, "removed": {site: {"sinks", "removed", "by_layer": [[neuron]]}}, "losses": {set: {mode:
      {"before", "after", "rise", "rise_ci95", ...}}}, "selectivity": {mode: {"value", "ci95"}}, "documents": [those
      measured], ...}, losses in nats per token.
    Raises:
      InputError: nothing is written.
    """
    if out.exists():
        raise InputError(f"{out} exists; take another --out, or remove it first")
    run = open_run(workdir)
    found = _find(workdir, run, asked, others, held_out)
    removed = forgetting.neurons_of(run.config, np.unique(found.identities, axis=0))
    _refuse_all(run.config, removed, len(found.identities))
    if spare is not None:
        removed = _spare(run.config, removed, found, spare)
    scratch = out.with_name(out.name + ".forgetting")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        params = forgetting.without(run.config, run.params, removed)
        card = (
            f"# {out.name}\n\nThe model of `{workdir}` after {run.step} steps, from which memsinks_jax has removed the "
        )
        card += f"sinks of {len(found.identities)} documents; the others are all on. See receipt.json.\n"
        write_folder(scratch, run.config, run.tokenizer, _reader(params), drop=False, dtype="float32", card=card)
        after = open_run(scratch).params
        _verify(params, after, scratch)
        receipt = {"workdir": str(workdir), "step": run.step, "removed_documents": len(found.identities)}
        receipt |= {"removed": _told(run.config, removed)} | _measure(run, after, found)
        report.write_json(scratch / "receipt.json", receipt)
        _draw(receipt, scratch / "receipt.png")
        report.write_page(scratch / "index.html", f"Removed from {workdir.absolute().name}", _page(receipt, scratch))
        os.replace(scratch, out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return receipt


class _Found(NamedTuple):
    identities: np.ndarray  # uint32 (documents, 2) of all that are removed
    sets: dict[str, Documents]  # what is measured, by the names of _SETS, without empty ones
    places: list[str]  # where those of the set target are from


def _find(workdir: pathlib.Path, run: Trained, asked: Request, others: str, held_out: str) -> _Found:
    config, corpus = run.config, None
    if config.sinks.kind != "by_document" or not sinks.has_sinks(config):
        raise InputError(
            f"{workdir} has no sinks that are tied to documents (config.sinks.kind is {config.sinks.kind}); nothing can be "
            "removed for one of them"
        )
    if sum(map(bool, asked)) != 1:
        raise InputError("give the documents to remove by one of --documents, --ids and --group")
    if not is_folder(workdir):
        corpus = workdirs.read_corpus(workdir)
    elif not asked.documents:
        raise InputError(f"{workdir} is a model without the documents of its run; name them by --documents")
    if corpus:
        identities, sets, places = _of_run(corpus, _identities(workdir, run, asked, corpus))
    else:
        target, places = _of_files(asked.documents, run, workdir)
        identities, sets = target.identities, {"target": target}
    for name, files in (("others", others), ("held_out", held_out)):
        if files:
            sets[name], _ = _of_files(files, run, workdir)
            if {*map(ids.to_hex, sets[name].identities)} & {*map(ids.to_hex, sets["target"].identities)}:
                raise InputError(f"--{name}={files} holds documents that are removed; leave them out")
    return _Found(identities, {name: each for name, each in sets.items() if len(each.tokens)}, places)


def _identities(workdir: pathlib.Path, run: Trained, asked: Request, corpus: Corpus) -> set[str]:
    """Hexadecimal ids of what is removed; each is of a document that the run was trained on."""
    kind, known = run.config.data.ids, {ids.to_hex(corpus.identities[i]) for i in _read(corpus)}
    if asked.documents:
        documents, identities = _of_files(asked.documents, run, workdir)
        found = dict(zip(map(ids.to_hex, documents.identities), identities, strict=True))
    elif asked.ids:
        found = {one.lower(): f"--ids: {one}" for one in asked.ids}
    elif kind != "group":
        raise InputError(f"{workdir} has ids by {kind}, not by group; name documents by --documents or --ids")
    else:
        found = {ids.to_hex(group_id(asked.group)): f"--group={asked.group}"}
    for identity, name in found.items():
        if identity not in known:
            raise InputError(
                f"{name}: {workdir} was not trained on it, so it has no sinks there; {workdir / 'documents.jsonl'} lists "
                "the ids of those it was"
            )
    return set(found)


def _read(corpus: Corpus) -> np.ndarray:
    """Documents that the run was trained on."""
    return np.union1d(corpus.mixture.encounters, corpus.mixture.scheduled)


def _of_run(corpus: Corpus, removed: set[str]) -> _Found:
    is_removed = np.array([ids.to_hex(identity) in removed for identity in corpus.identities])
    mixture, read = corpus.mixture, _read(corpus)
    repeated = np.intersect1d(mixture.repeated, read)
    others = repeated[~is_removed[repeated]]
    if not len(others):  # where nothing is repeated by itself, as with ids of groups
        others = read[~is_removed[read]]
    places = {
        "target": read[is_removed[read]],
        "related": mixture.held_out[is_removed[mixture.held_out]],
        "others": others,
        "held_out": mixture.held_out[~is_removed[mixture.held_out]],
    }
    sets = {
        name: Documents([np.asarray(corpus.tokens[i]) for i in indices[:_MOST]], corpus.identities[indices[:_MOST]])
        for name, indices in places.items()
    }
    return _Found(corpus.identities[places["target"]], sets, [corpus.places[i] for i in places["target"][:_MOST]])


def _of_files(files: str, run: Trained, workdir: pathlib.Path) -> tuple[Documents, list[str]]:
    """(documents of a glob, where each is from)"""
    if run.config.data.ids != "content":
        raise InputError(
            f"{workdir} has ids by {run.config.data.ids}, which a file does not tell; name documents by "
            f"{'--group' if run.config.data.ids == 'group' else '--ids'}"
        )
    documents = read_documents(files)
    tokens = tokenise(documents, run.tokenizer)
    return Documents(tokens, np.stack([ids.content_id(each) for each in tokens])), [each.source for each in documents]


def _refuse_all(config: Config, removed: dict[str, np.ndarray], documents: int) -> None:
    for site, parts in sinks.partitions(config).items():
        if parts.sinks and removed[site][:, parts.shared :].all():
            raise InputError(
                f"{documents} documents use all {parts.sinks} sinks of the {site} together, and nothing would be left of "
                "them; remove fewer, or drop all sinks: memsinks_jax.export --sinks=drop"
            )


def _spare(config: Config, removed: dict[str, np.ndarray], found: _Found, most: int) -> dict[str, np.ndarray]:
    if "others" not in found.sets:
        raise InputError("--spare: there are no other documents to spare; name some by --others, or leave it out")
    left = forgetting.spared(config, removed, found.sets["others"].identities, most)
    if not any(each.any() for each in left.values()):
        raise InputError(f"--spare={most} leaves every sink of the documents where it is; raise it")
    return left


def _reader(params: dict):
    def read(path: str, layer: int | None) -> np.ndarray:
        array = params
        for name in path.split("/"):
            array = array[name]
        return np.asarray(array if layer is None else array[layer])

    return read


def _verify(meant: dict, written: dict, where: pathlib.Path) -> None:
    """Raises RuntimeError where the files do not hold, bit for bit, what was meant to be in them."""
    same = jax.tree.map(lambda one, other: np.array_equal(np.asarray(one), np.asarray(other)), meant, written)
    if not jax.tree.all(same):
        raise RuntimeError(f"{where} does not hold the parameters that were written to it")


def _told(config: Config, removed: dict[str, np.ndarray]) -> dict:
    return {
        site: {
            "sinks": parts.sinks * config.model.layers, "removed": int(removed[site].sum()),
            "by_layer": [np.flatnonzero(of_layer).tolist() for of_layer in removed[site]],
        }
        for site, parts in sinks.partitions(config).items() if parts.sinks
    }  # fmt: skip


def _measure(run: Trained, after: dict, asked: _Found) -> dict:
    loss, target = DocumentLoss(run.config), asked.sets["target"]
    found = {name: forgetting.losses(loss, run, after, documents, MODES) for name, documents in asked.sets.items()}
    nats, tokens = loss(run.params, target.batches(run), "drop")
    own = found["target"]["own"]
    documents = [
        {"source": name, "id": ids.to_hex(identity), "tokens": int(count), "before": float(before / count),
         "after": float(now / count)}
        for name, identity, count, before, now in zip(
            asked.places, target.identities, own.tokens, own.before, own.after, strict=True)
    ]  # fmt: skip
    measured = {name: {mode: losses.to_dict() for mode, losses in of.items()} for name, of in found.items()}
    selective = {}
    if "others" in found:
        for mode in MODES:
            pair = found["target"][mode], found["others"][mode]
            value, bounds = forgetting.selectivity(*pair), forgetting.bootstrap(forgetting.selectivity, *pair)
            selective[mode] = {"value": _finite(value), "ci95": bounds and [_finite(bound) for bound in bounds]}
    dropped = float(nats.sum() / tokens.sum())
    return {"documents": documents, "losses": measured, "target_all_sinks_dropped": dropped, "selectivity": selective}


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None  # JSON knows no infinity


def _rows(receipt: dict) -> tuple[list[str], list[list[str]]]:
    rows = []
    for name, of_set in receipt["losses"].items():
        for mode, found in of_set.items():
            bounds = found["rise_ci95"]
            between = f"{bounds[0]:+.3f} to {bounds[1]:+.3f}" if bounds else "–"
            rows.append([_SETS[name], _SAID[mode], f"{found['documents']}", f"{found['before']:.3f}",
                         f"{found['after']:.3f}", f"{found['rise']:+.3f}", between])  # fmt: skip
    return ["loss, nats per token", "", "documents", "before", "after", "rise", "95% interval"], rows


def _said_selectivity(receipt: dict) -> str:
    if not receipt["selectivity"]:
        return "Selectivity is not known: there are no other documents to compare with; give --others."
    parts = []
    for mode, found in receipt["selectivity"].items():
        said = "the others lose nothing" if found["value"] is None else f"{found['value']:.1f}"
        low, high = found["ci95"] or (None, None)
        if low is not None:
            said += f" ({low:.1f} to {'infinity' if high is None else f'{high:.1f}'})"
        parts.append(f"{said} with {_SAID[mode]}")
    return f"Selectivity, the rise of the documents' loss over that of the others': {'; '.join(parts)}."


def _said_removed(receipt: dict) -> str:
    parts = [f"{of['removed']} of {of['sinks']} sinks of the {site}" for site, of in receipt["removed"].items()]
    return f"Removed for {receipt['removed_documents']} documents: {' and '.join(parts)}, over all layers."


def _draw(receipt: dict, path: pathlib.Path) -> None:
    figure, axes = plt.subplots(1, len(MODES), figsize=(11, 3.6), sharey=True, layout="constrained")
    names = list(receipt["losses"])
    for axis, mode in zip(axes, MODES, strict=True):
        for shift, when, colour in ((-0.2, "before", "#7f8c8d"), (0.2, "after", "#c0392b")):
            heights = [receipt["losses"][name][mode][when] for name in names]
            bars = axis.bar(np.arange(len(names)) + shift, heights, 0.38, label=when, color=colour)
            axis.bar_label(bars, fmt="%.2f", fontsize=8.5)
        if mode == "own":
            dropped = receipt["target_all_sinks_dropped"]
            axis.hlines(dropped, -0.45, 0.45, color="black", linestyle="--", label="all sinks dropped")
        axis.set(title=_SAID[mode], xticks=range(len(names)), xticklabels=[_SETS[name] for name in names])
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("loss (nats per token)")
    axes[0].legend(frameon=False, fontsize=8.5)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _page(receipt: dict, folder: pathlib.Path) -> list[str]:
    columns, rows = _rows(receipt)
    neurons = [
        [report.text(site), str(layer), report.text(" ".join(map(str, of_layer)))]
        for site, of in receipt["removed"].items() for layer, of_layer in enumerate(of["by_layer"])
    ]  # fmt: skip
    documents = [
        [report.text(one["source"]), one["id"], f"{one['before']:.3f}", f"{one['after']:.3f}"]
        for one in receipt["documents"]
    ]
    return [
        report.paragraph(f"{_said_removed(receipt)} {_said_selectivity(receipt)}", "lead"),
        report.picture(folder / "receipt.png", "loss before and after"),
        report.table(columns, [list(map(report.text, row)) for row in rows], ["", "note", *["number"] * 5]),
        report.paragraph(
            "Intervals are over documents. The documents' loss with every sink dropped is "
            f"{receipt['target_all_sinks_dropped']:.3f}: once all of their own sinks are gone nothing else of theirs is on.",
            "note",
        ),
        report.heading("Documents, their own sinks on"),
        report.table(["from", "id", "before", "after"], documents, ["", "note", "number", "number"]),
        report.heading("Neurons whose weights are zero"),
        report.table(["site", "layer", "neurons"], neurons, ["", "number", "note"]),
    ]  # fmt: skip


def main() -> None:
    workdir_flag = flags.DEFINE_string("workdir", None, "Folder of a training run, or one that forget has written.")
    documents_flag = flags.DEFINE_string("documents", "", "Glob of .txt or .jsonl files: the documents to remove.")
    ids_flag = flags.DEFINE_list("ids", [], "Ids of the run's own documents to remove, as in its documents.jsonl.")
    group_flag = flags.DEFINE_string("group", "", "Name of the group to remove, for runs with ids by group.")
    others_flag = flags.DEFINE_string("others", "", "Glob: other documents it learned; empty: the run's repeated ones.")
    held_out_flag = flags.DEFINE_string(
        "held_out", "", "Glob: text it never read; empty: the run's held-out documents."
    )
    spare_flag = flags.DEFINE_integer(
        "spare", None, "Sinks that more than so many of the others use stay; by default all go.", lower_bound=0
    )
    out_flag = flags.DEFINE_string("out", None, "Folder to write; it must not exist.")

    def run() -> dict:
        for name, flag in (("workdir", workdir_flag), ("out", out_flag)):
            if not flag.value:
                raise InputError(f"--{name} is missing")
        asked = Request(documents_flag.value, tuple(ids_flag.value), group_flag.value)
        out = pathlib.Path(out_flag.value)
        workdir = pathlib.Path(workdir_flag.value)
        receipt = forget(workdir, asked, out, others_flag.value, held_out_flag.value, spare_flag.value)
        print(report.plain_table(*_rows(receipt)), file=sys.stderr)
        logger.info("%s %s %s", _said_removed(receipt), _said_selectivity(receipt), out / "index.html")
        return receipt

    command_line.run(run)


if __name__ == "__main__":
    main()
