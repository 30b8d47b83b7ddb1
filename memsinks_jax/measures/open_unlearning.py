"""Writes files for open-unlearning (github.com/locuslab/open-unlearning, arXiv:2506.12618), which
then measures a model as `export` writes it, and its oracle, on the documents of an audit. Hydra
finds the configs by --config-dir, so its code stays.

Its measures differ from ours: every score but the loss leaves out a document's last token;
extraction strength is 1/n if no suffix is recited, and 0 here; Min-K% rounds its share down.
"""

import json
import logging
import pathlib
import shlex

import numpy as np

from memsinks_jax.data.tokenizer import AnyTokenizer
from memsinks_jax.measures.documents import Documents
from memsinks_jax.measures.membership import LOWEST_SHARE
from memsinks_jax.models.exporting import export
from memsinks_jax.models.tokenizer_files import exported_tokenizer
from memsinks_jax.models.trained import Trained
from memsinks_jax.runs.interruption import atomic_folder

logger = logging.getLogger(__name__)

_NAME = "memsinks_jax"  # of the configs
_BATCH = 8
_COLLATOR = "DataCollatorForSupervisedDataset"


def export_for_open_unlearning(
    out: pathlib.Path, models: dict[str, Trained], members: Documents, non_members: Documents
) -> None:
    """Writes out/data, out/configs, out/commands.sh, to be run in a checkout of open-unlearning,
    and the models, "model" and perhaps "oracle", as `export` writes them: out/model, out/oracle.

    Models that are Hugging Face folders stay where they are.
    """
    places = {
        name: out / name if run.stored.is_run else run.stored.place for name, run in models.items()
    }
    length = max(len(tokens) for tokens in [*members.tokens, *non_members.tokens])
    tokenizer = models["model"].tokenizer
    with atomic_folder(out) as scratch:
        folder = scratch / "files"
        for kind in ("data", "configs/model", "configs/eval"):
            (folder / kind).mkdir(parents=True)
        for name, run in models.items():
            if run.stored.is_run:
                export(run.stored.place, folder / name, drop=True, dtype="float32")
        for name, documents in (("forget", members), ("holdout", non_members)):
            (folder / "data" / f"{name}.jsonl").write_text(_lines(documents, tokenizer))
        for kind, config in (
            ("model", _model(places["model"])),
            ("eval", _eval(out / "data", length)),
        ):
            (folder / "configs" / kind / f"{_NAME}.yaml").write_text(config)
        (folder / "commands.sh").write_text(_commands(out, places))
        folder.rename(out)


def _lines(documents: Documents, tokenizer: AnyTokenizer) -> str:
    """Lines whose prompt is what opens documents: without it the first token would not be
    scored.
    """
    begin = exported_tokenizer(tokenizer).id_to_token(tokenizer.begin_of_text)
    texts = list(map(tokenizer.decode, documents.tokens))
    pairs = zip(texts, documents.tokens, strict=True)
    other = sum(not np.array_equal(tokenizer.encode(text), tokens) for text, tokens in pairs)
    if other:
        logger.warning(
            "%d of %d documents tokenize differently as text: the context ends within a word",
            other,
            len(texts),
        )
    return "".join(json.dumps({"prompt": begin, "text": text}) + "\n" for text in texts)


def _yaml(content: dict, package: str = "") -> str:
    """JSON is YAML."""
    return (
        f"{f'# @package {package}' if package else ''}\n{json.dumps(content, indent=2)}\n".lstrip()
    )


def _model(folder: pathlib.Path) -> str:
    place = str(folder.absolute())
    at = {"pretrained_model_name_or_path": place}
    return _yaml(
        {
            "model_args": at | {"attn_implementation": "eager", "torch_dtype": "float32"},
            # A token opens a document, not the characters of its name.
            "tokenizer_args": at | {"split_special_tokens": False},
            "template_args": {"apply_chat_template": False},
        }
    )


def _eval(data: pathlib.Path, length: int) -> str:
    def dataset(name: str) -> dict:
        place = str((data / f"{name}.jsonl").absolute())
        args = {
            "hf_args": {"path": "json", "data_files": place, "split": "train"},
            "prefix_key": "prompt",
            "text_key": "text",
            "max_length": length,
        }
        return {"access_key": name, "handler": "CompletionDataset", "args": args}

    def metric(handler: str, *names: str, **more) -> dict:
        return {
            "handler": handler,
            "batch_size": _BATCH,
            "collators": {_COLLATOR: {"handler": _COLLATOR, "args": {"index": "index"}}},
            "datasets": {f"{_NAME}_{name}": dataset(name) for name in names},
            **more,
        }

    of_members, both = ("exact_memorization", "extraction_strength"), ("forget", "holdout")
    min_k = metric("mia_min_k", *both, k=LOWEST_SHARE)
    return _yaml(
        {
            "handler": "MUSEEvaluator",
            "output_dir": "${paths.output_dir}",
            "overwrite": False,
            "retain_logs_path": None,
            "metrics": {
                **{name: metric(name, "forget") for name in of_members},
                **{name: metric(name, *both) for name in ("mia_loss", "mia_zlib")},
                "mia_min_k": min_k,
                "mia_min_k_plus_plus": metric("mia_min_k_plus_plus", *both, k=LOWEST_SHARE),
                "privleak": {
                    "handler": "privleak",
                    "ref_value": 0.5,
                    "pre_compute": {"mia_min_k": min_k | {"access_key": "forget"}},
                    "reference_logs": {
                        "retain_model_logs": {
                            "path": f"${{eval.{_NAME}.retain_logs_path}}",
                            "include": {"mia_min_k": {"access_key": "retain"}},
                        },
                    },
                },
            },
        },
        f"eval.{_NAME}",
    )


def _commands(place: pathlib.Path, models: dict[str, pathlib.Path]) -> str:
    """The commands, the oracle's first, because privleak compares with its log."""
    lines = [
        "# In a checkout of open-unlearning; without a GPU add model.model_args.device_map=cpu."
    ]
    for name, model in reversed(models.items()):
        parts = ["python", "src/eval.py"]
        parts += [
            f"--config-dir={place.absolute() / 'configs'}",
            f"model={_NAME}",
            f"eval={_NAME}",
            f"model.model_args.pretrained_model_name_or_path={model.absolute()}",
            f"task_name={name}",
        ]
        if name == "model" and "oracle" in models:
            parts.append(f"eval.{_NAME}.retain_logs_path=saves/eval/oracle/MUSE_EVAL.json")
        lines.append(f'{shlex.join(parts)} "$@"')
    return "\n".join(lines) + "\n"
