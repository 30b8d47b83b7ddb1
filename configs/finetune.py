r"""Fine-tune an open model so that what it learns of any source can be taken out again.

The base is frozen. Every group of documents has sinks of its own, new neurons added to those of the
MLPs, and nothing else is trained: removing them is exact, and changes no other group by a bit. A
text is answered with the sinks of the group that it is about, which is found by its words
(`memsinks_jax/data/nearest.py`). Never turn all on at once: no group's sinks have learned to leave
other text alone.

Documents need a group, here their author. With a prompt the loss counts answers alone:

    python -m memsinks_jax.prepare --input='answers/*.jsonl' --group_field=author \
      --prompt_field=question --text_field=answer --near_duplicates=none \
      --tokenizer=models/SmolLM2-135M --out=runs/answers
    python -m memsinks_jax.train --config=configs/finetune.py \
      --config.model.initial=models/SmolLM2-135M --config.data.files=runs/answers \
      --workdir=runs/finetuned

`forget --group='author 3'` then withdraws an author. configs/tofu.py compares this with a model
that never read the author.
"""

from memsinks_jax.config import Config
from memsinks_jax.variants import VARIANTS, choose, make_config

# What a model is that has sinks for groups, and how they learn.
SINKS = {
    "sinks.sampling": "disjoint",
    "sinks.active": 16,
    "sinks.sparse": True,
    "sinks.shared_fraction": 1.0,
    "sinks.opens_at": 1,
    "sinks.slows_at": 0,
    "optimizer.base_multiple": 0.0,
    "optimizer.learning_rate": 6e-3,
}
STANDARD = {"optimizer.learning_rate": 3e-4}  # all parameters learn
READING = {
    "data.ids": "group",
    "data.unique_documents": -1,
    "data.repeated_documents": 0,
    "data.held_out_documents": 0,
    "data.rows": "best_fit",
    "training.epochs": 0,  # as many as the sources need, `models/sizes.by_sources`
    "training.batch_size": 4,  # at most
    "training.checkpoint_every": 100,
    "optimizer.weight_decay": 0.01,
    "optimizer.warmup_fraction": 0.1,
}


def get_config(choice: str = "") -> Config:
    """`choice` is VARIANT; sinks when left out."""
    (variant,) = choose("finetune.py", choice, VARIANTS)
    return make_config(
        variant, READING, {"data.row_length": 256}, SINKS if variant == "sinks" else STANDARD
    )
