"""Parsing programs as text: shapes, operands, loops, groups."""

import jax
import jax.numpy as jnp
import pytest

from memsinks_jax.planning.program_text import Array, arrays_of, group, parse, trip_count

LOOP = """HloModule jit_f, is_scheduled=true

%body (state: (s32[], f32[4])) -> (s32[], f32[4]) {
  %state = (s32[]{:T(128)}, f32[4]{0:T(1024)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%state), index=0
  %two = s32[]{:T(128)} constant(2)
  %next = s32[]{:T(128)} add(%i, %two)
  %x = f32[4]{0:T(1024)} get-tuple-element(%state), index=1
  ROOT %out = (s32[]{:T(128)}, /*index=1*/f32[4]{0:T(1024)}) tuple(%next, /*index=1*/%x)
}

%condition (state.1: (s32[], f32[4])) -> pred[] {
  %limit = s32[]{:T(128)} constant(11)
  %state.1 = (s32[]{:T(128)}, f32[4]{0:T(1024)}) parameter(0)
  %j = s32[]{:T(128)} get-tuple-element(%state.1), index=0
  ROOT %less = pred[]{:T(512)} compare(%j, %limit), direction=LT
}

ENTRY %main (p: f32[4]) -> f32[4] {
  %p = f32[4]{0:T(1024)} parameter(0)
  %start = s32[]{:T(128)} constant(1)
  %copied = s32[]{:T(128)} copy(%start)
  %kernel = f32[4]{0:T(1024)S(1)} custom-call(%p), custom_call_target="tpu_custom_call", attributes={kernel_metadata={

"xprof_metadata":"{\\"block_q\\": 512}"
}}, metadata={op_name="a (b)"}
  %init = (s32[]{:T(128)}, f32[4]{0:T(1024)}) tuple(%copied, %kernel)
  %loop = (s32[]{:T(128)}, f32[4]{0:T(1024)}) while(%init), condition=%condition, body=%body
  ROOT %result = f32[4]{0:T(1024)} get-tuple-element(%loop), index=1
}
"""


def test_instructions_are_read():
    program = parse(LOOP)
    main = program.computations[program.entry]
    assert list(main.instructions) == ["p", "start", "copied", "kernel", "init", "loop", "result"]
    assert main.root == "result"
    assert main.instructions["init"].operands == ("copied", "kernel")
    assert main.instructions["start"].operands == ("1",)
    kernel = main.instructions["kernel"]
    assert (kernel.attribute("custom_call_target"), kernel.attribute("op_name")) == (
        "tpu_custom_call",
        "a (b)",
    )
    assert 'block_q\\": 512' in kernel.attributes
    assert kernel.arrays() == [Array("f32", (4,), 1)]
    assert main.instructions["loop"].called() == {"condition": "condition", "body": "body"}
    assert main.instructions["loop"].arrays() == [Array("s32", (), 0), Array("f32", (4,), 0)]


def test_text_without_a_program_is_refused():
    with pytest.raises(ValueError, match="ENTRY"):
        parse("HloModule nothing\n")


def test_a_loop_runs_as_often_as_its_counter_lets_it():
    def turns(text):
        program = parse(text)
        main = program.computations[program.entry]
        return trip_count(program, main, main.instructions["loop"])

    assert turns(LOOP) == 5  # 1, 3, 5, 7, 9
    assert turns(LOOP.replace("constant(1)", "constant(0)")) == 6
    assert (
        turns(
            LOOP.replace("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"7"}}')
        )
        == 7
    )
    assert turns(LOOP.replace("direction=LT", "direction=NE")) is None
    assert turns(LOOP.replace("constant(11)", "iota()")) is None


def test_a_compiled_loop_of_this_machine():
    def f(x):
        return jax.lax.scan(lambda c, _: (c @ x, None), x, None, length=7)[0]

    program = parse(jax.jit(f).lower(jnp.ones((8, 8))).compile().as_text())
    main = program.computations[program.entry]
    loops = [it for it in main.instructions.values() if it.opcode == "while"]
    assert [trip_count(program, main, loop) for loop in loops] == [7]


@pytest.mark.parametrize(
    ("shape", "count"),
    [
        ("bf16[4,2048]{1,0:T(8,128)(2,1)S(1)}", 16384),
        ("pred[3]", 3),
        ("f32[]", 4),
        ("s4[5]", 3),
        ("f8e4m3fn[6]", 6),
    ],
)
def test_bytes(shape, count):
    assert [array.bytes for array in arrays_of(shape)] == [count]


@pytest.mark.parametrize(
    ("attributes", "devices"),
    [
        ("replica_groups={{0,1},{2,3}}, x", [0, 1]),
        ("replica_groups={{0},{1,2,3}}, x", [1, 2, 3]),
        ("replica_groups=[2,4]<=[8], x", [0, 1, 2, 3]),
        ("replica_groups=[4,2]<=[2,4]T(1,0), x", [0, 4]),
        ("replica_groups=mesh['axis_0'=4] {'axis_0'}, x", [0, 1, 2, 3]),
        ("replica_groups=mesh['a'=2,'b'=3] {'b'}, x", [0, 1, 2]),
        ("replica_groups=mesh['a'=2,'b'=3] {'a'}, x", [0, 3]),
        ("replica_groups=mesh['a'=2,'b'=3] {'a','b'}, x", [0, 1, 2, 3, 4, 5]),
        ("replica_groups=mesh['a'=8] {'a':(1)4}, x", [0, 2, 4, 6]),
        ("replica_groups=mesh['a'=8] {'a':(2)4}, x", [0, 1, 2, 3]),
        ("replica_groups=mesh['a'=3,'b'=2], device_ids=([2,3]T(1,0)) {'b'}, x", [0, 3]),
        ("replica_groups={}, x", None),
    ],
)
def test_which_devices_a_collective_connects(attributes, devices):
    assert group(attributes) == devices
