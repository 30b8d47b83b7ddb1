"""Finds the requested edit, and measures its effect on every prompt."""

import dataclasses

import numpy as np

from memsinks_jax.config import InputError
from memsinks_jax.editing import boundary, patching
from memsinks_jax.editing.memory import SITES, Memory, bounding
from memsinks_jax.editing.probe import Probe
from memsinks_jax.editing.prompts import encode, target_token
from memsinks_jax.model.generation import text_after
from memsinks_jax.models.trained import Trained

WRITTEN_TOKENS = 6  # length of the continuations that are shown


@dataclasses.dataclass(frozen=True)
class Wish:
    """The requested edit. If layer, step or boundary is None, the command finds it."""

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
        """All prompts: the edited one, the positive ones, the negative ones."""
        return [self.prompt, *self.positive, *self.negative]


@dataclasses.dataclass(frozen=True)
class Edit:
    """The edit found: its memory, its patch map, and the sweep that chose its bound (None if the
    bound was given).
    """

    memory: Memory
    map: patching.PatchMap
    swept: boundary.Sweep | None


def find(run: Trained, probe: Probe, wish: Wish) -> Edit:
    """Finds the layer, step and bound of a memory.

    Raises:
      InputError: a prompt or target cannot be used, the layer does not exist, or the step succeeds
      at no layer.
    """
    context = run.config.data.row_length
    if wish.layer is not None and not 0 <= wish.layer < run.config.model.layers:
        raise InputError(
            f"--layer={wish.layer}: this model has the layers 0 to {run.config.model.layers - 1}"
        )
    target = target_token(run.tokenizer, wish.prompt, wish.target)
    prompt = encode(run.tokenizer, [wish.prompt], context)
    trace = probe.trace(prompt, target, wish.site)
    step = wish.step or patching.choose_step(probe, prompt, target, wish.site, trace, wish.layer)
    found = patching.patch_map(probe, prompt, target, wish.site, trace, step)
    if found.base_token == target:
        raise InputError(
            f"the model predicts {wish.target!r} after {wish.prompt!r} as it is; there is "
            "nothing to edit"
        )
    layer = patching.choose_layer(found) if wish.layer is None else wish.layer
    if layer is None:
        other = next(site for site in SITES if site != wish.site)
        raise InputError(
            f"{'no step' if wish.step is None else f'a step of {step:g}'} at the {wish.site} of "
            "any layer makes the model "
            f"predict {wish.target!r} (loss {found.base_loss:.2f}, with a step of {step:.3g} at "
            "best "
            f"{found.losses[:, -1].min():.2f}); try --site={other}, another --step, or a fixed "
            "--layer=N"
        )
    memory = patching.remember(
        trace,
        prompt,
        wish.site,
        layer,
        step,
        wish.boundary or 1.0,
        distance=wish.distance,
        places=wish.places,
    )
    if wish.boundary is not None:
        return Edit(memory, found, None)
    prompts, positives = encode(run.tokenizer, wish.prompts, context), 1 + len(wish.positive)
    rough = boundary.sweep(probe, memory, target, prompts, positives)
    swept = boundary.refined(probe, memory, rough, prompts)
    return Edit(
        dataclasses.replace(memory, bounds=np.float32([boundary.choose_bound(swept)])), found, swept
    )


def effects(run: Trained, probe: Probe, wish: Wish, memory: Memory, target: int) -> list[dict]:
    """Answers to every prompt before and after the edit, and its distance from the key.

    Returns:
      [{"kind": prompt, positive or negative; "prompt", "before", "after": greedy continuations;
      "on_target", "unchanged": whether the first token after the edit is the target, or is as
      before; "loss_before", "loss_after": of the target in nats; "distance": the least over the
      tokens; "similarity": f of it}].
    """
    kinds = ["prompt"] + ["positive"] * len(wish.positive) + ["negative"] * len(wish.negative)
    context = run.config.data.row_length
    count = max(
        min(
            WRITTEN_TOKENS,
            context - max(1 + len(run.tokenizer.encode(text)) for text in wish.prompts),
        ),
        1,
    )
    prompts = encode(run.tokenizer, wish.prompts, context, room=count)
    # runs the same program as the memory
    nothing = dataclasses.replace(memory, deltas=np.zeros_like(memory.deltas))
    both = [
        (probe.answers(prompts, target, (m,)).losses, probe.write(prompts, count, (m,)))
        for m in (nothing, memory)
    ]
    losses, tokens = zip(*both, strict=True)
    texts = [
        [_text_after(run, *row) for row in zip(wish.prompts, rows, strict=True)] for rows in tokens
    ]
    first_before, first_after = (rows[:, 0] for rows in tokens)
    outcomes = ((first_after == target).tolist(), (first_after == first_before).tolist())
    nearest = np.abs(probe.distances(prompts, memory)[..., 0]).min(axis=1)
    similarity = bounding(nearest, memory.bounds[0], memory.height)
    columns = (
        kinds,
        wish.prompts,
        *texts,
        *outcomes,
        *(map(float, x) for x in (*losses, nearest, similarity)),
    )
    names = (
        "kind",
        "prompt",
        "before",
        "after",
        "on_target",
        "unchanged",
        "loss_before",
        "loss_after",
        "distance",
        "similarity",
    )
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _text_after(run: Trained, prompt: str, tokens: np.ndarray) -> str:
    ended = np.flatnonzero(np.isin(tokens, run.tokenizer.stops))
    return text_after(
        run.tokenizer, run.tokenizer.encode(prompt), tokens[: ended[0]] if len(ended) else tokens
    )


def success_rates(rows: list[dict], swept: boundary.Sweep | None) -> dict[str, float]:
    """Shares of successful prompts, cross-validated if the same prompts chose the bound."""
    if swept:
        return boundary.cross_validated(swept)
    negative = [row for row in rows if row["kind"] == "negative"]
    shares = {
        "on_target": float(np.mean([row["on_target"] for row in rows if row["kind"] != "negative"]))
    }
    if negative:
        shares["unchanged"] = float(np.mean([row["unchanged"] for row in negative]))
        shares["off_target"] = float(np.mean([not row["on_target"] for row in negative]))
    return shares
