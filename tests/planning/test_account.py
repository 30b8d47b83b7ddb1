"""Counts of a program's operations in a step, on small programs written for the test."""

import jax
import jax.numpy as jnp
import pytest

from memsinks_jax.planning.account import (
    Array,
    Collective,
    account_of,
    arrays_of,
    group,
    parse,
    trip_count,
)

HEAD = "HloModule jit_f, is_scheduled=true\n\n"

NESTED = """%inner (a: (s32[], f32[8])) -> (s32[], f32[8]) {
  %a = (s32[], f32[8]{0}) parameter(0)
  %ai = s32[] get-tuple-element(%a), index=0
  %ax = f32[8]{0} get-tuple-element(%a), index=1
  %one.1 = s32[] constant(1)
  %an = s32[] add(%ai, %one.1), backend_config={"estimated_cycles":"1"}
  %work = f32[8]{0} fusion(%ax), kind=kLoop, calls=%fused, backend_config={"window_config":{"estimated_cycles":"100"}}
  ROOT %ao = (s32[], f32[8]{0}) tuple(%an, %work)
}

%inner_condition (b: (s32[], f32[8])) -> pred[] {
  %b = (s32[], f32[8]{0}) parameter(0)
  %bi = s32[] get-tuple-element(%b), index=0
  %three = s32[] constant(3)
  ROOT %bl = pred[] compare(%bi, %three), direction=LT
}

%outer (c: (s32[], f32[8])) -> (s32[], f32[8]) {
  %c = (s32[], f32[8]{0}) parameter(0)
  %ci = s32[] get-tuple-element(%c), index=0
  %cx = f32[8]{0} get-tuple-element(%c), index=1
  %zero.1 = s32[] constant(0)
  %one.2 = s32[] constant(1)
  %cn = s32[] add(%ci, %one.2), backend_config={"estimated_cycles":"10"}
  %cinit = (s32[], f32[8]{0}) tuple(%zero.1, %cx)
  %cloop = (s32[], f32[8]{0}) while(%cinit), condition=%inner_condition, body=%inner
  %cy = f32[8]{0} get-tuple-element(%cloop), index=1
  ROOT %co = (s32[], f32[8]{0}) tuple(%cn, %cy)
}

%outer_condition (d: (s32[], f32[8])) -> pred[] {
  %d = (s32[], f32[8]{0}) parameter(0)
  %di = s32[] get-tuple-element(%d), index=0
  %four = s32[] constant(4)
  ROOT %dl = pred[] compare(%di, %four), direction=LT
}

%fused (e: f32[8]) -> f32[8] {
  %e = f32[8]{0} parameter(0)
  ROOT %en = f32[8]{0} negate(%e), backend_config={"estimated_cycles":"7777"}
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %zero = s32[] constant(0)
  %init = (s32[], f32[8]{0}) tuple(%zero, %p)
  %loop = (s32[], f32[8]{0}) while(%init), condition=%outer_condition, body=%outer
  %x = f32[8]{0} get-tuple-element(%loop), index=1
  ROOT %last = f32[8]{0} fusion(%x), kind=kLoop, calls=%fused, backend_config={"estimated_cycles":"1000"}
}
"""


def entry(lines, before="", parameters="p: bf16[4,1024]", **about):
    text = f"{HEAD}{before}\nENTRY %main ({parameters}) -> bf16[4] {{\n{lines}\n}}\n"
    return account_of(text, devices=16, **about)


def test_loops_in_loops_multiply_and_fusions_count_once():
    account = account_of(HEAD + NESTED, devices=1)
    assert account.cycles == 1000 + 4 * (10 + 3 * (100 + 1))
    assert account.unknown == []


def test_an_unknown_trip_count_is_reported():
    account = account_of(HEAD + NESTED.replace("direction=LT", "direction=NE"), devices=1)
    assert account.cycles == 1000 + 10 + 100 + 1
    assert account.unknown == [
        "the trip count of the loop loop: counted once",
        "the trip count of the loop cloop: counted once",
    ]


def test_of_a_conditional_the_costlier_branch_counts():
    branch = """%{0} ({0}.p: f32[8]) -> f32[8] {{
  %{0}.p = f32[8]{{0}} parameter(0)
  ROOT %{0}.n = f32[8]{{0}} negate(%{0}.p), backend_config={{"estimated_cycles":"{1}"}}
}}
"""
    lines = """  %p = f32[8]{0} parameter(0)
  %which = s32[] constant(0)
  ROOT %c = f32[8]{0} conditional(%which, %p, %p), branch_computations={%few, %many}"""
    account = entry(lines, branch.format("few", 5) + branch.format("many", 50), "p: f32[8]")
    assert account.cycles == 50


GROUPS, PAIRS = "replica_groups=[4,4]<=[16]", "source_target_pairs={{0,1},{1,0}}"


