"""FLOPs of a step, the peaks of chips, and model FLOPs utilization.

There are two counts. Both cover only the model's own work, without recomputation for the backward
pass (remat, attention kernels, chunked loss).
  full     6 N + 12 L T D per token: six for every parameter (one product and one sum forward, two
           of each backward), N with the embeddings, four for a frozen one, which has no gradient;
           attention as if every position saw the whole row (or window). Most published figures use
           this count.
  causal   6 N + 6 L T D: half of the attention, because a position sees only earlier ones.
Sinks that are off for a token are computed and then masked, so they count. Sparse sinks that are
off are not computed and do not count. Attention between documents of one row is computed and
masked, so it counts too.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

import jax

from memsinks_jax.config import Config
from memsinks_jax.model.positions import kinds
from memsinks_jax.sinks.kinds import partition, share_on
from memsinks_jax.training.optimizer import is_table
from memsinks_jax.training.step import init_params


class Chip(NamedTuple):
    """The peaks of a chip; None if its maker publishes none, or if it does not apply.

    `clock` times the compiler's FLOPs per cycle gives the peak: v5e has 4 units of 128 x 128
    multiply-adds, v4 and v5p have 8 of them, v6e does 524,288 FLOPs per cycle.
    """

    name: str
    peak: float  # bfloat16 FLOP/s, dense
    hbm: float  # bytes that a program may use, from the compiler or driver
    hbm_bandwidth: float  # bytes/s
    clock: float | None = None  # Hz
    # bytes/s from a chip to the chips of its slice or node, all links together
    ici: float | None = None
    # bytes/s to other slices or nodes, a chip's share of its host's network
    dcn: float | None = None


GIB = 2.0**30

# TPUs: the pages "TPU v4", "v5e", "v5p", "v6e" of docs.cloud.google.com/tpu/docs; usable memory and
# FLOPs a cycle as libtpu 0.0.51 reports them. ICI: half of what is published as both directions.
# DCN: network cards of a host over its chips.
# GPUs: NVIDIA's data sheets, dense; their links depend on the node (planning/cards).
# by jax's `device_kind`, of older and later drivers, and with a card's form: 'NVIDIA
# A100-SXM4-80GB'
CHIPS = (
    (r"TPU v4", Chip("v4", 275e12, 30.75 * GIB, 1228e9, 1.05e9, ici=300e9)),
    (
        r"TPU v5 lite|TPU v5e",
        Chip("v5e", 197e12, 15.75 * GIB, 819e9, 1.5e9, ici=200e9, dcn=3.125e9),
    ),
    (r"TPU v5p?", Chip("v5p", 459e12, 95.73 * GIB, 2765e9, 1.75e9, ici=600e9, dcn=6.25e9)),
    (
        r"TPU v6 lite|TPU v6e",
        Chip("v6e", 918e12, 31.24 * GIB, 1640e9, 1.75e9, ici=400e9, dcn=12.5e9),
    ),
    (r"NVIDIA A100.*80GB.*", Chip("A100", 312e12, 79.2 * GIB, 2039e9)),
    (r"NVIDIA A100.*", Chip("A100", 312e12, 39.4 * GIB, 1555e9)),
    (r"NVIDIA H100.*PCIe.*", Chip("H100 PCIe", 756e12, 79.2 * GIB, 2000e9)),
    (r"NVIDIA H100.*NVL.*", Chip("H100 NVL", 835e12, 93.1 * GIB, 3900e9)),
    (r"NVIDIA H100.*", Chip("H100", 989e12, 79.2 * GIB, 3350e9)),
    (r"NVIDIA GH200.*", Chip("GH200", 989e12, 94.5 * GIB, 4000e9)),
    (r"NVIDIA H200.*", Chip("H200", 989e12, 139.8 * GIB, 4800e9)),
    (r"NVIDIA B200.*", Chip("B200", 2250e12, 178.3 * GIB, 7700e9)),
)


def chip(device_kind: str) -> Chip | None:
    """The chip of a jax `device_kind`; None for a CPU and for chips that are not in the table."""
    return next((known for pattern, known in CHIPS if re.fullmatch(pattern, device_kind)), None)


def parameters(config: Config) -> int:
    """N: the parameters of the trained model, with embeddings and sinks."""
    return sum(leaf.size for _, leaf in _parameters(config))


def _parameters(config: Config) -> list[tuple[tuple, jax.ShapeDtypeStruct]]:
    return jax.tree_util.tree_leaves_with_path(jax.eval_shape(lambda: init_params(config)))


def in_tables(config: Config) -> int:
    """The parameters of sparse sinks."""
    return sum(leaf.size for path, leaf in _parameters(config) if is_table(path))


def parameters_of_token(config: Config) -> float:
    """The number of parameters used at a token: of sparse sinks, only those that are on."""
    tables = in_tables(config)
    if config.sinks.traits.by_context:
        return parameters(config) - tables + config.model.d_model
    share = share_on(config.sinks, partition(config.model, config.sinks).sinks) if tables else 1
    return parameters(config) - (1 - share) * tables


def flops_per_token(config: Config) -> dict[str, float]:
    """{'full', 'causal'}: FLOPs per token of a training step, forward and backward."""
    frozen = 0 if config.optimizer.base_multiple else parameters(config) - in_tables(config)
    products = 6.0 * parameters_of_token(config) - 2.0 * frozen
    found, of_layers = kinds(config.model)
    seen = sum(
        min(found[kind].window or config.data.row_length, config.data.row_length)
        for kind in of_layers
    )
    attention = 12.0 * seen * config.model.attention_width
    return {"full": products + attention, "causal": products + attention / 2}


def flops_per_step(config: Config) -> dict[str, float]:
    """{'full', 'causal'}: FLOPs of all devices together."""
    tokens = config.training.batch_size * config.data.row_length
    return {count: tokens * flops for count, flops in flops_per_token(config).items()}


def utilization(config: Config, device_kind: str) -> Callable[[float], dict[str, float]]:
    """Tokens per second and device -> {'mfu', 'mfu_causal'}, model FLOPs utilization: the model's
    own FLOPs as a fraction of the peak. {} for a device with unknown peak.
    """
    known = chip(device_kind)
    if known is None:
        return lambda tokens_per_second: {}
    shares = {"mfu": "full", "mfu_causal": "causal"}
    rates = {name: flops_per_token(config)[count] / known.peak for name, count in shares.items()}
    return lambda tokens_per_second: {
        name: rate * tokens_per_second for name, rate in rates.items()
    }
