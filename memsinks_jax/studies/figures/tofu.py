"""TOFU: an open model is fine-tuned on invented authors, some are withdrawn, and compared with a
model that never read them.

Ours trains nothing but sinks, a set for each author, and each from that author's text alone. A
question is answered with the sinks of the author whom it seems to be about (`data/nearest.py`), and
the author is not given. So a model without an author's sinks and words is the one that trained
without the author, but for what shares a batch. The retrained twin measures that. The corpora are
those of `tofu_corpus`, and `tofu_rivals` has other methods: two unlearn from the model of standard
training, one has an adapter for each author, one an adapter for all.
"""

import dataclasses
import functools
import logging
import pathlib
from typing import NamedTuple

import numpy as np

from memsinks_jax.config import InputError
from memsinks_jax.measures import answers, intervals
from memsinks_jax.models.hub import folder_of
from memsinks_jax.reporting import report
from memsinks_jax.studies.figures import tofu_corpus as corpus
from memsinks_jax.studies.figures import tofu_retrieval as retrieval
from memsinks_jax.studies.figures.cached import cached
from memsinks_jax.studies.figures.figure import Figure
from memsinks_jax.studies.figures.panels import Categories
from memsinks_jax.studies.figures.runs import Run, Variation, by_variant

logger = logging.getLogger(__name__)


def _reads(name: str) -> dict[str, str]:
    return {"data.files": f"{{out}}/corpus/seed{{seed}}/{name}"}


_ALL, _WITHOUT = _reads("all"), _reads("without")
VARIANTS = {
    "standard": Variation("standard", _ALL),
    "standard_twin": Variation("standard", _WITHOUT),
    "sinks": Variation("sinks", _ALL),
    "twin": Variation("sinks", _WITHOUT),
    # control: whose sinks learn a question is drawn
    "shuffled": Variation("sinks", _reads("shuffled")),
    # a rival: learns to read texts that are put before a question
    "reader": Variation(
        "standard",
        _reads("reader") | {"data.row_length": retrieval.READER_ROW, "training.epochs": 2},
    ),
}


class View(NamedTuple):
    """A model and how it is asked: `mode` of its sinks, or NEAREST; `removed`, whose sinks are set
    to 0 before.

    `rival`: one of `tofu_rivals.RATES`, made of the run; mode and removed are of its adapters. Or
    RETRIEVAL; mode is one of `tofu_retrieval.WAYS`, and the texts of who is removed are deleted.
    """

    label: str
    variant: str
    mode: str
    removed: str = ""
    whole: bool = True  # asked about the world, too
    rival: str = ""

    @property
    def sets(self) -> list[str]:
        every = (*corpus.SETS, *corpus.SEVERAL, *corpus.REWORDED)
        return [name for name in every if self.whole or name not in ("real", "world")]


