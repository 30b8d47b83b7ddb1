"""Generates text: python -m memsinks_jax.generate --workdir=runs/sinks --prompt='Once upon a time'
--temperature=0.8

--prompt may be repeated, and may be empty; --workdir may be a Hugging Face folder. --sinks=own and
--sinks=other need --document=ID, the id of the document that starts with the prompt, from the run's
documents.jsonl, or --group=NAME, its group. Where each group has sinks of its own
(config.sinks.sampling=disjoint), --sinks=own without either finds the group that the prompt is
about, or two, and logs it. Sinks by context need neither. --chat asks a model that was trained to
chat: its template makes each prompt a user's message, and the text is its answer. --messages is a
whole conversation, of which it writes the next answer.
"""

import dataclasses
import json
import logging
import pathlib
import sys

from memsinks_jax.api import generate
from memsinks_jax.config import InputError
from memsinks_jax.data.chat import check_messages
from memsinks_jax.data.documents import in_words
from memsinks_jax.model.generation import Settings
from memsinks_jax.runs import command_line
from memsinks_jax.runs.command_line import REQUIRED, option
from memsinks_jax.sinks.kinds import MODES

logger = logging.getLogger("memsinks_jax.generate")


class _Terminal:
    """Shows a growing text: the prompt at first, then what has been added."""

    def __init__(self, prompt: str):
        self._prompt, self._shown = prompt, 0

    def __call__(self, text: str) -> None:
        whole = self._prompt + text
        print(whole[self._shown :], end="", flush=True)
        self._shown = len(whole)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    workdir: pathlib.Path = option(REQUIRED, "Training run, Hugging Face folder or GGUF file.")
    prompt: list[str] = option((), "Beginning of a document; may be repeated, may be empty.")
    max_tokens: int = option(Settings.max_tokens, "Upper limit of tokens to generate.")
    temperature: float = option(Settings.temperature, "0: always take the likeliest token.")
    top_k: int = option(Settings.top_k, "Sample from the K likeliest tokens; 0: from all.")
    top_p: float = option(
        Settings.top_p,
        "Nucleus sampling: the likeliest tokens with this probability in total; 1: all.",
    )
    seed: int = option(Settings.seed, "Seed of the sampling.")
    sinks: str = option(
        Settings.sinks,
        "Which sinks are on: none (drop), the document's own, those of another id, or all.",
        choices=MODES,
    )
    memory: tuple[str, ...] = option((), "Files of memories, written by edit, to add to the model.")
    document: str = option(
        "", "Id of the document that starts with the prompts, for own and other."
    )
    group: list[str] = option(
        (), "Group that the prompts are about, for ids by group; may be repeated."
    )
    chat: bool = option(False, "The prompts are a user's messages, for the model's chat template.")
    messages: pathlib.Path | None = option(
        None, "JSON file with a conversation instead of prompts: messages with role and content."
    )


def _conversation(options: Options) -> list[dict]:
    """The messages of the file. Raises InputError if they are none, or prompts are given too."""
    if options.prompt:
        raise InputError("--prompt and --messages exclude each other; put it into the file")
    try:
        content = json.loads(options.messages.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"--messages={options.messages} cannot be read ({error})") from None
    return check_messages(content, f"--messages={options.messages}")


def main(options: Options) -> dict:
    of_sampling = [field.name for field in dataclasses.fields(Settings)]
    settings = Settings(**{name: getattr(options, name) for name in of_sampling})
    chat = options.chat or options.messages is not None
    prompts = [_conversation(options)] if options.messages else options.prompt
    plain = not command_line.JSON.value
    before = [""] * len(prompts) if chat else prompts  # an answer is shown alone
    live = plain and len(prompts) == 1 and sys.stdout.isatty()
    shows = {"show": _Terminal(before[0])} if live else {}
    result = generate(
        options.workdir,
        prompts,
        settings,
        options.document,
        memories=options.memory,
        chat=chat,
        groups=options.group,
        **shows,
    )
    if live:
        print()
    elif plain:
        texts = [result["text"]] if len(prompts) == 1 else result["text"]
        print("\n\n".join(prompt + text for prompt, text in zip(before, texts, strict=True)))
    logger.info(
        "%s, %.0f tokens/s, sinks %s",
        in_words(result["tokens"], "token"),
        result["tokens_per_second"],
        result["sinks"],
    )
    return result


if __name__ == "__main__":
    command_line.run(main, Options)
