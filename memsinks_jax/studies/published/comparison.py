"""Compares GPT-2 small with what an article measured on it: every number of tables.py next to ours.

`measure` fills the same tables from a model. `rows_of` compares two tables entry by entry.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from memsinks_jax.config import InputError
from memsinks_jax.data.tokenizer import AnyTokenizer
from memsinks_jax.editing import boundary, patching
from memsinks_jax.editing.memory import Memory, bounding
from memsinks_jax.editing.probe import Probe, Trace
from memsinks_jax.editing.prompts import Prompts, encode
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

# Tolerances within which two numbers agree. Losses of a map may also differ by one of its colour
# steps.
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
    """Repeats all of the article's measurements.

    Raises:
      InputError: the model is not GPT-2 small.
    """
    return [row for pair in zip(EXPERIMENTS, measure(run), strict=True) for row in rows_of(*pair)]


def measure(run: Trained) -> tuple[Experiment, ...]:
    """Fills the article's experiments with a model's own numbers. Keeps the article's bounds,
    prompts and steps.

    The memory is at the layer of the first successful patch, as in the notebook. If none succeeds,
    at the article's layer.

    Raises:
      InputError: the model is not GPT-2 small.
    """
    _check(run)
    probe = Probe(run.config, run.params)
    return tuple(_measured(probe, run.tokenizer, published) for published in EXPERIMENTS)


def _check(run: Trained) -> None:
    model, vocabulary = run.config.model, run.config.data.vocabulary_size
    if model.family != "gpt2" or (model.layers, model.d_model, vocabulary) != SIZES:
        raise InputError(
            f"the published numbers are of GPT-2 small, with {SIZES[0]} layers of width "
            f"{SIZES[1]} and {SIZES[2]} tokens; "
            f"this is a {model.family} with {model.layers} of {model.d_model} and {vocabulary}; "
            "give that model's folder"
        )
    if run.tokenizer.encode(TARGET).tolist()[:1] != [TARGET_TOKEN] or any(
        len(run.tokenizer.encode(published.prompt)) != len(published.pieces)
        for published in EXPERIMENTS
    ):
        raise InputError(
            f"the published numbers are of GPT-2's tokenizer, for which {TARGET!r} begins with "
            f"token {TARGET_TOKEN} and "
            f"{EXPERIMENTS[0].prompt!r} has {len(EXPERIMENTS[0].pieces)} tokens; this model has "
            "another one"
        )


def _measured(probe: Probe, tokenizer: AnyTokenizer, published: Experiment) -> Experiment:
    context = probe.config.data.row_length
    texts = [*published.positives, *published.negatives]
    prompt = encode(tokenizer, [published.prompt], context, opening=False)
    prompts = encode(tokenizer, texts, context, opening=False, room=COMPLETED)
    base = int(probe.answers(prompt).tokens[0])
    return dataclasses.replace(
        published,
        base_token=_piece(tokenizer, base),
        completions=_completions(probe, tokenizer, prompts),
        sites={
            site: _measured_site(probe, tokenizer, published, site, prompt, prompts)
            for site in published.sites
        },
    )


def _measured_site(
    probe: Probe,
    tokenizer: AnyTokenizer,
    experiment: Experiment,
    site: str,
    prompt: Prompts,
    prompts: Prompts,
) -> SiteRun:
    published = experiment.sites[site]
    trace = probe.trace(prompt, TARGET_TOKEN, site)
    found = patching.patch_map(probe, prompt, TARGET_TOKEN, site, trace, experiment.step)
    successes = [tuple(map(int, cell)) for cell in np.argwhere(found.successes)]
    layer = (successes or [published.site])[0][0]

    def memory_at(bound: float) -> Memory:
        return patching.remember(trace, prompt, site, layer, experiment.step, bound, height=HEIGHT)

    bounds = np.array([accuracy.bound for accuracy in published.accuracies])
    positives = len(experiment.positives)
    swept = boundary.sweep(
        probe, memory_at(published.bound), TARGET_TOKEN, prompts, positives, bounds
    )
    right = (
        (swept.positive == TARGET_TOKEN).sum(axis=1),
        (swept.negative != TARGET_TOKEN).sum(axis=1),
    )
    return SiteRun(
        base_loss=found.base_loss,
        losses=found.losses,
        colour_step=published.colour_step,
        successes=frozenset(successes),
        site=successes[0] if successes else None,
        accuracies=tuple(
            Accuracy(float(b), int(p), int(n)) for b, p, n in zip(bounds, *right, strict=True)
        ),
        bound=published.bound,
        completions=_completions(probe, tokenizer, prompts, memory_at(published.bound)),
        detail=published.detail
        and _measured_detail(
            probe, tokenizer, trace, layer, prompt, prompts, memory_at(published.detail.bound)
        ),
    )


def _measured_detail(
    probe: Probe,
    tokenizer: AnyTokenizer,
    trace: Trace,
    layer: int,
    prompt: Prompts,
    prompts: Prompts,
    memory: Memory,
) -> Detail:
    bound, known = float(memory.bounds[0]), int(prompt.last[0]) + 1
    answers = probe.answers(prompts, TARGET_TOKEN, [memory])
    nearest_B = probe.distances(prompts, memory)[..., 0].min(axis=1)
    own_T = probe.distances(prompt, memory)[0, :known, 0]
    return Detail(
        bound=bound,
        similarities=_numbers(bounding(nearest_B, bound, HEIGHT)),
        tokens=tuple(_piece(tokenizer, token) for token in answers.tokens),
        losses=_numbers(answers.losses),
        own_similarities=_numbers(bounding(own_T, 1, 1)),
        activations=_numbers(np.linalg.norm(trace.activations[0, layer, :known], axis=-1)),
        gradients=_numbers(np.linalg.norm(trace.gradients[0, layer, :known], axis=-1)),
    )


def _completions(
    probe: Probe, tokenizer: AnyTokenizer, prompts: Prompts, *memories: Memory
) -> tuple[str, ...]:
    written = probe.write(prompts, COMPLETED, memories)
    return tuple(" ".join(_piece(tokenizer, token) for token in row) for row in written)


def _piece(tokenizer: AnyTokenizer, token: int) -> str:
    return tokenizer.decode(np.array([token])).strip(" ").replace("\n", r"\n")


def _numbers(array) -> tuple[float, ...]:
    return tuple(map(float, np.asarray(array)))


def rows_of(published: Experiment, ours: Experiment) -> Iterator[Row]:
    """Compares two tables of the same experiment entry by entry."""
    texts = (*published.positives, *published.negatives)
    yield _equal(published.name, "base", "next token", published.base_token, ours.base_token)
    yield from _same_texts(
        published.name, "completions", texts, published.completions, ours.completions
    )
    for site, theirs in published.sites.items():
        yield from _rows_of_site(f"{published.name}, {site}", published, theirs, ours.sites[site])


def _rows_of_site(
    run: str, experiment: Experiment, theirs: SiteRun, ours: SiteRun
) -> Iterator[Row]:
    reach = theirs.colour_step + LOSS_SLACK
    yield _near(run, "base", "loss", theirs.base_loss, ours.base_loss, reach)
    assert theirs.losses.shape == ours.losses.shape
    for (layer, token), loss in np.ndenumerate(theirs.losses):
        what = f"layer {layer}, {experiment.pieces[token].strip()!r}"
        yield _near(run, "losses", what, float(loss), float(ours.losses[layer, token]), reach)
    error = float(np.abs(theirs.losses - ours.losses).mean())
    yield Row(
        run,
        "mean error",
        "of all cells",
        f"< {theirs.colour_step:g}",
        error,
        error < theirs.colour_step,
    )
    yield _equal(
        run, "successes", "layer, token", *(sorted(table.successes) for table in (theirs, ours))
    )
    yield _equal(run, "site", "layer, token", theirs.site, ours.site)
    for accuracy, other in zip(theirs.accuracies, ours.accuracies, strict=True):
        counts = [f"{entry.positives} and {entry.negatives}" for entry in (accuracy, other)]
        yield _equal(run, "accuracy", f"bound {accuracy.bound:.4g}", *counts)
    texts = (*experiment.positives, *experiment.negatives)
    yield from _same_texts(run, "completions", texts, theirs.completions, ours.completions)
    if theirs.detail:
        yield from _rows_of_detail(run, texts, experiment.pieces, theirs.detail, ours.detail)


def _rows_of_detail(run: str, texts, pieces, theirs: Detail, ours: Detail) -> Iterator[Row]:
    yield from _same_texts(
        run, "details", [f"next token of {text!r}" for text in texts], theirs.tokens, ours.tokens
    )
    for name, labels, reach in (
        ("similarities", texts, SIMILARITY_REACH),
        ("losses", texts, LOSS_REACH),
        ("own_similarities", pieces, SIMILARITY_REACH),
        ("activations", pieces, NORM_REACH),
        ("gradients", pieces, NORM_REACH),
    ):
        for label, one, other in zip(
            labels, getattr(theirs, name), getattr(ours, name), strict=True
        ):
            yield _near(run, "details", f"{name} of {label.strip()!r}", one, other, reach)


def _same_texts(run: str, kind: str, texts, published, ours) -> Iterator[Row]:
    for text, one, other in zip(texts, published, ours, strict=True):
        yield _equal(run, kind, text, one, other)


def _equal(run: str, kind: str, what: str, published, ours) -> Row:
    return Row(run, kind, what, published, ours, published == ours)


def _near(run: str, kind: str, what: str, published: float, ours: float, reach: float) -> Row:
    # Rounded, since the article prints decimals: 3.84 + .05 has no exact binary value.
    return Row(run, kind, what, published, ours, bool(abs(published - ours) <= reach + 1e-6))


def table(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """Columns and lines of text: one line for each list, map and sweep, with the first entry that
    disagrees.
    """
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.run, row.kind), []).append(row)
    lines = []
    for (run, kind), group in groups.items():
        others = [row for row in group if not row.agrees]
        first = (
            f"{others[0].what}: {_shown(others[0].published)}; ours: {_shown(others[0].ours)}"
            if others
            else "–"
        )
        lines.append([run, kind, f"{len(group) - len(others)} of {len(group)}", first])
    return ["run", "what", "agree", "the first that does not"], lines


def claims(rows: list[Row]) -> list[Claim]:
    """One claim per kind: the share of its entries that agree; not decided if it has none."""
    agree = {kind: [float(row.agrees) for row in rows if row.kind == kind] for kind in KINDS}
    return [
        Claim(
            f"published-{kind.replace(' ', '-')}",
            *KINDS[kind],
            [sum(of) / len(of)] if of else [],
            at_least=AGREEMENT,
        )
        for kind, of in agree.items()
    ]


def _shown(value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
