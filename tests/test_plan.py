"""The command `plan`: on local devices where the compiler does not matter, with libtpu where it
does.
"""

import json
import os
import re

import jax
import pytest
from conftest import ROOT, expect_input_error, python

from memsinks_jax import plan
from memsinks_jax.config import InputError, with_fields
from memsinks_jax.planning import cards, estimate, topology
from memsinks_jax.planning.estimate import TooBig, _translated
from memsinks_jax.training import flops
from memsinks_jax.training.flops import flops_per_step, parameters

PROMISED = {"fits", "hbm_gib_per_chip", "evaluation_hbm_gib_per_chip", "hbm_limit_gib"}
PROMISED |= {"flops_per_step", "compiler_step_ms", "predicted_mfu", "collectives", "compile_s"}


@pytest.fixture
def here(monkeypatch):
    """A slice made of this machine's devices, each with so much memory."""

    def with_memory(gib):
        chip = flops.chip("TPU v5 lite")._replace(hbm=gib * 2**30)
        monkeypatch.setattr(topology, "devices_of", lambda *_: (jax.devices(), chip))

    with_memory(1.0)
    return with_memory


def test_a_plan_has_what_is_promised(tiny, here):
    result = plan.plan(tiny, "here", slices=1, documents_per_row=1)
    assert set(result) >= PROMISED
    assert result["fits"]
    assert result["chips"] == 8
    assert result["mesh"] == {"data": 8, "fsdp": 1, "tensor": 1}
    assert result["label"] == "compiler estimate, not a measurement"
    assert "no TPU yet; on one H200" in result["measured"] and "27% MFU" in result["measured"]
    assert result["flops_per_step"] == flops_per_step(tiny)["full"]
    assert 0 < result["hbm_gib_per_chip"] < result["hbm_limit_gib"] == 1.0
    # Parameters and optimizer stay where they are while the documents are read; there is no
    # backward pass.
    state, evaluation = result["hbm_gib"]["state and batch"], result["evaluation_hbm_gib_per_chip"]
    assert state < evaluation < result["hbm_gib_per_chip"]
    # Every chip sends its gradients around, twice 7/8 of their bytes; those of embedding and head,
    # one array, apart.
    gradients = 4 * (parameters(tiny) + tiny.data.vocabulary_size * tiny.model.d_model)
    reduced = next(talk for talk in result["collectives"] if talk["kind"] == "all-reduce")
    assert reduced["network"] == "ici"
    assert reduced["bytes"] == pytest.approx(2 * 7 / 8 * gradients, rel=0.02)
    json.dumps(result)


@pytest.mark.parametrize(
    ("rows", "most"), [("one_document", 1), ("auto", 1), ("packed", 64), ("best_fit", 64)]
)
def test_rows_that_documents_share_hold_many(tiny, here, monkeypatch, rows, most):
    """Also those of best fit: `train` counts its documents, `plan` does not read them."""
    asked, compile_step = [], plan.estimate
    monkeypatch.setattr(
        plan, "estimate", lambda *given: asked.append(given[-1]) or compile_step(*given[:-1], 1)
    )
    tiny = with_fields(tiny, {"data.rows": rows})
    plan.plan(tiny, "here", slices=1, documents_per_row=None)
    assert asked == [most]


def test_a_table_of_contexts_is_that_of_a_run(tiny, here, monkeypatch):
    """`train` rounds its rows up."""
    asked, compile_step = [], plan.estimate
    monkeypatch.setattr(
        plan,
        "estimate",
        lambda config, *given: asked.append(config.contexts.rows) or compile_step(config, *given),
    )
    about = {"sinks.kind": "by_context", "contexts.rows": 1000}
    plan.plan(with_fields(tiny, about), "here", slices=1, documents_per_row=1)
    assert asked == [1024]


def test_what_train_would_refuse_plan_refuses(tiny, here):
    tiny = with_fields(tiny, {"mesh.data": 3})
    with expect_input_error("does not cover the 8 devices"):
        plan.plan(tiny, "here", 1, 1)
    tiny = with_fields(tiny, {"mesh.data": 8, "training.batch_size": 12})
    with expect_input_error("choose a multiple of 8, for example 16"):
        plan.plan(tiny, "here", 1, 1)


