"""Edits one fact: python -m memsinks_jax.edit --workdir=runs/facts --prompt='The capital of Peru
is' --target=' Lima' \\
    --positive=same_fact.txt --negative=other_facts.txt --out=edits/peru.safetensors

Finds a layer and a step at which the model answers the prompt with the target, and the boundary of
the edit. Writes the memory and, next to it, a page with the patch map, the sweep over boundaries
and the answers before and after. --positive holds other wordings of the fact, --negative prompts
whose answers must not change, one per line. --workdir may be a Hugging Face folder, too. A model
with sinks is edited with its sinks dropped.
"""

import dataclasses
import logging
import os
import pathlib
import sys

import numpy as np

from memsinks_jax.config import InputError
from memsinks_jax.editing import memory_file, page, search
from memsinks_jax.editing.memory import DISTANCES, PLACES, SITES
from memsinks_jax.editing.probe import Probe
from memsinks_jax.editing.search import Wish
from memsinks_jax.model.generation import text_after
from memsinks_jax.models.stored import Stored
from memsinks_jax.models.trained import open_run
from memsinks_jax.reporting import report
from memsinks_jax.runs import command_line
from memsinks_jax.runs.command_line import option
from memsinks_jax.runs.interruption import atomic_folder

logger = logging.getLogger("memsinks_jax.edit")


def edit(place: pathlib.Path, wish: Wish, out: pathlib.Path) -> dict:
    """Finds an edit and writes it -> the command's JSON. Raises InputError as `find` does, or when
    `out` exists.
    """
    written = out.with_suffix(".html")
    if out == written:
        raise InputError(
            f"--out={out}: the page will have this name; end that of the memory in .safetensors"
        )
    with atomic_folder(out) as scratch:
        for path in (out, written):
            if os.path.lexists(path):
                raise InputError(
                    f"--out={out}: {path} exists; remove it first, or choose another name"
                )
        run = open_run(place)
        probe = Probe(run.config, run.params)
        found = search.find(run, probe, wish)
        rows = search.effects(run, probe, wish, found.memory, found.map.target)
        if not rows[0]["after"].startswith(wish.target):
            prompt = run.tokenizer.encode(wish.prompt)
            first = text_after(run.tokenizer, prompt, np.array([found.map.target]))
            logger.warning(
                "only the first token of %r, %r, is edited; the model then continues with %r; "
                "see the page",
                wish.target,
                first,
                rows[0]["after"],
            )
        result = {
            "site": wish.site,
            "layer": int(found.memory.layers[0]),
            "step": found.map.step,
            "boundary": float(found.memory.bounds[0]),
            "loss_before": rows[0]["loss_before"],
            "loss_after": rows[0]["loss_after"],
            "text": rows[0]["after"],
        } | search.success_rates(rows, found.swept)
        about = [{"prompt": wish.prompt, "target": wish.target, "step": found.map.step}]
        title = f"“{wish.prompt}” → “{wish.target.strip()}”"
        sections = page.sections(run, wish, found, rows, result, scratch, out)
        report.write_page(scratch / written.name, title, sections)
        model = memory_file.fingerprint(run.params)
        memory_file.save(scratch / out.name, found.memory, model, about)
        for path in (out, written):
            os.replace(scratch / path.name, path)
        return result | {"effects": rows, "memory": str(out), "page": str(written)}


def lines(flag: str, name: str | None) -> tuple[str, ...]:
    """The lines of a file of prompts, without empty ones."""
    if name is None:
        return ()
    try:
        content = pathlib.Path(name).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"--{flag}={name}: cannot be read ({error}); give a text file, one prompt a line"
        ) from None
    prompts = tuple(line.rstrip() for line in content if line.strip())
    if not prompts:
        raise InputError(f"--{flag}={name}: there is no prompt in it; write one a line")
    return prompts


def number(flag: str, text: str, kind: type) -> float | int | None:
    """A number over 0 (a layer: from 0), or None for 'auto'."""
    if text == "auto":
        return None
    try:
        value = kind(text)
    except ValueError:
        value = -1
    if not (value >= 0 if kind is int else 0 < value < float("inf")):
        raise InputError(
            f"--{flag}={text}: give {'a whole number' if kind is int else 'a number over 0'}, or "
            "auto"
        )
    return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    workdir: str | None = option(None, "Training run, Hugging Face folder or GGUF file.")
    hf: str | None = option(None, "Hugging Face folder or GGUF file, instead of --workdir.")
    prompt: str | None = option(None, "Prompt whose answer to change.")
    target: str | None = option(None, "New answer, with its leading space.")
    site: str = option("attention", "Site in a layer.", choices=SITES)
    layer: str = option("auto", "Layer number; auto: the lowest that succeeds.")
    step: str = option(
        "auto", "Step size against the gradient; auto: the first that succeeds in three layers."
    )
    boundary: str = option(
        "auto", "Boundary b; auto: the best for --positive and --negative, which auto needs."
    )
    positive: str | None = option(None, "File of other wordings of the fact, one per line.")
    negative: str | None = option(None, "File of prompts whose answers must stay, one per line.")
    distance: str = option(
        "blend", "Distance between an activation and the key.", choices=DISTANCES
    )
    places: str = option("all", "Positions at which the memory acts.", choices=PLACES)
    out: pathlib.Path | None = option(None, "File of the memory; the page is next to it, as .html.")


def main(options: Options) -> dict:
    if bool(options.workdir) == bool(options.hf):
        raise InputError(
            "give --workdir, the folder of a training run, or --hf, a Hugging Face folder"
        )
    place = pathlib.Path(options.workdir or options.hf)
    if options.hf and Stored(place).is_run:
        raise InputError(
            f"--hf={place}: not a Hugging Face folder; it needs a config.json with a model_type"
        )
    command_line.require(options, "prompt", "target", "out")
    wish = Wish(
        prompt=options.prompt,
        target=options.target,
        site=options.site,
        layer=number("layer", options.layer, int),
        step=number("step", options.step, float),
        boundary=number("boundary", options.boundary, float),
        positive=lines("positive", options.positive),
        negative=lines("negative", options.negative),
        distance=options.distance,
        places=options.places,
    )
    if wish.boundary is None and not wish.negative:
        raise InputError(
            "--boundary=auto needs --negative, a file of prompts that shall not change; or "
            "give a number"
        )
    result = edit(place, wish, options.out)
    names = ["kind", "prompt", "before", "after"]
    cells = [
        [*(row[name].replace("\n", "⏎") for name in names), f"{row['similarity']:.3f}"]
        for row in result["effects"]
    ]
    print(report.plain_table([*names, "f"], cells), file=sys.stderr)
    told = "{site} of layer {layer}, step {step:.3g}, boundary {boundary:.3g}; loss of the target "
    told += "{loss_before:.2f} -> {loss_after:.2f} nats; {memory} and {page}"
    logger.info("%s", told.format(**result))
    return result


if __name__ == "__main__":
    command_line.run(main, Options)
