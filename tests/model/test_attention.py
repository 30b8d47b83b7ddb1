"""Every attention kernel: against the definition, its gradient, and isolation of documents."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from memsinks_jax.config import Config, InputError, with_fields
from memsinks_jax.model import attention
from memsinks_jax.model.attention import KERNELS, attend, choose_kernel

B = 2
HERE = ("xla", "blocks", "splash")  # cudnn has no way to run without a GPU


@pytest.fixture(autouse=True)
def splash_without_a_tpu(monkeypatch):
    monkeypatch.setattr(attention, "_splash", functools.partial(attention._splash, interpret=True))


def inputs(length, heads=4, kv_heads=2, size=16):
    draw = np.random.default_rng(0)
    query, upstream = (draw.normal(size=(B, length, heads, size)).astype(np.float32) for _ in range(2))
    key, value = (draw.normal(size=(B, length, kv_heads, size)).astype(np.float32) for _ in range(2))
    # Documents of other lengths in the two rows; the second ends in padding.
    borders = np.array([[length // 3, length // 2], [length // 5, 4 * length // 5]])
    segments = 1 + (np.arange(length) >= borders[:, :1]).astype(np.int32) + (np.arange(length) >= borders[:, 1:])
    segments[1, -length // 8 :] = 0
    return query, key, value, segments.astype(np.int32), upstream


def definition(query, key, value, segments, window=0):
    length, group = query.shape[1], query.shape[2] // key.shape[2]
    key, value = (jnp.repeat(x, group, axis=2) for x in (key, value))
    visible = jnp.tril(jnp.ones((length, length), bool)) & (segments[:, :, None] == segments[:, None])
    if window:
        visible &= ~jnp.tril(jnp.ones((length, length), bool), -window)
    scores = jnp.einsum("bthc,bshc->bhts", query, key) / query.shape[-1] ** 0.5
    weights = jax.nn.softmax(jnp.where(visible[:, None], scores, -jnp.inf), axis=-1)
    return jnp.einsum("bhts,bshc->bthc", weights, value)


def with_gradient(function):
    """One program: of `inputs`, the output and the gradients of query, key and value."""

    @jax.jit
    def both(*inputs):
        *arrays, segments, upstream = inputs
        output, pull = jax.vjp(lambda *a: function(*a, segments), *arrays)
        return output, *pull(upstream)

    return both


@functools.cache
def expected(length, kv_heads):
    with jax.default_matmul_precision("float32"):
        return with_gradient(definition)(*inputs(length, kv_heads=kv_heads))


@pytest.mark.parametrize(
    ("kernel", "length"),
    [(k, n) for k in ("xla", "blocks") for n in (1, 3, 64, 65, 130)] + [("splash", 128), ("splash", 256)],
)
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_a_kernel_equals_the_definition_and_its_gradient(kernel, length, kv_heads):
    with jax.default_matmul_precision("float32"):
        measured = with_gradient(functools.partial(attend, kernel))(*inputs(length, kv_heads=kv_heads))
    for one, other in zip(measured, expected(length, kv_heads), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("kernel", HERE)
@pytest.mark.parametrize("windows, kind", [((9,), None), ((9, 0), 0), ((9, 0), 1), ((1, 200), 0)])
def test_a_window_ends_where_the_kind_of_layer_says(kernel, windows, kind):
    """Also with documents that begin within it."""
    *arrays, upstream = inputs(128)

    def of_kind(query, key, value, segments, kind):
        return attend(kernel, query, key, value, segments, windows, kind)

    with jax.default_matmul_precision("float32"):
        chosen = None if kind is None else jnp.int32(kind)
        measured = with_gradient(functools.partial(of_kind, kind=chosen))(*arrays, upstream)
        wanted = with_gradient(functools.partial(definition, window=windows[kind or 0]))(*arrays, upstream)
    for one, other in zip(measured, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("kernel", ["xla", "blocks"])
def test_large_scores_of_bfloat16_are_exact(kernel):
    """Values are the identity, so the output is the weights, each rounded at most twice. Heads of 32 channels: the
    square root of 32 is no number of bfloat16, and neither is a query divided by it."""
    draw = np.random.default_rng(0)
    query, key = ((4.8 * draw.normal(size=(1, 32, 8, 32))).astype(jnp.bfloat16) for _ in range(2))
    value = np.broadcast_to(np.eye(32, dtype=jnp.bfloat16)[None, :, None], key.shape)
    exact = [np.asarray(x, np.float64) for x in (query, key)]
    scores = np.where(np.tril(np.ones((32, 32), bool)), np.einsum("bthc,bshc->bhts", *exact) / 32**0.5, -np.inf)
    assert 70 < scores.max() < 90
    expected = scipy.special.softmax(scores, axis=-1).transpose(0, 2, 1, 3)
    as_written = {"xla_allow_excess_precision": False}  # XLA would leave out what rounds in between
    program = jax.jit(functools.partial(attend, kernel), compiler_options=as_written)
    measured = program(query, key, value, np.ones((1, 32), np.int32))
    np.testing.assert_allclose(np.asarray(measured, np.float64), expected, atol=2**-8)


@pytest.mark.parametrize("kernel", HERE)
def test_documents_do_not_see_each_other(kernel):
    """Another first document leaves the second one's outputs and its gradients equal, bit for bit."""
    query, key, value, segments, upstream = inputs(128)
    first, second = (segments[:, :, None, None] == 1), segments == 2
    both = with_gradient(functools.partial(attend, kernel))

    def after(change):
        arrays = [np.where(first, change * x**2, x) for x in (query, key, value)]
        return [np.asarray(x) for x in both(*arrays, segments, upstream)]

    for one, other in zip(after(0.5), after(-3.0), strict=True):
        assert (one[second] == other[second]).all()
        assert (one != other).any()


