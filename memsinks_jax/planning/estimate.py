"""Memory and time of a config's train step, compiled for devices that need not be attached, and the
memory of the evaluation between steps.

Everything here is the compiler's estimate, not a measurement. For GPUs it gives no cycles, so there
a time is a lower bound: what the arithmetic, the memory or the links need at the least.
"""

import dataclasses
import re
import time

import jax
import numpy as np
from jax.sharding import Mesh

from memsinks_jax.config import Config, InputError
from memsinks_jax.evals.document_loss import DocumentLoss
from memsinks_jax.evals.memorization import batch_size
from memsinks_jax.planning import cards
from memsinks_jax.planning.account import Collective, account_of
from memsinks_jax.planning.program_text import parse
from memsinks_jax.planning.topology import mesh_of
from memsinks_jax.training import memory
from memsinks_jax.training.flops import GIB, Chip, flops_per_step
from memsinks_jax.training.program import Program, train_program

_STEPS = 1000  # steps if the config gives none; they only set constants of the schedule

# The compiler has no estimate for Pallas kernels (attention on TPUs). This is an assumption that no
# measurement supports: half of the peak FLOPs if a head fills the 128 lanes of the matrix unit, and
# a quarter with 64 channels. No TPU has run a step of ours, so the predicted time and MFU of one
# are as uncertain.
KERNEL_EFFICIENCY, FULL_HEAD = 0.5, 128
# All that is known of how far a plan is from a step (docs/scale.md has the table).
MEASURED = (
    "no TPU yet; on one H200 a step of 135M parameters (8 rows of 2048) took 3.6 times the least "
    "of its plan, 27% MFU"
)


class TooBig(Exception):
    """A program, `what`, does not fit. `needed` and `limit` in GiB per chip; needed is None if it
    is unknown.
    """

    def __init__(self, needed: float | None, limit: float, what: str = "the step"):
        super().__init__(
            f"needs {'more' if needed is None else f'{needed:.2f} GiB'}, and there are "
            f"{limit:.2f} GiB"
        )
        self.needed, self.limit, self.what = needed, limit, what


@dataclasses.dataclass
class Estimate:
    """For one step on one chip, unless stated otherwise. Times in milliseconds, memory in GiB."""

    chips: int
    chip: str
    mesh: dict[str, int]
    kinds_of_memory: dict[str, float]  # state and batch, temporaries, code
    hbm_gib_per_chip: float
    evaluation_hbm_gib_per_chip: float  # the state stays where it is
    hbm_limit_gib: float
    flops_per_step: float  # of all chips, the full count of training/flops.py
    flops_per_step_causal: float
    cycles: int  # 0 on GPUs, whose compiler gives none
    compiled_ms: float  # cycles over the clock
    kernels_ms: float  # attention, which the cycles leave out
    kernel_flops: float
    roofline_ms: dict[str, float]  # the least time for FLOPs, memory traffic, ici and dcn
    collectives: list[Collective]
    compile_s: float
    unknown: list[str]
    tokens: int  # of all chips
    at_least: bool = False  # on GPUs: times are lower bounds
    # on GPUs: memory traffic if the L2 cache kept nothing from one kernel to the next
    all_traffic_ms: float = 0.0

    @property
    def fits(self) -> bool:
        return self.too_big is None

    @property
    def too_big(self) -> TooBig | None:
        """The program that does not fit, if any."""
        needs = {
            "the step": self.hbm_gib_per_chip,
            "the evaluation": self.evaluation_hbm_gib_per_chip,
        }
        what = max(needs, key=needs.get)
        return (
            TooBig(needs[what], self.hbm_limit_gib, what)
            if needs[what] > self.hbm_limit_gib
            else None
        )

    @property
    def compiler_step_ms(self) -> float:
        """Cycles and kernels one after the other."""
        return self.compiled_ms + self.kernels_ms

    @property
    def predicted_step_ms(self) -> float:
        """At best: copies and communication fully overlap the arithmetic."""
        return max(self.compiler_step_ms, *self.roofline_ms.values())

    @property
    def compared_ms(self) -> float:
        """By which settings are compared: a lower bound that leaves out what the cache may keep
        would favor small arrays.
        """
        return max(self.predicted_step_ms, self.all_traffic_ms)

    def mfu(self, flops: float, peak: float) -> float:
        return flops / self.chips / peak / (self.predicted_step_ms / 1e3)


