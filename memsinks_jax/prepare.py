"""Prepares a corpus: python -m memsinks_jax.prepare --input='texts/*.jsonl.zst' --out=prepared

Reads .txt, .jsonl (both also .gz, .zst), .json, .csv, .parquet, .arrow, folders, globs and hf://dataset:split; writes
tokenized documents with their ids, ready for --config.data.files=prepared, and a report, index.html. Without --tokenizer
it trains one on a sample of the input. After an interruption the same command resumes. The output does not depend on the
number of workers.
"""

import dataclasses
import json
import logging
import os
import pathlib
import shlex
import signal
import sys
import time

from absl import flags

from memsinks_jax.config import RANGES, DataConfig, InputError
from memsinks_jax.data import prepared
from memsinks_jax.data.documents import in_words
from memsinks_jax.data.tokenizer import AnyTokenizer, open_tokenizer
from memsinks_jax.runs import command_line, interruption

logger = logging.getLogger("memsinks_jax.prepare")

DEFAULTS = {
    "text_field": "text", "group_field": "", "on_error": "stop", "near_duplicates": "close", "common_at": 0,
    "common_ngram": 13, "max_document_mib": 16, "shard_mib": 0, "end_of_text": "",
}  # fmt: skip


def prepare(
    inputs: list[str],
    tokenizer: str | None,
    out: pathlib.Path,
    executor: str = "local",
    workers: int = 1,
    slurm: dict | None = None,
    vocabulary_size: int | None = None,
    command: str = "",
    **settings,
) -> dict:
    """Writes the folder `out`, or goes on with it.

    Args:
      inputs: files, folders, globs, hf://dataset[:split].
      tokenizer: tokenizer.model, tokenizer.json or a folder with one; None: one is trained on a sample of the input.
      workers: tasks at a time.
      vocabulary_size: most pieces of the tokenizer that is trained; None: as many as `train` takes by default.
      command: that asks for it; the page says it.
      settings: see DEFAULTS.
    Returns:
      The report: {"documents", "tokens", "duplicates", "near_duplicate_clusters", "skipped", ...}.
    Raises:
      InputError, OSError: nothing is half-written; the folder can be gone on with.
    """
    # Here, so that whoever imports the package has no second of waiting for what only this command needs.
    from memsinks_jax.preparing.inputs import Plan, check_unchanged, make_plan
    from memsinks_jax.preparing.stages import Where, claimed
    from memsinks_jax.preparing.vocabulary import sample, train_on_sample

    settings = DEFAULTS | settings
    # Without these the manifest is that of a folder from before there were any.
    unused = [] if settings["common_at"] else ["common_at", "common_ngram"]
    unused += [] if (end_of_text := settings["end_of_text"]) else ["end_of_text"]
    settings = {name: value for name, value in settings.items() if name not in unused}
    opened = None
    if not tokenizer:
        if end_of_text:
            raise InputError(
                f"--end_of_text={end_of_text} is of a tokenizer.json; give it as --tokenizer, or omit this"
            )
        settings["vocabulary_size"] = vocabulary_size or DataConfig.vocabulary_size
    elif vocabulary_size:
        raise InputError("--vocabulary_size is of a tokenizer that is trained, not of --tokenizer; omit one of them")
    else:
        opened = open_tokenizer(pathlib.Path(tokenizer), end_of_text or None)
    plan, work = make_plan(inputs, settings), out / "work"
    finished = (out / prepared.MANIFEST).exists() and not work.exists()
    if out.exists() and not work.exists() and not finished and any(out.iterdir()):
        raise InputError(f"{out} holds other files; give an empty or a new --out")
    begun = finished or (work / "plan.json").exists()
    if opened is None:
        opened = open_tokenizer(out) if begun else train_on_sample(plan)
    elif not begun and settings["on_error"] == "stop":
        sample(plan, 1)  # so that a wrong field's name leaves no folder that holds on to it
    plan = dataclasses.replace(plan, settings=settings | {"tokenizer_sha256": prepared.sha256(opened.model)})
    if finished:
        return _check_finished(out, plan)
    with claimed(work):
        if (work / "plan.json").exists():
            check_unchanged(Plan.from_json((work / "plan.json").read_text()), plan, out)
        (out / "shards").mkdir(exist_ok=True)
        for name, content in opened.files.items():
            _write(out / name, content)
        if not (tokenizer or (work / "plan.json").exists()):
            logger.info("a tokenizer of %s pieces: %s", f"{opened.vocabulary_size:,}", out / opened.file_name)
        _write(work / "plan.json", plan.to_json().encode())
        return _run_stages(out, plan, opened, Where(executor, workers, slurm or {}), command)


