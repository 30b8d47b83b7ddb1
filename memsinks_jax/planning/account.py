"""Counts what a compiled program does in one step: cycles, communication, attention kernels.

Compilers report the memory of a program, but not this. `cost_analysis()` counts the body of a loop
once and has no communication, and GPUs have none at all. libtpu's `optimal_seconds` may be
negative. `jax.experimental.roofline` reads the program before the compiler adds communication.
jaxlib's parsed programs have no shapes. So the program is read as text (HLO after scheduling). All
numbers are for one device.
"""

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
_MATRIX_PRODUCTS = {"splash_mha_fwd": 2, "splash_mha_dkv": 5}  # scores again in the backward pass
_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"  (?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\(([^)]*)\)(.*)")
_ARRAY = re.compile(r"\b(pred|[a-z]+(\d+)(?:e\d+m\d+\w*)?)\[([\d,]*)\]")
# which stand for what others compute
_NO_WORK = ("while", "conditional", "call", "iota", "async-start", "async-update")


class Array(NamedTuple):
    kind: str
    sizes: tuple[int, ...]
    bytes: int


@dataclasses.dataclass(eq=False, repr=False)
class Instruction:
    """One line. Of a constant, or a parameter, `inside` is its value or number."""

    name: str
    shape: str  # of the result
    opcode: str
    inside: str  # the text between its parentheses
    operands: list["Instruction"]
    attributes: str

    def called(self, how: str) -> str:
        """The computation of body=, condition=, calls= or to_apply=; '' if there is none."""
        found = re.search(rf"\b{how}=%?([\w.\-]+)", self.attributes)
        return found[1] if found else ""

    def number(self, name: str) -> int | None:
        """The value of name=3, "name":"3" or \\"name\\": 3 among the attributes."""
        found = re.search(rf'\b{name}\\*"?[=:] ?"?(\d+)', self.attributes)
        return int(found[1]) if found else None

    def read(self) -> list[Array]:
        """The arrays that it reads."""
        return [array for operand in self.operands for array in arrays_of(operand.shape)]


# The computations of a program by name. Instructions come in the order in which they run, and the
# last one is the root.
Computations = dict[str, list[Instruction]]


class Collective(NamedTuple):
    """All collective operations of one kind in a step."""

    kind: str
    network: str  # ici: within a slice, or a node of GPUs | dcn: between them
    count: int
    bytes: int  # bytes that a device sends over it, by the ring algorithm


class Account(NamedTuple):
    # the TPU compiler's estimates; it has none for collectives, copies in the background, Pallas
    # kernels
    cycles: int
    kernel_flops: float  # of attention kernels, for the blocks that they compute; on TPUs alone
    head_size: int  # of attention kernels
    collectives: list[Collective]
    unknown: list[str]  # descriptions of what could not be counted


def account_of(text: str, devices: int, per_node: int | None = None) -> Account:
    """Counts a program. What a loop runs counts as often as the loop does.

    Args:
      devices: that run the program. Several TPU slices have one each, which passes communication
        between slices to the host.
      per_node: how many GPUs of the mesh, in its order, share a node; None: all.
    """
    program, entry = parse(text)
    cycles, flops, head, totals, unknown = 0, 0.0, 0, {}, []
    for instruction, times in _executed(program, entry, 1, unknown):
        for kind, one in _collectives(program, instruction):
            network, sent = _bytes_sent(kind, one, devices, per_node or devices)
            count, total = totals.get((network, kind), (0, 0))
            totals[network, kind] = count + times, total + times * sent
        cycles += times * _cycles(instruction)
        if 'custom_call_target="tpu_custom_call"' in instruction.attributes:
            of_one, size = _attention(instruction)
            flops, head = flops + times * of_one, size or head
            if not of_one:
                unknown.append(
                    f"the kernel {instruction.name}, {times} times: neither cycles nor FLOPs are "
                    "known"
                )
    found = [Collective(kind, network, *total) for (network, kind), total in sorted(totals.items())]
    return Account(cycles, flops, head, found, unknown)