@pytest.mark.parametrize(
    ("line", "kind", "sent"),
    [
        (f"bf16[16,1024] all-gather(%p), {GROUPS}, dimensions={{0}}", "all-gather", 3 * 8192),
        (f"bf16[1,1024] reduce-scatter(%p), {GROUPS}, to_apply=%add", "reduce-scatter", 6144),
        (f"bf16[4,1024] all-reduce(%p), {GROUPS}, to_apply=%add", "all-reduce", 12288),
        (f"bf16[4,1024] all-to-all(%p), {GROUPS}", "all-to-all", 6144),
        (f"bf16[4,1024] collective-permute(%p), {PAIRS}", "collective-permute", 8192),
        ("bf16[64,1024] all-gather(%p), replica_groups={}", "all-gather", 15 * 8192),
    ],
)
def test_collectives_and_what_a_chip_sends(line, kind, sent):
    account = entry(f"  %p = bf16[4,1024]{{1,0}} parameter(0)\n  ROOT %r = {line}")
    assert account.collectives == [Collective(kind, "ici", 1, sent)]


@pytest.mark.parametrize(
    ("line", "network", "sent"),
    [
        ("all-gather(%p), replica_groups=[4,4]<=[16]", "ici", 3 * 8192),
        # One member in each of four nodes: its network card carries all of the ring.
        ("all-gather(%p), replica_groups=[4,4]<=[4,4]T(1,0)", "dcn", 3 * 8192),
        # Four members in each node share what the ring sends to the next node.
        ("all-reduce(%p), replica_groups={}, to_apply=%add", "dcn", 2 * 8192 * 15 // 16 * 4 // 16),
        ("all-to-all(%p), replica_groups={}", "dcn", 8192 * 3 // 4),
        ("collective-permute(%p), source_target_pairs={{0,1},{1,0}}", "ici", 8192),
        ("collective-permute(%p), source_target_pairs={{0,1},{3,4}}", "dcn", 8192),
    ],
)
def test_of_gpus_in_four_nodes_collectives_use_the_link_that_they_need(line, network, sent):
    account = entry(
        f"  %p = bf16[4,1024]{{1,0}} parameter(0)\n  ROOT %r = bf16[4,1024] {line}", per_node=4
    )
    assert [(one.network, one.bytes) for one in account.collectives] == [(network, sent)]


def test_a_start_and_its_done_are_one():
    account = entry(f"""  %p = bf16[4,1024]{{1,0}} parameter(0)
  %s = (bf16[4,1024], bf16[16,1024]) all-gather-start(%p), {GROUPS}, dimensions={{0}}
  ROOT %d = bf16[16,1024] all-gather-done(%s)""")
    assert account.collectives == [Collective("all-gather", "ici", 1, 3 * 8192)]


def test_a_collective_that_fusions_carry_on_counts_where_it_starts():
    config = 'backend_config={"async_collective_fusion_config":{"flag_start":"-1"}}'
    part = """%async_collective_fusion{0} (q{0}: bf16[4,1024]) -> bf16[4,1024] {{
  %q{0} = bf16[4,1024]{{1,0}} parameter(0)
  %g{0} = bf16[16,1024] all-gather(%q{0}), {1}, dimensions={{0}}, {2}
  ROOT %c{0} = bf16[4,1024] custom-call(%g{0}), custom_call_target="{3}"
}}
"""
    names = ("AsyncCollectiveStart", "Something", "AsyncCollectiveDone")
    before = "".join(part.format(i, GROUPS, config, name) for i, name in enumerate(names))
    account = entry(
        """  %p = bf16[4,1024]{1,0} parameter(0)
  %f0 = bf16[4,1024] fusion(%p), kind=kCustom, calls=%async_collective_fusion0
  %f1 = bf16[4,1024] fusion(%f0), kind=kOutput, calls=%async_collective_fusion1
  ROOT %f2 = bf16[4,1024] fusion(%f1), kind=kCustom, calls=%async_collective_fusion2""",
        before,
    )
    assert account.collectives == [Collective("all-gather", "ici", 1, 3 * 8192)]


def test_libtpus_reduce_scatter_is_one():
    before = f"""%all-reduce-scatter.1 (q: bf16[4,1024]) -> bf16[1,1024] {{
  %q = bf16[4,1024]{{1,0}} parameter(0)
  %g = bf16[4,1024] all-reduce(%q), {GROUPS}, to_apply=%add
  ROOT %s = bf16[1,1024] dynamic-slice(%g), dynamic_slice_sizes={{1,1024}}
}}
"""
    account = entry(
        """  %p = bf16[4,1024]{1,0} parameter(0)
  ROOT %f = bf16[1,1024] fusion(%p), kind=kCustom, calls=%all-reduce-scatter.1""",
        before,
    )
    assert account.collectives == [Collective("reduce-scatter", "ici", 1, 6144)]


def test_what_goes_to_other_slices_is_sent_by_the_host():
    target = (
        'frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",'
        '_xla_megascale_transfer_type="ALL_REDUCE"}'
    )
    account = entry(f"""  %p = bf16[4,1024]{{1,0}} parameter(0)
  %t = token[] after-all()
  %r = (bf16[4,1024], u32[], token[]) recv(%t), channel_id=2, is_host_transfer=true, {target}
  %s = (bf16[4,1024], u32[], token[]) send(%p, %t), channel_id=3, is_host_transfer=true, {target}
  %sd = token[] send-done(%s), channel_id=3, {target}
  %rd = (bf16[4,1024], token[]) recv-done(%r), channel_id=2, {target}
  ROOT %o = bf16[4,1024] get-tuple-element(%rd), index=0""")
    assert account.collectives == [Collective("all-reduce", "dcn", 1, 8192)]


SPLASH = """  %q = bf16[{shape}] parameter(0)
  %k = bf16[2,1,2048,64] parameter(1)
  %m = s8[1,4,4] constant(0)
  ROOT %{name} = ({result}) custom-call(%m, %q, %k), custom_call_target="tpu_custom_call", frontend_attributes={{\
kernel_metadata={{"xprof_metadata":"{{{metadata}}}"}}}}"""


FORWARD = "bf16[2,3,2048,64], f32[2,3,2048,128]"
BACKWARD = "2,3,2048,64], bf16[2,1,2048,64]"


@pytest.mark.parametrize(
    ("name", "sizes", "result", "products", "blocks"),
    [
        ("fwd_segmented_residuals.1", ("", 512, 512), FORWARD, 2, 10 / 16),
        ("fwd_segmented_residuals.2", ("", 512, 1024), FORWARD, 2, 6 / 8),
        ("dkv_segmented.1", ("_dkv", 512, 512), f"bf16[4,{BACKWARD}", 5, 10 / 16),
        ("dkv_segmented.2", ("_dkv", 512, 2048), f"bf16[1,{BACKWARD}", 5, 1),
    ],
)
@pytest.mark.parametrize(("shape", "layout"), [("2,3,2048,64", 1), ("2,3,64,2048", 2)])
def test_attention_kernels_by_their_shapes(name, sizes, result, products, blocks, shape, layout):
    suffix, queries, keys = sizes
    settings = {f"block_q{suffix}": queries, f"block_kv{suffix}": keys, "q_layout": layout}
    metadata = ", ".join(f'\\"{what}\\": {value}' for what, value in settings.items())
    result = result.replace("2,3,2048,64", shape)
    lines = SPLASH.format(name=f"splash_mha_{name}", shape=shape, result=result, metadata=metadata)
    account = entry(lines, parameters=f"q: bf16[{shape}], k: bf16[2,1,2048,64]")
    assert account.kernel_flops == products * 2 * (2 * 3) * blocks * 2048 * 2048 * 64
    assert (account.head_size, account.unknown) == (64, [])


def test_another_kernel_is_reported_as_unknown():
    account = entry("""  %p = bf16[4,1024]{1,0} parameter(0)
  ROOT %mine = bf16[4,1024] custom-call(%p), custom_call_target="tpu_custom_call\"""")
    assert account.kernel_flops == 0
    assert account.unknown == ["the kernel mine, 1 times: neither cycles nor FLOPs are known"]


LOOP = """HloModule jit_f, is_scheduled=true

%body (state: (s32[], f32[4])) -> (s32[], f32[4]) {
  %state = (s32[]{:T(128)}, f32[4]{0:T(1024)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%state), index=0
  %one = s32[]{:T(128)} constant(1)
  %next = s32[]{:T(128)} add(%i, %one)
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


def loop_of(text):
    program, entry = parse(text)
    return program, next(one for one in program[entry] if one.opcode == "while")


def test_instructions_are_read():
    program, entry = parse(LOOP)
    main = {one.name: one for one in program[entry]}
    assert list(main) == ["p", "start", "copied", "kernel", "init", "loop", "result"]
    assert main["init"].operands == [main["copied"], main["kernel"]]
    assert main["start"].inside == "1"
    assert main["kernel"].number("block_q") == 512
    assert arrays_of(main["kernel"].shape) == [Array("f32", (4,), 16)]
    assert main["loop"].called("condition") == "condition"
    assert arrays_of(main["loop"].shape) == [Array("s32", (), 4), Array("f32", (4,), 16)]


def test_a_loop_runs_as_often_as_its_counter_lets_it():
    annotated = 'body=%body, backend_config={"known_trip_count":{"n":"7"}}'
    for text, turns in {
        LOOP: 10,
        LOOP.replace("constant(1)", "constant(0)"): 11,
        LOOP.replace("body=%body", annotated): 7,
        LOOP.replace("direction=LT", "direction=NE"): None,
        LOOP.replace("constant(11)", "iota()"): None,
    }.items():
        assert trip_count(*loop_of(text)) == turns


def test_a_compiled_loop_of_this_machine():
    def f(x):
        return jax.lax.scan(lambda c, _: (c @ x, None), x, None, length=7)[0]

    text = jax.jit(f).lower(jnp.ones((8, 8))).compile().as_text()
    assert trip_count(*loop_of(text)) == 7


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
