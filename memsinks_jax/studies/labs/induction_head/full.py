"""The ordinary transformer for comparison: everything trained, with heads, norms, a feed-forward layer in each block.

The block is the study's: attention and feed-forward read the same input, y = x + Attention(norm(x)), then y + FF(norm(x)).
Axes as in `model`; H heads, C = D / H coordinates of a head.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from memsinks_jax.studies.labs.induction_head.model import Trace, attend


@dataclasses.dataclass(frozen=True)
class Full:
    """Attributes:
    d: width. layers, heads. norm: layer norms before attention, feed-forward and output.
    feed_forward: in every block, 4 d neurons. frozen: matrices of every layer that are not trained ('value', 'output').
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
        return square | ({"ff_in": (4 * self.d, self.d), "ff_out": (self.d, 4 * self.d)} if self.feed_forward else {})

    @property
    def norms(self) -> list[str]:
        """Names of the layer norms."""
        if not self.norm:
            return []
        places = ("attention", "ff") if self.feed_forward else ("attention",)
        return [f"{place}_norm_{layer}" for layer in range(self.layers) for place in places] + ["norm"]

    @property
    def trainable(self) -> tuple[str, ...]:
        matrices = [f"{n}_{layer}" for layer in range(self.layers) for n in self.shapes if n not in self.frozen]
        return ("token", "position", "unembed", *matrices, *self.norms)

    def initial(self, key: jax.Array, characters: int, length: int) -> dict[str, jax.Array]:
        """Initial weights with PyTorch's defaults, float32. A norm is (2, D): scale and shift."""
        keys = iter(jax.random.split(key, 3 + self.layers * len(self.shapes)))
        weights = {
            "token": jax.random.normal(next(keys), (characters, self.d)),
            "position": jax.random.normal(next(keys), (length, self.d)),
        }
        shapes = {"unembed": (characters, self.d)}
        shapes |= {f"{name}_{layer}": shape for layer in range(self.layers) for name, shape in self.shapes.items()}
        for name, shape in shapes.items():
            reach = 1 / math.sqrt(shape[1])
            weights[name] = jax.random.uniform(next(keys), shape, minval=-reach, maxval=reach)
        return weights | {name: jnp.stack([jnp.ones(self.d), jnp.zeros(self.d)]) for name in self.norms}

    def forward(self, weights, tokens_BT: jax.Array) -> Trace:
        def normed(x_BTD, name):
            if not self.norm:
                return x_BTD
            centred = x_BTD - x_BTD.mean(-1, keepdims=True)
            factor, shift = weights[name]
            return centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5) * factor + shift

        def heads(x_BTD, name):
            y_BTD = x_BTD @ weights[name].T
            return y_BTD.reshape(*y_BTD.shape[:2], self.heads, -1).swapaxes(1, 2)

        x_BTD, attentions = weights["token"][tokens_BT] + weights["position"][: tokens_BT.shape[1]], []
        for layer in range(self.layers):
            read_BTD = normed(x_BTD, f"attention_norm_{layer}")
            q_BHTC, k_BHTC, v_BHTC = (heads(read_BTD, f"{name}_{layer}") for name in ("query", "key", "value"))
            a_BHTS = attend(q_BHTC, k_BHTC, math.sqrt(self.d / self.heads))
            mixed_BTD = (a_BHTS @ v_BHTC).swapaxes(1, 2).reshape(x_BTD.shape)
            after_BTD = x_BTD + mixed_BTD @ weights[f"output_{layer}"].T
            if self.feed_forward:
                read_BTD = normed(x_BTD, f"ff_norm_{layer}")  # of the block's input, not of `after`
                hidden_BTF = jax.nn.relu(read_BTD @ weights[f"ff_in_{layer}"].T)
                after_BTD = after_BTD + hidden_BTF @ weights[f"ff_out_{layer}"].T
            x_BTD, attentions = after_BTD, [*attentions, a_BHTS]
        return Trace(normed(x_BTD, "norm") @ weights["unembed"].T, tuple(attentions))
