"""The study's two-layer model (section 4.2): one head per layer, identity queries. Only the
memories are trained.

    x0_t = w_E(z_t) + p_t
    x1_t = x0_t + W_O^1 W_V^1 sum_s A1[t,s] x0_s
        A1 = softmax over s <= t of x0_t . W_K^1 x0_s / sqrt d
    h_t  = x1_t + W_O^2 W_V^2 sum_s A2[t,s] x1_s
        A2 = softmax over s <= t of x1_t . W_K^2 x1_s / sqrt d
    logits_t = W_U (h_t + F(h_t)),                  F: nothing, a matrix W_F, or W_F2 relu(W_F1 h_t)

Embeddings, positions, W_U and the remaps W_V^1, W_O^1, W_V^2 keep their random values. There is no
bias and no norm.

Axes: B sequences, T positions (S when attended to), D width, F hidden neurons, V characters, H
heads (here 1). Weights are a dict by name. Matrices are [to, from], so that W x is `x @ W.T`.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

MEMORIES = ("key_1", "key_2", "output_2")
FEED_FORWARD = {"none": (), "linear": ("ff",), "mlp": ("ff_1", "ff_2")}


@dataclasses.dataclass(frozen=True)
class TwoLayers:
    """Attributes:
    d: width. feed_forward: 'none', 'linear' or 'mlp', after the second layer. hidden: neurons of
    the MLP; None: 4 d.
    positions: 'random', 'sinusoid', or 'rotary' (rotates queries and keys of the first layer; p =
    0).
    divide: scores by sqrt d. unit: all random values have variance 1/d, as in the theory, not
    PyTorch's defaults.
    """

    d: int = 128
    feed_forward: str = "none"
    hidden: int | None = None
    positions: str = "random"
    divide: bool = True
    unit: bool = False

    @property
    def trainable(self) -> tuple[str, ...]:
        return MEMORIES + FEED_FORWARD[self.feed_forward]

    def initial(self, key: jax.Array, characters: int, length: int) -> dict[str, jax.Array]:
        """Initial weights, float32."""
        d, hidden = self.d, self.hidden or 4 * self.d
        shapes = {"token": (characters, d), "position": (length, d), "unembed": (characters, d)}
        square = ("key_1", "value_1", "output_1", "key_2", "value_2", "output_2", "ff")
        shapes |= {name: (d, d) for name in square} | {"ff_1": (hidden, d), "ff_2": (d, hidden)}
        unused = {name for names in FEED_FORWARD.values() for name in names} - set(self.trainable)
        weights = {}
        for place, (name, shape) in enumerate(shapes.items()):
            of_name, reach = jax.random.fold_in(key, place), 1 / math.sqrt(shape[-1])
            if name in unused:
                continue
            if self.unit or name in ("token", "position"):
                weights[name] = jax.random.normal(of_name, shape) / (
                    math.sqrt(shape[-1]) if self.unit else 1
                )
            else:
                weights[name] = jax.random.uniform(of_name, shape, minval=-reach, maxval=reach)
        if self.positions == "sinusoid":
            weights["position"] = jnp.asarray(sinusoids(length, d), jnp.float32)
        elif self.positions == "rotary":
            weights["position"] = jnp.zeros((length, d))
        return weights

    def forward(
        self, weights, tokens_BT: jax.Array, at_hidden: Callable = lambda hidden_BTF: hidden_BTF
    ) -> "Trace":
        """at_hidden: intervention at the MLP's hidden activation, after the ReLU."""
        length, scale = tokens_BT.shape[1], math.sqrt(self.d) if self.divide else 1.0
        x0_BTD = weights["token"][tokens_BT] + weights["position"][:length]
        keys_BSD, queries_BTD = x0_BTD @ weights["key_1"].T, x0_BTD
        if self.positions == "rotary":
            keys_BSD, queries_BTD = turn(keys_BSD), turn(queries_BTD)
        a1_BTS = attend(queries_BTD, keys_BSD, scale)
        remap_DD = weights["output_1"] @ weights["value_1"]
        x1_BTD = x0_BTD + (a1_BTS @ x0_BTD) @ remap_DD.T
        a2_BTS = attend(x1_BTD, x1_BTD @ weights["key_2"].T, scale)
        copy_DD = weights["output_2"] @ weights["value_2"]
        if self.feed_forward == "mlp":
            h_BTD = x1_BTD + (a2_BTS @ x1_BTD) @ copy_DD.T
            hidden_BTF = at_hidden(jax.nn.relu(h_BTD @ weights["ff_1"].T))
            logits_BTV = (h_BTD + hidden_BTF @ weights["ff_2"].T) @ weights["unembed"].T
        else:
            # All is linear from here, so values are mapped to V, less than D, before the sum.
            read_VD = weights["unembed"]
            if self.feed_forward == "linear":
                read_VD = read_VD + read_VD @ weights["ff"]
            logits_BTV = x1_BTD @ read_VD.T + a2_BTS @ (x1_BTD @ (read_VD @ copy_DD).T)
        return Trace(logits_BTV, (a1_BTS[:, None], a2_BTS[:, None]))


class Trace(NamedTuple):
    """A forward pass: logits (B, T, V), and the attention of every layer (B, H, T, S)."""

    logits_BTV: jax.Array
    attentions: tuple[jax.Array, ...]


def attend(queries_xTD: jax.Array, keys_xSD: jax.Array, scale: float) -> jax.Array:
    """Causal attention, float32 -> (..., T, S)."""
    scores_xTS = jnp.einsum("...td,...sd->...ts", queries_xTD, keys_xSD) / scale
    length = scores_xTS.shape[-1]
    return jax.nn.softmax(jnp.where(np.tri(length, dtype=bool), scores_xTS, -jnp.inf), axis=-1)


