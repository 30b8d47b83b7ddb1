"""Figure 5c: ids that are sometimes wrong. How often may a repeated document come under another id?"""

import pathlib

from memsinks_jax.claims import Claim
from memsinks_jax.figures import knob, losses
from memsinks_jax.figures.runs import Run, Variation, by_variant

TITLE = "Figure 5c: repeated documents under inconsistent ids"
CONFIG = "ts_repetition.py"
SINKS = {f"noise_{chance}": chance for chance in (0.0, 0.05, 0.1, 0.2, 0.5)}
VARIANTS = {
    "standard": Variation("standard"),
    **{name: Variation("sinks", {"data.id_noise": chance}) for name, chance in SINKS.items()},
}
ANSWER = (
    "Sinks only need to know a repeated document when they see it again most of the time. Whenever its id is wrong, the "
    "document finds sinks that it has not memorized into, and the shared neurons learn some of it."
)
TABLE_NOTE = knob.TABLE_NOTE
note, sections = knob.note, knob.sections


def row_labels(runs: list[Run]) -> list[str]:
    return [f"sinks, noise {SINKS[name]:g}" if name in SINKS else name for name in by_variant(runs)]


def table(runs: list[Run]) -> tuple[list[str], list[list[list[float]]]]:
    return losses.table(runs, lambda variant: "standard")


def draw(runs: list[Run], path: pathlib.Path) -> None:
    knob.draw(runs, path, SINKS, lambda variant: "standard", "id noise")


def claims(runs: list[Run]) -> list[Claim]:
    """Section 5.3, paired by seed: holds up to 10%, fails at 50%."""

    def kept(noisy: Run, clean: Run, standard: Run) -> float:
        return losses.gap_closed(noisy, standard) / losses.gap_closed(clean, standard)

    wanted = ((0.1, "holds up to 10%", {"at_least": 0.8}), (0.5, "fails at 50%", {"at_most": 0.5}))
    return [
        claim
        for chance, paper, bound in wanted
        for claim in losses.paired(
            runs, f"noise_{chance}", f"share of the gap closed with {chance:.0%} of the ids wrong over that with none wrong",
            paper, [f"noise_{chance}", "noise_0.0", "standard"], kept, **bound,
        )
    ]  # fmt: skip
