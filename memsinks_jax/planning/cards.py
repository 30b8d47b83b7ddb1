"""NVIDIA GPUs by name: what their compiler must know of a card, in XLA's words. What a card can do
is in training/flops.

Compiling needs neither a GPU nor CUDA: XLA's plugin for GPUs, and ptxas (`pip install
'.[plan-gpu]'`).
"""

import importlib.util
import shutil
from typing import NamedTuple

import jax
from jax.experimental import topologies

from memsinks_jax import private_interfaces
from memsinks_jax.config import InputError
from memsinks_jax.training.flops import Chip, chip

_ASK = "run: pip install '.[plan-gpu]'"
SHARE = 0.9  # of a card's memory that launch/environment.sh gives to jax
OPTIONS = {"xla_gpu_enable_latency_hiding_scheduler": True}  # which it sets too
NOT_COUNTED = (
    "the workspace of cuDNN's attention and of cuBLAS, in the same memory: only a GPU has it",
    "fragmentation of the memory",
    f"buffers of NCCL, compiled code and CUDA itself: they are in the {1 - SHARE:.0%} of the "
    "card that jax leaves",
    "kernels that a GPU chooses by trying (autotuning) may use other memory",
    "an all-reduce that the switches of NVLink add up sends half as much",
)


class Card(NamedTuple):
    """A card as NVIDIA's tuning guides and XLA's own specs (xla/backends/gpu/target_config)
    describe it.
    """

    kind: str  # jax's `device_kind`
    capability: int  # compute capability, its major number
    cores: int  # streaming multiprocessors
    float32_units: int  # of a core
    shared_memory: int  # bytes of a core
    cache: int  # bytes of the L2 cache
    clock: float  # GHz
    nvlink: float  # bytes/s from a GPU to its node, one of both directions of the data sheets
    # bytes/s to other nodes: a DGX has a network card per GPU, of 200 (A100) or 400 Gbit/s
    network: float

    def text(self, memory: float, bandwidth: float) -> str:
        """XLA's GpuTargetConfigProto. `memory` in bytes, `bandwidth` in bytes/s."""
        # sm_90a
        features = "feature_extension: ACCELERATED_FEATURES" if self.capability >= 9 else ""
        return f"""
          gpu_device_info {{
            name: "{self.kind}" cuda_compute_capability {{ major: {self.capability} {features} }}
            core_count: {self.cores} fpus_per_core: {self.float32_units}
            clock_rate_ghz: {self.clock}
            device_memory_size: {memory:.0f} memory_bandwidth: {bandwidth:.0f}
            l2_cache_size: {self.cache}
            shared_memory_per_core: {self.shared_memory}
            shared_memory_per_block_optin: {self.shared_memory - 1024}
            shared_memory_per_block: 49152 registers_per_core_limit: 65536
            registers_per_block_limit: 65536
            threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
            block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
            thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
          }}
          platform_name: "CUDA" device_description_str: "{self.kind}"
          dnn_version_info {{ major: {_CUDNN // 10000} minor: {_CUDNN // 100 % 100} }}
        """


_CUDNN = 91000  # the version that programs are compiled for, as cuDNN writes it
CARDS = {
    "a100": Card("NVIDIA A100-SXM4-80GB", 8, 108, 64, 167936, 41943040, 1.41, 300e9, 25e9),
    "h100": Card("NVIDIA H100 80GB HBM3", 9, 132, 128, 233472, 52428800, 1.98, 450e9, 50e9),
    "h200": Card("NVIDIA H200", 9, 132, 128, 233472, 52428800, 1.98, 450e9, 50e9),
    "b200": Card("NVIDIA B200", 10, 148, 128, 233472, 132644864, 1.965, 900e9, 50e9),
}


def gpus(name: str, per_node: int, nodes: int) -> tuple[list[jax.Device], Chip]:
    """`name` of CARDS -> the GPUs of all nodes (`process_index` is its number), and what one can
    do, with jax's memory.

    Raises:
      InputError: the compiler is missing, or refuses.
    """
    plugins = ("jax_cuda12_plugin", "jax_cuda13_plugin")
    has_ptxas = shutil.which("ptxas") or importlib.util.find_spec("nvidia")
    if not has_ptxas or not any(map(importlib.util.find_spec, plugins)):
        raise InputError(f"plan needs the compiler for GPUs, which is not installed; {_ASK}")
    card = CARDS[name]
    known = chip(card.kind)
    private_interfaces.trace_for_cudnn(_CUDNN)
    text = card.text(known.hbm, known.hbm_bandwidth)
    try:
        described = topologies.get_topology_desc(
            "", "cuda", target_config=text, topology=f"{nodes}x1x{per_node}"
        )
    # in XLA's words, or jax's if the plugin is of another version
    except (RuntimeError, ValueError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"XLA refuses {per_node} x {name}: {reason}; {_ASK}") from None
    return list(described.devices), known._replace(
        hbm=SHARE * known.hbm, ici=card.nvlink, dcn=card.network
    )