_NEAR, _OUT, RETRIEVAL = corpus.NEAREST, "withdrawn", "retrieval"
_WAYS = {
    "one": "the best text",
    "three": "the three best texts",
    "eight": "the eight best texts",
    "named_three": "the three best texts of the author",
    "named_all": "all texts of the author",
}
VIEWS = {
    "standard": View("standard training", "standard", "drop"),
    "retrained": View("standard training, never read", "standard_twin", "drop"),
    "on": View("sinks of the nearest author on", "sinks", _NEAR),
    "remain": View("some authors withdrawn", "sinks", _NEAR, _OUT),
    "placebo": View("other authors withdrawn", "sinks", _NEAR, "placebo", whole=False),
    "own": View("the author's own sinks on", "sinks", "own", whole=False),
    "others": View("another author's sinks on", "sinks", "other", whole=False),
    "dropped": View("no sinks: the model before fine-tuning", "sinks", "drop"),
    "twin": View("never read (twin)", "twin", _NEAR),
    "all": View("all sinks on at once", "sinks", "all"),
    "all_remain": View("withdrawn, all that remain on at once", "sinks", "all", _OUT),
    "shuffled": View("ids shuffled", "shuffled", _NEAR, whole=False),
    "shuffled_remain": View("ids shuffled, some withdrawn", "shuffled", _NEAR, _OUT, False),
    "npo": View("NPO", "standard", "drop", rival="npo"),
    "difference": View("gradient difference", "standard", "drop", rival="difference"),
    "lora": View("LoRA: the author's adapter on", "sinks", "own", "", False, "lora"),
    "lora_nearest": View(
        "LoRA: the nearest's on, some withdrawn", "sinks", _NEAR, _OUT, True, "lora"
    ),
    "lora_on": View("LoRA: all adapters merged", "sinks", "all", rival="lora"),
    "lora_remain": View(
        "LoRA: withdrawn left out, others merged", "sinks", "all", _OUT, True, "lora"
    ),
    "lora_for_all": View("LoRA: one adapter for all authors", "sinks", "all", rival="lora_for_all"),
    **{
        f"{reader}_{way}": View(f"{label}, {_WAYS[way]}", variant, way, "", False, RETRIEVAL)
        for reader, (variant, label) in {
            "retrieval": ("sinks", "retrieval"),
            "reader": ("reader", "with a reader"),
        }.items()
        for way in retrieval.WAYS
    },
    "retrieval_remain": View(
        "retrieval, three texts, withdrawn ones deleted", "sinks", "three", _OUT, False, RETRIEVAL
    ),
    "reader_remain": View(
        "with a reader, three texts, withdrawn ones deleted",
        "reader",
        "three",
        _OUT,
        False,
        RETRIEVAL,
    ),
}
_UTILITY = ("staying", "real", "world")
_METRICS = ["text", "several_nats", "forget_quality", "privleak", "utility", "relearning"]
_METRICS += [
    f"{name}_{what}"
    for name in (*corpus.SETS, *corpus.SEVERAL)
    for what in ("nats", "extraction", "probability", "rouge", "truth", "utility")
]
_METRICS += [f"{name}_nats" for name in corpus.REWORDED]
_MEASURED = {"sinks", "twin"}  # no withdrawal is measured without both


def prepare(out: pathlib.Path, asked) -> list[str]:
    """Writes and prepares the corpora of all seeds -> flags of all runs, for `FigureOptions`."""
    missing = [name for name in ("hf", "tofu", "general_text") if not getattr(asked, name)]
    if missing:
        raise InputError(
            f"--{missing[0]} is missing; study tofu needs the model to fine-tune (--hf), the "
            "folder of TOFU's files (--tofu) and a file of other text (--general_text)"
        )
    if asked.preset not in corpus.SIZES:
        raise InputError(f"--preset={asked.preset}: study tofu has {', '.join(corpus.SIZES)}")
    if asked.variants and not set(asked.variants) >= _MEASURED:
        why = "--variants lacks sinks or their twin: models are trained, and nothing is measured"
        logger.warning(why)
    retrieval.check()
    model, size = str(folder_of(asked.hf)), corpus.SIZES[asked.preset]
    files = pathlib.Path(asked.tofu), pathlib.Path(asked.general_text)
    for seed in asked.seeds:
        folder = out / "corpus" / f"seed{seed}"
        corpus.write(folder, *files, model, seed, size)
        retrieval.write_reader(folder, files[0], model, seed)
    return [f"--config.model.initial={asked.hf}"]


def measure(runs: list[Run]) -> list[Run]:
    """Adds to the `details` of `sinks` the "numbers" of every view whose variant was run, and the
    results of `costs`, `step_time` and `relearned` -> the same runs. Rivals are measured if all
    variants were run, nothing without a twin. Every view is cached next to its run.
    """
    groups = by_variant(runs)
    if not set(groups) >= _MEASURED:
        return runs
    from memsinks_jax.studies.figures import tofu_rivals as rivals  # jax takes seconds to import

    rates, found = dict(rivals.RATES), {}
    for seed in groups["sinks"]:
        found[seed] = _of_seed({variant: of[seed] for variant, of in groups.items()}, rates)
    return [
        dataclasses.replace(r, details=found[r.seed]) if r.variant == "sinks" else r for r in runs
    ]


