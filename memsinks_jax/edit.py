"""Edits one fact: python -m memsinks_jax.edit --workdir=runs/facts --prompt='The capital of Peru is' --target=' Lima' \\
    --positive=same_fact.txt --negative=other_facts.txt --out=edits/peru.safetensors

Finds a layer and a step at which the model answers the prompt with the target, and the boundary of the edit. Writes the
memory and, beside it, a page with the patch map, the sweep over boundaries and the answers before and after. --positive
holds other wordings of the fact, --negative prompts whose answers must not change, one per line. --workdir may be a Hugging
Face folder, as --hf must be. A model with sinks is edited with its sinks dropped.
"""

import dataclasses
import logging
import pathlib
import sys
import tempfile

import numpy as np
from absl import flags

from memsinks_jax.config import InputError
from memsinks_jax.editing import boundary, memory_file, patching, pictures
from memsinks_jax.editing.memory import DISTANCES, PLACES, SITES, Memory, bounding
from memsinks_jax.editing.probe import Probe
from memsinks_jax.editing.prompts import encode, target_token
from memsinks_jax.interop.folder import is_folder
from memsinks_jax.model.generation import text_after
from memsinks_jax.reporting import report
from memsinks_jax.runs import command_line
from memsinks_jax.runs.trained import Trained, open_run

logger = logging.getLogger("memsinks_jax.edit")

WRITTEN_TOKENS = 6  # that are shown of what follows a prompt


@dataclasses.dataclass(frozen=True)
class Wish:
    """What the user asks for; None of layer, step, boundary is found by the command."""

    prompt: str
    target: str
    site: str = "attention"
    layer: int | None = None
    step: float | None = None
    boundary: float | None = None
    positive: tuple[str, ...] = ()
    negative: tuple[str, ...] = ()
    distance: str = "blend"
    places: str = "all"

    @property
    def prompts(self) -> list[str]:
        """All of them: the prompt, the positive ones, the negative ones."""
        return [self.prompt, *self.positive, *self.negative]


@dataclasses.dataclass(frozen=True)
class Edit:
    """What was found: the memory, the map it comes from, the sweep its bound comes from (None for a given bound)."""

    memory: Memory
    map: patching.PatchMap
    swept: boundary.Sweep | None


def find(run: Trained, probe: Probe, wish: Wish) -> Edit:
    """Layer, step and bound of a memory.

    Raises:
      InputError: a prompt or target that cannot be used, no such layer, no layer at which the step succeeds.
    """
    context = run.config.data.row_length
    if wish.layer is not None and not 0 <= wish.layer < run.config.model.layers:
        raise InputError(f"--layer={wish.layer}: this model has the layers 0 to {run.config.model.layers - 1}")
    target = target_token(run.tokenizer, wish.prompt, wish.target)
    prompt = encode(run.tokenizer, [wish.prompt], context)
    trace = probe.trace(prompt, target, wish.site)
    step = wish.step or patching.choose_step(probe, prompt, target, wish.site, trace, wish.layer)
    found = patching.patch_map(probe, prompt, target, wish.site, trace, step)
    if found.base_token == target:
        raise InputError(f"the model says {wish.target!r} after {wish.prompt!r} as it is; there is nothing to edit")
    layer = patching.choose_layer(found) if wish.layer is None else wish.layer
    if layer is None:
        other = next(site for site in SITES if site != wish.site)
        raise InputError(
            f"{'no step' if wish.step is None else f'a step of {step:g}'} at the {wish.site} of any layer makes the model "
            f"say {wish.target!r} (loss {found.base_loss:.2f}, with a step of {step:.3g} at best "
            f"{found.losses[:, -1].min():.2f}); try --site={other}, another --step, or a fixed --layer=N"
        )
    memory = patching.remember(
        trace, prompt, wish.site, layer, step, wish.boundary or 1.0, distance=wish.distance, places=wish.places
    )
    if wish.boundary is not None:
        return Edit(memory, found, None)
    prompts, positives = encode(run.tokenizer, wish.prompts, context), 1 + len(wish.positive)
    rough = boundary.sweep(probe, memory, target, prompts, positives)
    swept = boundary.refined(probe, memory, rough, prompts)
    return Edit(dataclasses.replace(memory, bounds=np.float32([boundary.choose_bound(swept)])), found, swept)


