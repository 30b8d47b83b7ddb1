"""Decides which sinks an exported model keeps. folder.py cuts the others out of the weights."""

import json
import logging
import os
import pathlib
import re
import shlex
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from memsinks_jax import __version__
from memsinks_jax.config import Config, DataConfig, InputError, flatten, to_json, with_fields
from memsinks_jax.data import ids
from memsinks_jax.data.chat import has_template
from memsinks_jax.data.contexts import Contexts
from memsinks_jax.data.documents import in_words, printable
from memsinks_jax.data.prepared import numbered_ids
from memsinks_jax.model import placement
from memsinks_jax.model.decoder import CONTEXTS, build_model
from memsinks_jax.model.sparse_sinks import tables_of
from memsinks_jax.models import context_files, hugging_face, sources
from memsinks_jax.models.folder import DTYPES, write_folder
from memsinks_jax.models.origin import front_matter, origin
from memsinks_jax.models.stored import Stored
from memsinks_jax.models.trained import numbered_id, open_run
from memsinks_jax.runs import output
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.runs.interruption import atomic_folder
from memsinks_jax.sinks.draws import document_masks, document_sinks
from memsinks_jax.sinks.kinds import has_sinks, is_sparse, partition, share_on
from memsinks_jax.training.metrics import read_metrics

logger = logging.getLogger(__name__)

_MEASURED_UP_TO = 2**30  # bytes: larger models are exported without measuring their speed


_LOSSES = {
    "held_out_loss": "held-out documents, sinks dropped",
    "repeated_loss": "repeated documents, sinks dropped",
    "held_out_loss_own": "held-out documents, sinks on as in training",
    "repeated_loss_own": "repeated documents, sinks on as in training",
    "entropy_floor": "entropy of the text, held-out",
}


def _open(place: pathlib.Path) -> Stored:
    """A run, or a folder with sinks, of which one parameter or slice is read at a time."""
    stored = Stored(place)
    if stored.is_run:
        stored.checkpoints.check_params(stored.shapes)
    elif not has_sinks(stored.config):
        raise InputError(f"{place} is a Hugging Face folder without sinks; use it as it is")
    return stored


def export(
    workdir: pathlib.Path,
    out: pathlib.Path,
    drop: bool,
    dtype: str,
    knows: str = "",
    groups: Sequence[str] = (),
) -> dict:
    """Writes the newest checkpoint of a run, or a Hugging Face folder with its sinks, as a Hugging
    Face folder.

    Args:
      knows: with `drop`, the id (16 hexadecimal digits) whose MLP sinks stay.
      groups: with `drop`, the names of groups whose MLP sinks stay, for sinks by number.
    Returns:
      {"parameters", "files", "bytes", "before": {"parameters", "bytes", "tokens_per_second"},
      "tokens_per_second"}; the speeds are of a forward pass on this machine, None for large models.
    Raises:
      InputError: no run, no checkpoint, a folder without sinks, `out` exists, or Hugging Face has
      no such model.
    """
    output.check_free(out)
    stored = _open(workdir)
    config, names = stored.config, stored.groups
    parts = partition(config.model, config.sinks)
    remaining = _sinks_of(config, knows) if knows else []
    if knows and not stored.opened(ids.from_hex(knows)):
        raise InputError(
            f"--sinks={knows}: this document never came back, so it has no sinks; give another, "
            "or drop"
        )
    if len(set(groups)) < len(groups):
        raise InputError(f"{', '.join(groups)}: one is named twice; name each source once")
    for name in groups:
        remaining += _sinks_of(config, ids.to_hex(numbered_id(name, names)))
    if drop and not has_sinks(config):
        logger.info("this model has no sinks: there is nothing to drop")
    rows = config.contexts.rows if config.sinks.traits.by_context else 0
    before = {
        "parameters": hugging_face.parameters(config, sum(parts)) + rows * config.model.d_model
    }
    before["bytes"] = before["parameters"] * DTYPES[dtype].itemsize
    fate = "cut out of the weights" if drop else "kept, all of them on"
    # Without the name of the folder: two exports of one run are equal to the byte.
    command = (
        f"export --workdir={workdir} --out=DIR --sinks={knows or ('drop' if drop else 'keep')}"
    )
    if knows:
        fate += f", but for those of the MLPs that are on for the id {knows}"
    if groups:
        fate += f", but for those of {', '.join(map(printable, groups))}"
        merged = shlex.quote(",".join(map(printable, groups)))
        command = f"sources --folder={workdir} --merge={merged} --out=DIR"
    card = _card(stored, drop, dtype, f"Here the sinks are {fate}.", f"{command} --dtype={dtype}")
    with atomic_folder(out) as scratch:
        folder = scratch / out.name
        written = write_folder(folder, stored, card, drop, dtype, remaining)
        stored.close()
        if not drop and names:
            workdirs.write_groups(folder, names, stored.nearest)
        small = before["parameters"] * 4 <= _MEASURED_UP_TO
        before["tokens_per_second"], after = _speeds(workdir, folder) if small else (None, None)
        os.replace(folder, out)
    return written | {"before": before, "tokens_per_second": after}


