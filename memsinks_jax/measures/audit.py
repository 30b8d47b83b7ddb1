"""A whole audit: measures the models, writes page and results."""

import logging
import pathlib

import numpy as np
import tqdm

from memsinks_jax.config import InputError
from memsinks_jax.measures import exposure, intervals, open_unlearning, pages
from memsinks_jax.measures.documents import Documents
from memsinks_jax.measures.extraction import PREFIXES, SUFFIX, lengths_that_fit
from memsinks_jax.measures.measures import measure, read_all
from memsinks_jax.measures.subjects import (
    ORACLE,
    check_documents,
    corpus_of,
    documents_of,
    shortened,
    subjects_of,
)
from memsinks_jax.models.exporting import export
from memsinks_jax.models.trained import Trained
from memsinks_jax.reporting import explore_page, report
from memsinks_jax.runs.interruption import atomic_folder

logger = logging.getLogger(__name__)

SAMPLES = 8


def audit(
    workdir: pathlib.Path,
    members_files: str = "",
    non_members_files: str = "",
    standard: pathlib.Path | None = None,
    oracle: pathlib.Path | None = None,
    prefixes: tuple[int, ...] = PREFIXES,
    suffix: int = SUFFIX,
    samples: int = SAMPLES,
    open_unlearning_files: pathlib.Path | None = None,
) -> dict:
    """Measures one model in every mode of its sinks, and those that it is compared with.

    Args:
      members_files, non_members_files: globs; empty for the run's own repeated and held-out
        documents. standard, oracle: models trained on the same documents without sinks, and without
        the members.
      prefixes: tokens of a document that are given; `suffix` more are asked for, and written
        `samples` times besides.
      open_unlearning_files: folder to write what open-unlearning needs to measure model and oracle
        itself.
    Returns:
      {"workdir", "standard", "oracle", "members", "non_members": numbers of documents,
      "encounters": {times: members seen so often} or None, "prefixes", "suffix", "samples",
      "reference": name of the reference model or None, "subjects": {name: {group: {measure:
      {"value", "ci95"}}}}, "warnings": of `pages.warnings`}; see `measures.measure`. The intervals
      are over documents.
    Raises:
      InputError: models or documents that cannot be compared.
    """
    subjects = subjects_of(workdir, standard, oracle)
    first = subjects[0].run
    prefixes = _lengths_with_room(workdir, prefixes, suffix, first.config.data.row_length - 1)
    corpus = corpus_of(first, members_files, non_members_files)
    about = {
        "workdir": str(workdir),
        "standard": standard and str(standard),
        "oracle": oracle and str(oracle),
        "prefixes": list(prefixes),
        "suffix": suffix,
        "samples": samples,
    }
    members = documents_of(workdir, first, "repeated", members_files, corpus)
    non_members = documents_of(workdir, first, "held_out", non_members_files, corpus)
    if open_unlearning_files and (members.answers or non_members.answers):
        raise InputError(
            "--open_unlearning: its files have no prompts, which these documents have; leave it out"
        )
    check_documents(
        members, non_members, subjects, [place for place in (workdir, standard, oracle) if place]
    )
    longest = max(*map(len, members.tokens + non_members.tokens), max(prefixes) + suffix)
    subjects = shortened(subjects, longest)
    if open_unlearning_files:
        export_for_open_unlearning(
            open_unlearning_files,
            {"model": first} | ({"oracle": subjects[-1].run} if oracle else {}),
            members,
            non_members,
        )
    has_canaries = corpus is not None and not members_files and bool(len(corpus.mixture.canaries))
    reference = (
        read_all(subjects[-1], members, non_members) if subjects[-1].name == ORACLE else None
    )
    if reference is None:
        logger.warning("no --oracle: no baseline that never read the members, no reference score")
    if not lengths_that_fit(members, prefixes, suffix):
        logger.warning("no member has %d tokens: extraction is skipped", min(prefixes) + suffix)
    found = {}
    for subject in tqdm.tqdm(subjects, desc="audit", unit="model", disable=None):
        is_oracle = subject.name == ORACLE
        readings = reference if is_oracle else read_all(subject, members, non_members)
        exposures = None
        if has_canaries:
            exposures = np.full(len(members.tokens), np.nan)
            exposures[: len(corpus.mixture.canaries)] = exposure.exposures(
                subject, corpus, first.config
            )
        found[subject.name] = measure(
            subject,
            members,
            non_members,
            readings,
            None if is_oracle else reference,
            exposures,
            prefixes,
            suffix,
            samples,
        )
    times = None if members.encounters is None else members.encounters.tolist()
    subjects_found = {
        name: {
            group: {key: intervals.as_dict(one) for key, one in measured.items()}
            for group, measured in groups.items()
        }
        for name, groups in found.items()
    }
    lengths = [[int(counted.sum()) for counted in of.counted()] for of in (members, non_members)]
    warnings = pages.warnings(subjects_found, *lengths)
    for warning in warnings:
        logger.warning("%s", warning)
    return about | {
        "members": len(members.tokens),
        "non_members": len(non_members.tokens),
        "encounters": times
        and {str(time): times.count(time) for time in sorted(set(times), reverse=True)},
        "reference": ORACLE if reference else None,
        "subjects": subjects_found,
        "warnings": warnings,
    }


