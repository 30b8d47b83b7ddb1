"""Memory and time of a config's train step, compiled for devices that need not be attached, and the
memory of the evaluation between steps.

Everything here is the compiler's estimate, not a measurement. For GPUs it gives no cycles, so there
is no time of a step, but only what arithmetic and links need at the least.
"""

import dataclasses
import re
import time

import jax
import numpy as np
from jax.sharding import Mesh

from memsinks_jax.config import Config, InputError
from memsinks_jax.measures.document_loss import DocumentLoss
from memsinks_jax.measures.memorization import batch_size
from memsinks_jax.planning import cards
from memsinks_jax.planning.account import Collective, account_of
from memsinks_jax.planning.topology import mesh_of
from memsinks_jax.training import memory
from memsinks_jax.training.flops import GIB, Chip, flops_per_step
from memsinks_jax.training.program import Program, train_program

_STEPS = 1000  # steps if the config gives none; they only set constants of the schedule

# The compiler has no estimate for Pallas kernels (attention on TPUs). This is an assumption that no
# measurement supports: half of the peak FLOPs if a head fills the 128 lanes of the matrix unit, and
# a quarter with 64 channels. No TPU has run a step of ours, so the predicted time and MFU of one
# are as uncertain. For the same reason nothing shows whether tokamax's splash would be faster.
KERNEL_EFFICIENCY, FULL_HEAD = 0.5, 128


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
    hbm_gib: dict[str, float]  # state and batch, temporaries, code
    evaluation_hbm_gib_per_chip: float  # the state stays where it is
    hbm_limit_gib: float
    flops_per_step: float  # of all chips, the full count of training/flops.py
    flops_per_step_causal: float
    least_ms: dict[str, float]  # for the model's FLOPs and for communication
    collectives: list[Collective]
    compile_s: float
    tokens: int  # of all chips
    # On GPUs these are None: their compiler gives no cycles.
    cycles: int | None = None
    kernel_flops: float | None = None
    kernel_ms: float | None = None  # attention, which the cycles leave out
    compiler_step_ms: float | None = None  # cycles and kernels one after the other
    predicted_step_ms: float | None = None  # at best: all communication overlaps the arithmetic
    predicted_mfu: float | None = None
    predicted_mfu_causal: float | None = None
    not_counted: list[str] = dataclasses.field(default_factory=list)

    @property
    def hbm_gib_per_chip(self) -> float:
        return sum(self.hbm_gib.values())

    @property
    def too_big(self) -> TooBig | None:
        """The program that does not fit, if any."""
        needed, what = max(
            (self.hbm_gib_per_chip, "the step"),
            (self.evaluation_hbm_gib_per_chip, "the evaluation"),
        )
        return TooBig(needed, self.hbm_limit_gib, what) if needed > self.hbm_limit_gib else None


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
        program = _program(config, mesh, documents_per_row)
        step = program.step.lower(program.state, program.batch, program.seed)
        options = cards.OPTIONS if on_gpus else None
        compiled = _compiled(step, chip, "the step", options)
        evaluation = _evaluation(config, mesh, program)
        evaluation = _compiled(evaluation, chip, "the evaluation", options)
    compile_s = time.monotonic() - began
    used, evaluating = compiled.memory_analysis(), evaluation.memory_analysis()
    state = used.argument_size_in_bytes + used.output_size_in_bytes - used.alias_size_in_bytes
    while_evaluating = (
        state + evaluating.temp_size_in_bytes + evaluating.generated_code_size_in_bytes
    )
    flops = flops_per_step(config)
    # Each TPU slice has a program of its own, all nodes of GPUs have one together.
    slices = len({getattr(device, "slice_index", 0) for device in devices})
    nodes = len({device.process_index for device in devices}) if on_gpus else 1
    try:
        text = compiled.as_text()
    except jax.errors.JaxRuntimeError:  # the format between the two changes with their versions
        raise InputError(
            f"jax {jax.__version__} cannot read what this libtpu compiles; install the one that "
            "fits: pip install 'jax[tpu]'"
        ) from None
    account = account_of(text, len(devices) // slices, len(devices) // (slices * nodes))

    def seconds_of(network: str, speed: float) -> float:
        return sum(one.bytes for one in account.collectives if one.network == network) / speed

    place = "node" if on_gpus else "slice"
    least = {
        "model FLOPs at the peak": flops["causal"] / len(devices) / chip.peak * 1e3,
        f"communication within a {place}": seconds_of("ici", chip.ici) * 1e3,
    }
    if max(slices, nodes) > 1 and chip.dcn:
        least[f"communication between {place}s"] = seconds_of("dcn", chip.dcn) * 1e3
    found = Estimate(
        chips=len(devices),
        chip=chip.name,
        mesh=dict(mesh.shape),
        hbm_gib={
            "state and batch": state / GIB,
            "temporaries": used.temp_size_in_bytes / GIB,
            "code": used.generated_code_size_in_bytes / GIB,
        },
        evaluation_hbm_gib_per_chip=while_evaluating / GIB,
        hbm_limit_gib=chip.hbm / GIB,
        flops_per_step=flops["full"],
        flops_per_step_causal=flops["causal"],
        least_ms=least,
        collectives=account.collectives,
        compile_s=compile_s,
        tokens=config.training.batch_size * config.data.row_length,
        not_counted=[*account.unknown, *(cards.NOT_COUNTED if on_gpus else ())],
    )
    if on_gpus:
        return found
    efficiency = KERNEL_EFFICIENCY * min(1.0, account.head_size / FULL_HEAD)
    kernel_ms = account.kernel_flops / chip.peak / efficiency * 1e3 if account.kernel_flops else 0.0
    step_ms = account.cycles / chip.clock * 1e3 + kernel_ms
    predicted_ms = max(step_ms, *least.values())
    peak = chip.peak * len(devices) * predicted_ms / 1e3  # FLOPs in this time
    return dataclasses.replace(
        found,
        cycles=account.cycles,
        kernel_flops=account.kernel_flops,
        kernel_ms=kernel_ms,
        compiler_step_ms=step_ms,
        predicted_step_ms=predicted_ms,
        predicted_mfu=flops["full"] / peak,
        predicted_mfu_causal=flops["causal"] / peak,
    )


def state_gib(config: Config, mesh: Mesh, documents_per_row: int) -> float:
    """GiB of parameters, optimizer state and batch on one chip, before any computation."""
    with jax.set_mesh(mesh):
        program = _program(config, mesh, documents_per_row)
    return memory.on_a_device((program.state, program.batch)) / GIB


def _program(config: Config, mesh: Mesh, documents_per_row: int) -> Program:
    return train_program(config, config.training.steps or _STEPS, mesh, documents_per_row)


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
    used = re.search(r"([\d.]+)([KMGT])\)? (?:of [\d.]+\w* hbm|exceeds available HBM)", text)
    needed = float(used[1]) * 2.0 ** (10 * "KMGT".index(used[2]) - 20) if used else None
    return TooBig(needed, chip.hbm / GIB, what)
