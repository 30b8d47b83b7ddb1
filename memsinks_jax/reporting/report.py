"""Reports as single HTML files, with the pictures embedded."""

import base64
import html
import inspect
import json
import pathlib
import re

from memsinks_jax.atomic import atomic_file
from memsinks_jax.reporting.claims import Claim, summary, with_interval

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1c2833; max-width: 1060px;
  margin: 2.5em auto; padding: 0 1.2em; }
h1 { font-size: 1.7em; line-height: 1.25; margin-bottom: .3em; }
h2 { font-size: 1.2em; margin: 2em 0 .6em; }
img { width: 100%; } p.lead { font-size: 1.1em; }
p.note, td.note { color: #5d6d7e; font-size: .9em; }
table { border-collapse: collapse; width: 100%; font-size: .92em; }
th { text-align: left; border-bottom: 2px solid #1c2833; padding: .35em .7em .35em 0;
  vertical-align: bottom; }
td { border-bottom: 1px solid #d5d8dc; padding: .35em .7em .35em 0; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
div.wide { overflow-x: auto; }
td.yes { color: #1e8449; font-weight: 600; } td.no { color: #c0392b; font-weight: 600; }
mark { background: #f9d5d0; }
pre { background: #f4f6f7; padding: .8em 1em; overflow-x: auto; font-size: .88em; }
"""


def text(content: str) -> str:
    return html.escape(content)


def paragraph(content: str, kind: str = "") -> str:
    """`content` is text, whose line breaks are spaces; kind is 'lead', 'note' or none."""
    return f'<p class="{kind}">{text(" ".join(content.split()))}</p>'


def heading(content: str) -> str:
    return f"<h2>{text(content)}</h2>"


def link(place: str, content: str) -> str:
    return f'<a href="{text(place)}">{text(content)}</a>'


def picture(path: pathlib.Path, description: str) -> str:
    """`description` is the alternative text."""
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{text(" ".join(description.split()))}" src="data:image/png;base64,{data}">'


def code(content: str) -> str:
    return f"<pre>{text(content)}</pre>"


def table(columns: list[str], rows: list[list[str]], kinds: list[str]) -> str:
    """A table of HTML cells, which scrolls on narrow screens.

    `kinds` gives each column's class: 'number', 'note', '' or 'verdict' for yes, no and other
    words.
    """

    def cell(content: str, kind: str) -> str:
        classes = content if content in ("yes", "no") else "note"
        return f'<td class="{classes if kind == "verdict" else kind}">{content}</td>'

    heads = "".join(
        f'<th class="{kind}">{text(name)}</th>' for name, kind in zip(columns, kinds, strict=True)
    )
    lines = ["".join(map(cell, row, kinds)) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide"><table><tr>{heads}</tr>{body}</table></div>'


def rows(content: str) -> list[list[str]]:
    """A table written as text -> its cells. They are separated by " | "; further lines of a row are
    indented.
    """
    written = re.split(r"\n(?!\s)", inspect.cleandoc(content))
    return [[cell.strip() for cell in " ".join(row.split()).split(" | ")] for row in written if row]


def text_table(columns: list[str], rows: list[list[str]], numbers: int = 0) -> str:
    """A table of text, whose last columns are `numbers`."""
    kinds = [""] * (len(columns) - numbers) + ["number"] * numbers
    return table(columns, [[text(cell) for cell in row] for row in rows], kinds)


# of the columns of `claims_table`
CLAIM_KINDS = ["", "note", "number", "number", "number", "verdict", "number"]


def claims_table(claims: list[Claim]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of text: each claim, what the paper says, the bound, the measured value,
    whether it holds, or why that is not decided.

    If any was also measured for sinks that open on return, a last column has that value.
    """
    rows = [
        [
            claim.statement,
            claim.paper,
            claim.bound,
            "–" if claim.measured is None else f"{claim.measured:.3f}",
            "–" if claim.ci95 is None else f"{claim.ci95[0]:.3f} to {claim.ci95[1]:.3f}",
            claim.verdict,
            with_interval(claim.on_return or []),
        ]
        for claim in claims
    ]
    columns = ["claim", "paper", "to reach", "measured", "95% interval", "holds"]
    if any(claim.on_return for claim in claims):
        columns[3:4], columns[6:] = ["measured (sinks: the paper's)"], ["sinks that open on return"]
    return columns, [row[: len(columns)] for row in rows]


def claims_section(claims: list[Claim]) -> list[str]:
    """Heading and HTML of the same table; what is not decided follows, by its reason."""
    columns, rows = claims_table([claim for claim in claims if not claim.undecided])
    reasons: dict[str, list[str]] = {}
    for claim in filter(lambda claim: claim.undecided, claims):
        reasons.setdefault(claim.undecided, []).append(claim.statement)
    return [
        heading(f"Claims: {summary(claims)}"),
        table(columns, [list(map(text, row)) for row in rows], CLAIM_KINDS[: len(columns)]),
        *(
            paragraph(f"Not decided, since {why}: {'; '.join(of)}.", "note")
            for why, of in reasons.items()
        ),
    ]


def marked_like(written: str, original: str) -> str:
    """HTML of `written`; marks words that equal the original's word at the same place."""
    truth = original.split()
    words = []
    for place, word in enumerate(written.split()):
        same = place < len(truth) and truth[place] == word
        words.append(f"<mark>{text(word)}</mark>" if same else text(word))
    return " ".join(words).replace("</mark> <mark>", " ")


def share_alike(written: str, original: str) -> float:
    """Fraction of the original's words that `written` has at the same place."""
    truth = original.split()
    alike = sum(one == other for one, other in zip(written.split(), truth, strict=False))
    return alike / max(len(truth), 1)


def write(path: pathlib.Path, content: str) -> None:
    """Writes all or nothing."""
    with atomic_file(path) as scratch:
        scratch.write_text(content, encoding="utf-8")


def write_page(path: pathlib.Path, title: str, sections: list[str]) -> None:
    """Writes all or nothing."""
    body = "\n".join(sections)
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{text(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
        f"<h1>{text(title)}</h1>\n{body}\n</html>\n"
    )
    write(path, page)


def write_json(path: pathlib.Path, content: dict) -> None:
    """Writes all or nothing."""
    write(path, json.dumps(content, indent=1) + "\n")


def numbers(columns: list[str], row: list[list[float]]) -> list[str]:
    """Cells of a row with one value per seed: mean ± half of the 95% interval; for `steps`, which
    seeds share, one value.
    """
    return [
        f"{values[0]:.0f}" if column == "steps" else with_interval(values)
        for column, values in zip(columns, row, strict=True)
    ]


def plain_table(columns: list[str], rows: list[list[str]]) -> str:
    """The same table for a terminal: first column left-aligned, others right-aligned."""
    widths = [max(len(line[column]) for line in [columns, *rows]) for column in range(len(columns))]

    def line(cells: list[str]) -> str:
        padded = [cells[0].ljust(widths[0])] + [
            c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True)
        ]
        return "  ".join(padded).rstrip()

    return "\n".join([line(columns), "  ".join("-" * width for width in widths), *map(line, rows)])
