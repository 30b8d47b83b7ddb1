"""How many memories fit at one layer of one model before they fire on each other's prompts?"""

import dataclasses
from collections.abc import Callable

import numpy as np

from memsinks_jax.editing import boundary, patching
from memsinks_jax.editing.memory import Memory, bounding, stack
from memsinks_jax.editing.probe import Probe
from memsinks_jax.editing.prompts import Prompts
from memsinks_jax.studies.figures.local_memory_measures import (
    Case,
    Text,
    answer_rates,
    best_bound,
    bounded,
    elsewhere,
)

MATRIX = 32  # edits in the cross-fire matrix


def capacity(
    probe: Probe,
    cases: list[Case],
    site: str,
    layer: int,
    sizes: list[int],
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
        trace = probe.trace(case.prompt, case.target, site)
        step = patching.choose_step(probe, case.prompt, case.target, site, trace, layer)
        delta = -step * trace.gradients[0, layer, case.prompt.last[0]]
        predicted = probe.patched(
            case.prompt, case.target, site, [layer], case.prompt.last, delta[None]
        ).tokens[0]
        if predicted == case.target:
            memories.append((case, patching.remember(trace, case.prompt, site, layer, step, 1.0)))
        progress()
    bounds = [
        best_bound(case, boundary.sweep(probe, memory, case.target, case.prompts, case.positives))
        for case, memory in _spread(memories)
    ]
    bound = float(np.median(bounds or [1.0]))
    memories = [(case, bounded(memory, bound)) for case, memory in memories]
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


def _together(
    probe: Probe, memories: list[tuple[Case, Memory]], rule: str, text: Text, room: int
) -> dict:
    """Puts all memories into the model, with inactive ones up to `room`: one program for all."""
    unused = dataclasses.replace(memories[0][1], layers=np.int32([-1]))
    stacked = _stacked([memory for _, memory in memories] + [unused] * (room - len(memories)), rule)
    # Expensive measures use a few edits, cheap ones all.
    outcomes = [answer_rates(probe, case, [stacked]) for case, _ in _spread(memories)]
    names = ("paraphrase", "unchanged", "off_target")
    filled = memories + memories[:1] * (room - len(memories))
    own, targets = (
        _joined([case for case, _ in filled]),
        np.array([case.target for case, _ in filled]),
    )
    predicted = probe.answers(own, targets, [stacked]).tokens[: len(memories)]
    result = {"efficacy": float((predicted == targets[: len(memories)]).mean())}
    result |= {name: float(np.mean([outcome[name] for outcome in outcomes])) for name in names}
    return result | elsewhere(probe, [stacked], text)


def _spread(memories: list) -> list:
    """At most eight of them, evenly spaced."""
    return memories and [
        memories[i] for i in np.unique(np.linspace(0, len(memories) - 1, 8).astype(int))
    ]
