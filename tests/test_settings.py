"""No setting is dead: changing any field changes the compiled program, the batches, or the
output.
"""

import functools
import hashlib
import logging

import jax
import numpy as np
import pytest
from conftest import read_lines, tiny_config

from memsinks_jax.config import InputError, flatten, validate, with_fields
from memsinks_jax.data.corpus import load_corpus
from memsinks_jax.data.pipeline import batches
from memsinks_jax.loop import train_and_evaluate
from memsinks_jax.training import sharding
from memsinks_jax.training.program import compiled, enters, train_program

pytestmark = pytest.mark.long

MASKING = "memsinks_jax.studies.methods.gradient_masking"
CONTEXT = {"sinks.kind": "by_context", "contexts.rows": 256}
# field: (its other value, what must be set besides for it to matter). Every field stands in one of
# the three tables.
PROGRAM = {
    "seed": (1, {}),
    "sinks.kind": ("by_chance", {}),
    "sinks.opens_at": (1, {}),
    "sinks.slows_at": (8, {}),
    "sinks.slowing_power": (8.0, {"sinks.slows_at": 1}),
    "sinks.shared_fraction": (0.75, {}),
    "sinks.pool": (40, {}),
    "sinks.active_fraction": (0.6, {}),
    "sinks.active": (3, {}),
    "sinks.sampling": ("exact", {}),
    "sinks.sparse": (True, {"sinks.sampling": "floyd"}),
    "sinks.learning_rate_multiple": (3.0, {}),
    "model.family": ("llama", {}),
    "model.layers": (3, {}),
    "model.d_model": (32, {}),
    "model.heads": (4, {}),
    "model.kv_heads": (1, {}),
    "model.hidden": (48, {}),
    "model.attention_bias": (False, {}),
    "model.mlp_bias": (False, {}),
    "model.tied_head": (False, {}),
    "model.rope_theta": (500.0, {"model.family": "llama"}),
    "model.rope_scaling": ("linear:2", {"model.family": "llama"}),
    "model.rotary_fraction": (0.5, {"model.family": "llama"}),
    "model.rotary_layers": ("0", {"model.family": "llama"}),
    "model.window": (3, {}),
    "model.window_layers": ("0", {"model.window": 3}),
    "model.window_theta": (100.0, {"model.family": "llama", "model.window": 3}),
    "model.attention_scale": (0.5, {}),
    "model.head_size": (4, {}),
    "model.norm_epsilon": (1e-3, {}),
    "model.dtype": ("bfloat16", {}),
    "compute.attention": ("xla", {}),
    "compute.remat": ("full", {}),
    "compute.loss_chunks": (2, {}),
    "compute.accumulate": (2, {"mesh.data": 4, "mesh.tensor": 2}),
    "optimizer.kind": ("muon", {"sinks.kind": "none"}),
    "optimizer.schedule": ("wsd", {"training.steps": 8}),
    "optimizer.decay_fraction": (0.9, {"optimizer.schedule": "wsd", "training.steps": 8}),
    "optimizer.learning_rate": (1e-3, {}),
    "optimizer.final_fraction": (0.5, {}),
    "optimizer.warmup_steps": (2, {"optimizer.warmup_fraction": 1.0}),
    "optimizer.warmup_fraction": (0.2, {}),
    "optimizer.b1": (0.8, {}),
    "optimizer.b2": (0.9, {}),
    "optimizer.weight_decay": (0.2, {}),
    "optimizer.clip_norm": (0.5, {}),
    "optimizer.base_multiple": (0.5, {}),
    "training.method": (f"{MASKING}:MaskedActivations", {"sinks.kind": "always"}),
    "contexts.rate": (0.5, CONTEXT),
    "contexts.reads": (1, CONTEXT),
    "contexts.rows": (512, CONTEXT),
    "training.spike_sigma": (3.0, {}),
    "mesh.data": (2, {"mesh.tensor": 1, "mesh.fsdp": -1}),
    "mesh.fsdp": (2, {"mesh.data": -1}),
    "mesh.tensor": (2, {"mesh.data": -1}),
}
BATCHES = {
    "data.unique_documents": (20, {}),
    "data.repeated_documents": (3, {}),
    "data.repetitions": (7, {}),
    "data.held_out_documents": (5, {}),
    "data.repeats_at_most": (2, {}),
    "data.schedule": ("memsinks_jax.studies.schedules:WrongIds,rate=0.5", {}),
    "canaries.documents": (1, {}),
    "canaries.length": (8, {"canaries.documents": 1}),
    "data.across_documents": (True, {"data.rows": "packed"}),
    "contexts.length": (5, CONTEXT),
    "contexts.stretch": (4, CONTEXT),
    "contexts.times": (3, {"sinks.kind": "by_context", "contexts.stretch": 4}),
    "contexts.share": (0.0, {"sinks.kind": "by_context", "contexts.stretch": 4}),
    "data.rows": ("packed", {}),
    "data.row_length": (128, {}),
    "data.vocabulary_size": (600, {}),
    "training.batch_size": (16, {}),
    "training.epochs": (2, {}),
    "training.steps": (3, {}),
    "training.count_removed_repeats": (True, {"data.repeats_at_most": 1}),
}
RUNS = {}  # {config: what its run gave}, of those that several fields are compared with

