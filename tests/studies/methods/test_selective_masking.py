"""SGTM against its paper's three rules, by ordinary gradients of models with zeroed weights."""

import jax
import numpy as np
import pytest
from test_gradient_masking import masked_config, moved
from test_step import first_batches, single

from memsinks_jax.config import Config, with_fields
from memsinks_jax.model.decoder import build_model
from memsinks_jax.model.losses import token_losses
from memsinks_jax.studies.methods.gradient_masking import Selective
from memsinks_jax.training import step
from memsinks_jax.training.method import method_of
from memsinks_jax.training.paths import path_name

pytestmark = pytest.mark.slow

# Of the tiny model's 16 + 16 neurons: where a leaf's dedicated half lies.
AXES = {"layers/up_kernel": -1, "layers/up_bias": -1, "layers/down_kernel": -2}
SILENT = {"layers/up_kernel", "layers/up_bias"}  # 0: their neurons are 0


def dedicated(path, leaf):
    """Which entries are of dedicated neurons, as the leaf."""
    axis = AXES.get(path_name(path))
    if axis is None:
        return np.zeros(leaf.shape, bool)
    last = np.arange(leaf.shape[axis]) >= leaf.shape[axis] // 2
    return np.broadcast_to(last.reshape(-1, *[1] * (-axis - 1)), leaf.shape)


def sgtm(kind="Selective", **changes):
    return masked_config(f"{kind},retain_fraction=0.5,undiscovered=0.5", **changes)


def by_label(config, batch):
    """{label: which positions have it}"""
    found = method_of(config).labels(batch, np.uint32(config.seed))
    places = np.maximum(batch["segments"] - 1, 0)
    forget, retain = (np.take_along_axis(np.asarray(of), places, axis=1) for of in found)
    return {"forget": forget, "retain": retain, "unlabelled": ~forget & ~retain}


def labelled(config):
    """A batch with all labels."""
    batches = first_batches(config, 10)
    return next(
        b
        for b in batches
        if all((b["weights"][at] > 0).any() for at in by_label(config, b).values())
    )


@pytest.mark.parametrize(("rows", "accumulate"), [("one_document", 1), ("packed", 2)])
def test_a_step_follows_the_three_rules(rows, accumulate, plain_sgd):
    config = sgtm(rows=rows)
    config = with_fields(config, {"compute.accumulate": accumulate})
    batch = labelled(config)
    model, _ = build_model(config)
    params, count = jax.jit(lambda: step.init_state(config, 10).params)(), batch["weights"].sum()

    @jax.jit
    def gradients(params, weights):
        def loss(params):
            read_out = lambda x, head: token_losses(x, head, batch["targets"], weights)  # noqa: E731
            about = batch["inputs"], batch["segments"], batch["positions"]
            return model(params, *about, read_out=read_out).sum() / count

        return jax.grad(loss)(params)

    def set_to_0(path, leaf):
        return np.where(dedicated(path, leaf) & (path_name(path) in SILENT), 0, leaf)

    expected = jax.tree.map(np.zeros_like, params)
    for label, at in by_label(config, batch).items():
        of = jax.tree_util.tree_map_with_path(set_to_0, params) if label == "retain" else params
        found = gradients(of, np.where(at, batch["weights"], 0))

        def rule(path, so_far, gradient, label=label):
            if label == "forget" and path_name(path).startswith("final_norm"):
                return so_far + gradient
            learns = {
                "forget": dedicated(path, gradient),
                "retain": ~dedicated(path, gradient),
            }.get(label, True)
            return so_far + np.where(learns, gradient, 0)

        expected = jax.tree_util.tree_map_with_path(rule, expected, found)
    before = params
    with jax.set_mesh(single(config)):
        after = jax.jit(step.make_train_step(config, 10))(
            step.init_state(config, 10), batch, np.uint32(0)
        )[0].params
    for (path, one), other, wanted in zip(
        jax.tree_util.tree_leaves_with_path(before),
        jax.tree.leaves(after),
        jax.tree.leaves(expected),
        strict=True,
    ):
        np.testing.assert_allclose(one - other, wanted, atol=2e-6, err_msg=path_name(path))


@pytest.mark.parametrize("kind", ["Selective", "SelectiveFrozen"])
def test_moments_and_decay_move_what_is_masked_unless_frozen(kind):
    config = sgtm(kind)
    batch = labelled(config)
    for label, side in (("forget", "shared"), ("retain", "sinks")):
        only = batch | {"weights": np.where(by_label(config, batch)[label], batch["weights"], 0)}
        change = moved(config, only)["layers/up_kernel", side]
        assert change.any() == (kind == "Selective"), (label, side)


def test_labels_are_drawn_by_document():
    ids = np.random.default_rng(0).integers(2**32, size=(1, 8000, 2), dtype=np.uint32)
    batch = {"identities": ids, "repeated": np.arange(8000)[None] < 4000}

    def labels(**settings):
        return Selective(Config(), Selective.Settings(**settings)).labels(batch, np.uint32(0))

    few, many = (labels(retain_fraction=0.25, undiscovered=share) for share in (0.2, 0.4))
    assert few[0].sum() == pytest.approx(3200, abs=100)
    assert many[0].sum() == pytest.approx(2400, abs=125)
    assert few[1].sum() == pytest.approx(1000, abs=110)
    assert (few[1] == many[1]).all() and not (many[0] & ~few[0]).any()
    assert few[0][0, :4000].sum() == few[0].sum() and few[1][0, 4000:].sum() == few[1].sum()
    every = labels(retain_fraction=1.0)
    assert (every[0] == batch["repeated"]).all() and (every[1] == ~batch["repeated"]).all()
