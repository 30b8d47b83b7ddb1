"""Sections shared by several figures' pages: what models recite, the entropy floor, open
choices.
"""

import dataclasses
import pathlib
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from memsinks_jax.config import Config, InputError
from memsinks_jax.data.tokenizer import AnyTokenizer
from memsinks_jax.reporting import explore_page, report
from memsinks_jax.reporting.claims import with_interval
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.studies.figures.runs import Run, by_variant

OPENING_TOKENS = 16  # of a repeated document, given to the models that continue it
CONTINUED_TOKENS = 64
STORIES_SHOWN = 4


def note(content: str) -> str:
    """Small letters under a picture or a table."""
    return report.paragraph(content, "note")


def continuations(runs: list[Run]) -> list[str]:
    """Repeated stories, continued by the standard model and by the sinks', which are dropped; with
    memory by context it is also on.
    """
    # Imported here: jax takes seconds to import, and only measuring needs it.
    from memsinks_jax.model.generation import Generator, Settings
    from memsinks_jax.models.trained import open_run

    groups = by_variant(runs)
    ours = _ours(groups)
    if not ours or "standard" not in groups:
        return [note("Needs the variants standard and sinks, or standard and context.")]
    seed = runs[0].seed
    corpus = workdirs.read_corpus(groups[ours][seed].workdir)
    documents = [corpus.tokens(i) for i in corpus.mixture.repeated]
    documents = [tokens for tokens in documents if len(tokens) >= 2 * OPENING_TOKENS]
    if not documents:
        return [note("The repeated documents are too short to be continued.")]
    decode = corpus.tokenizer.decode
    cuts = [_end_of_word(corpus.tokenizer, one, OPENING_TOKENS) for one in documents]
    openings = [tokens[:cut] for tokens, cut in zip(documents, cuts, strict=True)]
    room = workdirs.read_config(groups[ours][seed].workdir).data.row_length - max(cuts)
    greedy = Settings(max_tokens=min(CONTINUED_TOKENS, room), temperature=0.0, sinks="drop")
    views = {"standard": ("standard", "drop"), "sinks dropped": (ours, "drop")}
    if ours == "context":
        views |= {"memory off": views.pop("sinks dropped"), "memory on": (ours, "own")}
    each = zip(documents, cuts, strict=True)
    originals = [decode(tokens[cut:][: greedy.max_tokens]) for tokens, cut in each]
    written, alike = [], []
    for variant, mode in views.values():
        run = open_run(groups[variant][seed].workdir)
        tails = Generator.of(run)(openings, dataclasses.replace(greedy, sinks=mode))
        written.append([decode(tail.tokens) for tail in tails])
        pairs = zip(written[-1], originals, strict=True)
        alike.append(np.mean([report.share_alike(*pair) for pair in pairs]))
    shown = list(zip(openings, originals, *written, strict=True))[:STORIES_SHOWN]
    shares = ", ".join(f"{of:.0%} ({view})" for view, of in zip(views, alike, strict=True))
    rows = [
        [f"{report.text(decode(start))} …", *(report.marked_like(one, original) for one in each)]
        for start, original, *each in shown
    ]
    return [
        report.paragraph(f"""Greedy continuations of the first words of repeated documents (seed
            {seed}). Marked: words that the original has at the same place. Over all
            {len(documents)} repeated documents these are {shares} of the original's words."""),
        report.table(["opening", *views], rows, ["note", *("" for _ in views)]),
    ]


def token_by_token(runs: list[Run], out: pathlib.Path) -> list[str]:
    """Writes explore.html for the sink model of the first seed -> a link to it."""
    from memsinks_jax.measures.explore import explore  # jax takes seconds to import

    places = {variant: group[runs[0].seed].workdir for variant, group in by_variant(runs).items()}
    if not (ours := _ours(places)):
        return []
    try:
        oracle = places.get("no_repeat", places.get("no_repeat_steps"))
        found = explore(places[ours], standard=places.get("standard"), oracle=oracle)
    except InputError as error:
        return [note(f"No page of documents, token by token: {error}.")]
    explore_page.write(out / "explore.html", found, f"What {places[ours].name} remembers")
    return [
        report.link("explore.html", "Token by token: what the model remembers, and in which sinks")
    ]