def estimate(config: Config, devices: list, chip: Chip, documents_per_row: int) -> Estimate:
    """Compiles the step that `train` runs and reads the result.

    Raises:
      InputError: as in `train`: the mesh does not cover the devices, or does not divide the batch
      or a parameter.
      TooBig: the compiler itself gave up.
    """
    mesh, on_gpus = mesh_of(config.mesh, devices), devices[0].platform == "gpu"
    began = time.monotonic()
    with jax.set_mesh(mesh):
        program = train_program(config, config.training.steps or _STEPS, mesh, documents_per_row)
        options = cards.OPTIONS if on_gpus else None
        step = program.step.lower(program.state, program.batch, program.seed)
        compiled = _compiled(step, chip, "the step", options)
        evaluation = _compiled(
            _evaluation(config, mesh, program), chip, "the evaluation", options
        ).memory_analysis()
    compile_s = time.monotonic() - began
    used = compiled.memory_analysis()
    state = used.argument_size_in_bytes + used.output_size_in_bytes - used.alias_size_in_bytes
    kinds = {
        "state and batch": state,
        "temporaries": used.temp_size_in_bytes,
        "code": used.generated_code_size_in_bytes,
    }
    kinds = {kind: size / GIB for kind, size in kinds.items()}
    slices = len({getattr(device, "slice_index", 0) for device in devices})  # one program each
    # one program for all
    nodes = len({device.process_index for device in devices}) if on_gpus else 1
    try:
        text = compiled.as_text()
    except jax.errors.JaxRuntimeError:  # the format between the two changes with their versions
        raise InputError(
            f"jax {jax.__version__} cannot read what this libtpu compiles; install the one that "
            "fits: pip install 'jax[tpu]'"
        ) from None
    parsed, together = parse(text), (len(devices) // slices, len(devices) // (slices * nodes))
    account = account_of(parsed, *together)
    traffic = account.hbm_bytes
    if on_gpus:
        traffic = account_of(parsed, *together, cards.cache(devices[0].device_kind)).hbm_bytes
    flops = flops_per_step(config)
    sent = {
        net: sum(one.bytes for one in account.collectives if one.network == net)
        for net in ("ici", "dcn")
    }
    place = "node" if on_gpus else "slice"
    # With the program's own products: those that are repeated for the backward pass too.
    arithmetic = (
        ("products", account.product_flops)
        if on_gpus
        else ("model FLOPs", flops["causal"] / len(devices))
    )
    roofline = {
        f"{arithmetic[0]} at the peak": arithmetic[1] / chip.peak * 1e3,
        "memory traffic": traffic / chip.hbm_bandwidth * 1e3,
        f"communication within a {place}": sent["ici"] / chip.ici * 1e3,
    }
    if max(slices, nodes) > 1 and chip.dcn:
        roofline[f"communication between {place}s"] = sent["dcn"] / chip.dcn * 1e3
    kernels = sum(
        kernel.flops / (chip.peak * KERNEL_EFFICIENCY * min(1.0, kernel.head_size / FULL_HEAD))
        for kernel in account.kernels
    )
    return Estimate(
        chips=len(devices),
        chip=chip.name,
        mesh=dict(mesh.shape),
        kinds_of_memory=kinds,
        hbm_gib_per_chip=sum(kinds.values()),
        evaluation_hbm_gib_per_chip=kinds["state and batch"]
        + (evaluation.temp_size_in_bytes + evaluation.generated_code_size_in_bytes) / GIB,
        hbm_limit_gib=chip.hbm / GIB,
        flops_per_step=flops["full"],
        flops_per_step_causal=flops["causal"],
        cycles=account.cycles,
        compiled_ms=account.cycles / chip.clock * 1e3 if chip.clock else 0.0,
        kernels_ms=0.0 if on_gpus else kernels * 1e3,
        kernel_flops=sum(kernel.flops for kernel in account.kernels),
        roofline_ms=roofline,
        collectives=account.collectives,
        compile_s=compile_s,
        unknown=[*account.unknown, *(cards.NOT_COUNTED if on_gpus else ())],
        tokens=config.training.batch_size * config.data.row_length,
        at_least=on_gpus,
        all_traffic_ms=account.hbm_bytes / chip.hbm_bandwidth * 1e3 if on_gpus else 0.0,
    )


def state_gib(config: Config, mesh: Mesh, documents_per_row: int) -> float:
    """GiB of parameters, optimizer state and batch on one chip, before any computation."""
    with jax.set_mesh(mesh):
        program = train_program(config, config.training.steps or _STEPS, mesh, documents_per_row)
    return memory.on_a_device((program.state, program.batch)) / GIB


def _evaluation(config: Config, mesh: Mesh, program: Program) -> jax.stages.Lowered:
    """A batch of documents as `train` evaluates it between steps, with each document's own sinks
    on.
    """
    rows, whole = batch_size(config, mesh), program.batch["identities"]
    batch = {
        name: jax.ShapeDtypeStruct((rows, *like.shape[1:]), like.dtype, sharding=like.sharding)
        for name, like in program.batch.items()
    }
    batch["identities"] = jax.ShapeDtypeStruct((rows, 1, 2), whole.dtype, sharding=whole.sharding)
    batch["opened"] = jax.ShapeDtypeStruct((rows, 1), np.bool_, sharding=whole.sharding)
    return DocumentLoss(config, platform=mesh.devices.flat[0].platform).lower(
        program.state.params, batch, "own"
    )


def _compiled(
    lowered: jax.stages.Lowered, chip: Chip, what: str, options: dict | None
) -> jax.stages.Compiled:
    try:
        return lowered.compile(options)
    except jax.errors.JaxRuntimeError as error:
        raise _translated(error, chip, what) from None


def _translated(error: Exception, chip: Chip, what: str) -> Exception:
    """RESOURCE_EXHAUSTED in either of libtpu's wordings -> TooBig; any other error in one line."""
    text = str(error)
    if "RESOURCE_EXHAUSTED" not in text:
        return InputError(f"the compiler refuses {what}: {text.strip().splitlines()[0]}")
    used = re.search(r"Used ([\d.]+)([KMGT]?)\w* of ([\d.]+)([KMGT]?)\w* hbm", text) or re.search(
        r"\(([\d.]+)([KMGT])\) exceeds available HBM \(([\d.]+)([KMGT])\)", text
    )
    if used is None:
        return TooBig(None, chip.hbm / GIB, what)
    return TooBig(_gib(used[1], used[2]), _gib(used[3], used[4]), what)


def _gib(number: str, unit: str) -> float:
    return float(number) * {"": 2**-30, "K": 2**-20, "M": 2**-10, "G": 1.0, "T": 2**10}[unit]
