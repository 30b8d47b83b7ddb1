"""Local bounded memory: edits one fact and measures what else changes (T. Sapkota, 2024; own corpus
and model).

A small model learns invented facts. It knows weak facts but does not predict them: an edit makes it
predict them. It predicts strong facts: an edit makes it predict something else. Each edit is one
memory, at the attention or the mlp site of one layer. The edit command's search finds layer, step
and bound, which are evaluated on prompts that did not choose the bound.
"""

import dataclasses
import json
import logging
import pathlib
import sys
import time
from collections.abc import Callable

import numpy as np
import tqdm

from memsinks_jax.data.embedded import facts
from memsinks_jax.editing.memory import SITES
from memsinks_jax.reporting import report
from memsinks_jax.studies.figures import local_memory_measures as measures
from memsinks_jax.studies.figures import local_memory_pictures as pictures
from memsinks_jax.studies.figures import sections as shared
from memsinks_jax.studies.figures.figure import Figure
from memsinks_jax.studies.figures.local_memory_capacity import capacity
from memsinks_jax.studies.figures.runs import Run

logger = logging.getLogger(__name__)

# seed of the facts: all models learn the same ones, in another order and from other initial weights
WORLD = 0
DOCUMENTS = 32_000
EDITS = 20  # of each kind
SENTENCES = 256  # held-out text, to measure what an edit does elsewhere
CAPACITIES = (1, 2, 4, 8, 16, 32, 64)


def prepare(out: pathlib.Path) -> list[str]:
    """Writes corpus and tokenizer -> the flags that name them."""
    folder = out / "facts"
    folder.mkdir(parents=True, exist_ok=True)
    world = facts.world(WORLD)
    documents = facts.documents(world, WORLD, DOCUMENTS)
    lines = (json.dumps({"text": text}) + "\n" for text in documents)
    (folder / "facts.jsonl").write_text("".join(lines))
    (folder / "tokenizer.json").write_bytes(facts.tokenizer_json(world))
    return [
        f"--config.data.files={folder / 'facts.jsonl'}",
        f"--config.data.tokenizer={folder / 'tokenizer.json'}",
    ]


def measure(runs: list[Run]) -> list[Run]:
    """Adds all measurements to `details` and `metrics` -> the same runs."""
    work = len(runs) * (2 * EDITS * len(SITES) + facts.COUNTRIES + 2)
    with tqdm.tqdm(total=work, desc="edits", unit="edit", disable=not sys.stderr.isatty()) as bar:
        measured = []
        for run in runs:
            begun = time.monotonic()
            details = _of_model(run, bar.update)
            logger.info("edits of seed %d: %.0f s", run.seed, time.monotonic() - begun)
            metrics = run.metrics | _means(details)
            measured.append(dataclasses.replace(run, details=details, metrics=metrics))
    return measured


def _of_model(run: Run, progress: Callable[[], object]) -> dict:
    # Imported here: jax takes seconds to import, and only measuring needs it.
    from memsinks_jax.editing.probe import Probe
    from memsinks_jax.editing.prompts import encode
    from memsinks_jax.models.trained import open_run

    model, world = open_run(run.workdir), facts.world(WORLD)
    probe, context = Probe(model.config, model.params), model.config.data.row_length
    sentences = facts.held_out_sentences(world, run.seed, SENTENCES)
    text = measures.text_of(probe, encode(model.tokenizer, sentences, context, multiple=8))
    kinds: dict[str, dict] = {kind: {} for kind in facts.KINDS}
    details = {"known": measures.known(probe, model.tokenizer, world), "kinds": kinds}

    def cases_of(edits: list) -> list[measures.Case]:
        return [measures.case_of(edit, model.tokenizer, context) for edit in edits]

    cases = {kind: cases_of(facts.edits(world, kind, EDITS, run.seed)) for kind in facts.KINDS}
    for kind, of_kind in kinds.items():
        for site in SITES:
            found = []
            for case in cases[kind]:
                found.append(measures.find(probe, case, site))
                progress()
            of_kind[site] = measures.of_site(probe, found, text)
            if site == "attention":
                of_kind |= measures.compared(probe, found, text, run.seed)
    # At the layer where most edits succeed. Tries all facts, since some fail there; weak ones only
    # fill up.
    successes = [of_kind["mlp"]["success_by_layer"] for of_kind in kinds.values()]
    layer = int(np.sum(successes, axis=0).argmax())
    every = facts.edits(world, "strong", len(world.strong), run.seed)
    every += facts.edits(world, "weak", len(world.weak), run.seed)
    many = cases_of(every)
    details["capacity"] = capacity(probe, many, "mlp", layer, CAPACITIES, text, progress)
    return details