RUN = {"variant": ("another", {}), "training.log_every": (2, {})}
RUN |= {"training.evaluate_every": (3, {}), "training.checkpoint_every": (1, {})}
RUN |= {"training.keep_every": (1, {"training.checkpoint_every": 1})}
RUN |= {"training.skips_in_a_row": (2, {"optimizer.learning_rate": 1e30})}
# Their other value is a file, or matters with one: see the tests of what reads them.
FILES = {"data.files": "x.txt", "data.ids": "group", "data.held_out_by": "document"}
FILES |= {"data.copies": "once", "general.files": "y.txt", "general.token_budget": 5}
FILES |= {"data.tokenizer": "t.json", "model.initial": "run"}


def configs(field, other, besides):
    """The config with the field as it is, and with its other value."""
    made = []
    for value in (None, other):
        # each is traced anew
        changes = {"model.layers": 1} | besides | ({field: value} if value is not None else {})
        made.append(validate(with_fields(tiny_config(), changes)))
    assert flatten(made[0])[field] != other
    return made


def text_of(config, part):
    """What is compiled, for its mesh: the "step" or the "init"ial state."""
    mesh = sharding.make_mesh(config.mesh)
    with jax.set_mesh(mesh):
        program = train_program(config, 10, mesh, documents_per_row=3)
        given = (program.state, program.batch, program.seed) if part == "step" else ()
        return getattr(program, part).lower(*given).as_text()


@functools.cache
def _text_of(config, part):
    return text_of(config, part)


def texts_of(config):
    """Both. Most fields have the same other side: made once."""
    return (_text_of(compiled(config), part) for part in ("step", "init"))


@functools.cache
def batches_of(config):
    """How many steps, what they read in two epochs, and what is kept for measuring."""
    twice = {f"training.{name}": 2 * getattr(config.training, name) for name in ("epochs", "steps")}
    corpus = load_corpus(with_fields(config, twice))
    steps = load_corpus(config).rows().steps
    stream = batches(corpus.rows(), config.training.batch_size)
    digest = hashlib.sha256(repr(np.asarray(corpus.mixture.held_out).tolist()).encode())
    for _ in range(2 * steps):
        for array in next(stream).values():
            digest.update(array.tobytes())
    return steps, digest.hexdigest()


