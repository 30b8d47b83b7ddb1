"""The report page of an edit: where a step helps, how far it reaches, all answers before and
after.
"""

import pathlib

from memsinks_jax.editing import pictures
from memsinks_jax.editing.search import Edit, Wish
from memsinks_jax.models.trained import Trained
from memsinks_jax.reporting import report


def sections(
    run: Trained, wish: Wish, found: Edit, rows, result: dict, scratch: pathlib.Path, out
) -> list[str]:
    words = ["start"] + [
        run.tokenizer.decode(token[None]) for token in run.tokenizer.encode(wish.prompt)
    ]
    pictures.draw_maps({wish.site: found.map}, words, wish.target, scratch / "map.png")
    shown = [
        report.paragraph(
            f"One memory at the {wish.site} of layer {result['layer']}: a step of "
            f"{result['step']:.3g} against the gradient of the target's loss, with a bound of "
            f"{result['boundary']:.3g}. The loss of “{wish.target.strip()}” goes from "
            f"{result['loss_before']:.2f} to {result['loss_after']:.2f} nats.",
            "lead",
        ),
        report.heading("Where a step helps"),
        report.picture(
            scratch / "map.png",
            f"Loss of “{wish.target.strip()}” by layer and token when that one activation is "
            "moved; a ring where the model then predicts it.",
        ),
        report.paragraph(
            "Each cell is the model with only one activation moved. Ring: it predicts the target.",
            "note",
        ),
    ]
    if found.swept is not None:
        pictures.draw_sweep(found.swept, result["boundary"], scratch / "sweep.png")
        shown += [
            report.heading("How far it reaches"),
            report.picture(
                scratch / "sweep.png",
                f"Two curves over the bound, whose chosen value is {result['boundary']:.3g}: the "
                "shares of positive prompts that predict the target and negative ones that answer "
                "as before.",
            ),
            report.paragraph(
                "The bound is chosen on all prompts. In cross-validation, where the bound for "
                f"each prompt is that of the others, {result['on_target']:.0%} of the positive "
                f"ones predict the target, {result['unchanged']:.0%} of the negative ones answer "
                f"as before, and {result['off_target']:.0%} do not predict the target.",
                "note",
            ),
        ]
    pictures.draw_similarities(rows, scratch / "similarities.png")
    numbers = ("loss_before", "loss_after", "distance", "similarity")
    cells = [
        [report.text(row[name]) for name in ("kind", "prompt", "before", "after")]
        + [f"{row[n]:.3f}" for n in numbers]
        for row in rows
    ]
    columns = ["", "prompt", "before", "after", "loss before", "loss after", "distance", "f"]
    return [
        *shown,
        report.heading("What the model predicts after the prompts"),
        report.picture(
            scratch / "similarities.png",
            "A bar for each prompt: how much of the memory is added, from 0 (none) to 1 (all of "
            "it).",
        ),
        report.table(columns, cells, ["note", "", "", "", *["number"] * 4]),
        report.paragraph(
            "Loss: of the target's first token, in nats. Distance: of the nearest token from the "
            "key. f: how much of the memory is added there; 1 is all of it.",
            "note",
        ),
        report.heading("To use it"),
        report.code(
            f"python -m memsinks_jax.generate --workdir=... --memory={out} --prompt='{wish.prompt}'"
        ),
    ]
