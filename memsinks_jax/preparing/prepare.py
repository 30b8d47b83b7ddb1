"""Prepares a corpus: checks what is asked, runs the stages, goes on after an interruption."""

import dataclasses
import json
import logging
import pathlib

import numpy as np

from memsinks_jax.atomic import atomic_file
from memsinks_jax.config import RULES, ContextsConfig, InputError, choice, setting
from memsinks_jax.data import prepared
from memsinks_jax.data.contexts import letters_of
from memsinks_jax.data.files import text_bytes
from memsinks_jax.data.tokenizer import AnyTokenizer, open_tokenizer, pieces_for

logger = logging.getLogger(__name__)

TEMPLATE = r"Question: {prompt}\nAnswer: "  # of a --prompt_field without --template


@dataclasses.dataclass(frozen=True)
class Settings:
    """What decides how a corpus comes out; the rest decides where it is made."""

    end_of_text: str = setting(
        "",
        "Token of a tokenizer.json that ends documents; by default the one that its folder names, "
        "else the one with a usual name.",
    )
    text_field: str = setting("text", "Field of a record that holds the text; a.b is field b of a.")
    prompt_field: str = setting(
        "",
        "Field with a prompt, which the text answers. Then the loss counts the answers' tokens "
        "alone.",
    )
    template: str = setting(
        "",
        rf"Text around a {{prompt}}, with the escapes \n, \t and \\, before its answer; default "
        f"'{TEMPLATE}'. chat: the template of the --tokenizer's model.",
    )
    messages_field: str = setting(
        "",
        "Field with a conversation, a list of messages with a role and a content, for the chat "
        "template of the --tokenizer's model; the loss counts the assistant's messages, but those "
        'with "weight": 0.',
    )
    group_field: str = setting(
        "", "Field that holds the group (domain, author, licence), for config.data.ids=group."
    )
    on_error: str = choice(
        "stop",
        "What to do with a record that cannot be used; skip counts and lists it.",
        stop="",
        skip="",
    )
    near_duplicates: str = choice(
        "close",
        "Find edited copies: close finds those with up to 5% of the tokens changed, loose up to "
        "10%, in small corpora.",
        close="",
        loose="",
        none="",
    )
    contexts: str = setting(
        "",
        "How to find the contexts that have sinks with config.sinks.kind=by_context: settings of "
        "config.contexts that differ from their defaults, such as length=12,stretch=24. none: do "
        "not.",
    )
    max_document_mib: int = setting(16, "Upper limit of a document's size, in MiB.", 1)
    shard_mib: int = setting(0, "Input per shard, in MiB; 0: a 256th of all, from 4 to 256.", 0)


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
      tokenizer: tokenizer.model, tokenizer.json or a folder with one; None: one is trained on a
        sample of the input.
      workers: tasks at a time.
      vocabulary_size: most pieces of the tokenizer that is trained; None: by the amount of text.
      command: that asks for it; the page shows it.
      settings: see Settings.
    Returns:
      The report: {"documents", "tokens", "duplicates", "near_duplicate_clusters", "skipped", ...}.
    Raises:
      InputError, OSError: nothing is half-written; the same command resumes.
    """
    # Here, so that whoever imports the package has no second of waiting for what only this command
    # needs.
    from memsinks_jax.preparing.answers import CHAT, chat_of, closing, sha256
    from memsinks_jax.preparing.inputs import Plan, check_unchanged, make_plan
    from memsinks_jax.preparing.stages import Where, claimed
    from memsinks_jax.preparing.vocabulary import sample, train_on_sample

    settings = _used(vars(Settings(**settings)), tokenizer, vocabulary_size)
    chats = "messages_field" in settings or settings.get("template") == CHAT
    opened = (
        open_tokenizer(pathlib.Path(tokenizer), settings.get("end_of_text")) if tokenizer else None
    )
    chat = chat_of(pathlib.Path(tokenizer), opened) if chats else None
    if chat:
        settings |= {"chat_sha256": sha256(chat), "closes": closing(chat, opened)}
    plan, work = make_plan(inputs, settings), out / "work"
    if opened is None:
        pieces = vocabulary_size or pieces_for(text_bytes(plan.sources))
        settings |= {"vocabulary_size": pieces}
        plan = dataclasses.replace(plan, settings=settings)
    finished = (out / prepared.MANIFEST).exists() and not work.exists()
    if out.exists() and not work.exists() and not finished and any(out.iterdir()):
        raise InputError(f"{out} holds other files; give an empty or a new --out")
    begun = finished or (work / "plan.json").exists()
    if opened is None:
        opened = open_tokenizer(out) if begun else train_on_sample(plan)
    elif not begun and settings["on_error"] == "stop":
        sample(plan, 1)  # so that a wrong field's name leaves no folder that holds on to it
    plan = dataclasses.replace(
        plan, settings=settings | {"tokenizer_sha256": prepared.sha256(opened.model)}
    )
    if finished:
        return _check_finished(out, plan)
    with claimed(work):
        if (work / "plan.json").exists():
            check_unchanged(Plan.from_json((work / "plan.json").read_text()), plan, out)
        (out / "shards").mkdir(exist_ok=True)
        for name, content in (opened.files | (chat.files if chat else {})).items():
            with atomic_file(out / name) as scratch:
                scratch.write_bytes(content)
        if not (tokenizer or (work / "plan.json").exists()):
            logger.info(
                "a tokenizer of %s pieces: %s",
                f"{opened.vocabulary_size:,}",
                out / opened.file_name,
            )
        with atomic_file(work / "plan.json") as scratch:
            scratch.write_text(plan.to_json())
        return _run_stages(out, plan, opened, Where(executor, workers, slurm or {}), command)


def _used(settings: dict, tokenizer: str | None, vocabulary_size: int | None) -> dict:
    """The settings, checked, without those that are off."""
    from memsinks_jax.preparing.answers import CHAT, check_template

    if not settings["text_field"]:
        raise InputError(
            "--text_field is empty; give the field of a record that holds the text, or omit this"
        )
    if settings["prompt_field"]:
        settings["template"] = settings["template"] or TEMPLATE
        check_template(settings["template"])
    elif settings["template"]:
        raise InputError(
            f"--template={settings['template']} is of --prompt_field; give that too, or omit this"
        )
    named = [
        name for name in ("prompt_field", "text_field") if settings[name] != getattr(Settings, name)
    ]
    if settings["messages_field"] and named:
        raise InputError(f"--messages_field holds whole conversations; omit it or --{named[0]}")
    if tokenizer and vocabulary_size:
        raise InputError(
            "--vocabulary_size is of a tokenizer that is trained, not of --tokenizer; omit one "
            "of them"
        )
    if not tokenizer:
        if end_of_text := settings["end_of_text"]:
            raise InputError(
                f"--end_of_text={end_of_text} is of a tokenizer.json; give it as --tokenizer, or "
                "omit this"
            )
        if settings["messages_field"] or settings["template"] == CHAT:
            raise InputError(
                "a chat template is that of a model: give the folder or the GGUF file of one as "
                "--tokenizer"
            )
    settings["contexts"] = _of_contexts(settings["contexts"])
    optional = {"contexts", "end_of_text", "prompt_field", "messages_field", "template"}
    off = {name for name in optional if not settings[name]}
    return {name: value for name, value in settings.items() if name not in off}


def _of_contexts(given: str) -> dict:
    """--contexts -> fields of ContextsConfig that decide which contexts have sinks; {} if none are
    sought.

    Raises:
      InputError: an unknown field, or a value that it cannot have.
    """
    found = {
        name: getattr(ContextsConfig, name) for name in ("length", "stretch", "times", "share")
    }
    if given == "none":
        return {}
    for each in filter(None, given.split(",")):
        name, _, value = each.partition("=")
        try:
            found[name] = type(found[name])(value)
        except (KeyError, ValueError):
            raise InputError(
                f"--contexts={given}: {each} is none of "
                f"{', '.join(f'{n}={v}' for n, v in found.items())}"
            ) from None
        if instead := RULES[f"contexts.{name}"].broken_by(found[name]):
            raise InputError(f"--contexts={given}: {name} is {value}; {instead}")
    return found


def _run_stages(out: pathlib.Path, plan, tokenizer: AnyTokenizer, where, command: str) -> dict:
    """From the input to the corpus -> its report."""
    from memsinks_jax.preparing import contexts, near_duplicates, sorted_files, steps
    from memsinks_jax.preparing.finish import finish
    from memsinks_jax.preparing.stages import Watch, run_stage

    work, pieces, closeness = out / "work", len(plan.pieces), plan.settings["near_duplicates"]
    tokenise = [
        steps.ReadPiece(work / "plan.json"),
        steps.WriteShard(out, tokenizer.file_name, plan.settings),
    ]
    stages = {"tokens": (tokenise, pieces)}
    if closeness != "none":
        config = near_duplicates.minhash_config(closeness)
        tokenise.append(near_duplicates.Signatures(work / "signatures", config))
        stages["pairs"] = [near_duplicates.bucket_step(work, config)], config.num_buckets
        stages["clusters"] = [near_duplicates.Clusters(work, pieces)], 1
    if "contexts" in plan.settings:
        np.save(work / contexts.LETTERS, letters_of(tokenizer))
        kind, ranges = (
            prepared.token_type(tokenizer.vocabulary_size),
            sorted_files.tasks(plan.bytes_of_pieces()),
        )
        around = tokenizer.begin_of_text, plan.settings.get("closes", tokenizer.end_of_text)
        stages |= contexts.stages(
            out, kind, around, pieces, ranges, ContextsConfig(**plan.settings["contexts"])
        )
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
