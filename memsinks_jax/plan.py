"""Plans a run on TPUs or GPUs: python -m memsinks_jax.plan --config=F --topology=v5e:16x16

Compiles the train step and the evaluation with the TPU's compiler (`pip install 'jax[tpu]'`; no TPU
is needed), or for --topology=h100:8 with the GPU's (`pip install '.[plan-gpu]'`; neither a GPU nor
CUDA is needed). Prints memory, FLOPs, communication and the step time: the compiler's estimates,
not measurements. For GPUs the time is what the step takes at least. With --search it tries other
settings that may fit: less recomputation, a larger batch. Exit code 2 if the step or the evaluation
does not fit.
"""

import logging
import os

# what is planned runs elsewhere: a TPU or GPU here stays free
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from absl import flags

from memsinks_jax.config import Config, InputError
from memsinks_jax.models.initial import inherit
from memsinks_jax.planning import topology as topologies
from memsinks_jax.planning.estimate import (
    FULL_HEAD,
    KERNEL_EFFICIENCY,
    MEASURED,
    Estimate,
    TooBig,
    estimate,
    state_gib,
)
from memsinks_jax.planning.search import search, settings, what_fits
from memsinks_jax.runs import command_line
from memsinks_jax.training import sharding
from memsinks_jax.training.flops import Chip

logger = logging.getLogger("memsinks_jax.plan")

# for shared rows; `train` computes it from its documents, which are not read here
_DOCUMENTS_PER_ROW = 64
LABEL = "compiler estimate, not a measurement"
LINKS = {"ici": "within a node", "dcn": "between nodes"}  # of GPUs


def plan(
    config: Config,
    topology: str,
    slices: int,
    documents_per_row: int | None,
    searches: bool,
    nodes: int = 1,
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
            "read; give the number that "
            "prepare has reported, or an upper limit"
        )
    devices, chip = topologies.devices_of(topology, slices, nodes)
    mesh = topologies.mesh_of(config.mesh, devices)
    sharding.check_batch(config.training.batch_size, mesh, microbatches=config.compute.accumulate)
    parts = mesh.shape["data"] * mesh.shape["fsdp"]
    logger.info(
        "compiling for %s x %s (%s); this takes a minute or two", len(devices), chip.name, topology
    )

    def compile_step(other: Config) -> Estimate:
        return estimate(other, devices, chip, documents_per_row)

    found = []
    if searches:
        found = search(config, compile_step, parts)
        for tried, outcome in found:
            logger.info(
                "%s: %s",
                settings(tried),
                outcome if isinstance(outcome, TooBig) else _in_short(outcome),
            )
        if not found or isinstance(found[0][1], TooBig):
            raise InputError(
                f"no tried setting fits on {topology}; use more chips, or config.mesh.fsdp=-1"
            )
        config, outcome = found[0]
    else:
        try:
            outcome = compile_step(config)
            if outcome.too_big:
                raise outcome.too_big
        except TooBig as error:
            raise InputError(_advice(config, topology, compile_step, parts, mesh, error)) from None
    for name, text in rows_of(outcome, chip).items():
        logger.info("%-26s %s", name, text)
    return as_json(outcome, chip) | (
        {"search": [_tried(*one) for one in found]} if searches else {}
    )


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
        return (
            f"{start}; use more chips, or a smaller config.training.batch_size; --search tries more"
        )
    return f"{start}; this fits: {settings(fitting)}"


def rows_of(outcome: Estimate, chip: Chip) -> dict[str, str]:
    """The lines to print, {name: value}."""
    kinds = ", ".join(f"{kind} {size:.2f}" for kind, size in outcome.kinds_of_memory.items())
    rows = {
        "this is a": LABEL,
        "chips": f"{outcome.chips} x {outcome.chip}, mesh "
        f"{', '.join(f'{a} {n}' for a, n in outcome.mesh.items())}",
        "memory a chip": f"{outcome.hbm_gib_per_chip:.2f} of {outcome.hbm_limit_gib:.2f} GiB ({kinds})",
        "while evaluating": f"{outcome.evaluation_hbm_gib_per_chip:.2f} GiB",
        "FLOPs a step": f"{outcome.flops_per_step:.3g} ({outcome.flops_per_step_causal:.3g} with causal "
        "attention halved)",
    }
    if not outcome.at_least:
        rows["compiled program"] = (
            f"{outcome.compiled_ms:.1f} ms: {outcome.cycles / 1e6:,.0f} million cycles at "
            f"{chip.clock / 1e9:.2f} GHz"
        )
        rows["attention kernels"] = (
            f"{outcome.kernels_ms:.1f} ms, assumed, not measured: the compiler gives none; "
            f"{outcome.kernel_flops:.3g} "
            f"FLOPs at {KERNEL_EFFICIENCY:.0%} of the peak, and as much less as a head is "
            f"smaller than {FULL_HEAD}"
        )
    for name, milliseconds in outcome.roofline_ms.items():
        rows[name] = f"{milliseconds:.1f} ms at least"
    if outcome.at_least:
        rows["memory traffic"] += f", {outcome.all_traffic_ms:.1f} if the L2 cache kept nothing"
    for one in outcome.collectives:
        link = LINKS[one.network] if outcome.at_least else one.network
        rows[f"{one.kind} ({link})"] = (
            f"{one.count:,} times, {one.bytes / 1e6:,.1f} MB sent by a chip"
        )
    speed = (
        f"{outcome.tokens / outcome.chips / outcome.predicted_step_ms * 1e3:,.0f} tokens/s a chip"
    )
    mfu = (
        f"{outcome.mfu(outcome.flops_per_step, chip.peak):.1%} "
        f"({outcome.mfu(outcome.flops_per_step_causal, chip.peak):.1%} with causal attention "
        "halved)"
    )
    if outcome.at_least:
        rows["step"] = f"{outcome.predicted_step_ms:.1f} ms at least, {speed} at most"
        rows["MFU"] = f"at most {mfu}"
    else:
        rows["predicted step"] = f"{outcome.predicted_step_ms:.1f} ms at best, {speed}"
        rows["predicted MFU"] = f"{mfu}, at best"
    rows["measured so far"] = MEASURED
    rows["compiling took"] = f"{outcome.compile_s:.0f} s"
    for number, what in enumerate(outcome.unknown, 1):
        rows[f"not counted {number}"] = what
    return rows