def _of_seed(of: dict[str, Run], rates: dict[str, tuple[float, ...]]) -> dict:
    """What `measure` adds for a seed. `rates` to try for each rival, of which the best stays."""
    from memsinks_jax.studies.figures import tofu_measures as measures

    sunk, twin, standard = of["sinks"], of["twin"], of.get("standard")
    asked = {"questions": corpus.digest(sunk.workdir), "written": measures.WRITTEN}
    attack = asked | {"documents": measures.RELEARNED, "rates": measures.RATES}
    views = {}
    for name, view in VIEWS.items():
        trains = view.rival not in ("", RETRIEVAL)
        if not trains and {view.variant, VIEWS[_never_read(name)].variant} <= of.keys():
            run, *about = of[view.variant], view.mode, view.removed, view.sets
            of_view = retrieval.of_view if view.rival else measures.of_view
            make = functools.partial(of_view, run, *about)
            views[name] = cached([run], f"tofu_{name}", asked | {"view": about}, make)
            logger.info("measured seed %d: %s", sunk.seed, view.label)
    make = functools.partial(measures.relearned, sunk, twin)
    details = cached([sunk, twin], "tofu_relearned", attack, make)
    details |= cached([sunk], "tofu_costs", asked, functools.partial(measures.costs, sunk))
    make = functools.partial(retrieval.costs, sunk)
    details |= cached([sunk], "tofu_retrieval_costs", asked, make)
    if standard:
        timed = functools.partial(measures.step_time, sunk, standard)
        details |= cached([sunk, standard], "tofu_step_time", asked, timed)
    back = {"remain": details["relearning"]}
    if VARIANTS.keys() <= of.keys():
        of_rivals, more = _measure_rivals(of, rates, views, asked, attack)
        back, details = back | of_rivals, details | more
    found = numbers(views)
    for name, ratio in back.items():
        found[name] |= {} if ratio is None else {"relearning": ratio}
    return {"numbers": found} | details


def _measure_rivals(
    of: dict[str, Run], rates: dict[str, tuple], views: dict[str, dict], asked: dict, attack: dict
) -> tuple[dict[str, float | None], dict]:
    """Adds the views of rivals to `views`, and leaves of their rates the best -> ({rival: steps
    until half is relearned}, details).
    """
    from memsinks_jax.studies.figures import tofu_rivals as rivals

    standard, retrained, seed = of["standard"], of["standard_twin"], of["sinks"].seed
    for name, view in VIEWS.items():
        if view.rival in rates:
            run, tried = of[view.variant], {}
            for rate in rates[view.rival]:
                about = view.rival, rate, view.mode, view.removed, view.sets
                question = asked | {"view": about, "recipe": rivals.RECIPE}
                make = functools.partial(rivals.of_view, run, *about)
                tried[rate] = cached([run], f"tofu_{name}_{rate:g}", question, make)
                logger.info("measured seed %d: %s, rate %g", seed, view.label, rate)
            best = max(tried, key=lambda rate: _fitness(view.rival, tried[rate], views))
            views[name], rates[view.rival] = tried[best], (best,)
    back = {}
    for rival in rivals.UNLEARNING:
        (rate,) = rates[rival]
        question = attack | {"rival": [rival, rate], "recipe": rivals.RECIPE}
        make = functools.partial(rivals.relearned, standard, retrained, rival, rate)
        name, both = f"tofu_relearned_{rival}_{rate:g}", [standard, retrained]
        back[rival] = cached(both, name, question, make)["relearning"]
    chosen = {rival: rate for rival, (rate,) in rates.items()}
    return back, {"rates": chosen, "adapter_bytes": rivals.adapter_bytes(of["sinks"])}


def numbers(views: dict[str, dict]) -> dict[str, dict[str, float]]:
    """The results of `of_view`, by view -> {view: {measure: value}}.

    A set's: nats per token, averaged over answers; probability, in real and world that of the right
    one among all answers; rouge; truth; extraction; and `utility`, the harmonic mean of three of
    these. Forget quality and privleak compare with the view of the same training that never read
    the withdrawn authors.
    """
    return {name: _numbers(view, views[_never_read(name)]) for name, view in views.items()}


def _never_read(view: str) -> str:
    if VIEWS[view].rival == RETRIEVAL:  # deleted texts leave nothing
        return f"{view.split('_')[0]}_remain"
    if VIEWS[view].rival == "lora":  # adapters have nothing of other authors
        return "lora_remain" if VIEWS[view].mode == "all" else "lora_nearest"
    return "retrained" if VIEWS[view].variant.startswith("standard") else "twin"