def sinusoids(length: int, d: int) -> np.ndarray:
    """Positions of the first Transformer: sines at even indices, else cosines -> float64 (T, D)."""
    angle_TD = np.arange(length)[:, None] * 10000.0 ** (-(np.arange(d) // 2 * 2) / d)
    return np.where(np.arange(d) % 2 == 0, np.sin(angle_TD), np.cos(angle_TD))


def turn(x_BTD: jax.Array) -> jax.Array:
    """Rotary positions: rotates pairs of neighbouring coordinates by angles that grow with t."""
    length, d = x_BTD.shape[-2:]
    angle_TP = np.arange(length)[:, None] * 10000.0 ** (-np.arange(0, d, 2) / d)
    cos_TP = jnp.asarray(np.cos(angle_TP), jnp.float32)
    sin_TP = jnp.asarray(np.sin(angle_TP), jnp.float32)
    even_BTP, odd_BTP = x_BTD[..., 0::2], x_BTD[..., 1::2]
    turned = jnp.stack(
        [even_BTP * cos_TP - odd_BTP * sin_TP, even_BTP * sin_TP + odd_BTP * cos_TP], axis=-1
    )
    return turned.reshape(x_BTD.shape)


@dataclasses.dataclass(frozen=True)
class Full:
    """The ordinary transformer for comparison: everything trained, with heads, norms, a
    feed-forward layer in each block.

    The block is the study's: attention and feed-forward read the same input, y = x +
    Attention(norm(x)), then y + FF(norm(x)). Axes: C = D / H coordinates of a head.

    Attributes:
      d: width. layers, heads. norm: layer norms before attention, feed-forward and output.
      feed_forward: in every block, 4 d neurons. frozen: matrices of every layer that are not
        trained ('value', 'output').
    """

    d: int = 128
    layers: int = 2
    heads: int = 4
    norm: bool = True
    feed_forward: bool = True
    frozen: tuple[str, ...] = ()

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Shapes of the matrices of one layer."""
        square = {name: (self.d, self.d) for name in ("query", "key", "value", "output")}
        feed_forward = {"ff_in": (4 * self.d, self.d), "ff_out": (self.d, 4 * self.d)}
        return square | (feed_forward if self.feed_forward else {})

    @property
    def norms(self) -> list[str]:
        """Names of the layer norms."""
        if not self.norm:
            return []
        places = ("attention", "ff") if self.feed_forward else ("attention",)
        return [f"{place}_norm_{layer}" for layer in range(self.layers) for place in places] + [
            "norm"
        ]

    @property
    def trainable(self) -> tuple[str, ...]:
        names = [name for name in self.shapes if name not in self.frozen]
        matrices = [f"{name}_{layer}" for layer in range(self.layers) for name in names]
        return ("token", "position", "unembed", *matrices, *self.norms)

    def initial(self, key: jax.Array, characters: int, length: int) -> dict[str, jax.Array]:
        """Initial weights with PyTorch's defaults, float32. A norm is (2, D): scale and shift."""
        keys = iter(jax.random.split(key, 3 + self.layers * len(self.shapes)))
        weights = {
            "token": jax.random.normal(next(keys), (characters, self.d)),
            "position": jax.random.normal(next(keys), (length, self.d)),
        }
        shapes = {"unembed": (characters, self.d)}
        shapes |= {
            f"{name}_{layer}": shape
            for layer in range(self.layers)
            for name, shape in self.shapes.items()
        }
        for name, shape in shapes.items():
            reach = 1 / math.sqrt(shape[1])
            weights[name] = jax.random.uniform(next(keys), shape, minval=-reach, maxval=reach)
        return weights | {
            name: jnp.stack([jnp.ones(self.d), jnp.zeros(self.d)]) for name in self.norms
        }

    def forward(self, weights, tokens_BT: jax.Array) -> Trace:
        def normed(x_BTD, name):
            if not self.norm:
                return x_BTD
            centred = x_BTD - x_BTD.mean(-1, keepdims=True)
            variance = jnp.square(centred).mean(-1, keepdims=True)
            factor, shift = weights[name]
            return centred * jax.lax.rsqrt(variance + 1e-5) * factor + shift

        def heads(x_BTD, name):
            y_BTD = x_BTD @ weights[name].T
            return y_BTD.reshape(*y_BTD.shape[:2], self.heads, -1).swapaxes(1, 2)

        x_BTD = weights["token"][tokens_BT] + weights["position"][: tokens_BT.shape[1]]
        attentions = []
        for layer in range(self.layers):
            read_BTD = normed(x_BTD, f"attention_norm_{layer}")
            q_BHTC, k_BHTC, v_BHTC = (
                heads(read_BTD, f"{name}_{layer}") for name in ("query", "key", "value")
            )
            a_BHTS = attend(q_BHTC, k_BHTC, math.sqrt(self.d / self.heads))
            mixed_BTD = (a_BHTS @ v_BHTC).swapaxes(1, 2).reshape(x_BTD.shape)
            after_BTD = x_BTD + mixed_BTD @ weights[f"output_{layer}"].T
            if self.feed_forward:
                read_BTD = normed(x_BTD, f"ff_norm_{layer}")  # of the block's input, not of `after`
                hidden_BTF = jax.nn.relu(read_BTD @ weights[f"ff_in_{layer}"].T)
                after_BTD = after_BTD + hidden_BTF @ weights[f"ff_out_{layer}"].T
            x_BTD, attentions = after_BTD, [*attentions, a_BHTS]
        return Trace(normed(x_BTD, "norm") @ weights["unembed"].T, tuple(attentions))