def _run_stages(out: pathlib.Path, plan, tokenizer: AnyTokenizer, where, command: str) -> dict:
    """From the input to the corpus -> its report."""
    from memsinks_jax.preparing import common_text, near_duplicates, steps
    from memsinks_jax.preparing.finish import finish
    from memsinks_jax.preparing.stages import Watch, run_stage

    work, pieces, closeness = out / "work", len(plan.pieces), plan.settings["near_duplicates"]
    tokenise = [
        steps.ReadPiece(work / "plan.json"),
        steps.WriteShard(out, tokenizer.file_name, plan.settings["on_error"]),
    ]
    stages = {"tokens": (tokenise, pieces)}
    if closeness != "none":
        config = near_duplicates.minhash_config(closeness)
        tokenise.append(near_duplicates.Signatures(work / "signatures", config))
        stages["pairs"] = [near_duplicates.bucket_step(work, config)], config.num_buckets
        stages["clusters"] = [near_duplicates.Clusters(work, pieces)], 1
    if at := plan.settings.get("common_at"):
        kind, ranges = prepared.token_type(tokenizer.vocabulary_size), common_text.tasks(plan.bytes_of_pieces())
        length = plan.settings["common_ngram"]
        ngrams = common_text.Ngrams(out, length, kind, tokenizer.end_of_text, closeness != "none")
        stages["ngrams"] = [ngrams], pieces
        stages["common"] = [common_text.Common(work, pieces, at)], ranges
        stages["marks"] = [common_text.Marks(out, ranges)], pieces
    tasks = {stage: count for stage, (_, count) in stages.items()} | {"corpus": pieces}
    with Watch(work, plan.bytes_of_pieces(), tasks) as watch:
        for stage, (what, count) in stages.items():
            watch.begin(stage)
            run_stage(stage, what, count, work, where)
        watch.begin("corpus")
        return finish(out, plan, tokenizer, watch.advance, command)


def _check_finished(out: pathlib.Path, plan) -> dict:
    """The report of a folder that is done, if it is of the same input and settings."""
    from memsinks_jax.preparing.finish import remove_done_work
    from memsinks_jax.preparing.inputs import Plan, Source, check_unchanged

    manifest = prepared.read_manifest(out)
    sources = [Source(**source) for source in manifest["sources"]]
    check_unchanged(Plan(manifest["settings"], sources, plan.pieces, plan.copies), plan, out)
    remove_done_work(out)
    logger.info("%s is already prepared", out)
    return json.loads((out / "report.json").read_text())


def _write(path: pathlib.Path, content: bytes) -> None:
    scratch = path.with_name(path.name + ".new")
    scratch.write_bytes(content)
    os.replace(scratch, path)