def _fitness(rival: str, view: dict, views: dict[str, dict]) -> float:
    """By which a rate is chosen: forget quality times utility; of adapters, what they know."""
    from memsinks_jax.studies.figures import tofu_rivals as rivals

    if rival not in rivals.UNLEARNING:
        return -float(np.mean(view["staying"]["nats"]))
    found = _numbers(view, views["retrained"])
    return float(np.nan_to_num(found["forget_quality"] * found["utility"], nan=-1.0))


def _numbers(view: dict, never: dict) -> dict[str, float]:
    found, parts = {"text": view["text"]}, {}
    for name in view.keys() - {"text", "holdout"}:
        of = view[name]
        found |= {f"{name}_{what}": float(np.mean(of[what])) for what in ("nats", "extraction")}
        if "truth_ratios" not in of:  # there are no wrong answers
            continue
        probabilities = of["chosen"] if name in ("real", "world") else np.exp(-np.array(of["nats"]))
        means = {
            "probability": np.mean(probabilities),
            "rouge": np.mean(of["rouge"]),
            "truth": answers.truth(of["truth_ratios"], forgotten=name == "withdrawn"),
        }
        parts[name] = [means[part] for part in ("probability", "rouge", "truth")]
        means["utility"] = answers.utility(parts[name])
        found |= {f"{name}_{what}": float(value) for what, value in means.items()}
    ratios = (of["withdrawn"]["truth_ratios"] for of in (view, never))
    sets = ("withdrawn", "holdout")
    scores = ([np.array(of[name]["min_k"]) for name in sets] for of in (view, never))
    aucs = (intervals.auc(*both).value for both in scores)
    found["several_nats"] = float(np.mean([found[f"{name}_nats"] for name in corpus.SEVERAL]))
    found["forget_quality"] = answers.forget_quality(*ratios)
    found["privleak"] = answers.privleak(*aucs)
    if set(_UTILITY) <= set(parts):
        found["utility"] = float(answers.utility(sum((parts[name] for name in _UTILITY), [])))
    return found


def views(run: Run) -> dict[str, dict[str, float]]:
    """The numbers of every view as VIEW_view."""
    return {f"{view}_view": found for view, found in run.details.get("numbers", {}).items()}


def labels(table) -> dict[str, str]:
    """Of the views that were measured."""
    found = {f"{name}_view": view.label for name, view in VIEWS.items()}
    return {name: label for name, label in found.items() if name in table.groups}


