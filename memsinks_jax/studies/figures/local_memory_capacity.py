"""How many memories fit at one layer of one model before they fire on each other's prompts?"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from memsinks_jax.editing import boundary, patching
from memsinks_jax.editing.memory import Memory, bounding, stack
from memsinks_jax.editing.probe import Probe
from memsinks_jax.editing.prompts import Prompts
from memsinks_jax.studies.figures import local_memory_measures as measures
from memsinks_jax.studies.figures.local_memory_measures import Case, Text

MATRIX = 32  # edits in the cross-fire matrix


def capacity(
    probe: Probe,
    cases: list[Case],
    site: str,
    layer: int,
    sizes: Sequence[int],
    text: Text,
    progress: Callable[[], None] = lambda: None,
) -> dict:
    """Many edits at one layer at once. Their bound is the median of the best individual bounds of
    some of them.

    Returns:
      {"usable": edits that succeed at this layer alone, "site", "layer", "bound", "sizes": [M],
      rule: {measure: [one number per size]}, "fires": f of memory m on the edit prompt of n, nested
      lists}.
    """
    memories = []
    for case in cases:
        prompt, target = case.prompt, case.target
        trace = probe.trace(prompt, target, site)
        step = patching.choose_step(probe, prompt, target, site, trace, layer)
        delta = -step * trace.gradients[0, layer, prompt.last[0]]
        moved = probe.patched(prompt, target, site, [layer], prompt.last, delta[None])
        if moved.tokens[0] == target:
            memories.append((case, patching.remember(trace, prompt, site, layer, step, 1.0)))
        progress()
    bounds = []
    for case, memory in _spread(memories):
        swept = boundary.sweep(probe, memory, case.target, case.prompts, case.positives)
        bounds.append(measures.best_bound(case, swept))
    bound = float(np.median(bounds or [1.0]))
    memories = [(case, measures.bounded(memory, bound)) for case, memory in memories]
    usable = len(memories)
    result = {"usable": usable, "site": site, "layer": layer, "bound": bound}
    result["sizes"] = [size for size in sizes if size <= usable] or ([usable] if usable else [])
    room = max(result["sizes"], default=0)
    for rule in ("sum", "nearest"):
        rows = [_together(probe, memories[:size], rule, text, room) for size in result["sizes"]]
        result[rule] = {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
        progress()
    shown = memories[:MATRIX]
    if shown:
        stacked = _stacked([memory for _, memory in shown], "sum")
        x_BTM = np.abs(probe.distances(_joined([case for case, _ in shown]), stacked)).min(axis=1)
        result["fires"] = np.asarray(bounding(x_BTM, bound, stacked.height)).round(3).tolist()
    return result


def _joined(cases: list[Case]) -> Prompts:
    """The edit prompts of all cases."""
    return Prompts(*map(np.concatenate, zip(*(case.prompt for case in cases), strict=True)))


def _stacked(memories: list[Memory], rule: str) -> Memory:
    (stacked,) = stack([dataclasses.replace(memory, rule=rule) for memory in memories])
    return stacked


def _together(probe: Probe, memories: list[tuple], rule: str, text: Text, room: int) -> dict:
    """Puts all memories into the model, with inactive ones up to `room`: one program for all."""
    unused, more = dataclasses.replace(memories[0][1], layers=np.int32([-1])), room - len(memories)
    stacked = _stacked([memory for _, memory in memories] + [unused] * more, rule)
    # Expensive measures use a few edits, cheap ones all.
    outcomes = [measures.answer_rates(probe, case, [stacked]) for case, _ in _spread(memories)]
    cases = [case for case, _ in memories + memories[:1] * more]
    targets = np.array([case.target for case in cases])
    right = probe.answers(_joined(cases), targets, [stacked]).tokens == targets
    result = {"efficacy": float(right[: len(memories)].mean())}
    for name in ("paraphrase", "unchanged", "off_target"):
        result[name] = float(np.mean([outcome[name] for outcome in outcomes]))
    return result | measures.elsewhere(probe, [stacked], text)


def _spread(memories: list) -> list:
    """At most eight of them, evenly spaced."""
    places = np.unique(np.linspace(0, max(len(memories) - 1, 0), 8).astype(int))
    return [memories[i] for i in places] if memories else []
