"""A run that does not fit on any device is refused before it allocates or writes anything."""

import re

import jax
import pytest
from conftest import expect_input_error

from memsinks_jax.config import with_fields
from memsinks_jax.doctor import examine
from memsinks_jax.loop import train_and_evaluate
from memsinks_jax.training import memory, sharding


@pytest.mark.parametrize(
    ("field", "value", "largest"),
    [
        ("data.row_length", 100_000_000, "logits"),
        ("data.vocabulary_size", 2_000_000_000, "logits"),
        ("model.d_model", 1_000_000, "layers"),
        ("training.batch_size", 80_000_000, "logits"),
    ],
)
def test_sizes_that_cannot_be_are_refused(tiny, field, value, largest, tmp_path):
    section, name = field.split(".")
    tiny = with_fields(tiny, {f"{section}.{name}": value})
    with expect_input_error(rf"a device has .* GiB .* needs some [\d,.]+: {largest}.*lower"):
        train_and_evaluate(tiny, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    _, problems = examine(tiny, None)
    assert len(problems) == 1 and problems[0].startswith("memory: a device has")


def test_a_run_says_what_it_takes_when_it_begins(tiny, tmp_path, caplog):
    caplog.set_level("INFO")
    tiny = with_fields(tiny, {"model.layers": 1, "training.steps": 1})
    train_and_evaluate(tiny, tmp_path / "run")
    (parameters,) = re.findall(r"seed 0: ([\d,]+) parameters, 1 step of 8 rows", caplog.text)
    (mib,) = re.findall(
        r"memory of 8 cpu devices: parameters with gradients and moments some ([\d.]+) MiB",
        caplog.text,
    )
    moments = {name: size for name, size in memory.needed(tiny, 8).items() if "moments" in name}
    assert int(parameters.replace(",", "")) > 1000
    assert float(mib) == round(sum(moments.values()) / 2**20, 1)


def test_the_room_is_that_of_the_devices(tiny, monkeypatch):
    """The state must fit; of the rest the compiler may reuse half."""
    mesh = sharding.make_mesh(tiny.mesh)
    parts = memory.needed(tiny, mesh.size)
    whole = sum(parts.values())
    for room, fits in ((whole / 1.9, True), (whole / 2.1, False)):
        monkeypatch.setattr(memory, "_room", lambda mesh, room=room: room)
        if fits:
            memory.check_memory(tiny, mesh)
        else:
            with expect_input_error("a device has"):
                memory.check_memory(tiny, mesh)
    monkeypatch.undo()
    assert memory._room(mesh) * len(jax.devices()) > 2**30


def test_contexts_have_no_moments(tiny):
    """A row takes what it holds, and a table for which there is no room is refused before
    training.
    """
    by_context = {"sinks.kind": "by_context", "contexts.rows": 1024}
    plain, table = (
        memory.needed(with_fields(tiny, fields), 8)
        for fields in ({"sinks.kind": "none"}, by_context)
    )
    assert table.pop("the table of contexts") == 4 * 1024 * tiny.model.d_model and table == plain
    huge = with_fields(tiny, by_context | {"contexts.rows": 2**40})
    with expect_input_error("the table of contexts"):
        memory.check_memory(huge, sharding.make_mesh(tiny.mesh))
