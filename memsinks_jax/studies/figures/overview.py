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
    named = [
        (name, Claim.from_dict(claim)) for name, of in contents.items() for claim in of["claims"]
    ]
    every, sections = [claim for _, claim in named], []
    for name in contents:
        of_figure = summary([claim for of, claim in named if of == name])
        link = report.link(_page(name), f"The page of {name}")
        sections += [
            report.heading(figures[name].title),
            report.paragraph(figures[name].answer),
            f"<p>Claims: {of_figure}. {link}</p>",
        ]
    columns, lines = report.claims_table(every)
    rows = [
        [report.link(_page(name), name), *map(report.text, line)]
        for (name, _), line in zip(named, lines, strict=True)
    ]
    seeds = len(about["seeds"])
    lead = f"""Claims: {summary(every)}, over {seeds} seed{"s" if seeds > 1 else ""}. With several
        seeds a claim holds when its whole interval does."""
    content = {
        **about,
        "figures": {name: f"figure_{name}/results.json" for name in contents},
        "runs": [],
        "claims": [{**claim.to_dict(), "id": f"{name}: {claim.id}"} for name, claim in named],
    }
    table = report.table(["figure", *columns], rows, ["", *report.CLAIM_KINDS[: len(columns)]])
    made = [report.heading("How it was made"), report.code(command)]
    report.write_json(out / "results.json", content)
    sections = [report.paragraph(lead, "lead"), table, *sections, *made]
    report.write_page(out / "index.html", TITLE, sections)
    return content


def _page(figure: str) -> str:
    return f"figure_{figure}/index.html"
