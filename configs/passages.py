r"""What repeats inside documents: do sinks by passage keep licences, quotes and footers out of the shared neurons?

    python -m memsinks_jax.reproduce --figure=passages --preset=laptop --seeds=0,1,2 --out=runs/passages \
        --passages=texts/licences

--passages is a folder with train.jsonl, held_out.jsonl, often.jsonl (passages that many training documents contain) and
never.jsonl (passages that none contains), a {"text": ...} a line. Without it, passages of 60 tokens are planted in embedded
stories. --preset=laptop,five reads everything five times. One run, once the study wrote its corpora:

    python -m memsinks_jax.train --config=configs/passages.py:sinks --config.sinks.passages_at=2 \
        --config.data.files=runs/passages/corpus/all --workdir=runs/passages-sinks
"""

from memsinks_jax.config import Config
from memsinks_jax.variants import VARIANTS, choose, make_config

READING = {
    "data.unique_documents": -1,
    "data.repeated_documents": 0,
    "data.held_out_documents": 0,  # the folder has held-out text of its own
    "data.rows": "packed",
    "data.row_length": 128,
    "training.batch_size": 4,
    "training.evaluate_every": 10_000,
    "training.checkpoint_every": 10_000,
    "training.checkpoints_to_keep": 1,
}
PRESETS = {"laptop": {}}
EPOCHS = {"once": {}, "five": {"training.epochs": 5}}


def get_config(choice: str = "") -> Config:
    """`choice` is VARIANT,PRESET,EPOCHS; sinks, laptop and once when left out."""
    variant, preset, epochs = choose("passages.py", choice, VARIANTS, PRESETS, EPOCHS)
    return make_config(variant, READING, PRESETS[preset], EPOCHS[epochs])