def as_json(outcome: Estimate, chip: Chip) -> dict:
    """The fields of --json, in plain types."""
    mfu = (
        outcome.mfu(outcome.flops_per_step, chip.peak),
        outcome.mfu(outcome.flops_per_step_causal, chip.peak),
    )
    if outcome.at_least:
        names = ("mfu_at_most", "mfu_at_most_causal")
        time = {}
    else:
        names = ("predicted_mfu", "predicted_mfu_causal")
        time = {
            "cycles": outcome.cycles,
            "kernel_flops": outcome.kernel_flops,
            "kernel_ms": round(outcome.kernels_ms, 3),
            "kernel_efficiency_assumed": KERNEL_EFFICIENCY,
            "compiler_step_ms": round(outcome.compiler_step_ms, 3),
        }
    time |= _step_ms(outcome) | {
        name: round(share, 4) for name, share in zip(names, mfu, strict=True)
    }
    return {
        "label": LABEL,
        "measured": MEASURED,
        "fits": outcome.fits,
        "chips": outcome.chips,
        "mesh": outcome.mesh,
        "hbm_gib_per_chip": round(outcome.hbm_gib_per_chip, 3),
        "evaluation_hbm_gib_per_chip": round(outcome.evaluation_hbm_gib_per_chip, 3),
        "hbm_limit_gib": round(outcome.hbm_limit_gib, 3),
        "hbm_gib": {kind: round(size, 3) for kind, size in outcome.kinds_of_memory.items()},
        "flops_per_step": outcome.flops_per_step,
        "flops_per_step_causal": outcome.flops_per_step_causal,
        **time,
        "roofline_ms": {name: round(value, 3) for name, value in outcome.roofline_ms.items()},
        "collectives": [
            {"kind": one.kind, "network": one.network, "count": one.count, "bytes": one.bytes}
            for one in outcome.collectives
        ],
        "not_counted": outcome.unknown,
        "compile_s": round(outcome.compile_s, 1),
    }


def _step_ms(outcome: Estimate) -> dict[str, float]:
    if not outcome.at_least:
        return {"predicted_step_ms": round(outcome.predicted_step_ms, 3)}
    return {
        "step_ms_at_least": round(outcome.predicted_step_ms, 3),
        "memory_traffic_ms_without_cache": round(outcome.all_traffic_ms, 3),
    }


def _in_short(outcome: Estimate) -> str:
    bound = "if the L2 cache kept nothing" if outcome.at_least else "at best"
    return (
        f"{outcome.hbm_gib_per_chip:.2f} of {outcome.hbm_limit_gib:.2f} GiB, "
        f"{outcome.compared_ms:.1f} ms {bound}, "
        f"{outcome.tokens / outcome.chips / outcome.compared_ms * 1e3:,.0f} tokens/s a chip"
    )


def _tried(config: Config, outcome: Estimate | TooBig) -> dict:
    what = {
        "remat": config.compute.remat,
        "accumulate": config.compute.accumulate,
        "loss_chunks": config.compute.loss_chunks,
        "batch_size": config.training.batch_size,
    }
    if isinstance(outcome, TooBig):
        return what | {"fits": False, "hbm_gib_per_chip": outcome.needed}
    return (
        what
        | {"fits": True, "hbm_gib_per_chip": round(outcome.hbm_gib_per_chip, 3)}
        | _step_ms(outcome)
    )


def main() -> None:
    config_flag = command_line.define_config()
    topology_flag = flags.DEFINE_string(
        "topology",
        None,
        "TPU slice (v5e:16x16, v5p:4x4x4) or GPUs of a node (h100:8, a100:8, h200:8, b200:8).",
    )
    slices_flag = flags.DEFINE_integer(
        "slices", 1, "Number of TPU slices, along the mesh's data axis."
    )
    nodes_flag = flags.DEFINE_integer(
        "nodes", 1, "Number of nodes of GPUs, along the mesh's data axis."
    )
    documents_flag = flags.DEFINE_integer(
        "documents_per_row",
        None,
        f"Upper limit of documents per row; default {_DOCUMENTS_PER_ROW} where they share rows, "
        "else 1.",
    )
    search_flag = flags.DEFINE_bool(
        "search", False, "Try other settings: remat, microbatches, a larger batch."
    )

    def run() -> dict:
        config = inherit(
            command_line.read_config(config_flag), given=command_line.given(config_flag)
        )
        command_line.require(topology_flag)
        return plan(
            config,
            topology_flag.value,
            slices_flag.value,
            documents_flag.value,
            search_flag.value,
            nodes_flag.value,
        )

    command_line.run(run)


if __name__ == "__main__":
    main()
