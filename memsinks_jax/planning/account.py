"""Counts what a compiled program does in one step: cycles, HBM traffic, inter-chip communication, kernels.

Every instruction counts as often as it runs: those of a loop's body times its trip count, multiplied over nested loops; for
a conditional, the branch with most cycles. All numbers are for one device.
"""

import dataclasses
import math
import re
from collections.abc import Iterator

from memsinks_jax.planning.program_text import Array, Computation, Instruction, Program, group_size, trip_count

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")

# Instructions that only name, group or wait for results of others.
_FREE = ("parameter", "tuple", "get-tuple-element", "bitcast", "constant", "partition-id", "after-all", "while",
         "conditional", "call", "iota", "async-start", "async-update", "async-done")  # fmt: skip


@dataclasses.dataclass
class Collective:
    """All collective operations of one kind in a step."""

    kind: str
    network: str  # ici: within a slice | dcn: between slices
    count: int = 0
    bytes: int = 0  # bytes that a device sends, by the ring algorithm


@dataclasses.dataclass
class Kernel:
    """Runs of a Pallas kernel for attention in a step."""

    name: str
    count: int
    flops: float  # over all runs, for the blocks that the kernel computes
    head_size: int


@dataclasses.dataclass
class Account:
    cycles: int  # the compiler's estimates; it has none for collectives, copies in the background, Pallas kernels
    hbm_bytes: int  # read from and written to the chip's memory
    collectives: list[Collective]
    kernels: list[Kernel]
    unknown: list[str]  # descriptions of what could not be counted


def account_of(program: Program, devices: int) -> Account:
    """`devices`: of a slice. Several slices have one program each, which hands communication between slices to the host."""
    account, collectives = Account(0, 0, [], [], []), {}
    for computation, instruction, times in _executed(program, program.entry, 1, account.unknown):
        for one in _collectives_of(program, computation, instruction, devices):
            total = collectives.setdefault((one.kind, one.network), Collective(one.kind, one.network))
            total.count += times * one.count
            total.bytes += times * one.bytes
        if instruction.opcode in _FREE or instruction.opcode.endswith("-done"):
            continue
        if _is_kernel(instruction):
            kernel = attention_kernel(computation, instruction, times)
            if kernel is None:
                account.unknown.append(
                    f"the kernel {instruction.name}, {times} times: neither cycles nor FLOPs are known"
                )
            else:
                account.kernels.append(kernel)
        account.cycles += times * (instruction.number("estimated_cycles") or 0)
        account.hbm_bytes += times * _hbm_bytes(program, computation, instruction)
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
            yield from _executed(program, called["body"], times * (1 if trips is None else trips), unknown)
            yield from _executed(program, called["condition"], times * (1 if trips is None else trips), unknown)
        elif instruction.opcode == "conditional":
            costliest = max(instruction.branches(), key=lambda branch: _cycles(program, branch))
            yield from _executed(program, costliest, times, unknown)
        elif instruction.opcode in ("call", "async-start"):
            yield from _executed(program, called.get("to_apply") or called["calls"], times, unknown)


def _cycles(program: Program, name: str) -> int:
    return sum(times * (it.number("estimated_cycles") or 0) for _, it, times in _executed(program, name, 1, []))


def _is_kernel(instruction: Instruction) -> bool:
    return instruction.opcode == "custom-call" and instruction.says("custom_call_target") == "tpu_custom_call"


# Communication between devices.


def _collectives_of(
    program: Program, computation: Computation, instruction: Instruction, devices: int
) -> list[Collective]:
    kind = instruction.opcode.removesuffix("-start")
    if kind in COLLECTIVES:
        return [_collective(kind, computation, instruction, devices)]
    if kind == "send" and instruction.says("_xla_host_transfer_handler_name") == "xla_megascale_runtime":
        # Between slices the host forwards what the device sends, under the runtime's name ALL_REDUCE and so on.
        asked = instruction.says("_xla_megascale_transfer_type").lower().replace("_", "-") or "send"
        return [Collective(asked, "dcn", 1, _given(computation, instruction))]
    if kind != "fusion":
        return []
    # A fusion may start, continue or end a collective beside its own work; each part names the collective.
    fused = program.computations[instruction.called()["calls"]]
    inner = [it for it in fused.instructions.values() if it.opcode.removesuffix("-start") in COLLECTIVES]
    parts = [it for it in inner if "async_collective_fusion_config" in it.attributes]
    if parts and not any(it.says("custom_call_target") == "AsyncCollectiveStart" for it in fused.instructions.values()):
        inner = [it for it in inner if it not in parts]
    scattered = fused.name.startswith("all-reduce-scatter")  # how libtpu writes a reduce-scatter
    return [
        _collective("reduce-scatter" if scattered else it.opcode.removesuffix("-start"), fused, it, devices)
        for it in inner
    ]


