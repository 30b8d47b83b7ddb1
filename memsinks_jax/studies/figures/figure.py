"""The type of a figure. A module of this folder exports one as FIGURE."""

import dataclasses
import pathlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

from memsinks_jax import plugin
from memsinks_jax.reporting import report
from memsinks_jax.reporting.claims import Claim
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.studies.figures import sections as shared
from memsinks_jax.studies.figures.panels import Panel, draw
from memsinks_jax.studies.figures.runs import Run, Variation
from memsinks_jax.studies.figures.table import Measures, Names, Table

Labels = dict[str, str]  # of rows, by variant or view


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of the paper, or a study: what it trains, what it measures, what its page shows.

    Attributes:
      answer: opens the page.
      variants: names of variants, or {name: Variation} if something else is varied; () trains
        nothing.
      config: file of configs/ with the variants.
      prepare: writes the files that the runs read -> flags for all runs.
      prepare_for: the same for a study of the user's own files: (its folder, the request of
        `reproduce`) -> flags.
      measure: further measures of the trained models -> the same runs, with `details`.
      views: of a run -> {name: metrics} of what is seen of it besides, as if these were runs, such
        as with its sinks off.
      seen: names of all views. `metrics`: names of what runs or views have measured besides
        `table.METRICS`. measures, standard_of: of `figures.table.Table`, over which all below are
        expressions.
      columns: {name: expression} of the page's table, which has a row per variant.
      labels: of the rows, if other than the variant's name. With `views`, names all rows.
      table_note: the text under the table.
      statements: the claims, written as rows of `Table.claims`.
      paper: what the paper says of claims, where a claim has no text of its own.
      across: of all runs -> functions whose lists of values claims are about, if these are not
        paired by seed.
      panels: of the picture, given the table, in so many `rows`; `size` and `sharey` are
        matplotlib's.
      note: the text under the picture, with {mean}, {floor}, fields of the first run's config, and
        settings of its schedule
        such as {config.seed}.
      sections: further sections of the page; may write into the figure's folder.
      published: compares with a pretrained model, the folder of --hf -> sections. None: --hf is
        refused.
      make: does everything if no model is trained: (first entries of results.json, folder, command)
        -> results.json.
    """

    title: str
    answer: str
    variants: Sequence[str] | dict[str, Variation] = ()
    config: str = "ts_repetition.py"
    prepare: Callable[[pathlib.Path], list[str]] = lambda out: []
    prepare_for: Callable[[pathlib.Path, Any], list[str]] | None = None
    measure: Callable[[list[Run]], list[Run]] = lambda runs: runs
    views: Callable[[Run], dict[str, dict[str, float]]] | None = None
    seen: Collection[str] = ()
    metrics: Collection[str] = ()
    measures: Measures = dataclasses.field(default_factory=dict)
    standard_of: Callable[[str], str] = lambda variant: "standard"
    columns: dict[str, str] = dataclasses.field(default_factory=dict)
    labels: Labels | Callable[[Table], Labels] = dataclasses.field(default_factory=dict)
    table_note: str = ""
    statements: str = ""
    paper: str = ""
    across: Callable[[list[Run]], dict[str, Callable]] | None = None
    panels: Callable[[Table], Sequence[Panel | Callable]] = lambda table: ()
    size: tuple[float, float] = (15, 4.4)
    rows: int = 1
    sharey: bool = False
    note: str | Callable[[list[Run]], str] = ""
    sections: Callable[[list[Run], pathlib.Path], list[str]] = lambda runs, _: shared.choices(runs)
    published: Callable[[str], list[str]] | None = None
    make: Callable[[dict, pathlib.Path, str], dict] | None = None

    @property
    def variations(self) -> dict[str, Variation]:
        """The variations to train, by name."""
        given = self.variants
        return dict(given) if isinstance(given, dict) else {name: Variation(name) for name in given}

    def of(self, runs: list[Run]) -> Table:
        seen = [
            dataclasses.replace(run, variant=name, metrics=metrics)
            for run in (runs if self.views else ())
            for name, metrics in self.views(run).items()
        ]
        across = self.across and self.across(runs)
        return Table([*runs, *seen], self.measures, self.standard_of, across)

    def names(self) -> Names:
        """What it could show."""
        variants, across = [*self.variations, *self.seen], self.across and self.across([])
        return Names(variants, self.metrics, self.measures, self.standard_of, across)

    def check(self) -> None:
        """Raises InputError if anything shown names a variant or a measure that does not exist."""
        names = self.names()
        names.claims(self.statements)
        labels = self.labels(names) if callable(self.labels) else self.labels
        for variant in labels if self.views else (*self.variations, *labels):
            for shown in self.columns.values():
                names.column(shown, variant)
        for panel in self.panels(names):
            if isinstance(panel, Panel):
                panel.check(names)

    def table(self, runs: list[Run]) -> tuple[list[str], list[str], list[list[list[float]]]]:
        """Final numbers -> (columns, labels of the rows, rows of cells with a value per seed)."""
        table = self.of(runs)
        labels = self.labels(table) if callable(self.labels) else self.labels
        rows = labels if self.views else {of: labels.get(of, of) for of in table.groups}
        cells = [[table.column(shown, of) for shown in self.columns.values()] for of in rows]
        return list(self.columns), list(rows.values()), cells

    def claims(self, runs: list[Run]) -> list[Claim]:
        """All claims; those about what was not run are not decided."""
        return self.of(runs).claims(self.statements, self.paper)

    def draw(self, runs: list[Run], path: pathlib.Path) -> None:
        table = self.of(runs)
        draw(table, self.panels(table), path, self.size, self.sharey, self.rows)

    def note_text(self, runs: list[Run]) -> str:
        """The text under the picture."""
        note = self.note(runs) if callable(self.note) else self.note
        config = workdirs.read_config(runs[0].workdir) if "{config" in note else None
        mean, floor = shared.mean_over_seeds(runs), shared.floor_sentence(runs)
        schedule = config and plugin.schedule(config).settings
        text = note.format(mean=mean, floor=floor, config=config, schedule=schedule)
        there = {run.variant for run in runs}
        if missing := [name for name in self.variations if name not in there]:
            text += f" Not run: {', '.join(missing)}."
        return " ".join(text.split())

    def final_numbers(self, runs: list[Run]) -> tuple[list[str], list[list[str]]]:
        """The same table as text -> (columns, rows)."""
        columns, labels, rows = self.table(runs)
        named = zip(labels, rows, strict=True)
        return ["variant", *columns], [[of, *report.numbers(columns, row)] for of, row in named]
