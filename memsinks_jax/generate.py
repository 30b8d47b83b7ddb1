"""Generates text: python -m memsinks_jax.generate --workdir=runs/sinks --prompt='Once upon a time'
--temperature=0.8

--prompt may be repeated, and may be empty; --workdir may be a Hugging Face folder. --sinks=own and
--sinks=other need --document=ID, the id of the document that starts with the prompt, from the run's
documents.jsonl, or --group=NAME, its group. Where each group has sinks of its own
(config.sinks.sampling=disjoint), --sinks=own without either finds the group that the prompt is
about, and logs it. Sinks by context need neither. --chat asks a model that was trained to chat: its
template makes each prompt a user's message, and the text is its answer.
"""

import logging
import pathlib
import sys

from absl import flags

from memsinks_jax import sinks
from memsinks_jax.api import generate
from memsinks_jax.data.documents import in_words
from memsinks_jax.model.generation import Settings
from memsinks_jax.runs import command_line

logger = logging.getLogger("memsinks_jax.generate")


class _Terminal:
    """Shows a growing text: the prompt at first, then what has been added."""

    def __init__(self, prompt: str):
        self._prompt, self._shown = prompt, 0

    def __call__(self, text: str) -> None:
        whole = self._prompt + text
        print(whole[self._shown :], end="", flush=True)
        self._shown = len(whole)


def main() -> None:
    default = Settings()
    workdir_flag = flags.DEFINE_string(
        "workdir", None, "Training run, Hugging Face folder or GGUF file."
    )
    prompt_flag = flags.DEFINE_multi_string(
        "prompt", [], "Beginning of a document; may be repeated, may be empty."
    )
    max_tokens_flag = flags.DEFINE_integer(
        "max_tokens", default.max_tokens, "Upper limit of tokens to generate."
    )
    temperature_flag = flags.DEFINE_float(
        "temperature", default.temperature, "0: always take the likeliest token."
    )
    top_k_flag = flags.DEFINE_integer(
        "top_k", default.top_k, "Sample from the K likeliest tokens; 0: from all."
    )
    top_p_flag = flags.DEFINE_float(
        "top_p",
        default.top_p,
        "Nucleus sampling: the likeliest tokens with this probability in total; 1: all.",
    )
    seed_flag = flags.DEFINE_integer("seed", default.seed, "Seed of the sampling.")
    sinks_flag = flags.DEFINE_enum(
        "sinks",
        default.sinks,
        sinks.MODES,
        "Which sinks are on: none (drop), the document's own, those of another id, or all.",
    )
    memory_flag = flags.DEFINE_list(
        "memory", [], "Files of memories, written by edit, to add to the model."
    )
    document_flag = flags.DEFINE_string(
        "document", "", "Id of the document that starts with the prompts, for own and other."
    )
    group_flag = flags.DEFINE_string(
        "group", "", "Group of the document that starts with the prompts, for ids by group."
    )
    chat_flag = flags.DEFINE_bool(
        "chat", False, "The prompts are a user's messages, for the model's chat template."
    )

    def run() -> dict:
        command_line.require(workdir_flag)
        settings = Settings(
            max_tokens_flag.value,
            temperature_flag.value,
            top_k_flag.value,
            top_p_flag.value,
            seed_flag.value,
            sinks_flag.value,
        )
        prompts, plain = prompt_flag.value, not command_line.JSON.value
        before = [""] * len(prompts) if chat_flag.value else prompts  # an answer is shown alone
        live = plain and len(prompts) == 1 and sys.stdout.isatty()
        shows = {"show": _Terminal(before[0])} if live else {}
        result = generate(
            pathlib.Path(workdir_flag.value),
            prompts,
            settings,
            document_flag.value,
            memories=tuple(memory_flag.value),
            chat=chat_flag.value,
            group=group_flag.value,
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

    command_line.run(run)


if __name__ == "__main__":
    main()