def main() -> None:
    inputs = flags.DEFINE_multi_string(
        "input", None, "File, folder, quoted glob or hf://dataset[:split]; may be repeated."
    )
    tokenizer = flags.DEFINE_string(
        "tokenizer", None, "tokenizer.model, tokenizer.json or a folder with one; by default one is trained on a sample of "
        "the input and written to --out.",
    )  # fmt: skip
    vocabulary_size = flags.DEFINE_integer(
        "vocabulary_size",
        None,
        f"Size of the tokenizer to train; default {DataConfig.vocabulary_size}. A run's config.data.vocabulary_size must "
        "not be smaller.",
        lower_bound=RANGES["data.vocabulary_size"][0],
        upper_bound=2**22,  # four times the largest in use; a number in the billions would take minutes to refuse
    )
    end_of_text = flags.DEFINE_string(
        "end_of_text", DEFAULTS["end_of_text"], "Token of a tokenizer.json that ends documents; by default the one that its "
        "folder says, else the one with a usual name.",
    )  # fmt: skip
    out = flags.DEFINE_string("out", None, "Folder to write, or to resume.")
    text_field = flags.DEFINE_string(
        "text_field", DEFAULTS["text_field"], "Field of a record that holds the text; a.b is field b of a."
    )
    group_field = flags.DEFINE_string(
        "group_field",
        DEFAULTS["group_field"],
        "Field that holds the group (domain, author, licence), for config.data.ids=group.",
    )
    on_error = flags.DEFINE_enum(
        "on_error", DEFAULTS["on_error"], ["stop", "skip"],
        "What to do with a record that cannot be used; skip counts and lists it.",
    )  # fmt: skip
    near_duplicates = flags.DEFINE_enum(
        "near_duplicates", DEFAULTS["near_duplicates"], ["close", "loose", "none"],
        "Find edited copies: close finds those with up to 5% of the tokens changed, loose up to 10%, in small corpora.",
    )  # fmt: skip
    common_at = flags.DEFINE_integer(
        "common_at", DEFAULTS["common_at"], "Mark n-grams that documents of this many ids contain (groups, else "
        "near-duplicate clusters), for config.sinks.common_every. 0: none.", lower_bound=0,
    )  # fmt: skip
    common_ngram = flags.DEFINE_integer(
        "common_ngram", DEFAULTS["common_ngram"], "Length of these n-grams, in tokens.", lower_bound=2
    )
    max_document = flags.DEFINE_integer(
        "max_document_mib", DEFAULTS["max_document_mib"], "Upper limit of a document's size, in MiB.", lower_bound=1
    )
    shard = flags.DEFINE_integer(
        "shard_mib", DEFAULTS["shard_mib"], "Input per shard, in MiB; 0: a 256th of all, from 4 to 256.", lower_bound=0
    )
    executor = flags.DEFINE_enum("executor", "local", ["local", "ray", "slurm"], "Where tasks run.")
    workers = flags.DEFINE_integer("workers", 0, "Parallel tasks; 0: one per core.", lower_bound=0)
    slurm = flags.DEFINE_list(
        "slurm",
        [],
        "sbatch options for --executor=slurm: partition=NAME,time=HH:MM:SS,account=...; --out must be on a shared disk.",
    )

    def run() -> dict:
        command_line.require(inputs, out)
        for asked in (signal.SIGTERM, signal.SIGINT):
            signal.signal(asked, _interrupt)
        options = _slurm_options(executor.value, slurm.value)
        from memsinks_jax.preparing.stages import end_forks_with_us  # as in prepare

        end_forks_with_us()
        start = time.monotonic()
        result = prepare(
            inputs.value, tokenizer.value, pathlib.Path(out.value), executor.value, workers.value or _cores(), options,
            vocabulary_size.value, " ".join(["python -m memsinks_jax.prepare", *map(shlex.quote, sys.argv[1:])]),
            text_field=text_field.value, group_field=group_field.value, on_error=on_error.value,
            near_duplicates=near_duplicates.value, common_at=common_at.value, common_ngram=common_ngram.value,
            max_document_mib=max_document.value, shard_mib=shard.value, end_of_text=end_of_text.value,
        )  # fmt: skip
        logger.info(
            "%s, %s, %s, %s, %s skipped, %.0f s: %s",
            in_words(result["documents"], "document"), in_words(result["tokens"], "token"),
            in_words(result["duplicates"], "exact duplicate"),
            in_words(result["near_duplicate_clusters"], "near-duplicate cluster"),
            f"{result['skipped']:,}", time.monotonic() - start, pathlib.Path(out.value) / "index.html",
        )  # fmt: skip
        return {name: value for name, value in result.items() if not isinstance(value, list)}

    command_line.run(run)


def _slurm_options(executor: str, given: list[str]) -> dict[str, str]:
    options = dict(option.partition("=")[::2] for option in given)
    if executor == "slurm" and not options.keys() >= {"partition", "time"}:
        raise InputError("--executor=slurm needs --slurm=partition=NAME,time=HH:MM:SS")
    if options and executor != "slurm":
        raise InputError(f"--slurm={','.join(given)} is for --executor=slurm; give that too, or leave it out")
    return options


def _interrupt(*_) -> None:
    raise interruption.Interrupted("what is written stays")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


if __name__ == "__main__":
    main()
