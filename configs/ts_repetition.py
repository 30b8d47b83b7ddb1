"""Does dropping the sinks take the memorization away, and nothing else? (paper section 5.1, figure 4)

20 stories repeated 128 times among 4,000 seen once: 39% of what is read is repeats, as in the paper's TS-Repetition
(100 x 128 + 20,000 there).

On 2 cores figure 4 with one seed and three variants takes 4.5 minutes; a run alone on one core a little over two.
Expect, over seeds 0, 1, 2: standard 1.35 held-out and 0.08 repeated; sinks dropped 1.34 and
1.04, 76% of the gap closed; narrow and dropout memorize as standard does.

    python -m memsinks_jax.train --config=configs/ts_repetition.py:sinks --workdir=runs/sinks
    python -m memsinks_jax.reproduce --figure=4 --preset=laptop --seeds=0,1,2 --out=runs/figure4
"""

from memsinks_jax.config import Config

# Fields that differ from the defaults, which are `sinks` at the size of a laptop.
VARIANTS = {
    "sinks": {},
    "standard": {"sinks.kind": "none"},
    "no_repeat": {"sinks.kind": "none", "data.repeats": "remove"},  # as many epochs as standard
    "no_repeat_steps": {"sinks.kind": "none", "data.repeats": "remove", "training.count_removed_repeats": True},
    "deduplicated": {"sinks.kind": "none", "data.repeats": "once"},
    "narrow": {"sinks.kind": "cut"},  # control: the width that is left after dropping, from the start
    "dropout": {"sinks.kind": "by_chance"},  # control: the same neurons dropped at the same rate, tied to nothing
}

PRESETS = {
    "laptop": {},
    # Appendix B and table 1: GPT-2 medium's shape, 32,800 rows of 512 tokens (16.8 M). The paper gives neither batch nor
    # steps; learning rate and weight decay are of its grid. Wants an accelerator and --config.data.files=TINYSTORIES.
    "paper": {
        "data.unique_documents": 20_000, "data.repeated_documents": 100, "data.held_out_documents": 1000,
        "data.row_length": 512, "data.vocabulary_size": 8192,
        "model.layers": 24, "model.d_model": 1024, "model.heads": 16, "model.hidden": 4096, "model.dtype": "bfloat16",
        "optimizer.learning_rate": 6e-4,
        "optimizer.b2": 0.95,
        "optimizer.weight_decay": 0.1, "training.batch_size": 32, "training.evaluate_every": 100,
    },
}  # fmt: skip


def get_config(choice: str = "sinks") -> Config:
    """`choice` is VARIANT or VARIANT,PRESET."""
    variant, _, preset = choice.partition(",")
    for name, known in ((variant, VARIANTS), (preset or "laptop", PRESETS)):
        if name not in known:
            raise ValueError(f"ts_repetition.py has no {name!r}; choose one of: {', '.join(known)}")
    config = Config(variant=variant)
    for name, value in (PRESETS[preset or "laptop"] | VARIANTS[variant]).items():
        section, field = name.split(".")
        setattr(getattr(config, section), field, value)
    return config
