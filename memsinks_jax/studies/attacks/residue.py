"""Which component holds the rest of the repeated documents: attention, the MLPs or the embeddings,
and in which layer?

A component's output x becomes (1 - share) x + share m, with m its mean over held-out text. This
keeps its contribution for text in general and removes that for this text. (Zero instead of the mean
would also remove constants that all later layers need.) It also removes the memory in the
component: the loss of the repeated documents rises more than that of held-out ones, by the
`excess`. Components do unequal amounts of general work, so they are compared at equal damage:
`gap_closed` is the excess once held-out text has lost DAMAGE nats per token. The control is an
oracle, whose excess is the effect of the ablation on any other text, around 0.

Components: attention and the MLP of every layer, and the embeddings' input to the first layer (a
tied head keeps its own). R documents, L layers.
"""

import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from memsinks_jax.config import Config, with_fields
from memsinks_jax.families import FAMILIES
from memsinks_jax.measures.document_loss import reader
from memsinks_jax.measures.documents import rows_at_once
from memsinks_jax.measures.rows import bar, in_batches, token_mean
from memsinks_jax.measures.subjects import Subject
from memsinks_jax.model import placement
from memsinks_jax.model.decoder import Interventions, recorded

SHARES = (0.25, 0.5, 1.0)
DAMAGE = 0.03  # nats per token of held-out text
_SITES = ("attention", "mlp")


def components(config: Config) -> dict[str, dict[str, np.ndarray]]:
    """{name: {site or embedding: 1 if it is ablated, float32 (L,) or ()}}."""
    layers = config.model.layers
    found = {}
    for site, layer in itertools.product(_SITES, range(layers)):
        found[f"{site} {layer}"] = {site: np.eye(layers, dtype=np.float32)[layer]}
    found["token embedding"] = {"token_embedding": np.float32(1)}
    if not FAMILIES[config.model.family].rotary:
        found["position embedding"] = {"position_embedding": np.float32(1)}
    return found


def residue(subject: Subject, repeated: dict, held_out: dict, reference: dict) -> dict:
    """Ablates every component by every share.

    Args:
      repeated, held_out: rows of `rows.rows_of`; only their counted targets (`rows.asking`) are
        measured.
      reference: rows of held-out text for the means; others than `held_out`.
    Returns:
      {"before": {"repeated": losses, "held_out": losses}, "gap": held-out minus repeated loss,
      "components": {name: {"shares", "damage" and "excess": one per share, "gap_closed": null if
      DAMAGE is not reached, "repeated" and "held_out": losses of each document with the component
      fully ablated}}}; nats per token.
    """
    config, params = subject.run.config, subject.run.params
    if config.model.tied_head:  # ablating the embedding does not change the head
        config = with_fields(config, {"model.tied_head": False})
        params = params | {"head_kernel": params["token_embedding"].T}
    at_once = rows_at_once(config, placement.mesh_of(params))
    means = _means(config, subject.mode, params, list(in_batches(reference, at_once)))
    measure = _measure(config, subject.mode)
    asked = components(config)
    nothing = {site: np.zeros(config.model.layers, np.float32) for site in _SITES}
    nothing |= {name: np.float32(0) for name in means if name not in _SITES}
    groups = {"repeated": repeated, "held_out": held_out}
    tokens = {name: rows["weights"].sum(axis=1) for name, rows in groups.items()}

    def losses(strengths: dict) -> dict[str, np.ndarray]:
        found = {}
        for name, rows in groups.items():
            batches = in_batches(rows, at_once)
            nats_R = np.concatenate([measure(params, one, means, strengths) for one in batches])
            found[name] = nats_R[: len(tokens[name])] / tokens[name]
        return found

    def mean(found: dict[str, np.ndarray], name: str) -> float:
        return token_mean(found[name], tokens[name])

    before = losses(nothing)
    result = {}
    with bar(len(asked) * len(SHARES), f"residue, {subject.name}") as progress:
        for component, where in asked.items():
            damage, excess = [], []
            for share in SHARES:
                after = losses(nothing | {name: share * whole for name, whole in where.items()})
                damage.append(mean(after, "held_out") - mean(before, "held_out"))
                excess.append(mean(after, "repeated") - mean(before, "repeated") - damage[-1])
                progress.update()
            result[component] = {"shares": list(SHARES), "damage": damage, "excess": excess}
            result[component]["gap_closed"] = at_damage(damage, excess)
            result[component] |= {name: losses_R.tolist() for name, losses_R in after.items()}
    return {
        "before": {name: losses_R.tolist() for name, losses_R in before.items()},
        "gap": mean(before, "held_out") - mean(before, "repeated"),
        "components": result,
    }


def at_damage(damage: list[float], excess: list[float], wanted: float = DAMAGE) -> float | None:
    """The excess at which damage first reaches `wanted`, interpolated from (0, 0) on, or None."""
    before = (0.0, 0.0)
    for now in zip(damage, excess, strict=True):
        if now[0] >= wanted:
            return before[1] + (wanted - before[0]) / (now[0] - before[0]) * (now[1] - before[1])
        before = now
    return None


def _mixed(x: jax.Array, mean: jax.Array, share: jax.Array) -> jax.Array:
    return (x + share * (mean - x)).astype(x.dtype)


def _measure(config: Config, mode: str) -> Callable[..., np.ndarray]:
    """Compiled (params, rows, means, strengths) -> nats of each row (R,)."""
    nats = reader(config, mode)

    @placement.jit
    def measure(params: dict, rows: dict, means: dict, strengths: dict) -> jax.Array:
        def ablated(site: str) -> Callable:
            return lambda x, layer: _mixed(x, means[site][layer], strengths[site][layer])

        embeddings = {
            name: _mixed(params[name], means[name], strengths[name])
            for name in means
            if name not in _SITES
        }
        return nats(params | embeddings, rows, {site: ablated(site) for site in _SITES}).sum(axis=1)

    return measure


def _means(config: Config, mode: str, params: dict, batches: list[dict]) -> dict[str, jax.Array]:
    """Means over all targets of batches of rows: of the sites (L, width), of the embeddings
    (D,).
    """
    nats = reader(config, mode)
    rows = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    shape = batches[0]["inputs"].shape
    widths = {
        "attention": config.model.attention_width,
        "mlp": params["layers"]["down_kernel"].shape[-2],
    }

    @placement.jit
    def sums(params: dict, rows: dict) -> dict[str, jax.Array]:
        def read(records: dict) -> jax.Array:
            recording: Interventions = {
                site: lambda x, layer, of=of: recorded(x, of[layer]) for site, of in records.items()
            }
            return nats(params, rows, recording).sum()

        layers = config.model.layers
        zeros = {site: jnp.zeros((layers, *shape, width)) for site, width in widths.items()}
        counts_RT = (rows["weights"] > 0).astype(jnp.float32)
        gradients = jax.grad(read)(zeros).items()
        return {site: jnp.einsum("lrtf,rt->lf", x, counts_RT) for site, x in gradients}

    total = jax.tree.map(lambda *parts: sum(parts), *[sums(params, batch) for batch in batches])
    real = rows["weights"] > 0
    means = {site: x_LF / real.sum() for site, x_LF in total.items()}
    for name, ids in (("token_embedding", "inputs"), ("position_embedding", "positions")):
        if name in params:
            means[name] = params[name][rows[ids][real]].mean(axis=0)
    return means