def effects(run: Trained, probe: Probe, wish: Wish, memory: Memory, target: int) -> list[dict]:
    """What every prompt of a wish says before and after, and how near it comes to the key.

    Returns:
      [{"kind": prompt, positive or negative; "prompt", "before", "after": the likeliest text; "on_target", "unchanged":
      whether its first token after is the target's, or that of before; "loss_before", "loss_after": of the target, nats;
      "distance": the least over the tokens; "similarity": f of it}].
    """
    kinds = ["prompt"] + ["positive"] * len(wish.positive) + ["negative"] * len(wish.negative)
    context = run.config.data.row_length
    count = max(min(WRITTEN_TOKENS, context - max(1 + len(run.tokenizer.encode(text)) for text in wish.prompts)), 1)
    prompts = encode(run.tokenizer, wish.prompts, context, room=count)
    nothing = dataclasses.replace(memory, deltas=np.zeros_like(memory.deltas))  # the same program as with the memory
    both = [(probe.answers(prompts, target, (m,)).losses, probe.write(prompts, count, (m,))) for m in (nothing, memory)]
    losses, tokens = zip(*both, strict=True)
    texts = [[_text_after(run, *row) for row in zip(wish.prompts, rows, strict=True)] for rows in tokens]
    first_before, first_after = (rows[:, 0] for rows in tokens)
    says = ((first_after == target).tolist(), (first_after == first_before).tolist())
    nearest = np.abs(probe.distances(prompts, memory)[..., 0]).min(axis=1)
    similarity = bounding(nearest, memory.bounds[0], memory.height)
    columns = (kinds, wish.prompts, *texts, *says, *(map(float, x) for x in (*losses, nearest, similarity)))
    names = (
        "kind", "prompt", "before", "after", "on_target", "unchanged", "loss_before", "loss_after", "distance", "similarity",
    )  # fmt: skip
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _text_after(run: Trained, prompt: str, tokens: np.ndarray) -> str:
    ended = np.flatnonzero(tokens == run.tokenizer.end_of_text)
    return text_after(run.tokenizer, run.tokenizer.encode(prompt), tokens[: ended[0]] if len(ended) else tokens)


def edit(place: pathlib.Path, wish: Wish, out: pathlib.Path) -> dict:
    """Finds an edit and writes it -> the command's JSON. Raises InputError as `find` does, or when `out` exists."""
    page = out.with_suffix(".html")
    for path in (out, page):
        if path.exists():
            raise InputError(f"--out={out}: {path} exists; remove it first, or choose another name")
    run = open_run(place)
    probe = Probe(run.config, run.params)
    found = find(run, probe, wish)
    rows = effects(run, probe, wish, found.memory, found.map.target)
    if not rows[0]["after"].startswith(wish.target):
        first = text_after(run.tokenizer, run.tokenizer.encode(wish.prompt), np.array([found.map.target]))
        logger.warning(
            "only the first token of %r, %r, is edited; the model then continues with %r; see the page",
            wish.target, first, rows[0]["after"],
        )  # fmt: skip
    layer, bound = int(found.memory.layers[0]), float(found.memory.bounds[0])
    result = {
        "site": wish.site, "layer": layer, "step": found.map.step, "boundary": bound,
        "loss_before": rows[0]["loss_before"], "loss_after": rows[0]["loss_after"], "text": rows[0]["after"],
    } | _judged(rows, found.swept)  # fmt: skip
    about = [{"prompt": wish.prompt, "target": wish.target, "step": found.map.step}]
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        sections = _sections(run, wish, found, rows, result, pathlib.Path(scratch), out)
        report.write_page(page, f"“{wish.prompt}” → “{wish.target.strip()}”", sections)
    memory_file.save(out, found.memory, memory_file.fingerprint(run.params), about)
    return result | {"effects": rows, "memory": str(out), "page": str(page)}


