"""The type of a figure. A module of this folder exports one as FIGURE."""

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
      variants: names of variants, or {name: Variation} if something else is varied; () trains nothing.
      config: file of configs/ with the variants.
      prepare: writes the files that the runs read -> flags for all runs.
      measure: further measures of the trained models -> the same runs, with `details`.
      table: final numbers -> (names of columns, rows); a cell holds one value per seed. `row_labels` label the rows.
      draw: writes the picture to a path. `note` is the text under it, `table_note` that under the table.
      sections: further sections of the page; may write into the figure's folder.
      published: compares with a pretrained model, the folder of --hf -> sections. None: --hf is refused.
      make: does everything if no model is trained: (first entries of results.json, folder, command) -> results.json.
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
        """The variations to train, by name."""
        given = self.variants
        return dict(given) if isinstance(given, dict) else {name: Variation(name) for name in given}