def parse(text: str) -> tuple[Computations, str]:
    """-> all computations, and the name of the one that runs first."""
    program, entry, known = {}, "", {}
    for line in text.splitlines():
        if header := _HEADER.match(line):
            name, known = header[2], {}
            program[name] = []
            entry = name if header[1] else entry
        elif found := _INSTRUCTION.match(line):
            *about, inside, attributes = found.groups()
            operands = [known[one] for one in re.findall(r"%([\w.\-]+)", inside) if one in known]
            known[found[1]] = Instruction(*about, inside, operands, attributes)
            program[name].append(known[found[1]])
        elif known and line != "}":  # attributes of kernels go over several lines
            program[name][-1].attributes += line
    return program, entry


def arrays_of(shape: str) -> list[Array]:
    """'(bf16[4,8]{1,0:T(8,128)S(1)}, u32[])' -> its arrays."""
    found = []
    for kind, bits, listed in _ARRAY.findall(shape):
        sizes = tuple(map(int, filter(None, listed.split(","))))
        found.append(Array(kind, sizes, math.ceil(math.prod(sizes) * int(bits or 8) / 8)))
    return found


def _executed(
    program: Computations, name: str, times: int, unknown: list[str]
) -> Iterator[tuple[Instruction, int]]:
    """Every scheduled instruction and how often it runs. Fusions are one instruction."""
    for instruction in program[name]:
        yield instruction, times
        if instruction.opcode == "while":
            turns = trip_count(program, instruction)
            if turns is None:
                unknown.append(f"the trip count of the loop {instruction.name}: counted once")
                turns = 1
            for part in ("body", "condition"):
                yield from _executed(program, instruction.called(part), times * turns, unknown)
        elif instruction.opcode == "conditional":
            listed = re.search(r"\bbranch_computations=\{([^}]*)\}", instruction.attributes)
            branches = (
                re.findall(r"[\w.\-]+", listed[1])
                if listed
                else [instruction.called(f"{which}_computation") for which in ("true", "false")]
            )
            runs = [list(_executed(program, branch, times, [])) for branch in branches]
            yield from max(runs, key=lambda run: sum(_cycles(one) * turns for one, turns in run))
        elif instruction.opcode in ("call", "async-start"):
            inner = instruction.called("to_apply") or instruction.called("calls")
            yield from _executed(program, inner, times, unknown)


def _cycles(instruction: Instruction) -> int:
    if instruction.opcode in _NO_WORK or instruction.opcode.endswith("-done"):
        return 0
    return instruction.number("estimated_cycles") or 0


def trip_count(program: Computations, loop: Instruction) -> int | None:
    """How often the body of a `while` runs: as annotated, or by its condition `counter < constant`
    and the constant that the counter begins with (the loops of jax count by one); or None.
    """
    if known := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.attributes):
        return int(known[1])
    root = compare = program[loop.called("condition")][-1]
    if root.opcode == "fusion":
        compare = program[root.called("calls")][-1]
    kinds = [operand.opcode for operand in root.operands]
    if "direction=LT" not in compare.attributes or kinds != ["get-tuple-element", "constant"]:
        return None
    counter, limit = root.operands
    first = loop.operands[0]
    while first.opcode in ("tuple", "copy", "bitcast"):
        first = first.operands[counter.number("index") if first.opcode == "tuple" else 0]
    # It begins at another constant where the compiler has moved the first turns out of the loop.
    begin = int(first.inside) if first.opcode == "constant" else 0
    return max(int(limit.inside) - begin, 0)


