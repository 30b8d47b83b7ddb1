"""Measures of local bounded memory on one model: every number of the study, one edit at a time.

An outcome is a flat {name: number} of one edit at one site. Names that end in a class of negative
prompts, such as unchanged_negated, cover only these prompts.
"""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np

from memsinks_jax.data.embedded import facts
from memsinks_jax.data.embedded.facts import Edit, World
from memsinks_jax.data.tokenizer import AnyTokenizer
from memsinks_jax.editing import boundary, patching
from memsinks_jax.editing.memory import DISTANCES, Memory, bounding
from memsinks_jax.editing.probe import Probe
from memsinks_jax.editing.prompts import Prompts, encode, target_token
from memsinks_jax.reporting.claims import rank_correlation

STEERING = 100.0  # a bound above every distance
# limit of the rise of the loss, nats per token; beyond it the model is useless, and exp overflows
WORST = 10.0
TINY = 1e-6  # a bound below every distance but that of the key itself
GOOD = 0.8  # shares of positive and of negative prompts that a working bound needs
RATES = 10.0 ** np.arange(-4, 1.01, 0.25)  # learning rates that the fine-tuning baseline tries
_PLACES = 24  # rows of prompts: one shape for all


@dataclasses.dataclass(frozen=True)
class Case:
    """An edit as rows. Prompts: the edit's own, its seen templates, its paraphrases (together the
    positive ones), then the negative ones, of which `classes` (Q,) names each one's class.
    `spelling` are the target's tokens.
    """

    edit: Edit
    prompts: Prompts
    positives: int
    paraphrases: slice
    classes: np.ndarray
    target: int
    spelling: np.ndarray

    @property
    def prompt(self) -> Prompts:
        return self.prompts.take([0])


@dataclasses.dataclass(frozen=True)
class SiteEdit:
    """An edit at one site; no memory if no layer succeeds. `swept` has more than `rough`."""

    case: Case
    map: patching.PatchMap
    memory: Memory | None
    rough: boundary.Sweep | None = None
    swept: boundary.Sweep | None = None


class Text(NamedTuple):
    """Text about no edit, its losses before any: float (B,), nats, and the number of tokens."""

    prompts: Prompts
    losses: np.ndarray
    tokens: float


def text_of(probe: Probe, prompts: Prompts) -> Text:
    losses, counts = probe.text_losses(prompts)
    return Text(prompts, losses, counts.sum())


