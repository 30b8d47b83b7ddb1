"""Plans a run on TPUs or GPUs: python -m memsinks_jax.plan --config=F --topology=v5e:16x16

Compiles the train step and the evaluation with the TPU's compiler (`pip install 'jax[tpu]'`; no TPU
is needed), or for --topology=h100:8 with the GPU's (`pip install '.[plan-gpu]'`; neither a GPU nor
CUDA is needed). Prints memory, FLOPs and communication, and for TPUs the time of a step: the
compiler's estimates, not measurements. The compiler for GPUs gives no time. Exit code 2 if the step
or the evaluation does not fit, with settings that do.
"""

import dataclasses
import logging
import os

# what is planned runs elsewhere: a TPU or GPU here stays free
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from memsinks_jax.config import Config, InputError, with_fields
from memsinks_jax.data import contexts
from memsinks_jax.models.initial import inherit
from memsinks_jax.planning import topology as topologies
from memsinks_jax.planning.estimate import (
    FULL_HEAD,
    KERNEL_EFFICIENCY,
    Estimate,
    TooBig,
    estimate,
    state_gib,
)
from memsinks_jax.planning.fitting import settings, what_fits
from memsinks_jax.runs import command_line
from memsinks_jax.runs.command_line import REQUIRED, option
from memsinks_jax.training import sharding

logger = logging.getLogger("memsinks_jax.plan")

# for shared rows; `train` computes it from its documents, which are not read here
_DOCUMENTS_PER_ROW = 64
LABEL = "compiler estimate, not a measurement"
# All that is known of how far a plan is from a step (docs/scale.md has the table).
MEASURED = "no TPU yet; on one H200 a step of 135M parameters (8 rows of 2048) had 27% MFU"


def plan(
    config: Config, topology: str, slices: int, documents_per_row: int | None, nodes: int = 1
) -> dict:
    """-> the command's JSON. Raises InputError as `train` would on that machine, and when the step
    is too big for it.

    Args:
      slices, nodes: how many TPU slices, or nodes of GPUs.
      documents_per_row: the most in a row; None: 1, or _DOCUMENTS_PER_ROW where documents share
        rows.
    """
    if documents_per_row is None:
        alone = config.data.rows == "one_document" or (
            config.data.rows == "auto" and not config.data.files
        )
        documents_per_row = 1 if alone else _DOCUMENTS_PER_ROW
    if documents_per_row < 1:
        raise InputError(f"--documents_per_row is {documents_per_row}; give 1 or more")
    if config.sinks.traits.by_context and not config.contexts.rows:
        raise InputError(
            "config.contexts.rows is 0, for as many as the documents need, which plan does not "
            "read; give the number that prepare has reported, or an upper limit"
        )
    rows = contexts.table_rows(config.contexts.rows)
    config = with_fields(config, {"contexts.rows": rows})
    devices, chip = topologies.devices_of(topology, slices, nodes)
    mesh = topologies.mesh_of(config.mesh, devices)
    sharding.check_batch(config.training.batch_size, mesh, microbatches=config.compute.accumulate)
    parts = sharding.shards_of_batch(mesh)
    logger.info(
        "compiling for %s x %s (%s); this takes a minute or two", len(devices), chip.name, topology
    )

    def compile_step(other: Config) -> Estimate:
        return estimate(other, devices, chip, documents_per_row)

    try:
        outcome = compile_step(config)
        if outcome.too_big:
            raise outcome.too_big
    except TooBig as error:
        raise InputError(_advice(config, topology, compile_step, parts, mesh, error)) from None
    for name, text in rows_of(outcome).items():
        logger.info("%-26s %s", name, text)
    return as_json(outcome)


def _advice(config: Config, topology: str, compile_step, parts: int, mesh, error: TooBig) -> str:
    state = state_gib(config, mesh, 1)
    start = f"{error.what} does not fit on a chip of {topology}: it {error}"
    if state > error.limit:
        return (
            f"{start}; parameters and optimizer alone take {state:.2f} GiB: use more chips, or "
            "config.mesh.fsdp=-1"
        )
    logger.info("%s; searching for settings that fit", start)
    fitting = what_fits(config, compile_step, parts, state, error)
    if fitting is None:
        return f"{start}; use more chips, or a smaller config.training.batch_size"
    return f"{start}; this fits: {settings(fitting)}"