def _attention(instruction: Instruction) -> tuple[float, int]:
    """-> FLOPs of splash attention and the size of its heads; (0, 0) for any other kernel.

    The blocks of queries and keys with anything on or below the diagonal are computed in full.
    """
    name = next((name for name in _MATRIX_PRODUCTS if instruction.name.startswith(name)), None)
    floats = [
        array.sizes
        for array in instruction.read()
        if array.kind in ("bf16", "f32") and len(array.sizes) > 2
    ]
    if name is None or not floats:
        return 0.0, 0
    *rows, length, size = floats[0]  # queries: (B,) H, T, C
    if instruction.number("q_layout") == 2:  # positions innermost
        length, size = size, length
    suffix = "_dkv" if name.endswith("_dkv") else ""
    queries, keys = (instruction.number(f"block_{of}{suffix}") or length for of in ("q", "kv"))
    blocks = sum(-(-min(end, length) // keys) for end in range(queries, length + queries, queries))
    products = _MATRIX_PRODUCTS[name]
    return 2.0 * products * math.prod(rows) * blocks * queries * keys * size, size


def _collectives(
    program: Computations, instruction: Instruction
) -> Iterator[tuple[str, Instruction]]:
    """The collectives that an instruction starts, with their kinds; of a fusion, those inside."""
    kind = instruction.opcode.removesuffix("-start")
    if kind in COLLECTIVES:
        yield kind, instruction
    elif kind == "send" and "xla_megascale_runtime" in instruction.attributes:
        # Between slices the host forwards what the device sends, under the runtime's name
        # ALL_REDUCE and so on.
        asked = re.search(r'_xla_megascale_transfer_type="(\w+)"', instruction.attributes)
        yield asked[1].lower().replace("_", "-") if asked else "send", instruction
    elif kind == "fusion":
        name = instruction.called("calls")
        starts = any("AsyncCollectiveStart" in one.attributes for one in program[name])
        for one in program[name]:
            # A fusion may start, continue or end a collective in addition to its own work; each
            # part names the collective.
            if starts or "async_collective_fusion_config" not in one.attributes:
                for kind, inner in _collectives(program, one):
                    # how libtpu writes a reduce-scatter
                    scatters = name.startswith("all-reduce-scatter")
                    yield "reduce-scatter" if scatters else kind, inner


def _bytes_sent(
    kind: str, instruction: Instruction, devices: int, per_node: int
) -> tuple[str, int]:
    """-> the network that a collective needs, and the bytes that a device sends."""
    given = sum(array.bytes for array in instruction.read())
    if instruction.opcode == "send":
        return "dcn", given
    if kind == "collective-permute":  # from one device to another; of two nodes, if any are
        pairs = re.findall(r"\{(\d+),(\d+)\}", instruction.attributes)
        crosses = any(int(a) // per_node != int(b) // per_node for a, b in pairs)
        return "dcn" if crosses else "ici", given
    of_group = group(instruction.attributes) or range(devices)
    members, nodes = len(of_group), len({device // per_node for device in of_group})
    times = {"all-gather": members, "all-reduce": 2}.get(kind, 1)
    sent = times * given * (members - 1) // members
    if nodes == 1:
        return "ici", sent
    if kind == "all-to-all":
        return "dcn", given * (nodes - 1) // nodes
    # A ring enters and leaves a node once, through the network cards of all its members.
    return "dcn", sent * nodes // members


def group(attributes: str) -> list[int] | None:
    """The devices that a collective connects: its first largest group, by place in the mesh; None
    if all are one group.

    Understood: {{0,1},{2,3}}, [2,4]<=[4,2]T(1,0), mesh['a'=2,'b'=4] {'b'}. Of an axis,
    'a':(before)size is a part.
    """
    if listed := re.search(r"replica_groups=\{(\{[\d,]*\}(?:,\{[\d,]*\})*)\}", attributes):
        groups = re.findall(r"\{([\d,]+)\}", listed[1])
        return max(([int(one) for one in each.split(",")] for each in groups), key=len)
    if counted := re.search(
        r"replica_groups=\[\d+,(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", attributes
    ):
        return _places(counted[2], counted[3]).ravel()[: int(counted[1])].tolist()
    if named := re.search(
        r"replica_groups=(?:@\w+|mesh)?\[([^\]]*)\]"
        r"(?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{([^}]*)\}",
        attributes,
    ):
        sizes = {axis: int(size) for axis, size in re.findall(r"'(\w+)'=(\d+)", named[1])}
        # before, within and after the group's part
        parts = {axis: (1, 1, size) for axis, size in sizes.items()}
        for axis, before, part in re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", named[4]):
            first, within = int(before or 1), int(part or sizes[axis])
            parts[axis] = (first, within, sizes[axis] // first // within)
        places = _places(named[2] or str(math.prod(sizes.values())), named[3])
        places = places.reshape([size for part in parts.values() for size in part])
        return places[(0, slice(None), 0) * len(parts)].ravel().tolist()
    return None


def _places(sizes: str, order: str | None) -> np.ndarray:
    """'4,2', '1,0' -> 0 to 7 in 4 rows of 2, transposed."""
    shape = [int(size) for size in sizes.split(",")]
    places = np.arange(math.prod(shape)).reshape(shape)
    return places.transpose([int(axis) for axis in order.split(",")]) if order else places
