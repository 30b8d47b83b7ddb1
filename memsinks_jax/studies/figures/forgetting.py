"""What counts as a document? Ids by cluster for edited copies, ids by group to forget whole
dialects.

By content, edited copies have different ids, so none is ever seen twice. By cluster, they are one
document. A group has sinks like a document, and these learn what only its stories share: dropping
them should remove that and keep the other groups. The corpus is that of `forgetting_corpus`; every
variant reads all of it.
"""

import dataclasses
import logging
import pathlib
from collections.abc import Sequence

import numpy as np

from memsinks_jax.data.prepared import Prepared, group_id
from memsinks_jax.reporting import report
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.studies.figures import forgetting_corpus as corpus
from memsinks_jax.studies.figures import sections as shared
from memsinks_jax.studies.figures.figure import Figure
from memsinks_jax.studies.figures.panels import AnyPanel, Line, Matrix, Panel
from memsinks_jax.studies.figures.runs import Run, Variation, by_variant
from memsinks_jax.studies.figures.table import Table

logger = logging.getLogger(__name__)

VARIANTS = {
    "standard": Variation("standard"),
    "content": Variation("sinks_paper"),
    "near_duplicate": Variation("sinks_paper", {"data.ids": "near_duplicate"}),
    "group": Variation("sinks_paper", {"data.ids": "group"}),
}
_LABELS = {"standard": "standard", "content": "sinks, ids by content"}
_LABELS |= {"near_duplicate": "sinks, ids by cluster", "group": "sinks, ids by group"}
# At 0 stories are repeated unchanged.
_EDITED = (0.0, *corpus.LEVELS)
_MEASURED = 16  # copies per story
_MEASURABLE = 1e-4  # nats per token; lower limit of the others' rise
_OF_A_DIALECT = 30  # stories of each kind, measured once for every dialect that is removed
_COLOURS = {"standard": "#c0392b", "content": "#d68910", "near_duplicate": "#1f618d"}


def prepare(out: pathlib.Path) -> list[str]:
    """Writes and prepares the corpus -> the flags that name it."""
    stories, mixed = corpus.write(out / "corpus")
    settings = {
        "data.files": stories,
        "general.files": mixed,
        "data.repeated_documents": corpus.BASES,
        "data.repetitions": corpus.COPIES,
        "data.unique_documents": corpus.ONCE,
        "data.held_out_documents": corpus.UNREAD,
    }
    return [f"--config.{name}={value}" for name, value in settings.items()]


def measure(runs: list[Run]) -> list[Run]:
    """Adds losses of copied stories to `metrics`; matrices, if ids are groups, to `details`."""
    texts = _texts()
    return [_measured(run, texts) for run in runs]


def _measured(run: Run, texts: dict[str, list[str]]) -> Run:
    # Imported here: jax takes seconds to import, and only measuring needs it.
    from memsinks_jax.measures.document_loss import DocumentLoss
    from memsinks_jax.measures.documents import Documents
    from memsinks_jax.models.trained import open_run

    model = open_run(run.workdir)
    loss = DocumentLoss(model.config)

    def documents(texts: list[str], identity: Sequence[int] = (0, 0)) -> Documents:
        identities = np.tile(np.uint32(identity), (len(texts), 1))
        return Documents([model.tokenizer.encode(text) for text in texts], identities)

    def dropped(texts: list[str]) -> float:
        nats, tokens = loss(model.params, documents(texts).batches(model), "drop")
        return float(nats.sum() / tokens.sum())

    metrics = {name: dropped(of_set) for name, of_set in texts.items()}
    details = {}
    if model.config.data.ids == "group":
        details = _matrices(model, loss, documents)
        metrics |= {f"ratio_{name}": _ratio(np.array(details[name])) for name in ("read", "unread")}
    logger.info("measured %s, seed %d", run.variant, run.seed)
    return dataclasses.replace(run, metrics=run.metrics | metrics, details=details)


def _texts() -> dict[str, list[str]]:
    """Sets of texts by the name of their loss: never read, copied, and the copies themselves."""
    plain, _, bases = corpus.texts()
    words = [word for text in plain for word in text.split()]
    fresh = plain[-corpus.HELD_OUT :]
    found = {"unread": fresh}
    for level, of_level in bases.items():
        found[f"copied_{level}"] = of_level
        sets = {"copies": (of_level, 0, _MEASURED), "unread_copies": (fresh, corpus.BASES, 1)}
        for name, (of, first, count) in sets.items():
            copies = [
                corpus.copies(text, level, words, number, count)
                for number, text in enumerate(of, first)
            ]
            found[f"{name}_{level}"] = sum(copies, [])
    return found