def _given(computation: Computation, instruction: Instruction) -> int:
    operands = (computation.instructions[name] for name in instruction.operands)
    return sum(array.bytes for operand in operands for array in operand.arrays())


def _collective(kind: str, computation: Computation, instruction: Instruction, devices: int) -> Collective:
    members = group_size(instruction.attributes) or devices
    given = _given(computation, instruction)
    sent = {
        "all-gather": given * (members - 1),
        "all-reduce": 2 * given * (members - 1) // members,
        "reduce-scatter": given * (members - 1) // members,
        "all-to-all": given * (members - 1) // members,
        "collective-permute": given,
    }[kind]
    return Collective(kind, "ici", 1, sent)


# Kernels.


def attention_kernel(computation: Computation, instruction: Instruction, times: int) -> Kernel | None:
    """The work of a splash attention kernel, from the shapes of its operands; None for any other kernel.

    The forward pass multiplies twice (scores, output), the fused backward pass five times (scores again, and the gradients
    of weights, values, keys, queries), the one of keys and values alone four times, of queries alone three times. Causal:
    the blocks of queries and keys with anything on or below the diagonal are computed in full.
    """
    products = {"splash_mha_fwd": ("", 2), "splash_mha_dkv": ("_dkv", 4), "splash_mha_dq": ("_dq", 3)}
    name = next((name for name in products if instruction.name.startswith(name)), None)
    operands = [computation.instructions.get(operand) for operand in instruction.operands]
    arrays = [array for operand in operands if operand for array in operand.arrays()]
    wide = [array.sizes for array in arrays if array.kind in ("bf16", "f32", "f16") and len(array.sizes) >= 3]
    if name is None or not wide:
        return None
    suffix, count = products[name]
    # The fused backward pass also gives the gradient of the queries, an array with blocks of keys in front of their shape.
    count += name == "splash_mha_dkv" and any(array.sizes[1:] == wide[0] for array in instruction.arrays())

    def parameter(what: str) -> int | None:
        found = re.search(rf'\b{what}\\*": (\d+)', instruction.attributes)
        return int(found[1]) if found else None

    *rows, length, size = wide[0]  # queries: (B,) H, T, C
    if parameter("q_layout") == 2:  # positions innermost
        length, size = size, length
    queries, keys = parameter(f"block_q{suffix}") or length, parameter(f"block_kv{suffix}") or length
    blocks = sum(-(-min(end, length) // keys) for end in range(queries, length + queries, queries))
    flops = 2.0 * count * math.prod(rows) * blocks * queries * keys * size
    return Kernel(name, times, times * flops, size)


# The chip's memory.

_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}  # in place; which operand is written there


def _hbm_bytes(program: Program, computation: Computation, instruction: Instruction) -> int:
    """Bytes from and to HBM in one run. If a fusion only reads a slice of an array, or writes a slice in place, only the
    slice counts."""
    if instruction.opcode in ("copy-start", "slice-start"):
        # In the background, from one memory to the other: (target, source, ..) or ((source), target, ..).
        ends = [array for array in instruction.arrays() if array.sizes][:2]
        return min(array.bytes for array in ends) * sum(array.memory == 0 for array in ends) if ends else 0
    inside = {}
    written = instruction.arrays()
    if instruction.opcode == "fusion":
        fused = program.computations[instruction.called()["calls"]]
        inside = _sliced(fused)
        written = _written(fused, written)
    elif instruction.opcode in ("dynamic-slice", "slice", "gather"):
        inside = {0: sum(array.bytes for array in written)}
    elif instruction.opcode in _UPDATES:
        update = computation.instructions[instruction.operands[_UPDATES[instruction.opcode]]].arrays()
        inside, written = {0: 0}, [array._replace(memory=written[0].memory) for array in update]
    total = sum(array.bytes for array in written if array.memory == 0)
    for place, name in enumerate(instruction.operands):
        operand = computation.instructions.get(name)
        arrays = [array for array in operand.arrays() if array.memory == 0] if operand else []
        total += min(inside.get(place, float("inf")), sum(array.bytes for array in arrays))
    return int(total)


def _sliced(fused: Computation) -> dict[int, int]:
    """{parameter: bytes} for parameters from which a fusion only reads slices, or into which it writes in place."""
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
    sources = [fused.instructions.get(name) for name in root.operands] if root.opcode == "tuple" else [root]
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
