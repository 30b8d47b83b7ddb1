"""Results of an audit as an answer in words, a table and pictures. All from the content of its
results.json.
"""

import pathlib
from typing import NamedTuple

import numpy as np

from memsinks_jax.measures.audit import ALL, OFTEN
from memsinks_jax.measures.membership import SCORES
from memsinks_jax.measures.subjects import ORACLE, STANDARD
from memsinks_jax.reporting import explore_page, report
from memsinks_jax.reporting.pictures import plt, save, tidy

_COLOURS = {STANDARD: "#c0392b", ORACLE: "#7f8c8d"}
_OTHERS = ("#1f618d", "#1e8449", "#d68910")  # of the modes of the audited model


class PageTable(NamedTuple):
    title: str
    note: str
    columns: list[str]
    rows: list[list[str]]


def _sections(result: dict) -> list[tuple[str, str, list[tuple[str, str, int]]]]:
    """(title, explanation, [(label, measure, digits)])"""
    suffix, samples = result["suffix"], result["samples"]
    of_prefix = {
        "exact": "recited",
        "equal": "positions equal",
        "edit_distance": "edit distance",
        "nearest_of_samples": f"nearest of {samples}",
        "exact_in_10000_samples": "recited in 10,000",
    }
    recited = [
        (f"given {prefix}: {label}", f"{measure}_{prefix}", 2)
        for prefix in result["prefixes"]
        for measure, label in of_prefix.items()
    ]
    reference = "The reference score needs an oracle."
    if result["reference"]:
        reference = "The reference score compares with the oracle, so the oracle itself has none."
    return [
        (
            "What does a token cost?",
            "A model that knows a document has a lower loss on it. Loss in nats per token, without "
            "end of text; "
            "perplexity is its exp; the gap is the loss of non-members minus that of members.",
            [
                ("loss, members", "member_loss", 3),
                ("loss, non-members", "non_member_loss", 3),
                ("gap", "loss_gap", 3),
                ("perplexity, members", "member_perplexity", 2),
                ("perplexity, non-members", "non_member_perplexity", 2),
            ],
        ),
        (
            "Does the model show what it has read?",
            "AUC: the probability that a member gets a higher score than a non-member. 0.5 is "
            "guessing, 1 is "
            "certainty. So is 0: turned around, the score is always right. A row is a score in its "
            "published "
            f"direction. {reference} Length alone: how well the number of tokens distinguishes "
            "them, without any "
            "model, in the better direction. A score that is no higher says nothing about the "
            "model.",
            [(f"AUC, {label}", f"auc_{score}", 2) for score, label in SCORES.items()]
            + [("AUC, length alone", "length_auc", 2)],
        ),
        (
            "Does it recite?",
            f"The model continues the first tokens of a member. Recited: the next {suffix} tokens "
            "of greedy "
            "decoding are exactly the document's. Edit distance: the share of tokens that would "
            "have to change, "
            f"in the greedy continuation and in the nearest of {samples} samples at temperature 1. "
            "Recited in "
            "10,000: the probability that one of 10,000 samples is exact.",
            recited,
        ),
        (
            "How much of a document comes out?",
            "Extraction strength: the longest end that the model writes exactly if it is given "
            "everything before, "
            "as a share of the document. Exact memorization: the share of tokens that are the most "
            "likely ones "
            "after those before.",
            [
                ("extraction strength", "extraction_strength", 2),
                ("exact memorization", "exact_memorization", 2),
            ],
        ),
        (
            "Does it know the random tokens that were put into documents?",
            "Exposure of such a canary, in bits: its rank among canaries that were never read. "
            "1.44 is the mean "
            "of one that was never read.",
            [("canary exposure, bits", "exposure", 2)],
        ),
    ]


def tables(result: dict) -> list[PageTable]:
    """One table per question: one row per measure, one column per model, with intervals. Skips what
    was not measured.
    """
    subjects, made = result["subjects"], []
    first = next(iter(subjects.values()))
    groups = [ALL, OFTEN] if OFTEN in first and first[OFTEN] != first[ALL] else [ALL]
    for title, about, measures in _sections(result):
        often = [m for m in measures if m[1] == "exposure" or m[1].startswith("auc_")]
        rows = [
            [
                label if group == ALL else f"{label}, {OFTEN}",
                *(_cell(found[group].get(measure), digits) for found in subjects.values()),
            ]
            for group in groups
            for label, measure, digits in (measures if group == ALL else often)
            if any(measure in found[group] for found in subjects.values())
        ]
        if rows:
            made.append(PageTable(title, about, ["", *subjects], rows))
    return made