def _matrices(model, loss, documents) -> dict:
    """{"read", "unread": rise of each dialect's loss (row: dropped, column: measured), "before",
    "plain": of stories in no dialect}, with the stories' own sinks on, in nats per token.
    """
    from memsinks_jax.forgetting import neurons

    plain, dialects, _ = corpus.texts()
    sets = {"read": [], "unread": [], "plain": [("plain", plain[-corpus.HELD_OUT :])]}
    for name, texts in dialects.items():
        sets["read"].append((name, texts))
        sets["unread"].append((name, texts[corpus.OF_A_DIALECT :]))

    def batches_of(name: str, texts: list[str]) -> list[dict]:
        return documents(texts[:_OF_A_DIALECT], group_id(name)).batches(model)

    batches = {kind: [batches_of(*one) for one in each] for kind, each in sets.items()}

    def measured(params: dict, kind: str) -> np.ndarray:
        nats_and_tokens = [loss(params, one, "own") for one in batches[kind]]
        return np.array([nats.sum() / tokens.sum() for nats, tokens in nats_and_tokens])

    before = {kind: measured(model.params, kind) for kind in sets}
    found = {f"{kind}_before": before[kind].tolist() for kind in sets} | {kind: [] for kind in sets}
    for name in dialects:
        removed = neurons.neurons_of(model.config, group_id(name)[None])
        after = neurons.without(model.config, model.params, removed)
        for kind in sets:
            found[kind].append((measured(after, kind) - before[kind]).tolist())
    return found


def _ratio(rises: np.ndarray) -> float:
    """Mean of the diagonal over mean of the rest, which counts as at least _MEASURABLE."""
    own = np.eye(len(rises), dtype=bool)
    return float(rises[own].mean() / max(rises[~own].mean(), _MEASURABLE))


def _gap(run: Run, level: float, copies: bool = False) -> float:
    """How much lower the loss is on copied stories, or the copies, than on unread ones alike."""
    if not level:
        return run.metrics["held_out_loss"] - run.metrics["repeated_loss"]
    if copies:
        return run.metrics[f"unread_copies_{level}"] - run.metrics[f"copies_{level}"]
    return run.metrics["unread"] - run.metrics[f"copied_{level}"]


def _closed(run: Run, standard: Run, level: float, copies: bool = False) -> float:
    """Share of the standard model's gap that is closed."""
    return 1 - _gap(run, level, copies) / _gap(standard, level, copies)


# None is in the paper, which wants ids of groups (section 7) and has no near-duplicates.
_STATEMENTS = "".join(
    f"""
cluster_{level} | original of copies with {level:.0%} of the words edited: share of standard's gap
    closed, ids by cluster | closed_at(near_duplicate, standard, {level}) >= 0.5
over_content_{level} | the same, minus what ids by content close
    | closed_at(near_duplicate, standard, {level}) - closed_at(content, standard, {level}) >= 0.1"""
    for level in corpus.LEVELS
) + "".join(
    f"""
group_{kind} | stories {kind}: rise of the dropped dialect's loss over that of the others'
    | group.ratio_{kind} >= 3 | future work"""
    for kind in ("read", "unread")
)


def panels(table: Table) -> list[AnyPanel]:
    """Loss on copied stories and gap closed, by the share edited; the dialects' matrix."""
    standard, grouped = table.groups.get("standard", {}), table.groups.get("group", {})

    def losses(run: Run):
        copied = [run.metrics[f"copied_{level}"] for level in corpus.LEVELS]
        return _EDITED, [run.metrics["repeated_loss"], *copied]

    def unread(run: Run):
        return _EDITED, [run.metrics["unread"]] * len(_EDITED)

    def closed(levels: Sequence[float], copies: bool):
        def of(run: Run):
            return levels, [_closed(run, standard[run.seed], level, copies) for level in levels]

        return of

    lines, shares = [], []
    for name, colour in _COLOURS.items():
        label = _LABELS[name]
        lines += [
            Line(name, losses, label, colour, "o-"),
            Line(name, unread, f"{label}: stories never read", colour, ":"),
        ]
        if standard and name != "standard":
            shares += [
                Line(name, closed(_EDITED, False), f"{label}: story", colour, "o-"),
                Line(name, closed(corpus.LEVELS, True), f"{label}: copies", colour, "s--"),
            ]
    ticks = {level: f"{level:.0%}" for level in _EDITED}
    both = {"x": "share of a copy's words that are others", "ticks": ticks}
    rises = [run.details["unread"] for run in grouped.values()]
    return [
        Panel(
            title="loss on the story that was copied",
            y="loss (nats per token), sinks dropped",
            **both,
            lines=lines[::2] + lines[1::2],
            legend={"loc": "lower right"},
        ),
        Panel(
            title="share of the gap closed",
            levels={0: "#7f8c8d"},
            settings={"ylim": (-0.3, 1.1)},
            **both,
            lines=shares,
            legend={"loc": "upper right"},
        ),
        Matrix(
            title="rise of the loss (nats per token)",
            x="measured",
            y="removed",
            rows=corpus.DIALECTS,
            columns=corpus.DIALECTS,
            values=np.mean(rises, axis=0),
        )
        if grouped
        else lambda axis: axis.set_axis_off(),
    ]


