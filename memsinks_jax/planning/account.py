"""Counts what a compiled program does in one step: cycles or products, HBM traffic, inter-chip
communication, kernels.

Every instruction counts as often as it runs: those of a loop's body times its trip count,
multiplied over nested loops; for a conditional, the branch with most cycles. All numbers are for
one device.
"""

import dataclasses
import math
import re
from collections.abc import Iterator

from memsinks_jax.planning.program_text import (
    Array,
    Computation,
    Instruction,
    Program,
    group,
    trip_count,
)

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")

# Instructions that only name, group or wait for results of others.
_FREE = (
    "parameter",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "constant",
    "partition-id",
    "after-all",
    "while",
    "conditional",
    "call",
    "iota",
    "async-start",
    "async-update",
    "async-done",
)


@dataclasses.dataclass
class Collective:
    """All collective operations of one kind in a step."""

    kind: str
    network: str  # ici: within a slice, or a node of GPUs | dcn: between them
    count: int = 0
    bytes: int = 0  # bytes that a device sends over it, by the ring algorithm


@dataclasses.dataclass
class Kernel:
    """Runs of a kernel for attention in a step: Pallas, or cuDNN's."""

    name: str
    count: int
    flops: float  # over all runs, for the blocks that the kernel computes
    head_size: int


@dataclasses.dataclass
class Account:
    # the TPU compiler's estimates; it has none for collectives, copies in the background, Pallas
    # kernels
    cycles: int
    # of matrix products on GPUs, attention included; on TPUs the cycles have them
    product_flops: float
    hbm_bytes: int  # read from and written to the chip's memory
    collectives: list[Collective]
    kernels: list[Kernel]
    unknown: list[str]  # descriptions of what could not be counted


def account_of(
    program: Program, devices: int, per_node: int | None = None, cache: int = 0
) -> Account:
    """Counts a program.

    Args:
      devices: that run the program. Several TPU slices have one each, which passes communication
      between slices to the host.
      per_node: how many GPUs of the mesh, in its order, share a node; None: all.
      cache: bytes. Arrays as small may stay in the cache, and do not count as traffic of the
      memory.
    """
    connected = (devices, per_node or devices)
    account, collectives = Account(0, 0.0, 0, [], [], []), {}
    for computation, instruction, times in _executed(program, program.entry, 1, account.unknown):
        for one in _collectives_of(program, computation, instruction, connected):
            total = collectives.setdefault(
                (one.kind, one.network), Collective(one.kind, one.network)
            )
            total.count += times * one.count
            total.bytes += times * one.bytes
        if instruction.opcode in _FREE or instruction.opcode.endswith("-done"):
            continue
        if _is_kernel(instruction):
            kernel = attention_kernel(computation, instruction, times)
            if kernel is None:
                account.unknown.append(
                    f"the kernel {instruction.name}, {times} times: neither cycles nor FLOPs are "
                    "known"
                )
            else:
                account.kernels.append(kernel)
                account.product_flops += kernel.flops
        account.cycles += times * (instruction.number("estimated_cycles") or 0)
        account.product_flops += times * _product_flops(program, computation, instruction)
        account.hbm_bytes += times * _hbm_bytes(program, computation, instruction, cache)
    account.collectives += sorted(collectives.values(), key=lambda one: (one.network, one.kind))
    return account


def _executed(
    program: Program, name: str, times: int, unknown: list[str]
) -> Iterator[tuple[Computation, Instruction, int]]:
    """Every scheduled instruction and how often it runs. Fusions are one instruction."""
    computation = program.computations[name]
    for instruction in computation.instructions.values():
        yield computation, instruction, times
        called = instruction.called()
        if instruction.opcode == "while":
            trips = trip_count(program, computation, instruction)
            if trips is None:
                unknown.append(f"the trip count of the loop {instruction.name}: counted once")
            yield from _executed(
                program, called["body"], times * (1 if trips is None else trips), unknown
            )
            yield from _executed(
                program, called["condition"], times * (1 if trips is None else trips), unknown
            )
        elif instruction.opcode == "conditional":
            costliest = max(instruction.branches(), key=lambda branch: _cycles(program, branch))
            yield from _executed(program, costliest, times, unknown)
        elif instruction.opcode in ("call", "async-start"):
            yield from _executed(program, called.get("to_apply") or called["calls"], times, unknown)


def _cycles(program: Program, name: str) -> int:
    return sum(
        times * (it.number("estimated_cycles") or 0)
        for _, it, times in _executed(program, name, 1, [])
    )


def _is_kernel(instruction: Instruction) -> bool:
    """Pallas on TPUs; on GPUs what NVIDIA's libraries compute (__cudnn$.., __cublas$.., __cub$..)."""
    target = (
        instruction.attribute("custom_call_target") if instruction.opcode == "custom-call" else ""
    )
    return target == "tpu_custom_call" or target.startswith("__cu")


