"""Figure 5c: noisy ids. How often may a repeated document come with a wrong id?"""

from memsinks_jax.studies.figures import knob
from memsinks_jax.studies.figures.figure import Figure
from memsinks_jax.studies.figures.runs import Variation
from memsinks_jax.studies.figures.table import KINDS, Statement

NOISE = {f"noise_{chance}": chance for chance in (0.0, 0.05, 0.1, 0.2, 0.5)}
# One reading of the paper's caption: some documents always have a wrong id, the others never.
DOCUMENTS = {f"documents_{chance}": chance for chance in (0.1, 0.5)}
_SETTINGS = {name: {"data.id_noise": chance} for name, chance in NOISE.items()} | {
    name: {"data.id_noise": chance, "data.id_noise_per": "document"} for name, chance in DOCUMENTS.items()
}
_SAID = {name: f"noise {chance:g} an encounter" for name, chance in NOISE.items()} | {
    name: f"{chance:.0%} of the documents" for name, chance in DOCUMENTS.items()
}

FIGURE = Figure(
    title="Figure 5c: repeated documents under inconsistent ids",
    answer=(
        "A repeated document with a wrong id gets other sinks than before, and the shared neurons learn some of it. The "
        "harm depends on the pattern of the errors: every document has a wrong id now and then, or some documents always "
        "have one."
    ),
    config="ts_repetition.py",
    variants={"standard": Variation("standard")} | {
        f"{kind}_{name}": Variation(kind, settings) for kind in KINDS for name, settings in _SETTINGS.items()
    },
    columns=knob.COLUMNS,
    labels={f"{kind}_{name}": f"sinks, {of}{said}" for kind, said in KINDS.items() for name, of in _SAID.items()},
    table_note=knob.TABLE_NOTE,
    statements=[
        Statement(
            f"{name}_{chance}", f"share of the gap closed with {chance:.0%} {reading} over that with none", paper,
            f"{{sinks}}_{name}_{chance}.closed / {{sinks}}_noise_0.0.closed", **bound,
        )
        for name, reading in (
            ("noise", "of the encounters under a wrong id"), ("documents", "of the documents always under wrong ids"),
        )
        for chance, paper, bound in ((0.1, "holds up to 10%", {"at_least": 0.8}), (0.5, "fails at 50%", {"at_most": 0.5}))
    ],
    panels=lambda table: knob.panels(table, NOISE, "id noise", further={
        "an encounter": NOISE, "that share of the documents, always": {"noise_0.0": 0.0} | DOCUMENTS,
    }),
    note=knob.NOTE,
)  # fmt: skip
