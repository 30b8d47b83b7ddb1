"""Softmax attention for training and evaluation, with a kernel for each backend. No kernel attends
across documents.

Axes as in decoder.py: query (B, T, H, C), key and value (B, T, K, C); H / K query heads share a key
head. A position sees itself and earlier positions of its own segment (B, T); padding, segment 0,
sees padding. The kernels:
  xla     plain matrix products, on any backend
  blocks  written by hand for CPUs, in blocks of queries (attention_cpu.py)
  splash  JAX's Pallas kernel for TPUs: never writes anything of size T x T to memory
  cudnn   NVIDIA's fused kernel, bfloat16 only; the segments become a mask
"""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from memsinks_jax.config import Config, InputError
from memsinks_jax.model.attention_cpu import causal_attention
from memsinks_jax.model.placement import BATCH, TENSOR, constrain, divides, on_each_device

KERNELS = ("xla", "blocks", "splash", "cudnn")

_SPLASH_TILE = 512  # positions per step of the kernel
_SPLASH_KEYS = 1024  # positions whose keys the backward pass holds at once
SAVED = "attention_residuals"  # what the backward pass needs of a kernel's forward pass


def choose_kernel(config: Config, platform: str) -> str:
    """The kernel that config.compute.attention selects on 'cpu', 'gpu' or 'tpu' -> one of KERNELS.

    Raises:
      InputError: the requested kernel cannot run there, or not with these sizes.
    """
    asked, length = config.compute.attention, config.data.row_length
    size = config.model.head_width
    fits = {
        "xla": "",
        "blocks": _unless(platform == "cpu", f"is for CPUs and this is a {platform}"),
        "splash": _unless(platform == "tpu", f"is for TPUs and this is a {platform}")
        or _unless(
            length % 128 == 0,
            f"takes rows of a multiple of 128, and config.data.row_length is {length}",
        ),
        "cudnn": _unless(platform == "gpu", f"is for NVIDIA GPUs and this is a {platform}")
        or _unless(
            config.model.dtype == "bfloat16",
            f"takes bfloat16, and config.model.dtype is {config.model.dtype}",
        )
        or _unless(
            size % 8 == 0 and size <= 128,
            f"takes heads of 8, 16, ... 128 channels, and these have {size}",
        )
        or _unless(
            length % 2 == 0,
            f"trains on rows of an even length, and config.data.row_length is {length}",
        ),
    }
    if asked == "auto":
        return next((kernel for kernel in ("splash", "cudnn", "blocks") if not fits[kernel]), "xla")
    if fits[asked]:
        raise InputError(f"config.compute.attention={asked} {fits[asked]}; use auto")
    return asked


def _unless(good: bool, problem: str) -> str:
    return "" if good else problem


def attend(
    kernel: str,
    query_BTHC: jax.Array,
    key_BTKC: jax.Array,
    value_BTKC: jax.Array,
    segments_BT: jax.Array,
    windows: Sequence[int] = (0,),
    kind: jax.Array | None = None,
) -> jax.Array:
    """Causal attention within segments by one of KERNELS -> (B, T, H, C).

    Args:
      windows: by kind of layer, how many of the last positions a position sees, itself included; 0:
        all.
      kind: int32, which of them; None: the first.
    """
    length = segments_BT.shape[1]
    # A device must hold the key heads that its query heads read.
    heads = (BATCH, None, TENSOR if divides(TENSOR, key_BTKC.shape[2]) else None, None)
    if kernel == "splash":

        def with_window(window: int) -> Callable[[], jax.Array]:
            return lambda: on_each_device(
                partial(_splash, window=window),
                [query_BTHC, key_BTKC, value_BTKC, segments_BT],
                [heads, heads, heads, (BATCH, None)],
                output=0,
            )

        kernels = [with_window(window) for window in windows]
        return kernels[0]() if kind is None else jax.lax.switch(kind, kernels)
    same_BTT = segments_BT[:, :, None] == segments_BT[:, None, :]
    before_TT = jnp.arange(length)[:, None] - jnp.arange(length)
    if kernel == "cudnn":
        if any(windows):
            same_BTT &= within(before_TT, windows, kind)
        query_BTHC, key_BTKC, value_BTKC = (
            constrain(x, *heads) for x in (query_BTHC, key_BTKC, value_BTKC)
        )
        heads_BTHC = jax.nn.dot_product_attention(
            query_BTHC,
            key_BTKC,
            value_BTKC,
            mask=same_BTT[:, None],
            is_causal=True,
            implementation="cudnn",
        )
    else:
        visible_BTT = same_BTT & within(before_TT, windows, kind)
        of_visible = causal_attention if kernel == "blocks" else masked_attention
        heads_BTHC = of_visible(query_BTHC, key_BTKC, value_BTKC, visible_BTT)
    return checkpoint_name(heads_BTHC, SAVED)