def _product_flops(program: Program, computation: Computation, instruction: Instruction) -> float:
    """FLOPs of the matrix products of an instruction and, if it is a fusion, of those inside."""
    if instruction.opcode in ("fusion", "fusion-start"):
        fused = program.computations[instruction.called()["calls"]]
        return sum(_product_flops(program, fused, one) for one in fused.instructions.values())
    if instruction.opcode != "dot":
        return 0.0
    (result,), left = (
        instruction.arrays(),
        computation.instructions[instruction.operands[0]].arrays()[0],
    )
    contracted = re.search(r"\blhs_contracting_dims=\{([\d,]*)\}", instruction.attributes)[1]
    return (
        2.0
        * math.prod(result.sizes)
        * math.prod(left.sizes[int(axis)] for axis in filter(None, contracted.split(",")))
    )


# Communication between devices.


def _collectives_of(
    program: Program, computation: Computation, instruction: Instruction, connected: tuple[int, int]
) -> list[Collective]:
    kind = instruction.opcode.removesuffix("-start")
    if kind in COLLECTIVES:
        return [_collective(kind, computation, instruction, connected)]
    if (
        kind == "send"
        and instruction.attribute("_xla_host_transfer_handler_name") == "xla_megascale_runtime"
    ):
        # Between slices the host forwards what the device sends, under the runtime's name
        # ALL_REDUCE and so on.
        asked = (
            instruction.attribute("_xla_megascale_transfer_type").lower().replace("_", "-")
            or "send"
        )
        return [Collective(asked, "dcn", 1, _given(computation, instruction))]
    if kind != "fusion":
        return []
    # A fusion may start, continue or end a collective in addition to its own work; each part names
    # the collective.
    fused = program.computations[instruction.called()["calls"]]
    inner = [
        it for it in fused.instructions.values() if it.opcode.removesuffix("-start") in COLLECTIVES
    ]
    parts = [it for it in inner if "async_collective_fusion_config" in it.attributes]
    if parts and not any(
        it.attribute("custom_call_target") == "AsyncCollectiveStart"
        for it in fused.instructions.values()
    ):
        inner = [it for it in inner if it not in parts]
    scattered = fused.name.startswith("all-reduce-scatter")  # how libtpu writes a reduce-scatter
    return [
        _collective(
            "reduce-scatter" if scattered else it.opcode.removesuffix("-start"),
            fused,
            it,
            connected,
        )
        for it in inner
    ]


def _given(computation: Computation, instruction: Instruction) -> int:
    operands = (computation.instructions[name] for name in instruction.operands)
    return sum(array.bytes for operand in operands for array in operand.arrays())


