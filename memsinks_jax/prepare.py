"""Prepares a corpus: python -m memsinks_jax.prepare --input='texts/*.jsonl.zst' --out=prepared

Reads .txt, .jsonl (both also .gz, .zst), .json, .csv, .parquet, .arrow, folders, globs and
hf://dataset:split; writes tokenized documents with their ids, ready for
--config.data.files=prepared, and a report, index.html. With --prompt_field or --messages_field a
run's loss counts answers alone. Without --tokenizer it trains one on a sample of the input. After
an interruption the same command resumes. It finds the contexts that have sinks, for
config.sinks.kind=by_context: --contexts changes how. The output does not depend on the number of
workers.
"""

import dataclasses
import logging
import os
import pathlib
import signal
import sys
import time

from memsinks_jax.config import RULES, InputError
from memsinks_jax.data.documents import in_words
from memsinks_jax.preparing.prepare import Settings, prepare
from memsinks_jax.runs import command_line, interruption
from memsinks_jax.runs.command_line import REQUIRED, option

logger = logging.getLogger("memsinks_jax.prepare")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    input: list[str] = option(
        REQUIRED, "File, folder, quoted glob or hf://dataset[:split]; may be repeated."
    )
    tokenizer: str | None = option(
        None,
        "tokenizer.model, tokenizer.json or a folder with one; by default one is trained on a "
        "sample of the input and written to --out.",
    )
    vocabulary_size: int | None = option(
        None,
        "Size of the tokenizer to train; by default the amount of text decides. A run's "
        "config.data.vocabulary_size must not be smaller.",
        RULES["data.vocabulary_size"].lowest,
        # four times the largest in use; a number in the billions would take minutes to refuse
        2**22,
    )
    out: pathlib.Path = option(REQUIRED, "Folder to write, or to resume.")
    settings: Settings
    executor: str = option("local", "Where tasks run.", choices=("local", "ray", "slurm"))
    workers: int = option(0, "Parallel tasks; 0: one per core.", 0)
    slurm: tuple[str, ...] = option(
        (),
        "sbatch options for --executor=slurm: partition=NAME,time=HH:MM:SS,account=...; --out "
        "must be on a shared disk.",
    )


def main(options: Options) -> dict:
    for asked in (signal.SIGTERM, signal.SIGINT):
        signal.signal(asked, _interrupt)
    slurm = _slurm_options(options.executor, options.slurm)
    from memsinks_jax.preparing.stages import end_forks_with_us  # as in prepare

    end_forks_with_us()
    start = time.monotonic()
    result = prepare(
        options.input,
        options.tokenizer,
        options.out,
        executor=options.executor,
        workers=options.workers or _cores(),
        slurm=slurm,
        vocabulary_size=options.vocabulary_size,
        command=command_line.command("prepare"),
        **vars(options.settings),
    )
    logger.info(
        "%s, %s, %s, %s, %s skipped, %.0f s: %s",
        in_words(result["documents"], "document"),
        in_words(result["tokens"], "token"),
        in_words(result["duplicates"], "exact duplicate"),
        in_words(result["near_duplicate_clusters"], "near-duplicate cluster"),
        f"{result['skipped']:,}",
        time.monotonic() - start,
        options.out / "index.html",
    )
    return {name: value for name, value in result.items() if not isinstance(value, list)}


def _slurm_options(executor: str, given: tuple[str, ...]) -> dict[str, str]:
    options = dict(option.partition("=")[::2] for option in given)
    if executor == "slurm" and not options.keys() >= {"partition", "time"}:
        raise InputError("--executor=slurm needs --slurm=partition=NAME,time=HH:MM:SS")
    if options and executor != "slurm":
        raise InputError(
            f"--slurm={','.join(given)} is for --executor=slurm; give that too, or leave it out"
        )
    return options


def _interrupt(*_) -> None:
    raise interruption.Interrupted("what is written stays")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


if __name__ == "__main__":
    command_line.run(main, Options)
