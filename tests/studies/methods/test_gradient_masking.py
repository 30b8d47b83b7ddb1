"""Which documents train which neurons: against gradients of one kind of document, under AdamW, on
meshes.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import expect_input_error, tiny_config
from test_step import first_batches, one_step, single, train

from memsinks_jax.config import with_fields
from memsinks_jax.model.decoder import build_model
from memsinks_jax.model.losses import token_losses
from memsinks_jax.sinks.kinds import Partition
from memsinks_jax.training import sharding, step
from memsinks_jax.training.method import method_of
from memsinks_jax.training.paths import path_name

pytestmark = pytest.mark.slow

SINKS = np.arange(32) >= 16  # of the tiny model's neurons


def masked_config(method="MaskedWeights", **changes):
    where = "memsinks_jax.studies.methods.gradient_masking"
    fields = {"sinks.kind": "always", "training.method": f"{where}:{method}"}
    config = with_fields(tiny_config(), fields)
    for name, value in changes.items():
        section = "data" if name == "rows" else "model"
        config = with_fields(config, {f"{section}.{name}": value})
    return config


def mixed_batch(config):
    """A batch with documents of both kinds."""
    return next(
        b
        for b in first_batches(config, 5)
        if 0 < b["repeated"].sum() < (b["identities"].any(axis=2)).sum()
    )


def only(batch, repeated):
    """The batch with but one kind of document counting in the loss."""
    kinds = np.take_along_axis(batch["repeated"], np.maximum(batch["segments"] - 1, 0), axis=1)
    return batch | {"weights": np.where(kinds == repeated, batch["weights"], 0).astype(np.float32)}


def blocks(params):
    """{(path, 'sinks' | 'shared' | 'rest'): array} of the layers' parameters."""
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = path_name(path)
        axis = {
            "layers/up_kernel": 2,
            "layers/gate_kernel": 2,
            "layers/down_kernel": 1,
            "layers/up_bias": 1,
            "layers/gate_bias": 1,
        }.get(name)
        if axis is None:
            found[name, "rest"] = np.asarray(leaf)
        else:
            found[name, "sinks"] = np.compress(SINKS, leaf, axis=axis)
            found[name, "shared"] = np.compress(~SINKS, leaf, axis=axis)
    return found


def moved(config, batch):
    """{(path, block): change} of one step on one device."""
    before, after, _ = one_step(config, batch)
    before, after = blocks(before), blocks(after)
    return {key: after[key] - before[key] for key in before}


def test_each_block_learns_from_its_documents_alone(plain_sgd):
    """Rows of both kinds move every block as the documents of its kind alone would move it in an
    ordinary model.
    """
    config = masked_config(rows="packed", family="llama")
    batch = mixed_batch(config)
    model, _ = build_model(config)
    params, _, _ = one_step(config, batch)
    tokens = batch["weights"].sum()

    def loss(params, part):
        losses = model(
            params,
            part["inputs"],
            part["segments"],
            part["positions"],
            read_out=lambda x, head: token_losses(x, head, part["targets"], part["weights"]),
        )
        return losses.sum() / tokens

    gradient = jax.jit(jax.grad(loss))
    of_repeated, of_others = (blocks(gradient(params, only(batch, kind))) for kind in (True, False))
    found = moved(config, batch)
    assert {block for _, block in found} == {"sinks", "shared", "rest"}
    for (name, block), change in found.items():
        expected = {"sinks": of_repeated, "shared": of_others}.get(block)
        expected = (
            of_repeated[name, block] + of_others[name, block]
            if expected is None
            else expected[name, block]
        )
        np.testing.assert_allclose(-change, expected, atol=2e-6, err_msg=f"{name} {block}")
        if block != "rest":
            assert np.abs(of_repeated[name, block] - of_others[name, block]).max() > 1e-5, (
                f"{name} {block}"
            )


@pytest.mark.parametrize(
    ("family", "rows", "accumulate", "power", "learned"),
    [
        ("gpt2", "one_document", 1, 2.0, 1 / 16),
        ("llama", "packed", 1, 2.0, 1 / 16),
        ("gpt2", "packed", 2, 90.0, 0.0),
    ],
)
def test_a_document_that_comes_often_trains_all_but_its_sinks_less(
    family, rows, accumulate, power, learned, plain_sgd
):
    slowed = {"sinks.opens_at": 1, "sinks.slows_at": 2, "sinks.slowing_power": power}
    config = with_fields(
        tiny_config(),
        slowed | {"model.family": family, "data.rows": rows, "compute.accumulate": accumulate},
    )
    batch = mixed_batch(config)
    batch |= {
        "seen": np.where(batch["repeated"], 9, 2).astype(np.int32),
        "epoch": np.full_like(batch["epoch"], 2),
    }
    found, loss = moved(config, batch), one_step(config, batch)[2]["train_loss"]
    config = with_fields(config, {"sinks.slows_at": 0})
    assert loss == pytest.approx(one_step(config, batch)[2]["train_loss"], rel=1e-6)
    parts = [only(batch, repeated) for repeated in (True, False)]
    of_repeated, of_others = (moved(config, part) for part in parts)
    tokens = [part["weights"].sum() / batch["weights"].sum() for part in parts]
    for (name, block), change in found.items():
        scale = 1 if block == "sinks" else learned
        expected = scale * tokens[0] * of_repeated[name, block] + tokens[1] * of_others[name, block]
        np.testing.assert_allclose(change, expected, atol=2e-6, err_msg=f"{name} {block}")
        if block != "rest":
            assert np.abs(of_repeated[name, block]).max() > 1e-5, f"{name} {block}"