def export_sources(workdir: pathlib.Path, out: pathlib.Path, dtype: str | None = None) -> dict:
    """Writes the model without its sinks as a Hugging Face folder, and in it a file for each group:
    see models/sources.py. With sinks by context the folder keeps those of several groups.

    Args:
      dtype: of the weights and of the files; None: float32, and bfloat16 of the files.
    Returns:
      {"parameters", "files", "bytes": of the model without sinks, "sources": [names],
      "bytes_of_sources"}.
    Raises:
      InputError: no run, no checkpoint, sinks that groups share, `out` exists, or Hugging Face has
      no such model.
    """
    output.check_free(out, "sources")
    stored = _open(workdir)
    config, names = stored.config, stored.groups
    if config.sinks.traits.by_context:
        return _export_contexts(stored, out, dtype or "float32")
    if not config.sinks.by_group or not is_sparse(config.sinks):
        raise InputError(
            f"{workdir} has no sinks that belong to one group alone (config.sinks.sampling is "
            f"{config.sinks.sampling}, sparse {config.sinks.sparse}); train with "
            "--config.data.ids=group --config.sinks.sampling=disjoint --config.sinks.sparse=True "
            "--config.sinks.active=16"
        )
    numbers = np.flatnonzero(stored.opened(numbered_ids(names)))
    never = len(names) - len(numbers)
    if not len(numbers):
        raise InputError(
            f"{workdir}: no group came back in training, so none has sinks; train longer"
        )
    if never:
        logger.warning("%d of %d groups never came back: they get no file", never, len(names))
    shared, count, size = partition(config.model, config.sinks).shared, config.sinks.active, 0
    base = with_fields(
        config, {"model.hidden": shared, "sinks.shared_fraction": 1.0, "sinks.pool": 0}
    )
    fate = (
        "Here they are no part of the weights: each source (a group of documents) has its own in a "
        "file of `sources/`. Delete a file to withdraw the source. In PyTorch "
        "`trust_remote_code=True` gives a model with `set_sources([...])`, which turns them on."
    )
    command = f"export --workdir={workdir} --sources=DIR" + (f" --dtype={dtype}" if dtype else "")
    of_weights, of_files = dtype or "float32", DTYPES[dtype or "bfloat16"]
    card = _card(stored, True, of_weights, fate, command)
    with atomic_folder(out) as scratch:
        folder = scratch / out.name
        written = write_folder(folder, stored, card, True, of_weights)
        known = sources.base_of(folder, base)
        (folder / sources.CONFIG).write_text(to_json(base))
        code = sources.write_code(folder, base, known, stored.tokenizer)
        content = json.loads((folder / "config.json").read_text()) | code
        (folder / "config.json").write_text(json.dumps(content, indent=2) + "\n")
        tables = {name: stored.read(name).astype(of_files) for name in tables_of(config.model)}
        stored.close()
        (folder / sources.FOLDER).mkdir()
        for number in numbers.tolist():
            rows = {
                name: table[number * count : (number + 1) * count] for name, table in tables.items()
            }
            arrays = rows | {sources.WORDS: stored.nearest.of(number)}
            about = names[number], arrays, known
            size += sources.write_source(folder / sources.FOLDER, *about).stat().st_size
        os.replace(folder, out)
    return written | {"sources": [names[number] for number in numbers], "bytes_of_sources": size}