def known(probe: Probe, tokenizer: AnyTokenizer, world: World) -> dict[str, float]:
    """What is known before any edit: right first tokens of each class, the weak facts' loss."""
    found, context = {}, probe.config.data.row_length
    for name, probes in facts.probes(world).items():
        answers = np.array([target_token(tokenizer, of.prompt, of.answer) for of in probes])
        prompts = encode(tokenizer, [of.prompt for of in probes], context, multiple=_PLACES)
        batches = np.array_split(np.arange(len(probes)), -(-len(probes) // 256))
        outcomes = [probe.answers(prompts.take(rows), answers[rows]) for rows in batches]
        found[name] = float((np.concatenate([s.tokens for s in outcomes]) == answers).mean())
        if name == "weak_seen":
            found["weak_loss"] = float(np.concatenate([s.losses for s in outcomes]).mean())
    return found


def of_site(probe: Probe, found: list[SiteEdit], text: Text) -> dict:
    """Outcomes of all edits; shares over the bounds, success by layer; the first edit's map."""
    swept, shares = [f.rough for f in found if f.rough], {}
    for name in ("on_target", "off_target", "unchanged") if swept else ():
        shares[name] = np.mean([getattr(s, name)() for s in swept], axis=0).tolist()
    edit, first = found[0].case.edit, found[0].map
    return {
        "outcomes": [outcome(probe, f, text) for f in found],
        "shares": shares,
        "success_by_layer": np.mean([f.map.successes[:, -1] for f in found], axis=0).tolist(),
        "example": {
            "prompt": edit.prompt,
            "target": edit.target,
            "target_token": first.target,
            "step": first.step,
            "base_loss": first.base_loss,
            "losses": first.losses.tolist(),
            "tokens": first.tokens.tolist(),
        },
    }


def compared(probe: Probe, found: list[SiteEdit], text: Text, seed: int) -> dict:
    """Means over edits of other distances and of other ways to edit -> {"distances",
    "baselines"}.
    """
    usable = [f for f in found if f.memory is not None]
    distances = [ablation(probe, f) for f in usable]
    ways = [baselines(probe, f, text, seed) for f in usable]
    return {
        name: {row: _mean([of[row] for of in edits]) for row in (edits[0] if edits else ())}
        for name, edits in (("distances", distances), ("baselines", ways))
    }


def _mean(outcomes: list[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for outcome in outcomes for name in outcome)
    return {name: float(np.mean([o[name] for o in outcomes if name in o])) for name in names}


def case_of(edit: Edit, tokenizer: AnyTokenizer, context: int) -> Case:
    texts = [edit.prompt, *edit.positives, *edit.paraphrases]
    classes = np.array([name for name, prompts in edit.negatives.items() for _ in prompts])
    texts += [prompt for prompts in edit.negatives.values() for prompt in prompts]
    target = target_token(tokenizer, edit.prompt, edit.target)
    prompts = encode(tokenizer, texts, context, room=3, multiple=_PLACES)
    first = 1 + len(edit.positives)
    count = first + len(edit.paraphrases)
    spelling = tokenizer.encode(edit.prompt + edit.target)[len(tokenizer.encode(edit.prompt)) :]
    return Case(edit, prompts, count, slice(first, count), classes, target, spelling)


def find(probe: Probe, case: Case, site: str) -> SiteEdit:
    """Step, map, lowest layer, and the bound that is best on every other prompt."""
    trace = probe.trace(case.prompt, case.target, site)
    step = patching.choose_step(probe, case.prompt, case.target, site, trace)
    found = patching.patch_map(probe, case.prompt, case.target, site, trace, step)
    layer = patching.choose_layer(found)
    if layer is None:
        return SiteEdit(case, found, None)
    memory = patching.remember(trace, case.prompt, site, layer, step, 1.0)
    rough = boundary.sweep(probe, memory, case.target, case.prompts, case.positives)
    swept = boundary.refined(probe, memory, rough, case.prompts)
    return SiteEdit(case, found, bounded(memory, best_bound(case, swept)), rough, swept)


def best_bound(case: Case, swept: boundary.Sweep) -> float:
    """The best bound by every other prompt."""
    halves = (boundary.halves(count)[0] for count in (case.positives, len(case.classes)))
    return boundary.choose_bound(swept, *halves)


def bounds_of(memory: Memory) -> np.ndarray:
    """The article's bounds; of l2, which has a scale, times the size of the key."""
    return boundary.BOUNDS * (np.linalg.norm(memory.keys[0]) if memory.distance == "l2" else 1.0)


def bounded(memory: Memory, bound: float) -> Memory:
    return dataclasses.replace(memory, bounds=np.full_like(memory.bounds, bound))


def outcome(probe: Probe, found: SiteEdit, text: Text) -> dict[str, float]:
    """All measures of one edit, except baselines. `text`: held-out sentences."""
    result = _of_map(found)
    if found.memory is None:
        return result
    case, memory = found.case, found.memory
    result["bound"] = float(memory.bounds[0])
    result["own_similarity"] = _own_similarity(probe, case, memory)
    result |= answer_rates(probe, case, [memory]) | elsewhere(probe, [memory], text)
    result |= _of_sweep(found) | _separability(probe, case, memory)
    x_BTM = np.abs(probe.distances(text.prompts, memory))
    result["fired"] = float((x_BTM < memory.bounds[0]).sum() / (text.prompts.segments > 0).sum())
    negative = case.prompts.take(slice(case.positives, None))
    tiny = probe.answers(negative, case.target, [bounded(memory, TINY)]).logits
    change = np.abs(tiny - probe.answers(negative, case.target).logits).max()
    result["tiny_bound_change"] = float(change)
    steered = probe.answers(case.prompts, case.target, [bounded(memory, STEERING)]).tokens
    result["steered_off_target"] = float(1 - (steered == case.target)[case.positives :].mean())
    return result


def answer_rates(
    probe: Probe, case: Case, memories: list[Memory], base: Probe | None = None
) -> dict[str, float]:
    """The answers of a changed model on the prompts that did not choose the bound.

    `base` is the model before; by default `probe` itself without memories.
    """
    nothing = [_nothing(memory) for memory in memories]
    before = (base or probe).answers(case.prompts, case.target, nothing)
    after = probe.answers(case.prompts, case.target, memories)
    written = probe.write(case.prompts, len(case.spelling), memories)
    result = _rates(case, before.tokens, after.tokens, (written == case.spelling).all(axis=1))
    divergence = boundary.divergence(before, after)[case.positives :]
    return result | {"divergence": float(divergence.mean())}


def elsewhere(probe: Probe, memories: list[Memory], text: Text) -> dict[str, float]:
    """The effect of a change on other text."""
    losses, _ = probe.text_losses(text.prompts, memories)
    worse = (losses - text.losses).sum() / text.tokens
    return {"perplexity_ratio": float(np.exp(min(worse, WORST)))}


def _nothing(memory: Memory) -> Memory:
    """Adds nothing: the same program with and without a memory."""
    return dataclasses.replace(memory, deltas=np.zeros_like(memory.deltas))


def _rates(
    case: Case, before: np.ndarray, after: np.ndarray, whole: np.ndarray
) -> dict[str, float]:
    on_target, same = after == case.target, after == before
    positive, negative = (boundary.halves(n)[1] for n in (case.positives, len(case.classes)))
    off = case.positives
    result = {
        "efficacy": float(on_target[0]),
        "efficacy_whole": float(whole[0]),
        "on_target": float(on_target[:off][positive].mean()),
        "paraphrase": float(on_target[case.paraphrases].mean()),
        "paraphrase_whole": float(whole[case.paraphrases].mean()),
        "off_target": float(1 - on_target[off:][negative].mean()),
        "unchanged": float(same[off:][negative].mean()),
    }
    if on_target[:off].any():
        result["completed"] = float(whole[:off][on_target[:off]].mean())
    for name in np.unique(case.classes):
        of_class = case.classes == name
        result[f"unchanged_{name}"] = float(same[off:][of_class].mean())
        result[f"target_{name}"] = float(on_target[off:][of_class].mean())
    return result


def _of_map(found: SiteEdit) -> dict[str, float]:
    successes = found.map.successes
    layers = np.flatnonzero(successes[:, -1])
    result = {
        "step": found.map.step,
        "base_loss": found.map.base_loss,
        "succeeded": float(len(layers) > 0),
        "successes_last": float(len(layers)),
        "successes_elsewhere": float(successes[:, :-1].sum()),
        "lowest_loss_layer": float(found.map.losses[:, -1].argmin()),
    }
    if len(layers):
        result["layer"] = float(layers[0])
        result["contiguous"] = float(layers[-1] - layers[0] + 1 == len(layers))
    return result


def _of_sweep(found: SiteEdit) -> dict[str, float]:
    swept = found.swept
    on, off, same = swept.on_target(), swept.off_target(), swept.unchanged()
    logs = np.log10(swept.bounds)
    works = (on >= GOOD) & (same >= GOOD)
    best = int((on + off).argmax())
    first = np.flatnonzero(on >= GOOD)
    result = {
        # A share that never changes is no evidence for a direction, and counts against it.
        "rises": float(_rank_correlation(swept.bounds, on) > 0),
        "falls": float(_rank_correlation(swept.bounds, off) < 0),
        "window": float(np.trapezoid(works, logs)),
        "best_harmonic": float((2 * on * same / np.maximum(on + same, 1e-9)).max()),
        "best_on_target": float(on[best]),
        "best_off_target": float(off[best]),
        "best_mean": float(((on + same) / 2).max()),
    }
    if len(first):
        result["off_target_when_reached"] = float(off[first[0]])
        result["unchanged_when_reached"] = float(same[first[0]])
    return result


def _rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    return rank_correlation(x, y) if np.ptp(y) > 0 else 0.0


def _separability(probe: Probe, case: Case, memory: Memory) -> dict[str, float]:
    """Rank AUC of the distance: 1 if every positive prompt is nearer than every negative."""
    x_BT = np.abs(probe.distances(case.prompts, memory)[..., 0])
    measures = {"last": x_BT[np.arange(len(x_BT)), case.prompts.last], "nearest": x_BT.min(axis=1)}
    result = {}
    for measure, x_B in measures.items():
        positive, negative = x_B[1 : case.positives], x_B[case.positives :]
        result[f"auc_{measure}"] = _auc(positive, negative)
        for name in np.unique(case.classes):
            result[f"auc_{measure}_{name}"] = _auc(positive, negative[case.classes == name])
    return result


def _auc(near: np.ndarray, far: np.ndarray) -> float:
    return float(((near[:, None] < far) + 0.5 * (near[:, None] == far)).mean())


def _own_similarity(probe: Probe, case: Case, memory: Memory) -> float:
    x = probe.distances(case.prompt, memory)[0, case.prompt.last[0], 0]
    return float(bounding(x, memory.bounds[0], memory.height))


def ablation(probe: Probe, found: SiteEdit) -> dict[str, dict[str, float]]:
    """The best over all bounds for each distance, key and value the same -> {distance: it}."""
    result, case = {}, found.case
    about = case.target, case.prompts, case.positives
    for distance in DISTANCES:
        memory, swept = dataclasses.replace(found.memory, distance=distance), found.rough
        if distance != found.memory.distance:
            swept = boundary.sweep(probe, memory, *about, bounds_of(memory))
        numbers = _of_sweep(dataclasses.replace(found, swept=swept))
        numbers |= _separability(probe, case, memory)
        names = ("best_mean", "best_harmonic", "auc_last", "auc_nearest")
        result[distance] = {name: numbers[name] for name in names}
    return result


def baselines(probe: Probe, found: SiteEdit, text: Text, seed: int) -> dict[str, dict[str, float]]:
    """Other methods of editing, measured like the memory -> {name: outcome}."""
    case, memory = found.case, found.memory
    draw = np.random.default_rng([seed, case.target])
    random = draw.normal(size=memory.deltas.shape).astype(np.float32)
    random *= np.linalg.norm(memory.deltas) / np.linalg.norm(random)
    nothing = _nothing(memory)
    changed = {
        "no edit": (probe, nothing),
        "random value": (probe, dataclasses.replace(memory, deltas=random)),
        "no bound": (probe, bounded(memory, STEERING)),
        "fine-tuning step": (_fine_tuned(probe, case), nothing),
    }
    result = {
        name: answer_rates(model, case, [added], base=probe) | elsewhere(model, [added], text)
        for name, (model, added) in changed.items()
    }
    before = probe.answers(case.prompts, case.target)
    biased = before.logits.copy()
    biased[:, case.target] += before.logits[0].max() - before.logits[0, case.target] + 1e-3
    # After the first token the model is unchanged, so whole words are scored by the first token.
    tokens = biased.argmax(axis=1)
    result["logit bias"] = _rates(case, before.tokens, tokens, tokens == case.target)
    return result


def _fine_tuned(probe: Probe, case: Case) -> Probe:
    """A gradient step on the prompt, at the smallest rate that makes it predict the target."""
    gradient = probe.gradient(case.prompt, case.target)
    for rate in RATES:
        params = jax.tree.map(lambda p, g, rate=rate: p - rate * g, probe.params, gradient)
        stepped = probe.with_params(params)
        if stepped.answers(case.prompt, case.target).tokens[0] == case.target:
            break
    return stepped