def _ours(variants: Collection[str]) -> str:
    """The model with sinks that is shown; empty if there is none."""
    return next((one for one in ("sinks", "context") if one in variants), "")


def _end_of_word(tokenizer: AnyTokenizer, tokens: np.ndarray, at_least: int) -> int:
    """Tokens, >= at_least, of an opening of whole words: the rest starts with a word."""
    for cut in range(at_least, len(tokens)):
        before, after = tokenizer.decode(tokens[:cut]), tokenizer.decode(tokens[: cut + 1])
        if after[len(before) :].startswith((" ", "\n")):
            return cut
    return at_least


def mean_over_seeds(runs: list[Run]) -> str:
    """'Mean over 3 seeds', the start of a note."""
    seeds = len({run.seed for run in runs})
    return f"Mean over {seeds} seed{'s' if seeds > 1 else ''}"


def floor_sentence(runs: list[Run]) -> str:
    floors = [run.metrics["entropy_floor"] for run in runs if "entropy_floor" in run.metrics]
    if not floors:
        return "The entropy of this text is not known, so no floor is drawn."
    mean = np.mean(floors)
    return (
        f"No model can be below the entropy floor on held-out stories: {mean:.3f} nats per token."
    )


def _rows(config: Config) -> str:
    data = config.data
    return f"{data.rows} of {data.row_length} tokens, batch {config.training.batch_size}"


def _slows_at(config: Config) -> str:
    slows_at, power = config.sinks.slows_at, config.sinks.slowing_power
    if not slows_at:
        return "never"
    return f"from encounter {slows_at} on, ({slows_at} / encounter)^{power:g} as much"


def _share_on(config: Config) -> str:
    from memsinks_jax.sinks.kinds import partition, share_on  # jax takes seconds to import

    return f"{share_on(config.sinks, partition(config.model, config.sinks).sinks):g}"


def with_intervals(
    columns: Sequence[str],
    rows: dict[str, Iterable[Sequence[float]]],
    digits: int = 3,
    of: str = "",
) -> str:
    """{label: one sequence of values per column} as means with intervals; `of` heads the labels."""
    cells = [
        [label, *(with_interval(values, digits) for values in row)] for label, row in rows.items()
    ]
    return report.text_table([of, *columns], cells, len(columns))


def left_open(rows: list[list[str]] | str) -> str:
    """A table of what the paper leaves open; `rows` may be written as text."""
    rows = report.rows(rows) if isinstance(rows, str) else rows
    return report.text_table(["the paper leaves open", "here"], rows)


def choices(runs: list[Run], further: str = "") -> list[str]:
    """What the paper leaves open, and the choices made; `further` rows of a figure."""
    more = [left_open(further)] if further else []
    return [report.heading("Choices"), open_choices(runs), *more]


def open_choices(runs: list[Run]) -> str:
    """The choices of all figures."""
    every = [workdirs.read_config(run.workdir) for run in runs]
    configs = [config for config in every if config.sinks.traits.owned] or every

    def shown(of) -> str:
        # one, unless the figure varies it
        return ", ".join(sorted({str(of(config)) for config in configs}))

    choices = report.rows(f"""
        active_fraction | {shown(_share_on)} of the sinks are on for a document (the paper's p)
        when sinks open | at a document's encounter {shown(lambda c: c.sinks.opens_at)}; the paper's
            at the first
        when a document trains the shared neurons less | {shown(_slows_at)}; the paper's never
        sampling | {shown(lambda c: c.sinks.sampling)}
        masks of the layers | the same in all
        rescaling when sinks are dropped | none, unless a row says so
        ids | {shown(lambda c: c.data.ids)}, 64 bits; schedule of repeats:
            {shown(lambda c: c.data.schedule or "the usual one")}
        rows | {shown(_rows)}; attention stays within a document
    """)
    if share := max(run.metrics.get("truncated_share", 0) for run in runs):
        truncated = f"truncated: {share:.1%} of the training tokens are never read"
        choices.append(["documents over a row", truncated])
    if any(config.data.repeats_at_most == 0 for config in every):
        budgets = "the same epochs, and the same steps: two variants"
        choices.append(["budget without repeats", budgets])
    return left_open(choices)