def _export_contexts(stored: Stored, out: pathlib.Path, dtype: str) -> dict:
    """As `export_sources`: a file for each group of the run has the contexts of its texts alone."""
    if not stored.is_run or stored.config.data.ids != "group":
        raise InputError(
            f"{stored.place} does not know which group a text is of; give a run that was trained "
            "with --config.data.ids=group"
        )
    corpus, found = workdirs.read_corpus(stored.place), stored.contexts
    owner, names = context_files.owners(found, corpus), corpus.table.group_names
    numbers = [number for number in np.unique(owner).tolist() if number >= 0 and names[number]]
    if not numbers:
        raise InputError(f"{stored.place}: no group has repeated text for itself, so none is apart")
    shared = np.flatnonzero(~np.isin(owner, numbers))
    fate = (
        "Contexts of the texts of one group alone are in a file of `sources/`. Delete a file to "
        "withdraw the group. In PyTorch `trust_remote_code=True` gives the model with its memory."
    )
    card = _card(stored, False, dtype, fate, f"export --workdir={stored.place} --sources=DIR")
    size = 0
    with atomic_folder(out) as scratch:
        folder = scratch / out.name
        table, keys = stored.read(CONTEXTS).astype(DTYPES[dtype]), np.asarray(found.keys)
        rest = Contexts(keys[shared], found.length, found.letters)
        written = write_folder(folder, stored, card, False, dtype, contexts=(rest, table[shared]))
        stored.close()
        known = sources.base_of(folder, stored.config)
        (folder / sources.FOLDER).mkdir()
        for number in numbers:
            rows = np.flatnonzero(owner == number)
            arrays = {CONTEXTS: table[rows], sources.KEYS: keys[rows]}
            about = folder / sources.FOLDER, names[number], arrays, known
            size += sources.write_source(*about).stat().st_size
        os.replace(folder, out)
    return written | {"sources": [names[number] for number in numbers], "bytes_of_sources": size}


def _sinks_of(config: Config, identity: str) -> list[int]:
    """The MLP sinks that are on for an id, by number. Raises InputError if there are none."""
    if not re.fullmatch("[0-9a-f]{16}", identity.lower()):
        raise InputError(
            f"--sinks={identity}: give drop, keep, or an id of 16 hexadecimal digits, as in "
            "documents.jsonl"
        )
    parts = partition(config.model, config.sinks)
    if not config.sinks.traits.owned or not parts.sinks:
        raise InputError(
            f"--sinks={identity}: no document has sinks of its own in this model "
            f"(config.sinks.kind is {config.sinks.kind}); export it with --sinks=drop or keep"
        )
    lanes = ids.from_hex(identity)[None]
    if is_sparse(config.sinks):
        return sorted(document_sinks(lanes, config.seed, parts.sinks, config.sinks)[0].tolist())
    masks = document_masks(lanes, config.seed, parts.sinks, config.sinks)
    return np.flatnonzero(masks[0]).tolist()


@placement.shared
def _forward(config: Config) -> Callable[[dict, jax.Array, jax.Array], jax.Array]:
    model, _ = build_model(config)
    return placement.jit(
        lambda params, tokens, positions: model(
            params, tokens, jnp.ones_like(tokens), positions
        ).sum()
    )


def _speeds(*places: pathlib.Path) -> list[float]:
    """Tokens/s of a forward pass over full rows, side by side, medians of five."""
    passes = []
    for place in places:
        run = open_run(place)
        # enough to compare; a long context would take minutes
        rows, length = 8, min(run.config.data.row_length, 256)
        tokens = jnp.asarray(
            np.random.default_rng(0).integers(0, run.tokenizer.vocabulary_size, (rows, length)),
            jnp.int32,
        )
        positions = jnp.tile(jnp.arange(length), (rows, 1))
        compiled = _forward(run.config)
        passes.append(lambda run=run, t=tokens, p=positions, c=compiled: float(c(run.params, t, p)))
        passes[-1]()
    seconds = [[] for _ in places]
    for _ in range(5):
        for place, once in zip(seconds, passes, strict=True):
            begin = time.perf_counter()
            once()
            place.append(time.perf_counter() - begin)
    return [rows * length / float(np.median(place)) for place in seconds]