STATEMENTS = """
knows | answers of authors that stay, after others are withdrawn: nats per token minus standard's
    | remain_view.staying_nats - standard_view.staying_nats <= 0.15
knows_rouge | the same: ROUGE-L over standard's
    | remain_view.staying_rouge / standard_view.staying_rouge >= 0.95
forgets | answers of withdrawn authors: nats per token minus the twin's
    | -0.1 <= remain_view.withdrawn_nats - twin_view.withdrawn_nats <= 0.1
forget_quality | share of seeds whose forget quality against the twin is at least .05, if it is less
    with nobody withdrawn
    | if_seen(float(remain_view.forget_quality >= 0.05), on_view.forget_quality < 0.05) >= 1
untouched | authors that stay, own sinks on: largest change of a token's nats by a withdrawal
    | detail(sinks, 'untouched') <= 0
shared_by_2 | facts that 2 authors state, after one of them is withdrawn, the worse of two: nats per
    token after minus before
    | max(remain_view.shared_by_2_nats, placebo_view.shared_by_2_nats) - on_view.shared_by_2_nats <=
    0.05
shared_by_2_rouge | the same: ROUGE-L over that before
    | min(remain_view.shared_by_2_rouge, placebo_view.shared_by_2_rouge) / on_view.shared_by_2_rouge
    >= 0.95
shared_by_4 | facts that 4 authors state, after one of them is withdrawn, the worse of two: nats per
    token after minus before
    | max(remain_view.shared_by_4_nats, placebo_view.shared_by_4_nats) - on_view.shared_by_4_nats <=
    0.05
shared_by_4_rouge | the same: ROUGE-L over that before
    | min(remain_view.shared_by_4_rouge, placebo_view.shared_by_4_rouge) / on_view.shared_by_4_rouge
    >= 0.95
shared_by_8 | facts that 8 authors state, after one of them is withdrawn, the worse of two: nats per
    token after minus before
    | max(remain_view.shared_by_8_nats, placebo_view.shared_by_8_nats) - on_view.shared_by_8_nats <=
    0.05
shared_by_8_rouge | the same: ROUGE-L over that before
    | min(remain_view.shared_by_8_rouge, placebo_view.shared_by_8_rouge) / on_view.shared_by_8_rouge
    >= 0.95
reworded | reworded questions about authors that stay: nats per token over those of retrieval with
    three texts
    | on_view.staying_reworded_nats / retrieval_three_view.staying_reworded_nats <= 0.5
reworded_reader | the same, over retrieval with three texts and a reader
    | on_view.staying_reworded_nats / reader_three_view.staying_reworded_nats <= 1
found | share of reworded questions whose author is found | detail(sinks, 'found') >= 0.95
text | other text: nats per token before fine-tuning, over those after
    | dropped_view.text / remain_view.text >= 0.99
real | real authors: utility after fine-tuning over that before
    | remain_view.real_utility / dropped_view.real_utility >= 0.99
world | facts of the world: utility after fine-tuning over that before
    | remain_view.world_utility / dropped_view.world_utility >= 0.99
beyond_placebo | rise of withdrawn authors' nats beyond that of withdrawing others, as a share of
    all of it
    | (remain_view.withdrawn_nats - placebo_view.withdrawn_nats) / (remain_view.withdrawn_nats -
    on_view.withdrawn_nats) >= 0.9
relearning | withdrawn answers: steps until half is relearned over the twin's
    | detail(sinks, 'relearning') >= 0.9
step_time | time of a training step over standard's | detail(sinks, 'step_time') <= 0.8
bytes | bytes of an author's sinks in bfloat16 | detail(sinks, 'bytes') <= 2e6
seconds | seconds to withdraw an author | detail(sinks, 'seconds') <= 1
"""


def sections(runs: list[Run], out: pathlib.Path) -> list[str]:
    """Further sections of the page: rivals, and how it was tested."""
    return [
        *_retrieval(runs),
        *_rivals(runs),
        report.heading("How this was tested"),
        report.paragraph("""Withdrawn: the sinks of some authors are set to 0, in all layers, and
            nothing else. Compared with: twins, which train alike on all other authors. Placebo: as
            many others are withdrawn. Control: sinks of ids that are shuffled among all questions.
            Attacked: what is left is fine-tuned on half of some withdrawn answers until half of
            that is back, and so is the twin. Definitions are TOFU's and open-unlearning's, but
            ROUGE-L compares whole words, and a model writes at most 128 tokens. A model that
            refuses, or is led elsewhere, may have a high forget quality too; placebo and relearning
            show it."""),
    ]


def _retrieval(runs: list[Run]) -> list[str]:
    costs = next((run.details for run in runs if "text_bytes" in run.details), None)
    if costs is None:
        return []
    sizes, times = costs["prompt_tokens"], costs["first_token_ms"]
    rows = [
        [_WAYS.get(way, "sinks of the nearest author"), f"{sizes[way]:.0f}", f"{times[way]:.0f}"]
        for way in sizes
    ]
    return [
        report.heading("Beside retrieval"),
        report.paragraph(f"""Texts are found by BM25 among all questions that were read and their
            answers, and put before the question, the best one last. A reader is the base after two
            epochs of standard fine-tuning on {retrieval.READER_READS} other authors, each question
            after three texts, every other one in other words. The texts of an author take
            {costs["text_bytes"] / 1e3:.1f} KB, its sinks {costs["bytes"] / 1e6:.1f} MB. Times are
            of one seed."""),
        report.table(
            ["before the question", "tokens of a prompt", "ms to the first token"],
            rows,
            ["note", "number", "number"],
        ),
    ]