def _means(details: dict) -> dict[str, float]:
    """Means by kind and site, as weak_attention_efficacy. Without a layer nothing changes."""
    found = {f"known_{name}": value for name, value in details["known"].items()}
    for kind, site, outcomes in _groups(details):
        for name in sorted({name for outcome in outcomes for name in outcome}):
            of_edits = [outcome[name] for outcome in outcomes if name in outcome]
            found[f"{kind}_{site}_{name}"] = float(np.mean(of_edits))
    return found


def _groups(details: dict):
    for kind, of_kind in details["kinds"].items():
        for site in SITES:
            yield kind, site, of_kind[site]["outcomes"]


def values(runs: list[Run], kind: str, site: str, name: str) -> list[float]:
    """One measure of every edit of every seed that has it."""
    outcomes = [o for run in runs for o in run.details["kinds"][kind][site]["outcomes"]]
    return [outcome[name] for outcome in outcomes if name in outcome]


def _across(runs: list[Run]) -> dict[str, Callable[..., list[float]]]:
    """What claims are about: single edits of all seeds, or one value per seed."""

    def every(name: str, kinds=facts.KINDS, sites=SITES, of=runs) -> list[float]:
        return [one for kind in kinds for site in sites for one in values(of, kind, site, name)]

    def median(run: Run, kind: str, site: str, name: str) -> float:
        return float(np.median(values([run], kind, site, name)))

    def at_last(run: Run) -> float:
        names = ("successes_last", "successes_elsewhere")
        last, elsewhere = (sum(every(name, of=[run])) for name in names)
        return last / max(last + elsewhere, 1)

    def lower(run: Run) -> float:
        mlp, attention = (
            [median(run, kind, site, "layer") for kind in facts.KINDS]
            for site in ("mlp", "attention")
        )
        return float(np.mean(np.subtract(mlp, attention)))

    def steps(run: Run) -> float:
        strong, weak = (median(run, kind, "attention", "step") for kind in ("strong", "weak"))
        return strong / weak

    def of_16(run: Run, name: str) -> float:
        found = run.details["capacity"]
        return float(found["sum"][name][min(CAPACITIES.index(16), len(found["sizes"]) - 1)])

    return {
        "every": every,
        "attention": lambda name, *kinds: every(name, kinds or facts.KINDS, ("attention",)),
        "at_last": lambda: list(map(at_last, runs)),
        "lower": lambda: list(map(lower, runs)),
        "steps": lambda: list(map(steps, runs)),
        "of_16": lambda name: [of_16(run, name) for run in runs],
        "most": lambda found: [max(found)] if found else [],
    }


# The study's eleven behaviours.
CLAIMS = """
1_last | successful patches are at the last token: share | at_last() >= 0.9 | all but 2 of 21
1_contiguous | the layers at which an edit succeeds follow each other: share of edits
    | every('contiguous') >= 0.8 | 4 of 4 maps
2_sites | median lowest layer, mlp minus attention | lower() <= 0 | -3 and -2 of 12
3_steps | median step, strong over weak, attention | steps() >= 3 | 10
4_rises | positive prompts on target rise with the bound: share of edits, attention
    | attention('rises') >= 0.9 | 2 of 2
4_falls | negative prompts off target fall with the bound: share of edits, attention
    | attention('falls') >= 0.9 | 2 of 2
5_on | weak facts at their best bound: positive prompts on target, attention
    | attention('best_on_target', 'weak') >= 0.7 | 5/7
5_off | the same: negative prompts off target | attention('best_off_target', 'weak') >= 0.95 | 8/8
6_on | strong facts at their best bound: positive prompts on target, attention
    | attention('best_on_target', 'strong') >= 0.8 | 6/6
6_off | negative prompts off target at the first bound with 80% on target
    | 0.5 <= attention('off_target_when_reached', 'strong') <= 0.9 | 5/8
7_steering | without a bound strong edits steer everything: negative prompts off target, attention
    | attention('steered_off_target', 'strong') <= 0.1 | 0/8
8_whole | prompts that predict the target's first piece predict all three
    | every('completed') >= 0.95 | all but 1 of 17
9_own | 1 minus the share f of the memory that is added on the edit's own prompt, largest of all
    edits | most([1 - one for one in every('own_similarity')]) <= 1e-6 | 0
10_tiny | largest change of a negative prompt's logits at a bound of 1e-6
    | most(every('tiny_bound_change')) <= 1e-5 | none
11_efficacy | 16 memories at one layer (mlp): share that predict their target
    | of_16('efficacy') >= 0.9 | not run
11_perplexity | 16 memories: perplexity of other text over that before
    | of_16('perplexity_ratio') <= 1.05 | not run
"""