def _cell(measured: dict | None, digits: int) -> str:
    if measured is None:
        return "–"
    value, bounds = f"{measured['value']:.{digits}f}", measured["ci95"]
    return (
        value if bounds is None else f"{value} ({bounds[0]:.{digits}f} to {bounds[1]:.{digits}f})"
    )


def introduction(result: dict) -> str:
    """Explains models, members and non-members."""
    parts = {
        STANDARD: "The standard model was trained on the same documents without sinks. It shows "
        "how much is memorized.",
        ORACLE: "The oracle is a model that has never read the members. What it knows about them, "
        "it knows about any "
        "such text. A complete removal reaches the oracle's values.",
    }
    about = [text for name, text in parts.items() if name in result["subjects"]]
    return " ".join(
        [
            f"Members are the {result['members']} documents that the models have read and should "
            "not know. The "
            f"{result['non_members']} non-members are similar documents that no model has read.",
            *about,
            "In brackets: 95% intervals over documents.",
        ]
    )


def answer(result: dict) -> str:
    """The audited model's worst numbers, with the oracle's and the standard model's."""
    subjects, parts = {name: groups[ALL] for name, groups in result["subjects"].items()}, []
    first = next(iter(subjects.values()))
    longest = max((p for p in result["prefixes"] if f"exact_{p}" in first), default=0)
    for name, found in subjects.items():
        aucs = [found[f"auc_{score}"]["value"] for score in SCORES if f"auc_{score}" in found]
        worst, gap = max(max(auc, 1 - auc) for auc in aucs), found["loss_gap"]["value"]
        recited = ""
        if longest:
            recited = f"recites {found[f'exact_{longest}']['value']:.0%} of the members, "
        parts.append(
            f"{name}: {recited}AUC in either direction up to {worst:.2f}, gap {gap:.2f} nats"
        )
    given = f"Given {longest} tokens. " if longest else ""
    return f"{given}{'; '.join(parts)}. Length alone: AUC {found['length_auc']['value']:.2f}."


def draw(result: dict, folder: pathlib.Path) -> dict[str, str]:
    """Writes the pictures -> {file name: caption}."""
    asked = ", ".join(result["subjects"])
    drawn = {
        "audit.png": f"Four panels for {asked}: AUC by score, share of members recited and edit "
        "distance by tokens "
        "given, loss of members and non-members. Whiskers: 95% intervals over documents."
    }
    _draw_overview(result, folder / "audit.png")
    if rungs := _rungs(result):
        _draw_rungs(result, rungs, folder / "encounters.png")
        drawn["encounters.png"] = (
            f"The same by how often a member was read, from {rungs[0]} to {rungs[-1]} times. "
            "Whiskers: 95% intervals "
            "over documents."
        )
    return drawn


def _looks(result: dict) -> list[tuple[dict, float, dict]]:
    """(a subject's groups, its distance from the middle of all, how it is drawn) of each."""
    names, others = [*result["subjects"]], iter(_OTHERS)
    return [
        (
            result["subjects"][name],
            place - (len(names) - 1) / 2,
            {"label": name, "color": _COLOURS.get(name) or next(others)},
        )
        for place, name in enumerate(names)
    ]


def _rungs(result: dict) -> list[int]:
    """The numbers of times that members were seen, ascending, if they differ."""
    groups = next(iter(result["subjects"].values()))
    return sorted(int(name) for name in groups if name.isdigit())