def _collective(
    kind: str, computation: Computation, instruction: Instruction, connected: tuple[int, int]
) -> Collective:
    given, (devices, per_node) = _given(computation, instruction), connected
    of_group = group(instruction.attributes) or range(devices)
    # from one device to another; of two in different nodes, if there are
    if kind == "collective-permute":
        pairs = [
            (int(a), int(b)) for a, b in re.findall(r"\{(\d+),(\d+)\}", instruction.attributes)
        ] or [(0, 0)]
        of_group = max(pairs, key=lambda pair: pair[0] // per_node != pair[1] // per_node)
    members, nodes = len(of_group), len({device // per_node for device in of_group})
    ring = {"all-gather": given * (members - 1), "all-reduce": 2 * given * (members - 1) // members}
    part = given * (members - 1) // members
    if nodes == 1:
        sent = ring | {"reduce-scatter": part, "all-to-all": part, "collective-permute": given}
        return Collective(kind, "ici", 1, sent[kind])
    # A ring enters and leaves a node once, through the network cards of all its members.
    ring = {
        name: sent * nodes // members for name, sent in (ring | {"reduce-scatter": part}).items()
    }
    sent = ring | {"all-to-all": given * (nodes - 1) // nodes, "collective-permute": given}
    return Collective(kind, "dcn", 1, sent[kind])


# Kernels.


def attention_kernel(
    computation: Computation, instruction: Instruction, times: int
) -> Kernel | None:
    """The work of a kernel for attention, from the shapes of its operands; None for any other
    kernel.

    The forward pass multiplies twice (scores, output), the fused backward pass five times (scores
    again, and the gradients of weights, values, keys, queries), the one of keys and values alone
    four times, of queries alone three times. Causal: the blocks of queries and keys with anything
    on or below the diagonal are computed in full. cuDNN's backward pass multiplies as often as
    splash's fused one; how large its blocks are is not known, so that half of all pairs count.
    """
    products = {
        "splash_mha_fwd": ("", 2),
        "splash_mha_dkv": ("_dkv", 4),
        "splash_mha_dq": ("_dq", 3),
    }
    name = next((name for name in products if instruction.name.startswith(name)), None)
    target = instruction.attribute("custom_call_target")
    operands = [computation.instructions.get(operand) for operand in instruction.operands]
    arrays = [array for operand in operands if operand for array in operand.arrays()]
    wide = [
        array.sizes
        for array in arrays
        if array.kind in ("bf16", "f32", "f16") and len(array.sizes) >= 3
    ]
    if target.startswith("__cudnn$fmha") and len(wide) > 1:
        (batch, length, heads, size), keys = wide[0], wide[1][1]  # (B, T, H, C), (B, S, K, C)
        pairs = length * keys / (2 if "CAUSAL" in instruction.attributes else 1)
        count = 5 if "Backward" in target else 2
        return Kernel(target, times, times * 2.0 * count * batch * heads * pairs * size, size)
    if name is None or not wide:
        return None
    suffix, count = products[name]
    # The fused backward pass also gives the gradient of the queries, an array with blocks of keys
    # in front of their shape.
    count += name == "splash_mha_dkv" and any(
        array.sizes[1:] == wide[0] for array in instruction.arrays()
    )

    def parameter(what: str) -> int | None:
        found = re.search(rf'\b{what}\\*": (\d+)', instruction.attributes)
        return int(found[1]) if found else None

    *rows, length, size = wide[0]  # queries: (B,) H, T, C
    if parameter("q_layout") == 2:  # positions innermost
        length, size = size, length
    queries, keys = (
        parameter(f"block_q{suffix}") or length,
        parameter(f"block_kv{suffix}") or length,
    )
    blocks = sum(-(-min(end, length) // keys) for end in range(queries, length + queries, queries))
    flops = 2.0 * count * math.prod(rows) * blocks * queries * keys * size
    return Kernel(name, times, times * flops, size)


# The chip's memory.

_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}  # in place; which operand is written there


def _hbm_bytes(
    program: Program, computation: Computation, instruction: Instruction, cache: int
) -> int:
    """Bytes from and to HBM in one run, of arrays larger than the `cache`. If a fusion only reads a
    slice of an array, or writes a slice in place, only the slice counts.
    """

    def moved(array: Array) -> bool:
        return array.memory == 0 and array.bytes > cache

    if instruction.opcode in ("copy-start", "slice-start"):
        # In the background, from one memory to the other: (target, source, ..) or ((source),
        # target, ..).
        ends = [array for array in instruction.arrays() if array.sizes][:2]
        return (
            min(array.bytes for array in ends) * sum(array.memory == 0 for array in ends)
            if ends
            else 0
        )
    inside = {}
    written = instruction.arrays()
    if instruction.opcode in ("fusion", "fusion-start"):
        fused = program.computations[instruction.called()["calls"]]
        inside = _sliced(fused)
        if instruction.opcode == "fusion-start":  # ((operands), results, context)
            written = written[
                sum(
                    len(computation.instructions[name].arrays()) for name in instruction.operands
                ) : -1
            ]
        written = _written(fused, written)
    elif instruction.opcode in ("dynamic-slice", "slice", "gather"):
        inside = {0: sum(array.bytes for array in written)}
    elif instruction.opcode in _UPDATES:
        update = computation.instructions[
            instruction.operands[_UPDATES[instruction.opcode]]
        ].arrays()
        inside, written = {0: 0}, [array._replace(memory=written[0].memory) for array in update]
    total = sum(array.bytes for array in written if moved(array))
    for place, name in enumerate(instruction.operands):
        operand = computation.instructions.get(name)
        arrays = [array for array in operand.arrays() if moved(array)] if operand else []
        total += min(inside.get(place, float("inf")), sum(array.bytes for array in arrays))
    return int(total)


def _sliced(fused: Computation) -> dict[int, int]:
    """{parameter: bytes} for parameters from which a fusion only reads slices, or into which it
    writes in place.
    """
    uses: dict[str, list[Instruction]] = {}
    for instruction in fused.instructions.values():
        for name in set(instruction.operands):
            uses.setdefault(name, []).append(instruction)

    def read(name: str) -> int | None:
        total = 0
        for user in uses.get(name, ()):
            if user.opcode in ("bitcast", "reshape"):
                part = read(user.name)
            elif user.opcode in ("dynamic-slice", "slice", "gather") and user.operands[0] == name:
                part = sum(array.bytes for array in user.arrays())
            elif user.opcode in _UPDATES and user.operands[0] == name:
                part = 0
            else:
                part = None
            if part is None:
                return None
            total += part
        return total

    found = {}
    for instruction in fused.instructions.values():
        if instruction.opcode == "parameter":
            part = read(instruction.name)
            if part is not None:
                found[int(instruction.operands[0])] = part
    return found


def _written(fused: Computation, results: list[Array]) -> list[Array]:
    """The results of a fusion; for a result written in place, only the written part."""
    root = fused.instructions[fused.root]
    sources = (
        [fused.instructions.get(name) for name in root.operands]
        if root.opcode == "tuple"
        else [root]
    )
    if len(sources) != len(results):
        return results
    written = []
    for source, result in zip(sources, results, strict=True):
        while source is not None and source.opcode == "bitcast":
            source = fused.instructions.get(source.operands[0])
        if source is not None and source.opcode in _UPDATES:
            update = fused.instructions[source.operands[_UPDATES[source.opcode]]].arrays()
            written += [array._replace(memory=result.memory) for array in update]
        else:
            written.append(result)
    return written