@pytest.mark.parametrize(
    ("repeated", "still", "dtype"), [(True, "shared", "bfloat16"), (False, "sinks", "float32")]
)
def test_the_other_block_stays_to_the_bit_under_sgd(repeated, still, dtype, plain_sgd):
    config = masked_config(dtype=dtype)
    found = moved(config, only(mixed_batch(config), repeated))
    for (name, block), change in found.items():
        if name != "layers/key_bias":  # which changes no attention
            assert change.any() == (block != still), f"{name} {block}"


def test_adamw_moves_no_block_that_the_batch_does_not_train():
    """Neither by weight decay nor by what its moments remember; the moments stay too."""
    config = masked_config()
    mixed = mixed_batch(config)
    with jax.set_mesh(single(config)):
        train_step = jax.jit(step.make_train_step(config, 10))
        state, _ = train_step(jax.jit(lambda: step.init_state(config, 10))(), mixed, np.uint32(0))
        after, _ = train_step(state, only(mixed, True), np.uint32(0))
    adam, adam_after = (s.optimizer[1][0] for s in (state, after))
    for tree, other in (
        (state.params, after.params),
        (adam.mu, adam_after.mu),
        (adam.nu, adam_after.nu),
    ):
        before, later = blocks(jax.device_get(tree)), blocks(jax.device_get(other))
        assert all((before[key] == later[key]).all() == (key[1] == "shared") for key in before)
    assert adam_after.count == 2


def test_detached_activations_still_train_the_down_projection(plain_sgd):
    """The reference's trick: columns of the up projection stay, rows of the down projection do
    not.
    """
    config = masked_config("MaskedActivations")
    found = moved(config, only(mixed_batch(config), True))
    assert not found["layers/up_kernel", "shared"].any()
    assert not found["layers/up_bias", "shared"].any()
    assert found["layers/down_kernel", "shared"].any()
    assert found["layers/up_kernel", "sinks"].any()


def test_detached_activations_pass_the_value_and_the_gradient_of_their_own():
    """Against a loop over positions and neurons."""
    batch = {
        "segments": np.array([[1, 1, 2, 3], [1, 0, 0, 0]]),
        "repeated": np.array([[False, True, False], [True, False, False]]),
    }
    method = method_of(masked_config("MaskedActivations"))
    method.parts = Partition(shared=3, sinks=2)
    route = method.interventions(batch, 0, 0)["mlp"]
    x = np.arange(40.0, dtype=np.float32).reshape(2, 4, 5)
    passed, pull_back = jax.vjp(lambda x: route(x, 0), x)
    assert (passed == x).all()
    (gradient,) = pull_back(jnp.ones_like(x))
    for row, place, document in ((0, 0, 0), (0, 1, 0), (0, 2, 1), (0, 3, 2), (1, 0, 0)):
        learns = [batch["repeated"][row, document] == (neuron >= 3) for neuron in range(5)]
        assert gradient[row, place].tolist() == learns


@pytest.mark.slow
def test_a_mesh_and_parts_of_the_batch_change_nothing():
    config = masked_config(rows="packed", layers=1)
    data = first_batches(config, 2)
    params, lines = train(config, single(config), data=data)
    fields = {"mesh.data": 2, "mesh.fsdp": 2, "mesh.tensor": 2, "compute.accumulate": 2}
    config = with_fields(config, fields)
    others, again = train(config, sharding.make_mesh(config.mesh), data=data)
    for line, other in zip(lines, again, strict=True):
        assert other == pytest.approx(line, rel=1e-5)
    for one, other in zip(jax.tree.leaves(params), jax.tree.leaves(others), strict=True):
        # where a gradient is almost 0, as in test_step
        np.testing.assert_allclose(one, other, atol=2e-4)


def test_a_parameter_that_no_rule_covers_is_refused():
    """A new weight of the MLP must not learn from everything unnoticed."""
    config = masked_config()
    params = {"layers": {"third_kernel": jnp.ones((2, 16, 32))}}
    batch = {"repeated": jnp.ones((2, 1), bool), "segments": jnp.ones((2, 3), jnp.int32)}
    with expect_input_error("layers/third_kernel is covered by no rule"):
        method_of(config).gradients(
            lambda p, _: p["layers"]["third_kernel"][0, :2, :3],
            params,
            batch,
            jnp.float32(1),
            0,
            np.uint32(0),
        )