def within(before: jax.Array, windows: Sequence[int], kind: jax.Array | None) -> jax.Array:
    """Whether a position that is `before` positions earlier is seen. `windows`, `kind` as in
    `attend`.
    """
    if not any(windows):
        return before >= 0
    furthest = jnp.array([window or jnp.iinfo(jnp.int32).max for window in windows], jnp.int32)
    return (before >= 0) & (before < furthest[0 if kind is None else kind])


def masked_attention(
    query_BTHC: jax.Array, key_BSKC: jax.Array, value_BSKC: jax.Array, visible_BTS: jax.Array
) -> jax.Array:
    """Softmax attention of T queries over those of S keys that they may see -> (B, T, H, C). G
    query heads share a key head, which is not copied for each.
    """
    keys, size = key_BSKC.shape[2:]
    query_BTKGC = query_BTHC.reshape(*query_BTHC.shape[:2], keys, -1, size)
    scores_BKGTS = jnp.einsum(
        "btkgc,bskc->bkgts", query_BTKGC, key_BSKC, preferred_element_type=jnp.float32
    )
    visible_B11TS = visible_BTS[:, None, None]
    weights_BKGTS = jax.nn.softmax(
        jnp.where(visible_B11TS, scores_BKGTS * size**-0.5, jnp.finfo(jnp.float32).min)
    )
    heads_BTKGC = jnp.einsum(
        "bkgts,bskc->btkgc", weights_BKGTS.astype(value_BSKC.dtype), value_BSKC
    )
    return heads_BTKGC.reshape(query_BTHC.shape)


def _splash(
    query_BTHC, key_BTKC, value_BTKC, segments_BT, interpret: bool = False, window: int = 0
):
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    length, heads = query_BTHC.shape[1:3]
    tile = next(size for size in (_SPLASH_TILE, 256, 128) if length % size == 0)
    shape = (length, length)
    mask = masks.LocalMask(shape, (window - 1, 0), 0) if window else masks.CausalMask(shape)
    # Positions are innermost, as XLA lays out the projections. This avoids two transposes, a fifth
    # of a layer's time. One block of keys in the backward pass: XLA would sum the queries'
    # gradients over blocks outside the kernel.
    innermost = splash.QKVLayout.SEQ_MINOR
    blocks = splash.BlockSizes(
        block_q=tile,
        block_kv=tile,
        block_kv_compute=tile,
        block_q_dkv=tile,
        block_kv_dkv=min(length, _SPLASH_KEYS) if length % _SPLASH_KEYS in (0, length) else tile,
        block_kv_dkv_compute=tile,
        use_fused_bwd_kernel=True,
        q_layout=innermost,
        k_layout=innermost,
        v_layout=innermost,
    )
    kernel = splash.make_splash_mha_single_device(
        masks.MultiHeadMask([mask] * heads),
        block_sizes=blocks,
        residual_checkpoint_name=SAVED,
        interpret=interpret,
    )

    def of_row(query_HTC, key_KTC, value_KTC, segments_T):
        return kernel(query_HTC, key_KTC, value_KTC, splash.SegmentIds(segments_T, segments_T))

    scaled = query_BTHC * jnp.asarray(query_BTHC.shape[-1] ** -0.5, query_BTHC.dtype)
    heads_first = (x.swapaxes(1, 2) for x in (scaled, key_BTKC, value_BTKC))
    return jax.vmap(of_row)(*heads_first, segments_BT).swapaxes(1, 2)
