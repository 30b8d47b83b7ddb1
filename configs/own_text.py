"""Train on your own files as they are: what they contain several times is what sinks take.

The model of configs/ts_repetition.py. Each document is read as often as the files contain it, and
those that they contain more than once are the repeated documents. Nothing is repeated on purpose:
configs/ts_repetition.py does that for its study. A hundred documents are held out. See what a run
would read before it starts:

    python -m memsinks_jax.train --config=configs/own_text.py --workdir=runs/sinks \
      --config.data.files='texts/*.txt' --plan
    python -m memsinks_jax.train --config=configs/own_text.py --workdir=runs/sinks \
      --config.data.files='texts/*.txt'
"""

from memsinks_jax.config import Config
from memsinks_jax.variants import VARIANTS, choose, make_config

AS_THE_FILES_ARE = {
    "data.unique_documents": -1,
    "data.repeated_documents": -1,
    "data.held_out_documents": 100,
}


def get_config(choice: str = "") -> Config:
    """`choice` is VARIANT; sinks when left out."""
    (variant,) = choose("own_text.py", choice, VARIANTS)
    return make_config(variant, AS_THE_FILES_ARE)