def run_of(config, workdir, caplog):
    """What a run of a few steps writes down, keeps and says."""
    config = with_fields(config, {"training.steps": config.training.steps or 4})
    caplog.clear()
    caplog.set_level(logging.INFO, logger="memsinks_jax")
    try:
        train_and_evaluate(config, workdir)
        end = "finished"
    except InputError as error:
        end = str(error).split(" updates ")[0]
    lines = read_lines(workdir / "metrics.jsonl")
    said = [
        r.getMessage().split(":")[0]
        for r in caplog.records
        if "stack" in r.getMessage() or "seed" in r.getMessage()
    ]
    checkpoints = sorted(p.name for p in (workdir / "checkpoints").iterdir() if p.name.isdigit())
    return (
        end,
        [(line["step"], sorted(line)) for line in lines],
        checkpoints,
        sorted(set(said)),
    )


def test_every_field_is_in_a_table():
    tables = [*PROGRAM, *BATCHES, *RUN, *FILES]
    assert sorted(tables) == sorted(flatten(tiny_config()))


@pytest.mark.parametrize("field", PROGRAM)
def test_the_program_changes(field):
    one, other = configs(field, *PROGRAM[field])
    assert any(part != its for part, its in zip(texts_of(one), texts_of(other), strict=True))


def of_one_program(besides):
    """Two configs of one layer that differ in all that does not enter the program."""
    other = {field: value for field, (value, _) in (PROGRAM | BATCHES | RUN).items()} | FILES
    one = with_fields(tiny_config(), besides | {"model.layers": 1})
    other = {field: value for field, value in other.items() if not enters(field)}
    assert all(flatten(one)[field] != value for field, value in other.items())
    return one, with_fields(one, other)


@pytest.mark.parametrize(
    "besides",
    [
        {"sinks.slows_at": 1, "training.spike_sigma": 3.0},
        {
            "sinks.sparse": True,
            "sinks.sampling": "floyd",
            "sinks.pool": 40,
            "compute.attention": "xla",
        },
        {
            "sinks.kind": "always",
            "training.method": f"{MASKING}:Selective,undiscovered=0.5",
            "model.family": "llama",
        },
        {
            "sinks.kind": "none",
            "training.method": "memsinks_jax.studies.methods.private:Private",
            "optimizer.schedule": "wsd",
        },
    ],
    ids=lambda besides: next(iter(besides)),
)
def test_runs_that_share_a_program_compile_the_same(besides):
    one, other = of_one_program(besides)
    assert compiled(one) == compiled(other)
    assert all(text_of(one, part) == text_of(other, part) for part in ("step", "init"))


# batches too
OF_BOTH = (
    "data.row_length",
    "data.vocabulary_size",
    "data.across_documents",
    "training.batch_size",
)


@pytest.mark.parametrize("field", [*PROGRAM, *OF_BOTH])
def test_what_changes_the_program_is_not_shared(field):
    one, other = configs(field, *(PROGRAM | BATCHES)[field])
    assert compiled(one) != compiled(other)


@pytest.mark.parametrize("field", BATCHES)
def test_the_batches_change(field):
    one, other = configs(field, *BATCHES[field])
    assert batches_of(one) != batches_of(other)


@pytest.mark.parametrize("field", RUN)
def test_the_run_changes(field, tmp_path, caplog):
    one, other = configs(field, *RUN[field])
    if one not in RUNS:
        RUNS[one] = run_of(one, tmp_path / "one", caplog)
    assert RUNS[one] != run_of(other, tmp_path / "other", caplog)


def test_what_does_not_change_changes_nothing(tmp_path, caplog):
    """So that the tests above can fail: the same config makes the same program, batches and run."""
    one, other = (with_fields(tiny_config(), {"model.layers": 1}) for _ in range(2))
    for made in (_text_of, batches_of):
        asked = [("step",), ("init",)] if made is _text_of else [()]
        first = [made(one, *part) for part in asked]
        made.cache_clear()
        assert first == [made(other, *part) for part in asked]
    assert run_of(one, tmp_path / "one", caplog) == run_of(other, tmp_path / "other", caplog)