@pytest.mark.slow
def test_a_step_that_does_not_fit_is_refused_with_one_that_does(tiny, here):
    tiny = with_fields(tiny, {"training.batch_size": 256})
    needed = plan.plan(tiny, "here", 1, 1)["hbm_gib_per_chip"]
    here(0.5 * needed)
    with expect_input_error(r"needs .* GiB, and there are .* GiB; this fits: --config") as refusal:
        plan.plan(tiny, "here", 1, 1)
    assert "\n" not in str(refusal.value)
    for flag in str(refusal.value).split("this fits: ")[1].split():
        name, value = flag.removeprefix("--config.").split("=")
        section, field = name.split(".")
        kind = type(getattr(getattr(tiny, section), field))
        tiny = with_fields(tiny, {f"{section}.{field}": kind(value)})
    assert plan.plan(tiny, "here", 1, 1)["fits"]


@pytest.mark.slow
def test_an_evaluation_that_does_not_fit_is_refused(tiny, here, monkeypatch):
    monkeypatch.setattr(estimate, "batch_size", lambda config, mesh: 512)
    needs = plan.plan(tiny, "here", 1, 1)
    assert needs["evaluation_hbm_gib_per_chip"] > needs["hbm_gib_per_chip"]
    here(needs["hbm_gib_per_chip"])
    with expect_input_error(
        "^the evaluation does not fit on a chip of here: it needs .* GiB, and .* GiB"
    ):
        plan.plan(tiny, "here", 1, 1)


def test_parameters_that_do_not_fit_are_distinguished(tiny, here):
    here(1e-5)
    with expect_input_error("parameters and optimizer alone take .* use more chips"):
        plan.plan(tiny, "here", 1, 1)


@pytest.mark.parametrize(
    ("text", "needed", "limit"),
    [
        (
            "Ran out of memory in memory space hbm. Used 23.06G of 15.75G hbm. Exceeded",
            23.06,
            15.75,
        ),
        (
            "E1000: CompileTimeHbmOom: the total memory required for HLO temporaries (2.00T) "
            "exceeds available HBM (15.75G). HLO module: jit_step.",
            *(2048.0, 15.75),
        ),
        ("something else", None, 15.75),
    ],
)
def test_the_compilers_refusal_is_understood(text, needed, limit):
    error = _translated(
        RuntimeError(f"RESOURCE_EXHAUSTED: {text}"), flops.chip("TPU v5 lite"), "the step"
    )
    assert isinstance(error, TooBig) and (error.needed, error.limit) == (needed, limit)


def test_any_other_refusal_is_one_line():
    refusal = RuntimeError("INTERNAL: no\nmore\nlines")
    error = _translated(refusal, flops.chip("TPU v5 lite"), "the step")
    assert isinstance(error, InputError)
    assert str(error) == "the compiler refuses the step: INTERNAL: no"


