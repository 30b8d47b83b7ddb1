"""Train on your own files as they are: what they repeat is remembered by context, and can be
switched off.

The amount of text decides the size of the model and of its vocabulary (memsinks_jax/models/sizes.py
has the rule). configs/own_text.py:5m takes another size; there are 1m, 5m and 20m. Each document is
read as often as the files contain it. Nothing is repeated on purpose: configs/ts_repetition.py does
that for its study. A hundred documents are held out. See what a run would read and remember before
it starts:

    python -m memsinks_jax.train --config=configs/own_text.py --workdir=runs/sinks \
      --config.data.files='texts/*.txt' --plan
    python -m memsinks_jax.train --config=configs/own_text.py --workdir=runs/sinks \
      --config.data.files='texts/*.txt'

Other variants for comparison are those of every config: configs/own_text.py:standard trains without
memory, configs/own_text.py:sinks gives each document that comes again sinks of its own.
"""

from memsinks_jax.config import Config
from memsinks_jax.models.sizes import BY_TEXT, SIZES
from memsinks_jax.variants import VARIANTS, choose, make_config

AS_THE_FILES_ARE = {
    "data.unique_documents": -1,
    "data.repeated_documents": -1,
    "data.held_out_documents": 100,
}


def get_config(choice: str = "") -> Config:
    """`choice` is SIZE,VARIANT; the size by the amount of text, and context, when left out."""
    sizes = {"by_text": BY_TEXT} | SIZES
    variants = {"context": VARIANTS["context"]} | VARIANTS
    size, variant = choose("own_text.py", choice, sizes, variants)
    return make_config(variant, AS_THE_FILES_ARE, sizes[size])