def _card(stored: Stored, drop: bool, dtype: str, fate: str, command: str) -> str:
    """The model card: the model, its data and origin, what became of its sinks, the measurements,
    and the command.
    """
    workdir, config, step, came = stored.place, stored.config, stored.step, stored.origin
    parts = partition(config.model, config.sinks)
    tokens = stored.checkpoints.progress(step)["tokens"] if stored.is_run else None
    metrics = {name: value for line in read_metrics(workdir) for name, value in line.items()}
    data = config.data
    texts = f"the embedded stories of memsinks_jax, seed {config.seed}"
    if data.files:
        texts = f"the files `{data.files}`"
    sinks = f"It has no memorization sinks; its MLPs have {parts.shared} neurons."
    if parts.sinks:
        on = "all" if config.sinks.traits.on_for_all else f"{share_on(config.sinks, parts.sinks):g}"
        sinks = (
            f"Of the {sum(parts)} neurons of every MLP, the first {parts.shared} are shared by all "
            f"documents and {parts.sinks} are memorization sinks ({config.sinks.kind}, {on} of "
            f"them on for a document). {fate}"
        )
    if config.sinks.traits.by_context:
        sinks = (
            f"In training {in_words(config.contexts.rows, 'context')} of repeated text had sinks "
            f"of their own, rows of a table that is added before the head. {fate}"
        )
    initial, began = origin(came) or config.model.initial, ""
    if initial and step:
        began = f"It started from the weights of `{initial}`. "
    owners = "the texts and of the model it started from" if initial else "the texts"
    if not stored.is_run:
        training = f"exported from `{workdir}`, whose own card describes how it was made"
    elif step:
        training = (
            f"trained with memsinks_jax (variant `{config.variant}`) for {in_words(step, 'step')} "
            f"on {in_words(tokens or 0, 'token')} of {texts}: {documents_read(data)}"
        )
    else:
        training = (
            f"with the weights of {f'`{initial}`' if initial else 'an imported model'}, not "
            "trained further"
        )
    same = stored.tokenizer.begin_of_text == stored.tokenizer.end_of_text
    opens = "the end-of-text token" if same else "the beginning-of-text token"
    if came and has_template(came):
        opens += ", a conversation with what its chat template writes"
    usual = flatten(Config())
    losses = [
        f"| {text} | {metrics[name]:.4f} |" for name, text in _LOSSES.items() if name in metrics
    ]
    table = "No losses were measured."
    if losses:
        table = "\n".join(["| loss, nats per token | |", "|---|---|", *losses])
    head = "\n".join(front_matter(came, initial, owners))
    layers = in_words(config.model.layers, "layer")
    settings = "".join(
        f"    --config.{name}={value}\n"
        for name, value in flatten(config).items()
        if value != usual[name]
    )
    return f"""---
library_name: transformers
pipeline_tag: text-generation
tags: [memorization-sinks]
{head}
---

# {workdir.absolute().name}

A {config.model.family} decoder of {layers} and width {config.model.d_model}, {training}. {began}\
Weights are {dtype}.

{sinks}

{table}

As in training, a document opens with {opens}.

Made by:

    python -m memsinks_jax.{command}

The run's settings, where they are not the defaults of memsinks_jax {__version__}:

{settings}"""


def documents_read(data: DataConfig) -> str:
    """The documents of an epoch in words: '4,000 documents once and 20 documents 128 times
    each'.
    """
    once, most = "all other documents", data.repeats_at_most
    if data.unique_documents >= 0:
        once = in_words(data.unique_documents, "document")
    if not data.repeated_documents or not most:
        return f"{once} once"
    if data.repeated_documents < 0:
        often = "once" if most > 0 else "as often as they do"
        return f"{once} once and those that the files hold several times {often}"
    times = min(data.repetitions, most) if most > 0 else data.repetitions
    return f"{once} once and {in_words(data.repeated_documents, 'document')} {times} times each"
