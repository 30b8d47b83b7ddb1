"""Every attention kernel: against the definition, its gradient, and isolation of documents."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from conftest import expect_input_error
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax._src.interpreters import mlir
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from memsinks_jax.config import Config, with_fields
from memsinks_jax.model import attention
from memsinks_jax.model.attention import KERNELS, attend, choose_kernel

B = 2


@pytest.fixture(autouse=True)
def splash_without_a_tpu(monkeypatch):
    monkeypatch.setattr(attention, "_splash", functools.partial(attention._splash, interpret=True))


@pytest.fixture(autouse=True)
def cudnn_without_a_gpu(monkeypatch):
    """Everything up to NVIDIA's library is jax's own path; instead of the library runs the formula
    of its arguments. In float32 too, which the library does not take.
    """
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(cudnn, "check_layout", lambda *arrays: None)
    monkeypatch.setattr(
        cudnn, "get_large_negative_number", lambda dtype: jnp.asarray(-2 << 40, dtype)
    )
    mlir.register_lowering(
        cudnn._dot_product_attention_fwd_p,
        mlir.lower_fun(cudnn_forward, multiple_results=True),
        platform="cpu",
    )
    mlir.register_lowering(
        cudnn._dot_product_attention_bwd_p,
        mlir.lower_fun(cudnn_backward, multiple_results=True),
        platform="cpu",
    )


def cudnn_formula(query, key, value, bias, *, scale, mask_type, variadic_args, **_):
    group, has_bias = query.shape[2] // key.shape[2], variadic_args[0]
    key, value = (jnp.repeat(x, group, axis=2) for x in (key, value))
    scores = jnp.einsum("bthc,bshc->bhts", query, key) * scale + (bias if has_bias else 0)
    if mask_type == cudnn.MaskType.CAUSAL:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[2:], bool)), scores, -jnp.inf)
    else:
        assert mask_type == cudnn.MaskType.NO_MASK
    output = jnp.einsum("bhts,bshc->bthc", jax.nn.softmax(scores), value)
    return output, jax.nn.logsumexp(scores, axis=-1)


def cudnn_forward(query, key, value, bias, *_, is_training, **arguments):
    output, sums = cudnn_formula(query, key, value, bias, **arguments)
    return [output, sums] if is_training else [output]


def cudnn_backward(query, key, value, bias, *others, **arguments):
    _, pull = jax.vjp(
        lambda *arrays: cudnn_formula(*arrays, **arguments)[0], query, key, value, bias
    )
    return pull(others[-1])[: 3 + arguments["variadic_args"][1]]


def inputs(length, heads=4, kv_heads=2, size=16):
    draw = np.random.default_rng(0)
    query, upstream = (
        draw.normal(size=(B, length, heads, size)).astype(np.float32) for _ in range(2)
    )
    key, value = (
        draw.normal(size=(B, length, kv_heads, size)).astype(np.float32) for _ in range(2)
    )
    # Documents of other lengths in the two rows; the second ends in padding.
    borders = np.array([[length // 3, length // 2], [length // 5, 4 * length // 5]])
    segments = (
        1
        + (np.arange(length) >= borders[:, :1]).astype(np.int32)
        + (np.arange(length) >= borders[:, 1:])
    )
    segments[1, -length // 8 :] = 0
    return query, key, value, segments.astype(np.int32), upstream


def definition(query, key, value, segments, window=0):
    length, group = query.shape[1], query.shape[2] // key.shape[2]
    key, value = (jnp.repeat(x, group, axis=2) for x in (key, value))
    visible = jnp.tril(jnp.ones((length, length), bool)) & (
        segments[:, :, None] == segments[:, None]
    )
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
    [(k, n) for k in ("xla", "blocks") for n in (1, 3, 64, 65, 130)]
    + [(k, n) for k in ("splash", "cudnn") for n in (128, 256)],
)
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_a_kernel_equals_the_definition_and_its_gradient(kernel, length, kv_heads):
    with jax.default_matmul_precision("float32"):
        measured = with_gradient(functools.partial(attend, kernel))(
            *inputs(length, kv_heads=kv_heads)
        )
    for one, other in zip(measured, expected(length, kv_heads), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("windows, kind", [((9,), None), ((9, 0), 0), ((9, 0), 1), ((1, 200), 0)])
def test_a_window_ends_where_the_kind_of_layer_says(kernel, windows, kind):
    """Also with documents that begin within it."""
    *arrays, upstream = inputs(128)

    def of_kind(query, key, value, segments, kind):
        return attend(kernel, query, key, value, segments, windows, kind)

    with jax.default_matmul_precision("float32"):
        chosen = None if kind is None else jnp.int32(kind)
        measured = with_gradient(functools.partial(of_kind, kind=chosen))(*arrays, upstream)
        wanted = with_gradient(functools.partial(definition, window=windows[kind or 0]))(
            *arrays, upstream
        )
    for one, other in zip(measured, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("kernel", ["xla", "blocks"])
def test_large_scores_of_bfloat16_are_exact(kernel):
    """Values are the identity, so the output is the weights, each rounded at most twice. Heads of
    32 channels: the square root of 32 is no number of bfloat16, and neither is a query divided by
    it.
    """
    draw = np.random.default_rng(0)
    query, key = ((4.8 * draw.normal(size=(1, 32, 8, 32))).astype(jnp.bfloat16) for _ in range(2))
    value = np.broadcast_to(np.eye(32, dtype=jnp.bfloat16)[None, :, None], key.shape)
    exact = [np.asarray(x, np.float64) for x in (query, key)]
    scores = np.where(
        np.tril(np.ones((32, 32), bool)), np.einsum("bthc,bshc->bhts", *exact) / 32**0.5, -np.inf
    )
    assert 70 < scores.max() < 90
    expected = scipy.special.softmax(scores, axis=-1).transpose(0, 2, 1, 3)
    as_written = {"xla_allow_excess_precision": False}  # XLA would leave out what rounds in between
    program = jax.jit(functools.partial(attend, kernel), compiler_options=as_written)
    measured = program(query, key, value, np.ones((1, 32), np.int32))
    np.testing.assert_allclose(np.asarray(measured, np.float64), expected, atol=2**-8)


@pytest.mark.parametrize("kernel", KERNELS)
def test_documents_do_not_see_each_other(kernel):
    """Another first document leaves the second one's outputs and its gradients equal, bit for
    bit.
    """
    query, key, value, segments, upstream = inputs(128)
    first, second = (segments[:, :, None, None] == 1), segments == 2
    both = with_gradient(functools.partial(attend, kernel))

    def after(change):
        arrays = [np.where(first, change * x**2, x) for x in (query, key, value)]
        return [np.asarray(x) for x in both(*arrays, segments, upstream)]

    for one, other in zip(after(0.5), after(-3.0), strict=True):
        assert (one[second] == other[second]).all()
        assert (one != other).any()


@pytest.mark.parametrize("kernel", KERNELS)
def test_nothing_later_is_seen(kernel):
    query, key, value, segments, _ = inputs(128)
    one_document = jax.jit(lambda *arrays: attend(kernel, *arrays, jnp.ones_like(segments)))
    before = np.asarray(one_document(query, key, value))
    key[:, 100:] = value[:, 100:] = 7.0
    after = np.asarray(one_document(query, key, value))
    assert (before[:, :100] == after[:, :100]).all()
    assert (before[:, 100:] != after[:, 100:]).any()


@pytest.mark.parametrize("shape", [(8, 1, 1), (2, 2, 2), (1, 2, 4)])
@pytest.mark.parametrize("kernel", ["splash", "cudnn"])
def test_a_kernel_on_a_mesh(kernel, shape):
    """Batch and heads are split, what the mesh does not divide is not; the values and gradients
    stay.
    """
    *arrays, segments, upstream = (np.concatenate([x] * 4) for x in inputs(128))
    both = with_gradient(functools.partial(attend, kernel))
    alone = both(*arrays, segments, upstream)
    mesh = jax.make_mesh(
        shape, ("data", "fsdp", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 3
    )
    with jax.set_mesh(mesh):

        def put(x):
            heads = "tensor" if x.ndim == 4 and x.shape[2] % shape[2] == 0 else None
            return jax.device_put(
                x, NamedSharding(mesh, P(("data", "fsdp"), None, *[heads][: x.ndim - 2]))
            )

        split = both(*map(put, (*arrays, segments, upstream)))
    for one, other in zip(split, alone, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_the_gpu_kernel_gets_the_documents():
    """In the program for a GPU both passes get causal attention and the mask of the documents."""
    *arrays, segments, upstream = inputs(128)
    arrays = [x.astype(jnp.bfloat16) for x in arrays]
    program = with_gradient(functools.partial(attend, "cudnn"))
    lowered = program.trace(*arrays, segments, upstream.astype(jnp.bfloat16)).lower(
        lowering_platforms=("cuda",)
    )
    calls = [line for line in lowered.as_text().splitlines() if "@__cudnn$fmhaScaleBias" in line]
    assert len(calls) == 2
    for call in calls:
        assert "\\22mask_type\\22: \\22CAUSAL\\22" in call
        assert f"tensor<{B}x1x128x128xbf16>" in call.split(") -> ")[0]


@pytest.mark.parametrize(
    ("platform", "change", "expected"),
    [
        ("cpu", {}, "blocks"),
        ("tpu", {}, "splash"),
        ("gpu", {"dtype": "bfloat16"}, "cudnn"),
        ("gpu", {}, "xla"),
        ("tpu", {"row_length": 100}, "xla"),
        ("gpu", {"dtype": "bfloat16", "d_model": 1024}, "xla"),
        ("gpu", {"dtype": "bfloat16", "row_length": 101}, "xla"),
    ],
)
def test_auto_takes_the_machines_best(platform, change, expected):
    config = Config()
    for name, value in change.items():
        config = with_fields(
            config, {f"{'data' if name == 'row_length' else 'model'}.{name}": value}
        )
    assert choose_kernel(config, platform) == expected


@pytest.mark.parametrize(
    ("kernel", "platform", "problem"),
    [
        ("splash", "cpu", "is for TPUs and this is a cpu"),
        ("cudnn", "tpu", "is for NVIDIA GPUs"),
        ("blocks", "gpu", "is for CPUs"),
        ("cudnn", "gpu", "takes bfloat16"),
    ],
)
def test_a_kernel_that_cannot_run_is_refused(kernel, platform, problem):
    config = with_fields(Config(), {"compute.attention": kernel})
    with expect_input_error(f"config.compute.attention={kernel} {problem}.*use auto"):
        choose_kernel(config, platform)