def command(*arguments, **environment):
    return python("-m", "memsinks_jax.plan", *arguments, env=os.environ | environment, timeout=600)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "error: --topology is missing"),
        (["--topology=v5e:5x5"], "of v5e there are 1x1, 2x2, 2x4, 4x4"),
    ],
)
def test_bad_flags_end_with_2_and_one_line(arguments, message):
    done = command("--config=configs/smoke.py", *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert message in done.stderr.splitlines()[-1]


FIELDS = """model.family=llama model.layers=2 model.d_model=256 model.heads=4 model.kv_heads=2
model.hidden=512 model.dtype=bfloat16 data.row_length=256 data.rows=packed compute.remat=full
mesh.fsdp=-1"""
SMALL = ["--config=configs/smoke.py", *map("--config.{}".format, FIELDS.split())]


def sparse(pool):
    """Flags of sparse sinks."""
    fields = f"sparse=True sampling=floyd active=16 pool={pool}"
    rows = "--config.data.rows=one_document", "--config.training.batch_size=16"
    return *map("--config.sinks.{}".format, fields.split()), *rows


SLICE = [*SMALL, "--topology=v5e:2x2"]


@pytest.mark.tpu
@pytest.mark.slow
def test_with_libtpu_a_plan_has_cycles_and_kernels():
    done = command(*SLICE, "--config.training.batch_size=16", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert set(result) >= PROMISED
    assert result["fits"] and result["hbm_limit_gib"] == 15.75 and result["not_counted"] == []
    assert result["cycles"] > 0 and result["kernel_flops"] > 0
    assert 0 < result["predicted_mfu"] < 1
    assert {talk["network"] for talk in result["collectives"]} == {"ici"}
    assert "compiler estimate, not a measurement" in done.stderr


@pytest.mark.tpu
@pytest.mark.slow
def test_with_libtpu_a_pool_of_sparse_sinks_is_not_gathered():
    found = []
    for pool in (1024, 32_768):
        done = command(*SLICE, *sparse(pool), "--json")
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout.splitlines()[-1]))
    talk = [{one["kind"]: one["bytes"] for one in result["collectives"]} for result in found]
    assert talk[1]["all-to-all"] == talk[0]["all-to-all"] > 0
    for kind in ("all-gather", "all-reduce"):
        assert talk[1][kind] == pytest.approx(talk[0][kind], rel=0.05)
    # 32 times as many rows: no step visits all of them.
    assert found[1]["cycles"] < 1.2 * found[0]["cycles"]
    # Three tables and two moments of each, a row of 2 layers x 256, over four chips.
    state = [result["hbm_gib"]["state and batch"] for result in found]
    more = 9 * (32_768 - 1024) * 512 * 4 / 4 / 2**30
    assert state[1] - state[0] == pytest.approx(more, abs=0.003)


@pytest.mark.tpu
@pytest.mark.slow
def test_with_libtpu_slices_talk_over_dcn():
    done = command(*SLICE, "--config.training.batch_size=16", "--slices=2", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["chips"] == 8 and result["mesh"]["data"] == 2
    assert {talk["network"] for talk in result["collectives"]} == {"ici", "dcn"}


@pytest.mark.tpu
@pytest.mark.slow
def test_with_libtpu_what_is_too_big_is_refused():
    # Logits of 2^21 tokens a chip: 32 GiB and more.
    done = command(*SLICE, "--config.training.batch_size=32768")
    assert done.returncode == 2 and "does not fit on a chip of v5e:2x2: it needs" in done.stderr
    fits = "this fits: --config.compute.remat=full --config.compute.accumulate="
    assert fits in done.stderr.splitlines()[-1]


@pytest.mark.gpu
@pytest.mark.slow
def test_the_smallest_preset_fits_gpus_as_its_docstring_says():
    source = (ROOT / "configs/smollm.py").read_text().replace(" \\\n", " ")
    (flags,) = re.findall(r"^    python -m memsinks_jax.plan (.*h100.*)$", source, re.MULTILINE)
    done = command(*flags.split(), "--json")
    assert done.returncode == 0 and json.loads(done.stdout.splitlines()[-1])["fits"], done.stderr


@pytest.mark.gpu
@pytest.mark.slow
def test_a_step_compiles_for_gpus_where_there_is_none(tmp_path):
    """With the wheels alone: no driver, and no ptxas of this machine. Of a pool of sparse sinks
    nothing crosses a link but the rows that documents ask for.
    """
    pool = 32_768
    where = "--topology=h100:2", "--nodes=2", "--json"
    done = command(*SMALL, *sparse(pool), *where, PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["fits"] and result["mesh"] == {"data": 2, "fsdp": 2, "tensor": 1}
    assert result["hbm_limit_gib"] == pytest.approx(0.9 * 79.2, abs=0.01)
    # The exchange has more rounds if a device is asked for many rows.
    others = [what for what in result["not_counted"] if "trip count" not in what]
    assert others == list(cards.NOT_COUNTED)
    # The compiler gives no time.
    assert result["compiler_step_ms"] is None and result["predicted_mfu"] is None
    assert "not known" in done.stderr and "predicted" not in done.stderr
    # A GPU holds half of three tables and two moments of each, a row of 2 layers x 256.
    table = pool * 2 * 256 * 4
    assert result["hbm_gib"]["state and batch"] > 9 * table / 2 / 2**30
    talk = {(one["kind"], one["network"]): one["bytes"] for one in result["collectives"]}
    assert talk["all-to-all", "ici"] > 0 and talk["all-reduce", "dcn"] > 0
    assert sum(talk.values()) < table / 2