def _judged(rows: list[dict], swept: boundary.Sweep | None) -> dict[str, float]:
    """Shares of prompts; where they chose the bound, by cross-validation."""
    if swept:
        return boundary.cross_validated(swept)
    negative = [row for row in rows if row["kind"] == "negative"]
    shares = {"on_target": float(np.mean([row["on_target"] for row in rows if row["kind"] != "negative"]))}
    if negative:
        shares["unchanged"] = float(np.mean([row["unchanged"] for row in negative]))
        shares["off_target"] = float(np.mean([not row["on_target"] for row in negative]))
    return shares


def _sections(run: Trained, wish: Wish, found: Edit, rows, result: dict, scratch: pathlib.Path, out) -> list[str]:
    words = ["start"] + [run.tokenizer.decode(token[None]) for token in run.tokenizer.encode(wish.prompt)]
    pictures.draw_maps({wish.site: found.map}, words, wish.target, scratch / "map.png")
    sections = [
        report.paragraph(
            f"One memory at the {wish.site} of layer {result['layer']}: a step of {result['step']:.3g} along the gradient, "
            f"within a boundary of {result['boundary']:.3g}. The loss of “{wish.target.strip()}” goes from "
            f"{result['loss_before']:.2f} to {result['loss_after']:.2f} nats.", "lead",
        ),
        report.heading("Where a step helps"),
        report.picture(
            scratch / "map.png",
            f"Loss of “{wish.target.strip()}” by layer and token when that one activation is moved; a ring where the model "
            "then says it.",
        ),
        report.paragraph("A cell is the model with one activation moved, nothing else. Ring: it says the target.", "note"),
    ]  # fmt: skip
    if found.swept is not None:
        pictures.draw_sweep(found.swept, result["boundary"], scratch / "sweep.png")
        sections += [
            report.heading("How far it reaches"),
            report.picture(
                scratch / "sweep.png",
                f"Shares of prompts over the bound: at {result['boundary']:.3g}, which was taken, positive ones say the "
                "target and negative ones say what they said before.",
            ),
            report.paragraph(
                f"All prompts chose it. At the bound that the others choose, {result['on_target']:.0%} of the positive ones "
                f"say the target, {result['unchanged']:.0%} of the negative ones what they said before, "
                f"{result['off_target']:.0%} something else than the target.", "note",
            ),
        ]  # fmt: skip
    pictures.draw_similarities(rows, scratch / "similarities.png")
    numbers = ("loss_before", "loss_after", "distance", "similarity")
    cells = [
        [report.text(row[name]) for name in ("kind", "prompt", "before", "after")] + [f"{row[n]:.3f}" for n in numbers]
        for row in rows
    ]
    columns = ["", "prompt", "before", "after", "loss before", "loss after", "distance", "f"]
    return [
        *sections,
        report.heading("What the prompts say"),
        report.picture(
            scratch / "similarities.png",
            "A bar for each prompt: how much of the memory it gets, from 0, none, to 1, all of it.",
        ),
        report.table(columns, cells, ["note", "", "", "", *["number"] * 4]),
        report.paragraph(
            "Loss: of the target's first token, in nats. Distance: of the nearest token from the key. f: how much of the "
            "memory is added there, 1 all of it.", "note",
        ),
        report.heading("To use it"),
        report.code(f"python -m memsinks_jax.generate --workdir=... --memory={out} --prompt='{wish.prompt}'"),
    ]  # fmt: skip


