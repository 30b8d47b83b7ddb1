"""A page that shows what a model remembers, as one HTML file: documents token by token, all
documents, their sinks, and how they were learned.

A small script in the page draws the pictures as plain SVG. The largest has 200 points, and a
plotting library would be larger than the rest of the page.
"""

import base64
import dataclasses
import hashlib
import html
import importlib.resources
import json
import pathlib
import string

from memsinks_jax.reporting import report

_FILES = importlib.resources.files("memsinks_jax.reporting") / "explore"


def page(data: dict, title: str) -> str:
    """The result of `measures.explore.explore` -> self-contained HTML.

    Texts of documents are JSON without a '<', and the script puts them on the page as text. The
    page gives the hash of its own script, and a browser runs no other.
    """
    style, script, template = (
        (_FILES / name).read_text(encoding="utf-8") for name in ("page.css", "page.js", "page.html")
    )
    script = f"\n{script}"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    content = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return string.Template(template).substitute(
        title=html.escape(title), style=style, script=script, hash=f"sha256-{digest}", data=content
    )


def write(path: pathlib.Path, data: dict, title: str) -> None:
    """Writes all or nothing."""
    report.write(path, page(data, title))


@dataclasses.dataclass(frozen=True)
class Inline:
    """Shows the page as the result of a notebook cell."""

    data: dict
    title: str
    height: int = 900  # pixels

    def _repr_html_(self) -> str:
        content = html.escape(page(self.data, self.title))
        return (
            f'<iframe srcdoc="{content}" style="width: 100%; height: {self.height}px; border: '
            '0"></iframe>'
        )