def rows_of(outcome: Estimate) -> dict[str, str]:
    """The lines to print, {name: value}."""
    kinds = ", ".join(f"{kind} {size:.2f}" for kind, size in outcome.hbm_gib.items())
    rows = {
        "this is a": LABEL,
        "chips": f"{outcome.chips} x {outcome.chip}, mesh "
        f"{', '.join(f'{axis} {size}' for axis, size in outcome.mesh.items())}",
        "memory a chip": f"{outcome.hbm_gib_per_chip:.2f} of {outcome.hbm_limit_gib:.2f} GiB "
        f"({kinds})",
        "while evaluating": f"{outcome.evaluation_hbm_gib_per_chip:.2f} GiB",
        "FLOPs a step": f"{outcome.flops_per_step:.3g} ({outcome.flops_per_step_causal:.3g} with "
        "causal attention halved)",
    }
    for name, milliseconds in outcome.least_ms.items():
        rows[name] = f"{milliseconds:.1f} ms at least"
    for one in outcome.collectives:
        rows[f"{one.kind} ({one.network})"] = (
            f"{one.count:,} times, {one.bytes / 1e6:,.1f} MB sent by a chip"
        )
    if outcome.cycles is None:
        rows["time of a step"] = "not known: the compiler for GPUs gives none"
    else:
        rows["compiled program"] = (
            f"{outcome.compiler_step_ms - outcome.kernel_ms:.1f} ms: {outcome.cycles / 1e6:,.0f} "
            "million cycles"
        )
        rows["attention kernels"] = (
            f"{outcome.kernel_ms:.1f} ms, assumed, not measured: the compiler gives none; "
            f"{outcome.kernel_flops:.3g} FLOPs at {KERNEL_EFFICIENCY:.0%} of the peak, and as much "
            f"less as a head is smaller than {FULL_HEAD}"
        )
        speed = outcome.tokens / outcome.chips / outcome.predicted_step_ms * 1e3
        rows["predicted step"] = (
            f"{outcome.predicted_step_ms:.1f} ms at best, {speed:,.0f} tokens/s a chip"
        )
        rows["predicted MFU"] = (
            f"{outcome.predicted_mfu:.1%} ({outcome.predicted_mfu_causal:.1%} with causal "
            "attention "
            "halved), at best"
        )
    rows["measured so far"] = MEASURED
    rows["compiling took"] = f"{outcome.compile_s:.0f} s"
    for number, what in enumerate(outcome.not_counted, 1):
        rows[f"not counted {number}"] = what
    return rows


def as_json(outcome: Estimate) -> dict:
    """The fields of --json, in plain types."""

    def plain(value):
        if isinstance(value, dict):
            return {name: plain(one) for name, one in value.items()}
        return round(value, 4) if isinstance(value, float) else value

    return {"label": LABEL, "measured": MEASURED, "fits": outcome.too_big is None} | plain(
        vars(outcome)
        | {
            "hbm_gib_per_chip": outcome.hbm_gib_per_chip,
            "collectives": [one._asdict() for one in outcome.collectives],
        }
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    config: Config
    topology: str = option(
        REQUIRED,
        "TPU slice (v5e:16x16, v5p:4x4x4) or GPUs of a node (h100:8, a100:8, h200:8, b200:8).",
    )
    slices: int = option(1, "Number of TPU slices, along the mesh's data axis.")
    nodes: int = option(1, "Number of nodes of GPUs, along the mesh's data axis.")
    documents_per_row: int | None = option(
        None,
        f"Upper limit of documents per row; default {_DOCUMENTS_PER_ROW} where they share rows, "
        "else 1.",
    )


def main(options: Options) -> dict:
    return plan(
        inherit(options.config, given=command_line.given()),
        options.topology,
        slices=options.slices,
        documents_per_row=options.documents_per_row,
        nodes=options.nodes,
    )


if __name__ == "__main__":
    command_line.run(main, Options)
