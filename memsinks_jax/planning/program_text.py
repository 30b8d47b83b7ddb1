"""A compiled program as text (HLO after scheduling), read into computations and instructions.

Parses only what an account of the program needs: shapes with their memory, operands, loops with
their trip counts, how many devices communicate. Other text is kept unchanged.
"""

import math
import re
from typing import NamedTuple

import numpy as np

_BITS = {"pred": 8, "token": 0, "opaque": 0}  # the others end in their number of bits
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^  (ROOT )?%?([\w.\-]+) = ")
_ARRAY = re.compile(r"\b([a-z]+\d*(?:e\d+m\d+\w*)?)\[([\d,]*)\](?:\{([^{}]*)\})?")
_CALLED = re.compile(r"\b(body|condition|calls|to_apply)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_TWO_BRANCHES = re.compile(r"\b(?:true|false)_computation=%?([\w.\-]+)")


class Array(NamedTuple):
    """An array of a shape: its element type, its sizes, and its memory (0 is HBM)."""

    kind: str
    sizes: tuple[int, ...]
    memory: int

    @property
    def bytes(self) -> int:
        digits = re.match(r"[a-z]+(\d+)", self.kind)
        bits = _BITS.get(self.kind, int(digits[1]) if digits else 8)
        return math.ceil(math.prod(self.sizes) * bits / 8)


class Instruction(NamedTuple):
    """One line. `shape` and `attributes` are text; `operands` are names of the same computation."""

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str

    def arrays(self) -> list[Array]:
        """The arrays of the result, flat."""
        return arrays_of(self.shape)

    def number(self, name: str) -> int | None:
        """The value of name=3 or "name":"3" among the attributes."""
        found = re.search(rf'\b{name}"?[=:]"?(-?\d+)', self.attributes)
        return int(found[1]) if found else None

    def called(self) -> dict[str, str]:
        """{'body' | 'condition' | 'calls' | 'to_apply': computation}."""
        return dict(_CALLED.findall(self.attributes))

    def branches(self) -> list[str]:
        """The computations of a conditional."""
        listed = _BRANCHES.search(self.attributes)
        return (
            re.findall(r"[\w.\-]+", listed[1]) if listed else _TWO_BRANCHES.findall(self.attributes)
        )

    def attribute(self, name: str) -> str:
        """The text of name="..." among the attributes; '' if there is none."""
        found = re.search(rf'\b{name}="([^"]*)"', self.attributes)
        return found[1] if found else ""


class Computation(NamedTuple):
    name: str
    instructions: dict[str, Instruction]  # in the order in which they run
    root: str


class Program(NamedTuple):
    computations: dict[str, Computation]
    entry: str


def arrays_of(shape: str) -> list[Array]:
    """'(bf16[4,8]{1,0:T(8,128)S(1)}, u32[])' -> its arrays."""
    found = []
    for kind, sizes, layout in _ARRAY.findall(shape):
        memory = re.search(r"S\((\d+)\)", layout)
        found.append(
            Array(
                kind,
                tuple(map(int, filter(None, sizes.split(",")))),
                int(memory[1]) if memory else 0,
            )
        )
    return found


def parse(text: str) -> Program:
    """Raises ValueError if the text has no program."""
    computations, entry, lines, header = {}, None, [], None
    for line in text.splitlines():
        if header is None:
            header = _HEADER.match(line)
            if header:
                lines = []
                entry = header[2] if header[1] else entry
        elif line == "}":
            computations[header[2]] = _computation(header[2], lines)
            header = None
        elif _INSTRUCTION.match(line) or not lines:
            lines.append(line)
        else:
            lines[-1] += line  # attributes of kernels go over several lines
    if entry is None:
        raise ValueError("no ENTRY computation in the program's text")
    return Program(computations, entry)


def _computation(name: str, lines: list[str]) -> Computation:
    instructions, root = {}, ""
    for line in lines:
        head = _INSTRUCTION.match(line)
        if not head:
            continue
        start = head.end()
        middle = _close(line, start) if line[start] == "(" else line.index(" ", start)
        opcode, operands, end = _operation(line, middle)
        instructions[head[2]] = Instruction(
            head[2], line[start:middle], opcode, operands, line[end:]
        )
        root = head[2] if head[1] else root
    return Computation(name, instructions, root or next(reversed(instructions), ""))


def _operation(line: str, start: int) -> tuple[str, tuple[str, ...], int]:
    opens = line.index("(", start)
    end = _close(line, opens)
    inside = re.sub(r"/\*.*?\*/", "", line[opens + 1 : end - 1])
    operands = re.findall(r"%([\w.\-]+)", inside)
    if not operands and inside and not re.search(r"[{\[]", inside):
        # a constant's value, a parameter's number
        operands = [word.strip() for word in inside.split(",")]
    return line[start:opens].strip(), tuple(operands), end


def _close(line: str, opens: int) -> int:
    """The place after the bracket that closes the one at `opens`."""
    depth = 0
    for place in range(opens, len(line)):
        depth += {"(": 1, ")": -1}.get(line[place], 0)
        if depth == 0:
            return place + 1
    return len(line)


def trip_count(program: Program, computation: Computation, loop: Instruction) -> int | None:
    """How often the body of a `while` runs: as annotated, or from its condition `counter <
    constant`; or None.
    """
    known = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.attributes)
    if known:
        return int(known[1])
    called = loop.called()
    condition, body = (
        program.computations[called["condition"]],
        program.computations[called["body"]],
    )
    root = condition.instructions[condition.root]
    inner = root
    if root.opcode == "fusion":
        fused = program.computations[root.called()["calls"]]
        inner = fused.instructions[fused.root]
    if (
        inner.opcode != "compare"
        or "direction=LT" not in inner.attributes
        or len(root.operands) != 2
    ):
        return None
    counter, limit = (condition.instructions.get(name) for name in root.operands)
    if (
        counter is None
        or limit is None
        or counter.opcode != "get-tuple-element"
        or limit.opcode != "constant"
    ):
        return None
    place = counter.number("index")
    initial = _constant(computation, loop.operands[0], place)
    added = body.instructions.get(body.instructions[body.root].operands[place])
    steps = [_constant(body, name) for name in added.operands] if added else []
    step = next((value for value in steps if value), 1)
    return max(-(-(int(limit.operands[0]) - (initial or 0)) // step), 0)


def _constant(computation: Computation, name: str, place: int | None = None) -> int | None:
    """The constant integer of a name, or of an element of the tuple of that name; None if it is not
    a visible constant.
    """
    instruction = computation.instructions.get(name)
    if instruction is None:
        return None
    if instruction.opcode == "tuple" and place is not None:
        return _constant(computation, instruction.operands[place])
    if instruction.opcode in ("copy", "bitcast", "convert"):
        return _constant(computation, instruction.operands[0], place)
    if instruction.opcode == "constant" and re.fullmatch(r"-?\d+", instruction.operands[0]):
        return int(instruction.operands[0])
    return None


def group(attributes: str) -> list[int] | None:
    """The devices that a collective connects: its first largest group, by place in the mesh; None
    if all are one group.

    Understood: {{0,1},{2,3}}, [2,4]<=[4,2]T(1,0), mesh['a'=2,'b'=4] {'b'}. Of an axis,
    'a':(before)size is a part.
    """
    if listed := re.search(r"replica_groups=\{(\{[\d,]*\}(?:,\{[\d,]*\})*)\}", attributes):
        return max(
            (
                [int(one) for one in each.split(",")]
                for each in re.findall(r"\{([\d,]+)\}", listed[1])
            ),
            key=len,
        )
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
        parts = {axis: (1, size, 1) for axis, size in sizes.items()}
        chosen = re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", named[4])
        for axis, before, size in chosen:
            if size:
                parts[axis] = (int(before), int(size), sizes[axis] // int(before) // int(size))
        places = _places(named[2] or str(math.prod(sizes.values())), named[3])
        places = places.reshape([size for part in parts.values() for size in part])
        inside = {axis for axis, *_ in chosen}
        of_group = [
            slice(None) if axis in inside and place == 1 else 0
            for axis in parts
            for place in range(3)
        ]
        return places[tuple(of_group)].ravel().tolist()
    return None


def _places(sizes: str, order: str | None) -> np.ndarray:
    """'4,2', '1,0' -> 0 to 7 in 4 rows of 2, transposed."""
    shape = [int(size) for size in sizes.split(",")]
    places = np.arange(math.prod(shape)).reshape(shape)
    return places.transpose([int(axis) for axis in order.split(",")]) if order else places
