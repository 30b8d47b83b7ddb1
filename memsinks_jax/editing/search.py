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
    """The memory, its patch map, and the sweep that chose its bound (None if it was given)."""

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
            f"any layer makes the model predict {wish.target!r} (loss {found.base_loss:.2f}, with "
            f"a step of {step:.3g} at best {found.losses[:, -1].min():.2f}); try --site={other}, "
            "another --step, or a fixed --layer=N"
        )
    bound, settings = wish.boundary or 1.0, {"distance": wish.distance, "places": wish.places}
    memory = patching.remember(trace, prompt, wish.site, layer, step, bound, **settings)
    if wish.boundary is not None:
        return Edit(memory, found, None)
    prompts, positives = encode(run.tokenizer, wish.prompts, context), 1 + len(wish.positive)
    rough = boundary.sweep(probe, memory, target, prompts, positives)
    swept = boundary.refined(probe, memory, rough, prompts)
    bounds = np.float32([boundary.choose_bound(swept)])
    return Edit(dataclasses.replace(memory, bounds=bounds), found, swept)


def effects(run: Trained, probe: Probe, wish: Wish, memory: Memory, target: int) -> list[dict]:
    """Answers to every prompt before and after the edit, and its distance from the key.

    Returns:
      [{"kind": prompt, positive or negative; "prompt", "before", "after": greedy continuations;
      "on_target", "unchanged": whether the first token after the edit is the target, or is as
      before; "loss_before", "loss_after": of the target in nats; "distance": the least over the
      tokens; "similarity": f of it}].
    """
    kinds = ["prompt"] + ["positive"] * len(wish.positive) + ["negative"] * len(wish.negative)
    tokenizer, context = run.tokenizer, run.config.data.row_length
    longest = max(1 + len(tokenizer.encode(text)) for text in wish.prompts)
    count = max(min(WRITTEN_TOKENS, context - longest), 1)
    prompts = encode(tokenizer, wish.prompts, context, room=count)
    # runs the same program as the memory
    nothing = dataclasses.replace(memory, deltas=np.zeros_like(memory.deltas))
    before, after = (probe.write(prompts, count, (m,)) for m in (nothing, memory))
    loss_before, loss_after = (
        probe.answers(prompts, target, (m,)).losses for m in (nothing, memory)
    )
    nearest = np.abs(probe.distances(prompts, memory)[..., 0]).min(axis=1)
    similarity = bounding(nearest, memory.bounds[0], memory.height)

    def text(prompt: str, tokens: np.ndarray) -> str:
        ended = np.flatnonzero(np.isin(tokens, tokenizer.stops))
        return text_after(tokenizer, tokenizer.encode(prompt), tokens[: (*ended, count)[0]])

    return [
        {
            "kind": kind,
            "prompt": prompt,
            "before": text(prompt, before[n]),
            "after": text(prompt, after[n]),
            "on_target": bool(after[n, 0] == target),
            "unchanged": bool(after[n, 0] == before[n, 0]),
            "loss_before": float(loss_before[n]),
            "loss_after": float(loss_after[n]),
            "distance": float(nearest[n]),
            "similarity": float(similarity[n]),
        }
        for n, (kind, prompt) in enumerate(zip(kinds, wish.prompts, strict=True))
    ]


def success_rates(rows: list[dict], swept: boundary.Sweep | None) -> dict[str, float]:
    """Shares of successful prompts, cross-validated if the same prompts chose the bound."""
    if swept:
        return boundary.cross_validated(swept)
    negative = [row for row in rows if row["kind"] == "negative"]
    hits = {"on_target": [row["on_target"] for row in rows if row["kind"] != "negative"]}
    hits["unchanged"] = [row["unchanged"] for row in negative]
    hits["off_target"] = [not row["on_target"] for row in negative]
    return {name: float(np.mean(values)) for name, values in hits.items() if values}
