"""Compares GPT-2 small with what an article measured on it: every number of tables.py next to ours.

`measure` fills the same tables from a model. `rows_of` compares two tables entry by entry.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from memsinks_jax.config import InputError
from memsinks_jax.editing import boundary, patching
from memsinks_jax.editing.memory import Memory, bounding
from memsinks_jax.editing.probe import Probe, Trace
from memsinks_jax.editing.prompts import encode
from memsinks_jax.models.trained import Trained
from memsinks_jax.reporting.claims import Claim
from memsinks_jax.studies.published.tables import (
    COMPLETED,
    EXPERIMENTS,
    HEIGHT,
    TARGET,
    TARGET_TOKEN,
    Accuracy,
    Detail,
    Experiment,
    SiteRun,
)

SIZES = (12, 768, 50257)  # layers, width, vocabulary of GPT-2 small

# Tolerances. Losses of a map may also differ by one of its colour steps.
LOSS_SLACK, LOSS_REACH, SIMILARITY_REACH, NORM_REACH = 0.05, 0.02, 0.005, 0.01

AGREEMENT = 0.95  # a kind's claim holds if at least this share of its entries agrees

# kind: (words of the claim, precision of the article)
KINDS = {
    "base": (
        "what follows the two prompts before, and the loss of the target, are the article's",
        "a colour step",
    ),
    "losses": ("losses after single patches are those of the article's maps", "a colour step"),
    "mean error": (
        "on average over a map, losses are off by less than one of its colour steps",
        "a colour step",
    ),
    "successes": ("the same single patches make the target the likeliest", "exact"),
    "site": ("the first patch that succeeds is at the article's layer and token", "exact"),
    "accuracy": ("at each bound as many prompts are right as in the article's sweeps", "exact"),
    "details": (
        "similarities, norms and losses of the run that is printed in full are the same",
        "3 or 4 digits",
    ),
    "completions": (
        "five greedy tokens after each prompt, without memories and with each, are the same",
        "exact",
    ),
}


class Row(NamedTuple):
    """One entry of the article, and ours."""

    run: str  # 'tokyo', or 'tokyo, attention'
    kind: str  # of KINDS
    what: str
    published: Any  # a number or text, as ours is
    ours: Any
    agrees: bool  # within the article's precision


def compare(run: Trained) -> list[Row]:
    """Repeats all of the article's measurements. Raises InputError if the model is not GPT-2
    small.
    """
    return [row for pair in zip(EXPERIMENTS, measure(run), strict=True) for row in rows_of(*pair)]


def measure(run: Trained) -> tuple[Experiment, ...]:
    """Fills the article's experiments with a model's numbers, at the article's bounds and prompts.

    The memory is at the layer of the first successful patch, as in the notebook. If none succeeds,
    at the article's layer. Raises InputError if the model is not GPT-2 small.
    """
    _check(run)
    probe = Probe(run.config, run.params)
    return tuple(_measured(run, probe, published) for published in EXPERIMENTS)


def _check(run: Trained) -> None:
    model, vocabulary = run.config.model, run.config.data.vocabulary_size
    if model.family != "gpt2" or (model.layers, model.d_model, vocabulary) != SIZES:
        raise InputError(
            f"the published numbers are of GPT-2 small, with {SIZES[0]} layers of width "
            f"{SIZES[1]} and {SIZES[2]} tokens; this is a {model.family} with {model.layers} of "
            f"{model.d_model} and {vocabulary}; give that model's folder"
        )
    if run.tokenizer.encode(TARGET).tolist()[:1] != [TARGET_TOKEN] or any(
        len(run.tokenizer.encode(published.prompt)) != len(published.pieces)
        for published in EXPERIMENTS
    ):
        raise InputError(
            f"the published numbers are of GPT-2's tokenizer, for which {TARGET!r} begins with "
            f"token {TARGET_TOKEN} and {EXPERIMENTS[0].prompt!r} has {len(EXPERIMENTS[0].pieces)} "
            "tokens; this model has another one"
        )


def _measured(run: Trained, probe: Probe, experiment: Experiment) -> Experiment:
    context, positives = run.config.data.row_length, len(experiment.positives)
    prompt = encode(run.tokenizer, [experiment.prompt], context, opening=False)
    texts = [*experiment.prompts]
    prompts = encode(run.tokenizer, texts, context, opening=False, room=COMPLETED)

    def piece(token: int) -> str:
        return run.tokenizer.decode(np.array([token])).strip(" ").replace("\n", r"\n")

    def completions(*memories: Memory) -> tuple[str, ...]:
        written = probe.write(prompts, COMPLETED, memories)
        return tuple(" ".join(map(piece, row)) for row in written)

    def detail_of(trace: Trace, layer: int, memory: Memory) -> Detail:
        bound, known = float(memory.bounds[0]), int(prompt.last[0]) + 1
        answers = probe.answers(prompts, TARGET_TOKEN, [memory])
        nearest_B = probe.distances(prompts, memory)[..., 0].min(axis=1)
        own_T = probe.distances(prompt, memory)[0, :known, 0]
        return Detail(
            bound=bound,
            similarities=_numbers(bounding(nearest_B, bound, HEIGHT)),
            tokens=tuple(map(piece, answers.tokens)),
            losses=_numbers(answers.losses),
            own_similarities=_numbers(bounding(own_T, 1, 1)),
            activations=_numbers(np.linalg.norm(trace.activations[0, layer, :known], axis=-1)),
            gradients=_numbers(np.linalg.norm(trace.gradients[0, layer, :known], axis=-1)),
        )

    def at_site(site: str, published: SiteRun) -> SiteRun:
        trace = probe.trace(prompt, TARGET_TOKEN, site)
        found = patching.patch_map(probe, prompt, TARGET_TOKEN, site, trace, experiment.step)
        successes = frozenset(tuple(map(int, cell)) for cell in np.argwhere(found.successes))
        layer = min(successes, default=published.site)[0]

        def memory_at(bound: float) -> Memory:
            return patching.remember(
                trace, prompt, site, layer, experiment.step, bound, height=HEIGHT
            )

        bounds = np.array([accuracy.bound for accuracy in published.accuracies])
        memory, detail = memory_at(published.bound), published.detail
        swept = boundary.sweep(probe, memory, TARGET_TOKEN, prompts, positives, bounds)
        right = (swept.positive == TARGET_TOKEN).sum(1), (swept.negative != TARGET_TOKEN).sum(1)
        return dataclasses.replace(
            published,
            base_loss=found.base_loss,
            losses=found.losses,
            successes=successes,
            accuracies=tuple(
                Accuracy(float(b), int(p), int(n)) for b, p, n in zip(bounds, *right, strict=True)
            ),
            completions=completions(memory),
            detail=detail and detail_of(trace, layer, memory_at(detail.bound)),
        )

    return dataclasses.replace(
        experiment,
        base_token=piece(int(probe.answers(prompt).tokens[0])),
        completions=completions(),
        sites={site: at_site(site, published) for site, published in experiment.sites.items()},
    )


def _numbers(array) -> tuple[float, ...]:
    return tuple(map(float, np.asarray(array)))


def rows_of(published: Experiment, ours: Experiment) -> Iterator[Row]:
    """Compares two tables of the same experiment entry by entry."""
    pair = published.base_token, ours.base_token
    yield _equal(published.name, "base", "next token", *pair)
    yield from _same_texts(published.name, "completions", published.prompts, published, ours)
    for site, theirs in published.sites.items():
        yield from _rows_of_site(f"{published.name}, {site}", published, theirs, ours.sites[site])


def _rows_of_site(
    run: str, experiment: Experiment, theirs: SiteRun, ours: SiteRun
) -> Iterator[Row]:
    step = theirs.colour_step
    reach = step + LOSS_SLACK
    yield _near(run, "base", "loss", theirs.base_loss, ours.base_loss, reach)
    assert theirs.losses.shape == ours.losses.shape
    for (layer, token), loss in np.ndenumerate(theirs.losses):
        what = f"layer {layer}, {experiment.pieces[token].strip()!r}"
        yield _near(run, "losses", what, float(loss), float(ours.losses[layer, token]), reach)
    error = float(np.abs(theirs.losses - ours.losses).mean())
    yield Row(run, "mean error", "of all cells", f"< {step:g}", error, error < step)
    successes = sorted(theirs.successes), sorted(ours.successes)
    yield _equal(run, "successes", "layer, token", *successes)
    yield _equal(run, "site", "layer, token", theirs.site, ours.site)
    for accuracy, other in zip(theirs.accuracies, ours.accuracies, strict=True):
        counts = [f"{entry.positives} and {entry.negatives}" for entry in (accuracy, other)]
        yield _equal(run, "accuracy", f"bound {accuracy.bound:.4g}", *counts)
    yield from _same_texts(run, "completions", experiment.prompts, theirs, ours)
    if theirs.detail:
        yield from _rows_of_detail(run, experiment, theirs.detail, ours.detail)


def _rows_of_detail(run: str, experiment: Experiment, theirs: Detail, ours: Detail):
    texts, pieces = experiment.prompts, experiment.pieces
    for text, one, other in zip(texts, theirs.tokens, ours.tokens, strict=True):
        yield _equal(run, "details", f"next token of {text!r}", one, other)
    for name, labels, reach in (
        ("similarities", texts, SIMILARITY_REACH),
        ("losses", texts, LOSS_REACH),
        ("own_similarities", pieces, SIMILARITY_REACH),
        ("activations", pieces, NORM_REACH),
        ("gradients", pieces, NORM_REACH),
    ):
        both = getattr(theirs, name), getattr(ours, name)
        for label, one, other in zip(labels, *both, strict=True):
            yield _near(run, "details", f"{name} of {label.strip()!r}", one, other, reach)


def _same_texts(run: str, kind: str, texts, published, ours) -> Iterator[Row]:
    for text, one, other in zip(texts, published.completions, ours.completions, strict=True):
        yield _equal(run, kind, text, one, other)


def _equal(run: str, kind: str, what: str, published, ours) -> Row:
    return Row(run, kind, what, published, ours, published == ours)


def _near(run: str, kind: str, what: str, published: float, ours: float, reach: float) -> Row:
    # Rounded, since the article prints decimals: 3.84 + .05 has no exact binary value.
    return Row(run, kind, what, published, ours, bool(abs(published - ours) <= reach + 1e-6))


def table(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """One line for each list, map and sweep, with the first entry that disagrees."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.run, row.kind), []).append(row)
    lines = []
    for (run, kind), group in groups.items():
        others, first = [row for row in group if not row.agrees], "–"
        if others:
            what, published, ours = others[0][2:5]
            first = f"{what}: {_shown(published)}; ours: {_shown(ours)}"
        lines.append([run, kind, f"{len(group) - len(others)} of {len(group)}", first])
    return ["run", "what", "agree", "the first that does not"], lines


def claims(rows: list[Row]) -> list[Claim]:
    """One claim per kind: the share of its entries that agree; not decided if it has none."""
    found = []
    for kind, words in KINDS.items():
        agree = [row.agrees for row in rows if row.kind == kind]
        id, share = (
            f"published-{kind.replace(' ', '-')}",
            [sum(agree) / len(agree)] if agree else [],
        )
        found.append(Claim(id, *words, share, at_least=AGREEMENT))
    return found


def _shown(value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