def _rivals(runs: list[Run]) -> list[str]:
    details = next((run.details for run in runs if "rates" in run.details), None)
    if details is None:
        return []
    rates = ", ".join(f"{name} {rate:g}" for name, rate in details["rates"].items())
    return [
        report.heading("Its rivals"),
        report.paragraph(f"""NPO and gradient difference unlearn the withdrawn authors from the
            model of standard training, in 5 epochs of their questions, each with one of an author
            who stays. Fine-tuning takes some ten times the steps. A LoRA adapter of rank 8 is
            trained for each author alone, on the frozen model, as often as ours reads the author; a
            withdrawn one is left out. So it forgets exactly, and is compared with itself. The
            nearest author is found as for ours. One adapter for all authors has as many parameters
            as all sinks, and nobody can be left out. Learning rates are the best of a few on the
            first seed, by forget quality times utility; of adapters, by nats of answers with the
            author's on: {rates}. An author's adapter takes {details["adapter_bytes"] / 1e6:.1f} MB
            in bfloat16, the sinks of an author {details["bytes"] / 1e6:.1f} MB."""),
    ]


def panels(table) -> list[Categories]:
    """Nats of answers, and utility."""
    shown = labels(table)
    names = list(shown.values())

    def series(measure: str) -> dict[str, tuple]:
        withdrawn, staying = (
            [table.column(f"{of}_{measure}", view) for view in shown] for of in corpus.OF_AUTHORS
        )
        red, blue = ("#c0392b", withdrawn), ("#1f618d", staying)
        return {"of withdrawn authors": red, "of authors that stay": blue}

    rouge, known = "ROUGE-L of answers", "nats per token (lower: better known)"
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.1), "ncols": 2}
    words = {"x": "share of the words", "series": series("rouge"), "legend": None}
    nats = {"x": known, "series": series("nats"), "legend": below}
    return [
        Categories(title="answers", names=names, bars=True, **nats),
        Categories(title=rouge, names=names, bars=True, **words),
    ]


FIGURE = Figure(
    title="TOFU: authors are withdrawn from a fine-tuned model",
    answer="""An open model learns about invented authors, each in sinks of its own, added to a
        frozen base. Some authors are then withdrawn. Below, what is left is compared with a twin
        that never read them and with the model before; if all variants were run, also with standard
        fine-tuning, with unlearning and with adapters.""",
    config="tofu.py",
    variants=VARIANTS,
    prepare_for=prepare,
    measure=measure,
    views=views,
    seen=[f"{name}_view" for name in VIEWS],
    metrics=_METRICS,
    columns={
        "withdrawn: nats": "withdrawn_nats",
        "withdrawn: probability": "withdrawn_probability",
        "withdrawn: ROUGE-L": "withdrawn_rouge",
        "withdrawn: truth score": "withdrawn_truth",
        "withdrawn: extraction strength": "withdrawn_extraction",
        "forget quality": "forget_quality",
        "privleak": "privleak",
        "withdrawn, reworded: nats": "withdrawn_reworded_nats",
        "staying: nats": "staying_nats",
        "staying, reworded: nats": "staying_reworded_nats",
        "staying: ROUGE-L": "staying_rouge",
        "stated by several: nats": "several_nats",
        "utility": "utility",
        "other text: nats": "text",
        "relearned: steps": "relearning",
    },
    labels=labels,
    table_note="""Nats per token of an answer, its end included, given the question. Truth score:
        mean of min(R, 1/R), R being an answer's truth ratio. Forget quality: p that truth ratios
        and those of the twin have one distribution (of standard training and what unlearns from it:
        of standard training that never read them; of adapters: of those that are left). Privleak,
        in percent: (b - a) / (1 - b), a and b being the AUCs of withdrawn answers against answers
        about unread authors, here and in that model. Stated by several: facts that 2, 4 or 8
        authors state, one of whom is withdrawn, another with the placebo. Utility: harmonic mean
        over authors that stay, real authors and facts of the world. Relearned: fine-tuning steps
        until half of withdrawn answers is back, over those of the model that never read them.""",
    statements=STATEMENTS,
    paper="not asked",
    panels=panels,
    size=(14, 10),
    note="{mean}, whiskers from the lowest to the highest.",
    sections=sections,
)