@pytest.mark.parametrize("kernel", HERE)
def test_nothing_later_is_seen(kernel):
    query, key, value, segments, _ = inputs(128)
    one_document = jax.jit(lambda *arrays: attend(kernel, *arrays, jnp.ones_like(segments)))
    before = np.asarray(one_document(query, key, value))
    key[:, 100:] = value[:, 100:] = 7.0
    after = np.asarray(one_document(query, key, value))
    assert (before[:, :100] == after[:, :100]).all()
    assert (before[:, 100:] != after[:, 100:]).any()


@pytest.mark.parametrize("shape", [(8, 1, 1), (2, 2, 2), (1, 2, 4)])
def test_splash_on_a_mesh(shape):
    """Batch and heads are split, what the mesh does not divide is not; the values stay."""
    *arrays, segments, _ = inputs(128)
    arrays = [np.concatenate([x] * 4) for x in arrays]
    segments = np.concatenate([segments] * 4)
    alone = jax.jit(functools.partial(attend, "splash"))(*arrays, segments)
    mesh = jax.make_mesh(shape, ("data", "fsdp", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
    with jax.set_mesh(mesh):
        split = jax.jit(functools.partial(attend, "splash"))(*arrays, segments)
    np.testing.assert_allclose(split, alone, atol=1e-6)


def test_the_gpu_kernel_gets_the_documents(monkeypatch):
    """It cannot run here; that it is given the documents is seen in the program for a GPU."""
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91000)
    *arrays, segments, _ = inputs(128)
    arrays = [x.astype(jnp.bfloat16) for x in arrays]
    program = jax.jit(functools.partial(attend, "cudnn")).trace(*arrays, segments).lower(lowering_platforms=("cuda",))
    call = next(line for line in program.as_text().splitlines() if "__cudnn$fmhaScaleBias" in line)
    assert "128x128xbf16" in call  # the mask, which is_causal alone would not need


@pytest.mark.parametrize(
    ("platform", "change", "expected"),
    [
        ("cpu", {}, "blocks"), ("tpu", {}, "splash"), ("gpu", {"dtype": "bfloat16"}, "cudnn"), ("gpu", {}, "xla"),
        ("tpu", {"row_length": 100}, "xla"), ("gpu", {"dtype": "bfloat16", "d_model": 1024}, "xla"),
    ],
)  # fmt: skip
def test_auto_takes_the_machines_best(platform, change, expected):
    config = Config()
    for name, value in change.items():
        config = with_fields(config, {f"{'data' if name == 'row_length' else 'model'}.{name}": value})
    assert choose_kernel(config, platform) == expected


@pytest.mark.parametrize(
    ("kernel", "platform", "problem"),
    [
        ("splash", "cpu", "is for TPUs and this is a cpu"), ("cudnn", "tpu", "is for NVIDIA GPUs"),
        ("blocks", "gpu", "is for CPUs"), ("cudnn", "gpu", "takes bfloat16"),
    ],
)  # fmt: skip
def test_a_kernel_that_cannot_run_is_refused(kernel, platform, problem):
    config = with_fields(Config(), {"compute.attention": kernel})
    with pytest.raises(InputError, match=f"config.compute.attention={kernel} {problem}.*use auto"):
        choose_kernel(config, platform)
    assert set(KERNELS) == set(HERE) | {"cudnn"}
