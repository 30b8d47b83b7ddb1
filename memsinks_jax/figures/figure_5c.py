"""Figure 5c: noisy ids. How often may a repeated document come with a wrong id?"""

import pathlib

from memsinks_jax.figures import knob, losses, on_return
from memsinks_jax.figures.figure import Figure
from memsinks_jax.figures.runs import Run, Variation
from memsinks_jax.reporting.claims import Claim

TITLE = "Figure 5c: repeated documents under inconsistent ids"
CONFIG = "ts_repetition.py"
SINKS = {f"noise_{chance}": chance for chance in (0.0, 0.05, 0.1, 0.2, 0.5)}
# One reading of the paper's caption: some documents always have a wrong id, the others never.
DOCUMENTS = {f"documents_{chance}": chance for chance in (0.1, 0.5)}
VARIANTS = on_return.both(
    {"standard": Variation("standard")}
    | {name: Variation("sinks_paper", {"data.id_noise": chance}) for name, chance in SINKS.items()}
    | {
        name: Variation("sinks_paper", {"data.id_noise": chance, "data.id_noise_per": "document"})
        for name, chance in DOCUMENTS.items()
    }
)
ANSWER = (
    "A repeated document with a wrong id gets other sinks than before, and the shared neurons learn some of it. The harm "
    "depends on the pattern of the errors: every document has a wrong id now and then, or some documents always have one."
)
TABLE_NOTE = knob.TABLE_NOTE


def row_labels(runs: list[Run]) -> list[str]:
    labels = {name: f"sinks, noise {chance:g} an encounter" for name, chance in SINKS.items()}
    labels |= {name: f"sinks, {chance:.0%} of the documents" for name, chance in DOCUMENTS.items()}
    return on_return.labels(runs, labels)


def draw(runs: list[Run], path: pathlib.Path) -> None:
    knob.draw(
        runs, path, SINKS, lambda variant: "standard", "id noise", label="an encounter",
        other={"noise_0.0": 0.0, **DOCUMENTS}, other_label="that share of the documents, always",
    )  # fmt: skip


@on_return.beside
def claims(runs: list[Run]) -> list[Claim]:
    """Section 5.3, paired by seed: holds up to 10%, fails at 50%."""

    def kept(noisy: Run, clean: Run, standard: Run) -> float:
        return losses.gap_closed(noisy, standard) / losses.gap_closed(clean, standard)

    wanted = ((0.1, "holds up to 10%", {"at_least": 0.8}), (0.5, "fails at 50%", {"at_most": 0.5}))
    readings = (
        ("noise", "of the encounters under a wrong id"),
        ("documents", "of the documents always under wrong ids"),
    )
    return [
        claim
        for name, reading in readings
        for chance, paper, bound in wanted
        for claim in losses.paired(
            runs, f"{name}_{chance}", f"share of the gap closed with {chance:.0%} {reading} over that with none", paper,
            [f"{name}_{chance}", "noise_0.0", "standard"], kept, **bound,
        )
    ]  # fmt: skip


FIGURE = Figure(
    title=TITLE, config=CONFIG, variants=VARIANTS, answer=ANSWER, table_note=TABLE_NOTE,
    table=lambda runs: losses.table(runs, lambda variant: "standard"),
    row_labels=row_labels, claims=claims, draw=draw, note=knob.note, sections=knob.sections,
)  # fmt: skip