_COLUMNS = {
    "finds a layer": "succeeded",
    "step": "step",
    "layer": "layer",
    "bound": "bound",
    "predicts target": "efficacy",
    "whole": "efficacy_whole",
    "paraphrases": "paraphrase",
    "not the target": "off_target",
    "unchanged": "unchanged",
    "negated unchanged": "unchanged_negated",
    "neighbour unchanged": "unchanged_neighbour",
    "perplexity": "perplexity_ratio",
}


def views(run: Run) -> dict[str, dict[str, float]]:
    """The edits of every kind at every site as KIND_SITE, with means over edits as metrics."""
    groups = [f"{kind}_{site}" for kind, site, _ in _groups(run.details)]
    return {
        name: {key.removeprefix(f"{name}_"): value for key, value in run.metrics.items()}
        for name in groups
    }


def note(runs: list[Run]) -> str:
    every = [run.details["known"] for run in runs]
    known = {name: np.mean([of[name] for of in every]) for name in every[0]}
    return f"""{len(runs)} models, {EDITS} edits of each kind in each. Before an edit they predict
        {known["strong_seen"]:.1%} of the strong facts in wordings that they have read,
        {known["strong_unseen"]:.1%} in others, {known["weak_seen"]:.1%} of the weak ones (loss
        {known["weak_loss"]:.2f} nats) and {known["negated"]:.1%} of the negated ones. Lines are
        means over edits, bands from the lowest to the highest seed."""


def sections(runs: list[Run], out: pathlib.Path) -> list[str]:
    """Examples, other distances, other ways to edit."""
    picture = out / "examples.png"
    pictures.draw_examples(runs[0], picture)
    caption = (
        "Loss of the target by layer and token when that activation is moved, one panel per site."
    )
    return [
        report.heading("Examples of patch maps"),
        report.picture(picture, caption),
        shared.note(
            "Loss of the target when one activation is moved. Ring: the model predicts it."
        ),
        *pictures.compared(runs),
    ]


def published(hf: str) -> list[str]:
    """The published experiments on GPT-2 small, in the folder `hf`."""
    from memsinks_jax.models.trained import open_run  # jax takes seconds to import
    from memsinks_jax.studies.published import comparison

    rows = comparison.compare(open_run(pathlib.Path(hf)))
    columns, cells = comparison.table(rows)
    return [
        report.heading("The published experiments, on GPT-2 small"),
        report.table(columns, [list(map(report.text, row)) for row in cells], [""] * len(columns)),
        *report.claims_section(comparison.claims(rows)),
    ]


FIGURE = Figure(
    title="Local bounded memory: edit one fact, leave the rest",
    answer="""The memory is a single activation and a step against the gradient of the target's
        loss. The step is added only if the model's activation is near that one. It changes what the
        model predicts about one fact. The bound decides how well it leaves other facts alone.""",
    config="facts.py",
    variants=("standard",),
    prepare=prepare,
    measure=measure,
    views=views,
    seen=[f"{kind}_{site}" for kind in facts.KINDS for site in SITES],
    metrics=[*_COLUMNS.values(), "unchanged_other_relation", "unchanged_unrelated"],
    columns=_COLUMNS,
    labels={f"{kind}_{site}": f"{kind}, {site}" for kind in facts.KINDS for site in SITES},
    table_note="""Numbers are means over all edits of a seed. Predicts target: the edit's own
        prompt. Paraphrases: wordings in which the model never read the fact. Not the target:
        negative prompts that do not predict it, the article's measure. Unchanged: negative prompts
        with the same answer as before. Perplexity: of other text, over that before.""",
    across=_across,
    statements=CLAIMS,
    panels=pictures.panels,
    size=(14.5, 7.6),
    rows=2,
    note=note,
    sections=sections,
    published=published,
)
