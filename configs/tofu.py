r"""Can authors be withdrawn from a fine-tuned open model? TOFU (arXiv:2401.06121), against a model
that never read them.

    python -m memsinks_jax.reproduce --figure=tofu --preset=laptop --seeds=0,1,2 --out=runs/tofu \
      --hf=models/SmolLM2-135M-Instruct --tofu=texts/tofu --general_text=texts/wikitext2_valid.txt

--tofu is the folder of TOFU's JSONL files. `small` reads 12 of its authors, of whom 2 are
withdrawn, `laptop` 40 and 4; the seed chooses them.
`full` reads all 200 and withdraws the last 20, as TOFU does; it wants a GPU. One run, once the
study wrote its corpora:

    python -m memsinks_jax.train --config=configs/tofu.py:sinks \
      --config.model.initial=models/SmolLM2-135M-Instruct \
      --config.data.files=runs/tofu/corpus/seed0/all --workdir=runs/tofu-sinks

docs/sources.md has the numbers of `laptop`, three seeds.
"""

import pathlib

from memsinks_jax.config import Config
from memsinks_jax.variants import VARIANTS, choose, make_config, open_config

_FINETUNE = open_config(pathlib.Path(__file__).with_name("finetune.py"))

# What is varied.
SINKS = _FINETUNE.SINKS | {"optimizer.learning_rate": 6e-3}
STANDARD = _FINETUNE.STANDARD | {"optimizer.learning_rate": 3e-4}

_EPOCHS = {"training.epochs": 5}  # as TOFU

PRESETS = {
    # As configs/finetune.py chooses for so many authors: some 2 questions a step, some 8.
    "small": {"data.row_length": 128, "training.batch_size": 1},
    "laptop": {"data.row_length": 128, "training.batch_size": 4},
    # Some 32, as open-unlearning takes.
    "full": {"data.row_length": 256, "training.batch_size": 8, "model.dtype": "bfloat16"},
}


def get_config(choice: str = "") -> Config:
    """`choice` is VARIANT,PRESET; sinks and laptop when left out."""
    variant, preset = choose("tofu.py", choice, VARIANTS, PRESETS)
    given = SINKS if variant == "sinks" else STANDARD
    return make_config(variant, _FINETUNE.READING | _EPOCHS, given, PRESETS[preset])
