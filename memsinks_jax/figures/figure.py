"""What a figure is: a module of this folder exports one, as FIGURE."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence

from memsinks_jax.figures.runs import Run, Variation
from memsinks_jax.reporting.claims import Claim


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of the paper, or a study: what it trains, what it measures, what its page shows.

    Attributes:
      answer: opens the page.
      variants: names of variants, or {name: Variation} where something else is varied; () trains nothing.
      config: file of configs/ that the variants are of.
      prepare: writes the files that the runs read -> flags for all runs.
      measure: measures the trained models further -> the same runs, with `details`.
      table: final numbers -> (names of columns, rows); a cell holds a value a seed. `row_labels` are of its rows.
      draw: writes the picture to a path. `note` stands under it, `table_note` under the table.
      sections: what the page shows besides; may write into the figure's folder.
      published: compares with a pretrained model, the folder of --hf -> sections. None: --hf is refused.
      make: does all of it where no model is trained: (first entries of results.json, folder, command) -> results.json.
    """

    title: str
    answer: str
    variants: Sequence[str] | dict[str, Variation] = ()
    config: str = ""
    prepare: Callable[[pathlib.Path], list[str]] = lambda out: []
    measure: Callable[[list[Run]], list[Run]] = lambda runs: runs
    claims: Callable[[list[Run]], list[Claim]] | None = None
    table: Callable[[list[Run]], tuple[list[str], list[list[list[float]]]]] | None = None
    row_labels: Callable[[list[Run]], list[str]] | None = None
    table_note: str = ""
    draw: Callable[[list[Run], pathlib.Path], None] | None = None
    note: Callable[[list[Run]], str] | None = None
    sections: Callable[[list[Run], pathlib.Path], list[str]] | None = None
    published: Callable[[str], list[str]] | None = None
    make: Callable[[dict, pathlib.Path, str], dict] | None = None

    @property
    def variations(self) -> dict[str, Variation]:
        """What is trained, by name."""
        given = self.variants
        return dict(given) if isinstance(given, dict) else {name: Variation(name) for name in given}