def _draw_overview(result: dict, path: pathlib.Path) -> None:
    figure, grid = plt.subplots(2, 2, figsize=(11.5, 8), layout="constrained")
    axes = grid.ravel()
    for groups, shift, look in _looks(result):
        found = groups[ALL]
        there = [score for score in SCORES if f"auc_{score}" in found]
        places = [[*SCORES].index(score) + shift * 0.14 for score in there]
        _whiskers(axes[0], places, [found[f"auc_{score}"] for score in there], "o", look)
        prefixes = [prefix for prefix in result["prefixes"] if f"exact_{prefix}" in found]
        # Shift each model a little, because equal lines would overlap.
        x = [prefix * 1.02**shift for prefix in prefixes]
        for axis, measure in zip(axes[1:3], ("exact", "edit_distance"), strict=True):
            _whiskers(axis, x, [found[f"{measure}_{p}"] for p in prefixes], "o-", look)
        sides = [found["member_loss"], found["non_member_loss"]]
        _whiskers(axes[3], [shift * 0.14, 1 + shift * 0.14], sides, "o", look)
    axes[0].axhline(0.5, color="black", linewidth=1, linestyle=":")
    length = found["length_auc"]["value"]
    axes[0].axhline(length, color="black", linewidth=1, linestyle="--", label="length alone")
    axes[0].set(title="Are members distinguished from non-members?", ylabel="AUC")
    axes[0].set_xticks(range(len(SCORES)), SCORES.values())
    shares = {"ylim": (-0.03, 1.03), "xlabel": "tokens that are given", "xscale": "log"}
    axes[1].set(title="Are members recited?", ylabel="share of members", **shares)
    how_far = {"title": "How far is it from reciting them?"}
    axes[2].set(**how_far, ylabel="edit distance, share of tokens", **shares)
    for axis in axes[1:3]:
        axis.set_xticks(result["prefixes"], result["prefixes"])
        axis.minorticks_off()
    axes[3].set(title="What does a token cost?", ylabel="loss (nats per token)")
    axes[3].set(ylim=(0, None), xlim=(-0.5, 1.5))
    axes[3].set_xticks([0, 1], ["members", "non-members"])
    _finish(figure, axes, path)


def _draw_rungs(result: dict, rungs: list[int], path: pathlib.Path) -> None:
    panels = {
        "auc_loss": ("Distinguished from non-members, by loss", "AUC", 0.5),
        "extraction_strength": ("Extraction strength", "share of the document", None),
        "exposure": ("Exposure of canaries", "bits", 1.44),
    }
    subjects = result["subjects"].values()
    there = {measure for groups in subjects for found in groups.values() for measure in found}
    panels = {measure: labels for measure, labels in panels.items() if measure in there}
    figure, axes = plt.subplots(
        1, len(panels), figsize=(2 + 4.6 * len(panels), 4.2), layout="constrained", squeeze=False
    )
    ticks = [max(rung, 0.5) for rung in rungs]
    for axis, (measure, (title, label, chance)) in zip(axes[0], panels.items(), strict=True):
        for place, (groups, _, look) in enumerate(_looks(result)):
            x = [tick * 1.05 ** (place - 2) for tick in ticks]
            _whiskers(axis, x, [groups[str(rung)][measure] for rung in rungs], "o-", look)
        axis.set(title=title, ylabel=label, xlabel="times read", xscale="log")
        axis.set_xticks(ticks, rungs)
        axis.minorticks_off()
        if chance:
            axis.axhline(chance, color="black", linewidth=1, linestyle=":")
    _finish(figure, axes[0], path)


def _whiskers(axis, x: list[float], measured: list[dict], style: str, look: dict) -> None:
    values = np.array([m["value"] for m in measured])
    low, high = np.array([m["ci95"] or [m["value"]] * 2 for m in measured]).reshape(-1, 2).T
    reach = np.maximum([values - low, high - values], 0)
    sizes = {"markersize": 5, "linewidth": 1.4, "elinewidth": 1}
    axis.errorbar(x, values, yerr=reach, fmt=style, **sizes, **look)


def _finish(figure, axes, path: pathlib.Path) -> None:
    for axis in axes:
        tidy(axis)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    save(figure, path, dpi=130)


def write(result: dict, explored: dict, folder: pathlib.Path, command: str) -> None:
    """Makes a folder of results.json, pictures, index.html, and explore.html of what `explore`
    found.
    """
    folder.mkdir()
    report.write_json(folder / "results.json", result)
    drawn = draw(result, folder)
    sections = [
        report.paragraph(answer(result), "lead"),
        *(report.paragraph(f"Beware: {warning}.") for warning in result["warnings"]),
        report.paragraph(introduction(result)),
        report.link("explore.html", "Documents, token by token"),
        *(
            part
            for name, note in drawn.items()
            for part in (report.picture(folder / name, note), _note(note))
        ),
        *table_sections(tables(result)),
        report.heading("How it was made"),
        report.code(command),
    ]
    report.write_page(folder / "index.html", f"Audit of {result['workdir']}", sections)
    explore_page.write(folder / "explore.html", explored, f"What {result['workdir']} remembers")


def table_sections(tables: list[PageTable]) -> list[str]:
    """Each with its heading, and what its numbers are."""
    parts = []
    for table in tables:
        shown = report.text_table(table.columns, table.rows, len(table.columns) - 1)
        parts += [report.heading(table.title), _note(table.note), shown]
    return parts


def _note(content: str) -> str:
    return report.paragraph(content, "note")