def _lengths_with_room(
    workdir: pathlib.Path, prefixes: tuple[int, ...], suffix: int, room: int
) -> tuple[int, ...]:
    """The prefixes that a context with `room` tokens for a document can hold with a suffix; warns
    of the others.
    """
    if (asked := min(prefixes) + suffix) > room:
        raise InputError(
            f"--prefixes={min(prefixes)} and --suffix={suffix} take {asked} tokens, and the "
            f"context of {workdir} has "
            f"room for {room} of a document; lower one of them"
        )
    if too_long := [length for length in prefixes if length + suffix > room]:
        listed = ",".join(map(str, too_long))
        logger.warning(
            "--prefixes=%s leave no room for --suffix=%d in the context: skipped", listed, suffix
        )
    return tuple(length for length in prefixes if length not in too_long)


def export_for_open_unlearning(
    out: pathlib.Path,
    models: dict[str, Trained],
    members: Documents,
    non_members: Documents,
) -> None:
    """Writes what `measures.open_unlearning` does, and the models, "model" and perhaps "oracle", as
    `export` writes them: out/model, out/oracle.

    Models that are Hugging Face folders stay where they are.
    """
    places = {
        name: out / name if run.stored.is_run else run.stored.place for name, run in models.items()
    }
    with atomic_folder(out) as scratch:
        folder = scratch / "files"
        folder.mkdir()
        for name, run in models.items():
            if run.stored.is_run:
                export(run.stored.place, folder / name, drop=True, dtype="float32")
        tokenizer = models["model"].tokenizer
        open_unlearning.write(folder, out, places, tokenizer, members, non_members)
        folder.rename(out)


def write(result: dict, explored: dict, folder: pathlib.Path, command: str) -> None:
    """Makes a folder of results.json, pictures, index.html, and explore.html of what `explore`
    found.
    """
    folder.mkdir()
    report.write_json(folder / "results.json", result)
    drawn = pages.draw(result, folder)
    sections = [
        report.paragraph(pages.answer(result), "lead"),
        *(report.paragraph(f"Beware: {warning}.") for warning in result["warnings"]),
        report.paragraph(pages.introduction(result)),
        report.link("explore.html", "Documents, token by token"),
        *(
            part
            for name, note in drawn.items()
            for part in (report.picture(folder / name, note), _note(note))
        ),
        *table_sections(pages.tables(result)),
        report.heading("How it was made"),
        report.code(command),
    ]
    report.write_page(folder / "index.html", f"Audit of {result['workdir']}", sections)
    explore_page.write(folder / "explore.html", explored, f"What {result['workdir']} remembers")


def table_sections(tables: list[pages.PageTable]) -> list[str]:
    """Each with its heading, and what its numbers are."""
    parts = []
    for table in tables:
        shown = report.text_table(table.columns, table.rows, len(table.columns) - 1)
        parts += [report.heading(table.title), _note(table.note), shown]
    return parts


def _note(content: str) -> str:
    return report.paragraph(content, "note")