def sections(runs: list[Run], out: pathlib.Path) -> list[str]:
    """Which copies were found, and what removing a dialect costs."""
    files = workdirs.read_config(runs[0].workdir).general.files
    found = [
        [f"{level:.0%}", f"{share:.2f}", f"{others:.2f}"]
        for level, share, others in _clusters_of(files)
    ]
    columns = ["words edited", "in the story's largest cluster", "foreign documents in it"]
    parts = [
        report.heading("Which copies were found"),
        report.text_table(columns, found, 3),
        shared.note(f"""Of {corpus.COPIES} copies, mean over {corpus.BASES} stories; prepared with
            --near_duplicates=loose, among all other stories."""),
    ]
    grouped = list(by_variant(runs).get("group", {}).values())
    if grouped:
        own, rows = np.eye(len(corpus.DIALECTS), dtype=bool), {}
        for kind, what in (("read", "stories it read"), ("unread", "stories it never read")):
            of_runs = []
            for run in grouped:
                rises = np.array(run.details[kind])
                kinds = (rises[own], rises[~own], run.details["plain"])
                means = (float(np.mean(of)) for of in kinds)
                of_runs.append((run.metrics[f"ratio_{kind}"], *means))
            rows[what] = zip(*of_runs, strict=True)
        columns = ["removed over others", "removed dialect", "other dialects", "plain stories"]
        title = "A dialect is removed: rise of the loss, in nats per token"
        parts += [report.heading(title), shared.with_intervals(columns, rows)]
    return parts


def _clusters_of(files: str) -> list[tuple[float, float, float]]:
    """(level, share of a story's copies in their largest cluster, other documents there)"""
    mixed = Prepared(files)
    names = np.array(mixed.group_names)[mixed.groups]
    found = []
    for level in corpus.LEVELS:
        shares, foreign = [], []
        for number in range(corpus.BASES):
            of_story = np.char.startswith(names, f"copy {level} {number} ")
            clusters, sizes = np.unique(mixed.clusters[of_story], return_counts=True)
            shares.append(sizes.max() / of_story.sum())
            foreign.append((mixed.clusters == clusters[sizes.argmax()]).sum() - sizes.max())
        found.append((level, float(np.mean(shares)), float(np.mean(foreign))))
    return found


FIGURE = Figure(
    title="Ids of clusters and of groups: edited copies, and dialects that are forgotten",
    answer="""With ids by content, every edited copy has other sinks, and the shared neurons
        memorize what the copies have in common. With ids by cluster, the copies share sinks, as
        exact repeats do. A group's sinks hold what its stories have in common.""",
    variants=VARIANTS,
    prepare=prepare,
    measure=measure,
    metrics=["unread", "ratio_read", "ratio_unread"]
    + [f"{name}_{of}" for of in corpus.LEVELS for name in ("copied", "copies", "unread_copies")],
    measures={"closed_at": _closed, "metric": lambda run, name: run.metrics[name]},
    columns={
        "never read": "unread",
        "repeated": "repeated_loss",
        **{f"copied, {level:.0%}": f"metric(run, 'copied_{level}')" for level in corpus.LEVELS},
        **{f"gap closed, {of:.0%}": f"closed_at(run, standard.run, {of})" for of in _EDITED},
    },
    labels=_LABELS,
    table_note="""Nats per token, sinks dropped. Stories copied at 5, 10, 20%: the original of the
        edited copies, which was never read. Gap: between stories never read and these; closed: the
        share of standard's gap that is gone.""",
    statements=_STATEMENTS,
    paper="not asked",
    panels=panels,
    note=f"""{{mean}}, band from the lowest to the highest; the corpus is the same for all seeds.
        Every level has {corpus.BASES} stories, each read {corpus.COPIES} times: unchanged (0%), or
        as many different copies. Each of {len(corpus.DIALECTS)} dialects exchanges
        {corpus.EXCHANGED} common words, in {corpus.OF_A_DIALECT} stories read once. Right: the rise
        of the loss on stories of a dialect, never read, with their own sinks on, when a dialect's
        sinks are removed.""",
    sections=sections,
)