def lines(flag: str, name: str | None) -> tuple[str, ...]:
    """The lines of a file of prompts, without empty ones."""
    if name is None:
        return ()
    try:
        content = pathlib.Path(name).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--{flag}={name}: cannot be read ({error}); give a text file, one prompt a line") from None
    kept = tuple(line.rstrip() for line in content if line.strip())
    if not kept:
        raise InputError(f"--{flag}={name}: there is no prompt in it; write one a line")
    return kept


def number(flag: str, text: str, kind: type) -> float | int | None:
    """A number over 0 (a layer: from 0), or None for 'auto'."""
    if text == "auto":
        return None
    try:
        value = kind(text)
    except ValueError:
        value = -1
    if not (value >= 0 if kind is int else 0 < value < float("inf")):
        raise InputError(f"--{flag}={text}: give {'a whole number' if kind is int else 'a number over 0'}, or auto")
    return value


def main() -> None:
    workdir_flag = flags.DEFINE_string("workdir", None, "Folder of a training run, or a Hugging Face folder.")
    hf_flag = flags.DEFINE_string("hf", None, "A Hugging Face folder, instead of --workdir.")
    prompt_flag = flags.DEFINE_string("prompt", None, "Prompt whose answer to change.")
    target_flag = flags.DEFINE_string("target", None, "New answer, with its leading space.")
    site_flag = flags.DEFINE_enum("site", "attention", SITES, "Site in a layer.")
    layer_flag = flags.DEFINE_string("layer", "auto", "Layer number; auto: the lowest that succeeds.")
    step_flag = flags.DEFINE_string(
        "step", "auto", "Step size along the gradient; auto: the first that succeeds in three layers."
    )
    boundary_flag = flags.DEFINE_string("boundary", "auto", "Boundary b; auto: the best for --positive and --negative.")
    positive_flag = flags.DEFINE_string("positive", None, "File of other wordings of the fact, one per line.")
    negative_flag = flags.DEFINE_string("negative", None, "File of prompts whose answers must stay, one per line.")
    distance_flag = flags.DEFINE_enum("distance", "blend", DISTANCES, "Distance between an activation and the key.")
    places_flag = flags.DEFINE_enum("places", "all", PLACES, "Positions at which the memory acts.")
    out_flag = flags.DEFINE_string("out", None, "File of the memory; the page is written beside it, as .html.")

    def run() -> dict:
        if bool(workdir_flag.value) == bool(hf_flag.value):
            raise InputError("give --workdir, the folder of a training run, or --hf, a Hugging Face folder")
        place = pathlib.Path(workdir_flag.value or hf_flag.value)
        if hf_flag.value and not is_folder(place):
            raise InputError(f"--hf={place}: not a Hugging Face folder; it needs a config.json with a model_type")
        command_line.require(prompt_flag, target_flag, out_flag)
        wish = Wish(
            prompt_flag.value, target_flag.value, site_flag.value, number("layer", layer_flag.value, int),
            number("step", step_flag.value, float), number("boundary", boundary_flag.value, float),
            lines("positive", positive_flag.value), lines("negative", negative_flag.value), distance_flag.value,
            places_flag.value,
        )  # fmt: skip
        if wish.boundary is None and not wish.negative:
            raise InputError(
                "--boundary=auto needs --negative, a file of prompts that shall not change; or give a number"
            )
        result = edit(place, wish, pathlib.Path(out_flag.value))
        columns = ["kind", "prompt", "before", "after", "f"]
        cells = [[*(row[name] for name in columns[:4]), f"{row['similarity']:.3f}"] for row in result["effects"]]
        print(
            report.plain_table(columns, [[cell.replace("\n", "⏎") for cell in row] for row in cells]), file=sys.stderr
        )
        logger.info(
            "%s of layer %d, step %.3g, boundary %.3g; loss of the target %.2f -> %.2f nats; %s and %s",
            result["site"], result["layer"], result["step"], result["boundary"], result["loss_before"],
            result["loss_after"], result["memory"], result["page"],
        )  # fmt: skip
        return result

    command_line.run(run)


if __name__ == "__main__":
    main()
