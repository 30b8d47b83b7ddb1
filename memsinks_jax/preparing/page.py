"""The report page of a prepared corpus."""

import pathlib

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt

from memsinks_jax.data.documents import in_words, printable
from memsinks_jax.preparing.inputs import Plan
from memsinks_jax.reporting import report


def write(path: pathlib.Path, work: pathlib.Path, summary: dict, plan: Plan, command: str) -> None:
    """Writes index.html.

    Args:
      work: folder for the plot, which is then embedded in the page.
      summary: the content of report.json.
      command: makes the corpus; empty if a program made it.
    """
    counted = (("near_duplicate_clusters", "cluster"), ("near_duplicate_documents", "document"))
    clusters = " with ".join(in_words(summary[name], noun) for name, noun in counted)
    if plan.settings["near_duplicates"] == "none":
        clusters = "not searched"
    counts = [
        [
            "exact copies",
            f"{summary['duplicates']:,} (further encounters of a document, unless data.copies is "
            "once)",
        ],
        ["near-duplicates", clusters],
        ["skipped records", f"{summary['skipped']:,}"],
        ["tokens of the median document", f"{summary['median_length']:,}"],
        ["tokens of the longest document", f"{summary['longest']:,}"],
    ]
    if "answer_tokens" in summary:
        share = summary["answer_tokens"] / (summary["tokens"] + summary["documents"])
        counts.append(
            [
                "tokens of answers",
                f"{summary['answer_tokens']:,} ({share:.1%}), which alone count in the loss",
            ]
        )
    if "contexts" in summary:
        share = summary["repeated_tokens"] / summary["tokens"]
        counts.append(
            ["contexts of repeated text", f"{summary['contexts']:,}, of {share:.1%} of the tokens"]
        )
    _draw(summary, work / "lengths.png")
    found = (
        f"{in_words(summary['documents'], 'document')} with {in_words(summary['tokens'], 'token')}"
    )
    sections = [
        report.paragraph(f"{found}, from {in_words(len(plan.sources), 'input file')}.", "lead"),
        report.table(["what", "how many"], counts, ["", ""]),
        report.heading("How long are the documents?"),
        report.picture(work / "lengths.png", _lengths_in_words(summary)),
        report.paragraph(
            "Each bar counts the documents of that length in tokens, without end of text.", "note"
        ),
        *_groups(summary),
        *_repeated(summary),
        *_repeated_text(summary),
        *_skipped(summary),
    ]
    if command:
        sections += [report.heading("How it was made"), report.code(command)]
    report.write_page(path, "Prepared corpus", sections)


def _draw(summary: dict, path: pathlib.Path) -> None:
    entries = summary["lengths"]
    figure, axis = plt.subplots(figsize=(8.6, 3.2), layout="constrained")
    axis.bar(
        range(len(entries)), [entry["documents"] for entry in entries], width=0.92, color="#1f618d"
    )
    axis.set_xticks(
        range(len(entries)),
        [_span(entry) for entry in entries],
        rotation=45,
        ha="right",
        fontsize=8,
    )
    axis.set(xlabel="tokens in a document", ylabel="documents")
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.grid(alpha=0.25, axis="y")
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _span(entry: dict) -> str:
    return (
        f"{entry['from']:,} to {entry['to']:,}"
        if entry["to"] > entry["from"]
        else f"{entry['from']:,}"
    )


def _lengths_in_words(summary: dict) -> str:
    most = max(summary["lengths"], key=lambda entry: entry["documents"])
    return (
        f"Bars of documents by length: most, {most['documents']:,} of {summary['documents']:,}, "
        f"have {_span(most)} tokens; "
        f"the longest has {summary['longest']:,}."
    )


def _groups(summary: dict) -> list[str]:
    if not summary["groups"]:
        return []
    documents = summary["documents"]
    rows = [
        [
            report.text(printable(entry["name"])),
            f"{entry['documents']:,}",
            f"{entry['documents'] / documents:.1%}",
        ]
        for entry in summary["largest_groups"]
    ]
    largest = f"The largest {len(rows)} of {summary['groups']:,}; all are in groups.json."
    return [
        report.heading("Groups"),
        report.table(["group", "documents", "share"], rows, ["", "number", "number"]),
        *([report.paragraph(largest, "note")] if len(rows) < summary["groups"] else []),
    ]


def _repeated(summary: dict) -> list[str]:
    rows = [
        [
            f"{entry['times']:,}",
            entry["id"],
            f"{entry['tokens']:,}",
            *map(report.text, (entry["first"], entry["text"])),
        ]
        for entry in summary["most_repeated"]
    ]
    columns, kinds = (
        ["times", "id", "tokens", "first at", "text"],
        ["number", "note", "number", "note", ""],
    )
    none = report.paragraph("No document is there twice.")
    return [
        report.heading("Most repeated documents"),
        report.table(columns, rows, kinds) if rows else none,
    ]


def _repeated_text(summary: dict) -> list[str]:
    rows = [
        [
            f"{entry['times']:,}",
            f"{entry['tokens']:,}",
            *map(report.text, (entry["first"], entry["text"])),
        ]
        for entry in summary.get("repeated_text", ())
    ]
    columns, kinds = ["times", "tokens", "first at", "text"], ["number", "number", "note", ""]
    return (
        [report.heading("Most repeated text"), report.table(columns, rows, kinds)] if rows else []
    )


def _skipped(summary: dict) -> list[str]:
    rows = [
        [report.text(record["place"]), report.text(record["reason"])]
        for record in summary["skipped_first"]
    ]
    if not rows:
        return []
    first = f"The first {len(rows)} of {summary['skipped']:,}; all are in skipped.jsonl."
    return [
        report.heading("Skipped records"),
        report.table(["where", "why"], rows, ["note", ""]),
        *([report.paragraph(first, "note")] if len(rows) < summary["skipped"] else []),
    ]
