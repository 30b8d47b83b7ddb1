"""All figures on one page: every claim, and links to all figures."""

import pathlib

from memsinks_jax.reporting import report
from memsinks_jax.reporting.claims import Claim, summary

TITLE = "Memorization Sinks, reproduced: every claim of the paper"


def write(
    out: pathlib.Path, figures: dict, contents: dict[str, dict], about: dict, command: str
) -> dict:
    """Writes index.html and results.json, with the claims of all figures -> its content.

    Args:
      figures: {name: Figure}, whose pages are in out/figure_NAME.
      contents: the results.json of each.
      about: the first entries of results.json.
    """
    claims = {
        name: [Claim.from_dict(claim) for claim in content["claims"]]
        for name, content in contents.items()
    }
    sections = []
    for name, of_figure in claims.items():
        link = _page(name)
        sections += [
            report.heading(figures[name].title),
            report.paragraph(figures[name].answer),
            f"<p>Claims: {summary(of_figure)}. {report.link(link, f'The page of {name}')}</p>",
        ]
    every = [claim for of_figure in claims.values() for claim in of_figure]
    columns, lines = report.claims_table(every)
    names = [name for name, of_figure in claims.items() for _ in of_figure]
    rows = [
        [report.link(_page(name), name), *map(report.text, line)]
        for name, line in zip(names, lines, strict=True)
    ]
    seeds = len(about["seeds"])
    content = {
        **about,
        "figures": {name: f"figure_{name}/results.json" for name in contents},
        "runs": [],
        "claims": [
            {**c.to_dict(), "id": f"{name}: {c.id}"}
            for name, of_figure in claims.items()
            for c in of_figure
        ],
    }
    report.write_json(out / "results.json", content)
    report.write_page(
        out / "index.html",
        TITLE,
        [
            report.paragraph(
                f"Claims: {summary(every)}, over {seeds} seed{'s' if seeds > 1 else ''}. With "
                "several seeds a claim "
                "holds when its whole interval does.",
                "lead",
            ),
            report.table(["figure", *columns], rows, ["", *report.CLAIM_KINDS[: len(columns)]]),
            *sections,
            report.heading("How it was made"),
            report.code(command),
        ],
    )
    return content


def _page(figure: str) -> str:
    return f"figure_{figure}/index.html"
