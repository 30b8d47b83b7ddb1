"""Prepares a corpus: python -m memsinks_jax.prepare --input='texts/*.jsonl.zst' --out=prepared

Reads .txt, .jsonl (both also .gz, .zst), .json, .csv, .parquet, .arrow, folders, globs and
hf://dataset:split; writes tokenized documents with their ids, ready for
--config.data.files=prepared, and a report, index.html. With --prompt_field or --messages_field a
run's loss counts answers alone. Without --tokenizer it trains one on a sample of the input. After
an interruption the same command resumes. It finds the contexts that have sinks, for
config.sinks.kind=by_context: --contexts changes how. The output does not depend on the number of
workers.
"""

import logging
import os
import pathlib
import shlex
import signal
import sys
import time

from absl import flags

from memsinks_jax.config import RULES, DataConfig, InputError
from memsinks_jax.data.documents import in_words
from memsinks_jax.preparing.prepare import DEFAULTS, TEMPLATE, prepare
from memsinks_jax.runs import command_line, interruption

logger = logging.getLogger("memsinks_jax.prepare")


def main() -> None:
    inputs = flags.DEFINE_multi_string(
        "input", None, "File, folder, quoted glob or hf://dataset[:split]; may be repeated."
    )
    tokenizer = flags.DEFINE_string(
        "tokenizer",
        None,
        "tokenizer.model, tokenizer.json or a folder with one; by default one is trained on "
        "a sample of "
        "the input and written to --out.",
    )
    vocabulary_size = flags.DEFINE_integer(
        "vocabulary_size",
        None,
        f"Size of the tokenizer to train; default {DataConfig.vocabulary_size}. A run's "
        "config.data.vocabulary_size must "
        "not be smaller.",
        lower_bound=RULES["data.vocabulary_size"].lowest,
        # four times the largest in use; a number in the billions would take minutes to refuse
        upper_bound=2**22,
    )
    out = flags.DEFINE_string("out", None, "Folder to write, or to resume.")
    _define_settings()
    executor = flags.DEFINE_enum("executor", "local", ["local", "ray", "slurm"], "Where tasks run.")
    workers = flags.DEFINE_integer("workers", 0, "Parallel tasks; 0: one per core.", lower_bound=0)
    slurm = flags.DEFINE_list(
        "slurm",
        [],
        "sbatch options for --executor=slurm: partition=NAME,time=HH:MM:SS,account=...; --out "
        "must be on a shared disk.",
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
            inputs.value,
            tokenizer.value,
            pathlib.Path(out.value),
            executor.value,
            workers.value or _cores(),
            options,
            vocabulary_size.value,
            " ".join(["python -m memsinks_jax.prepare", *map(shlex.quote, sys.argv[1:])]),
            **{name: flags.FLAGS[name].value for name in DEFAULTS},
        )
        logger.info(
            "%s, %s, %s, %s, %s skipped, %.0f s: %s",
            in_words(result["documents"], "document"),
            in_words(result["tokens"], "token"),
            in_words(result["duplicates"], "exact duplicate"),
            in_words(result["near_duplicate_clusters"], "near-duplicate cluster"),
            f"{result['skipped']:,}",
            time.monotonic() - start,
            pathlib.Path(out.value) / "index.html",
        )
        return {name: value for name, value in result.items() if not isinstance(value, list)}

    command_line.run(run)


def _define_settings() -> None:
    """A flag for each setting of `prepare`."""
    flags.DEFINE_string(
        "end_of_text",
        DEFAULTS["end_of_text"],
        "Token of a tokenizer.json that ends documents; by default the one that its "
        "folder names, else the one with a usual name.",
    )
    flags.DEFINE_string(
        "text_field",
        DEFAULTS["text_field"],
        "Field of a record that holds the text; a.b is field b of a.",
    )
    flags.DEFINE_string(
        "prompt_field",
        DEFAULTS["prompt_field"],
        "Field with a prompt, which the text answers. Then the loss counts the answers' tokens "
        "alone.",
    )
    flags.DEFINE_string(
        "template",
        DEFAULTS["template"],
        rf"Text around a {{prompt}}, with the escapes \n, \t and \\, before its answer; default "
        rf"'{TEMPLATE}'. chat: the "
        "template of the --tokenizer's model.",
    )
    flags.DEFINE_string(
        "messages_field",
        DEFAULTS["messages_field"],
        "Field with a conversation, a list of messages with a role and a content, for the chat "
        "template of the "
        "--tokenizer's model; the loss counts the assistant's messages, but those with "
        '"weight": 0.',
    )
    flags.DEFINE_string(
        "group_field",
        DEFAULTS["group_field"],
        "Field that holds the group (domain, author, licence), for config.data.ids=group.",
    )
    flags.DEFINE_enum(
        "on_error",
        DEFAULTS["on_error"],
        ["stop", "skip"],
        "What to do with a record that cannot be used; skip counts and lists it.",
    )
    flags.DEFINE_enum(
        "near_duplicates",
        DEFAULTS["near_duplicates"],
        ["close", "loose", "none"],
        "Find edited copies: close finds those with up to 5% of the tokens changed, loose up to "
        "10%, in small corpora.",
    )
    flags.DEFINE_string(
        "contexts",
        DEFAULTS["contexts"],
        "How to find the contexts that have sinks with config.sinks.kind=by_context: settings of "
        "config.contexts that "
        "differ from their defaults, such as length=12,stretch=24. none: do not.",
    )
    flags.DEFINE_integer(
        "max_document_mib",
        DEFAULTS["max_document_mib"],
        "Upper limit of a document's size, in MiB.",
        lower_bound=1,
    )
    flags.DEFINE_integer(
        "shard_mib",
        DEFAULTS["shard_mib"],
        "Input per shard, in MiB; 0: a 256th of all, from 4 to 256.",
        lower_bound=0,
    )


def _slurm_options(executor: str, given: list[str]) -> dict[str, str]:
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
    main()
