"""Rivals of sinks in study tofu, which train for themselves here, and are measured as ours are.

Two unlearn withdrawn authors from the model of standard training: gradient difference (Liu et al.
2022, arXiv:2203.12817) as TOFU has it, and NPO (Zhang et al. 2024, arXiv:2404.05868) plus the loss
of answers that stay. Each step asks as many questions of authors that stay. Batches, warm-up,
decay, beta and weights are open-unlearning's (d3d7cf9), the epochs TOFU's: so they take a tenth of
the steps of fine-tuning.

The third is a LoRA adapter for each author (Hu et al. 2021, arXiv:2106.09685) on all linear maps of
the frozen model, trained on that author's questions alone, as often as ours reads them. Right after
training any can be left out. The fourth is one adapter for all authors, with as many parameters as
all sinks: what a frozen model learns if nobody can be removed.

A adapters, G of them trained together, Q questions of each in a step, S steps, B = G Q rows; K
rank, L layers, D in, F out.
"""

import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from memsinks_jax.config import Config, with_fields
from memsinks_jax.measures.document_loss import nats_of, reader
from memsinks_jax.measures.rows import bar, rows_of
from memsinks_jax.measures.subjects import Subject
from memsinks_jax.model import placement
from memsinks_jax.model.decoder import Layer, build_model
from memsinks_jax.model.sparse_sinks import tables_of
from memsinks_jax.models.trained import Trained
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.studies.figures import tofu_corpus as corpus
from memsinks_jax.studies.figures import tofu_measures as measures
from memsinks_jax.studies.figures.runs import Run
from memsinks_jax.training.optimizer import decay_mask

# Of each rival; the study takes the best.
RATES = {
    "npo": (3e-5, 1e-4, 3e-4, 1e-3),
    "difference": (3e-5, 1e-4, 3e-4),
    "lora": (3e-3, 1e-2, 3e-2),
    "lora_for_all": (3e-3,),
}
UNLEARNING = ("npo", "difference")
EVERYBODY = "all authors"  # whose the adapter for all is
EPOCHS = 5
BETA = 0.1  # of NPO
DECAY, CLIP = 0.01, 1.0
# of a question with its answer, about: so a step of ours reads 8 of them in laptop, 32 in full
TOKENS = 64
RANK, ALPHA = 8, 16
TOGETHER, QUESTIONS = 8, 4  # adapters, and questions of each in a step
# what results depend on, besides rates
RECIPE = [EPOCHS, BETA, DECAY, CLIP, RANK, ALPHA, QUESTIONS]


def of_view(
    run: Run, rival: str, rate: float, mode: str, removed: str, sets: Sequence[str]
) -> dict:
    """Trains a rival and measures it -> as `measures.of_view`.

    Args:
      run: the trained model, or for adapters one whose frozen base they change.
      mode, removed: of adapters, as of sinks: "own", NEAREST or "all" of them are on, but those of
        `removed`.
    """
    asked = corpus.questions_of(run.workdir)
    if rival in UNLEARNING:
        return measures.of_model(_unlearned(run, rival, rate), asked, sets)
    made, base = _adapters(run.workdir, rival, rate), measures.cached_run(run.workdir)
    gone = asked[removed] if removed else []

    def subject(on: Collection[str]) -> Subject:
        return Subject(rival, with_adapters(base, made, set(on) - set(gone)), "drop")

    if mode == "all":
        return measures.of_model(subject(made.authors), asked, sets)
    chosen, whose = {name: asked["sets"][name] for name in sets}, [""] * len(asked["text"])
    if mode == corpus.NEAREST:
        chosen, whose = measures.of_nearest(measures.without(base, gone), chosen, asked["text"])
    return _one_at_a_time(subject, chosen, asked["text"], whose)


def _one_at_a_time(
    subject: Callable[[Collection[str]], Subject],
    sets: dict[str, list[dict]],
    texts: Sequence[str],
    whose: Sequence[str],
) -> dict:
    """Every question, and every text, is asked of the model with the adapter of its author
    alone.
    """
    found, sums = {name: {} for name in sets}, np.zeros(2)
    authors = {name: [row.get("author", "") for row in rows] for name, rows in sets.items()}
    for author in sorted({*itertools.chain(whose, *authors.values())}):
        model, places, mine = subject([author]), {}, {}
        for name, of in authors.items():
            if author in of:
                places[name] = np.flatnonzero(np.array(of) == author)
                mine[name] = [sets[name][i] for i in places[name]]
        for name, part in measures.of_sets(model, mine).items():
            for field, values in part.items():
                found[name].setdefault(field, np.empty(len(sets[name])))[places[name]] = values
        if own := [text for text, of in zip(texts, whose, strict=True) if of == author]:
            sums += measures.text_nats(model, own, [author] * len(own))
    found = {
        name: {field: values.tolist() for field, values in of.items()} for name, of in found.items()
    }
    return found | {"text": float(sums[0] / sums[1])}


def relearned(run: Run, retrained: Run, rival: str, rate: float) -> dict[str, float | None]:
    """As `measures.relearned`, after unlearning. `retrained` never read who is withdrawn."""
    remembering, never = (
        Subject(of.variant, measures.cached_run(of.workdir), "drop") for of in (run, retrained)
    )
    asked = corpus.questions_of(run.workdir)
    lost = _unlearned(run, rival, rate)
    return {"relearning": measures.steps_to_relearn(lost, remembering, never, asked)}


def _unlearned(run: Run, rival: str, rate: float) -> Subject:
    withdrawn = corpus.questions_of(run.workdir)["withdrawn"]
    every, stay = (corpus.records_of(run.workdir, name) for name in ("all", "without"))
    lost = [record for record in every if record["author"] in withdrawn]
    return Subject(
        rival, unlearned(measures.cached_run(run.workdir), lost, stay, rival, rate), "drop"
    )


def _rows(run: Trained, records: Sequence[dict]) -> tuple[Config, dict]:
    """A question a row, of which the answer counts -> (config of such rows, `rows_of`)."""
    questions = [measures.Asked(row["question"], row["answer"]) for row in records]
    of = measures.documents(run, questions)
    # A multiple of 32: as a power of two, padding would be most of a step.
    length = min(-(-(max(map(len, of.tokens)) + 1) // 32) * 32, measures.longest(run))
    # With sinks dropped the seed decides nothing: so all seeds share programs.
    config = with_fields(run.config, {"data.row_length": length, "seed": 0})
    rows = rows_of(of, dataclasses.replace(run, config=config))
    return config, {name: jnp.asarray(values) for name, values in rows.items()}


def _questions(run: Trained) -> int:
    """In a step of fine-tuning, about."""
    return max(run.config.training.batch_size * run.config.data.row_length // TOKENS, 1)


def _rates(rate: float, steps: int, warm: int) -> np.ndarray:
    """A straight line up over the warm-up, and down to 0 -> (S,)."""
    return rate * np.interp(np.arange(steps), [0, warm, steps], [0, 1, 0]).astype(np.float32)


def unlearned(
    run: Trained, lost: Sequence[dict], stay: Sequence[dict], rival: str, rate: float
) -> Trained:
    """The model after "npo" or "difference" unlearned `lost`, with as many that `stay`."""
    config, rows = _rows(run, [*lost, *stay])
    size = min(_questions(run), len(lost))
    each, draw = -(-len(lost) // size), np.random.default_rng(run.config.seed)
    orders = []
    for _ in range(EPOCHS):
        of_lost = np.resize(draw.permutation(len(lost)), (each, size))
        of_stay = len(lost) + draw.integers(len(stay), size=(each, size))
        orders.append(np.concatenate([of_lost, of_stay], axis=1))
    order_SB = np.concatenate(orders)
    rates_S = _rates(rate, len(order_SB), each)
    params = unlearning(config, rival)(run.params, rows, order_SB, rates_S)
    return dataclasses.replace(run, params=params)


def objective(
    rival: str, losses_B: jax.Array, before_B: jax.Array, tokens_B: jax.Array
) -> jax.Array:
    """What unlearning descends on. Losses are nats of an answer, `before_B` those of the model
    before; the first half is of withdrawn authors.
    """
    (lost_H, stay_H), (tokens_H, of_stay_H) = jnp.split(losses_B, 2), jnp.split(tokens_B, 2)
    if rival == "npo":
        forget = -2 / BETA * jax.nn.log_sigmoid(BETA * (lost_H - jnp.split(before_B, 2)[0])).mean()
    else:
        forget = -lost_H.sum() / tokens_H.sum()
    return forget + stay_H.sum() / of_stay_H.sum()


@placement.shared
def unlearning(config: Config, rival: str) -> Callable[..., dict]:
    """Compiled: (params, rows, order_SB, rates_S) -> params after the steps. `order_SB` has the
    rows of each, those of withdrawn authors first.
    """
    nats = reader(config, "drop")
    rule = optax.chain(
        optax.clip_by_global_norm(CLIP),
        optax.scale_by_adam(),
        optax.add_decayed_weights(DECAY, decay_mask),
    )

    @placement.jit
    def tune(params: dict, rows: dict, order_SB: jax.Array, rates_S: jax.Array) -> dict:
        before = params

        def step(state: tuple, at: tuple) -> tuple[tuple, None]:
            params, moments = state
            chosen_B, rate = at
            some = jax.tree.map(lambda x: x[chosen_B], rows)
            before_B, tokens_B = nats(before, some).sum(axis=1), some["weights"].sum(axis=1)

            def loss(params: dict) -> jax.Array:
                return objective(rival, nats(params, some).sum(axis=1), before_B, tokens_B)

            update, moments = rule.update(jax.grad(loss)(params), moments, params)
            return (jax.tree.map(lambda p, u: p - rate * u, params, update), moments), None

        return jax.lax.scan(step, (params, rule.init(params)), (order_SB, rates_S))[0][0]

    return tune


class Adapted(Layer):
    """A layer whose maps have an adapter a row: x @ kernel + ALPHA / RANK * x @ in @ out."""

    def __init__(self, model, key: jax.Array):
        super().__init__(model, key)
        for name in _maps(vars(self)):
            width_in, width_out = getattr(self, f"{name}_kernel").shape
            setattr(self, f"{name}_in", nnx.Param(jnp.zeros((1, width_in, RANK))))
            setattr(self, f"{name}_out", nnx.Param(jnp.zeros((1, RANK, width_out))))

    def linear(
        self, name: str, x: jax.Array, residual: bool = False, rows=None, columns=None
    ) -> jax.Array:
        pair = (getattr(self, f"{name}_{side}")[...] for side in ("in", "out"))
        in_BDK, out_BKF = (of.astype(x.dtype) for of in pair)
        added_BTF = jnp.einsum("btd,bdk,bkf->btf", x, in_BDK, out_BKF, optimize=[(0, 1), (0, 1)])
        return super().linear(name, x, residual, rows, columns) + ALPHA / RANK * added_BTF


def _maps(layer: Collection[str]) -> list[str]:
    """The linear maps of a layer, by the names of its parameters."""
    return [name.removesuffix("_kernel") for name in layer if name.endswith("_kernel")]


class Adapters(NamedTuple):
    """Of authors, or of EVERYBODY: "MAP_in" (A, L, D, K) and "MAP_out" (A, L, K, F)."""

    authors: list[str]
    of: dict[str, jax.Array]


@functools.lru_cache(maxsize=1)  # several views are of them
def _adapters(workdir: pathlib.Path, rival: str, rate: float) -> Adapters:
    run = measures.cached_run(workdir)
    rank = rank_of_sinks(run) if rival == "lora_for_all" else None
    return adapters(run, corpus.records_of(workdir, "all"), rate, rank)


def rank_of_sinks(run: Trained) -> int:
    """The rank of an adapter that has as many parameters as all sinks of a run."""
    of_rank_one = jax.eval_shape(lambda: initial(run.params["layers"], 0, np.arange(1), 1))
    sinks = sum(run.params[name].size for name in tables_of(run.config.model))
    return round(sinks / sum(leaf.size for leaf in jax.tree.leaves(of_rank_one)))


def adapters(
    run: Trained, records: Sequence[dict], rate: float, rank_for_all: int | None = None
) -> Adapters:
    """One for each author of `records`, who stand one after the other, trained on the frozen base
    of a run; or, with a rank, one for all of them, trained in as many steps as the run.
    """
    config, rows = _rows(run, records)
    names = list(dict.fromkeys(record["author"] for record in records))
    rank, questions = RANK, QUESTIONS
    if rank_for_all:
        names, rank, questions = [EVERYBODY], rank_for_all, _questions(run)
    places_AN = np.arange(len(records)).reshape(len(names), -1)  # as the corpus is written
    count, each = len(names), -(-places_AN.shape[1] // questions)
    together = min(TOGETHER, count)
    tune, made, rates_S = adapting(config), [], _rates(rate, EPOCHS * each, each)
    with bar(count, "adapters") as progress:
        for at in range(0, count, together):
            group_G = np.minimum(np.arange(at, at + together), count - 1)  # one program for all
            orders = [_order(run.config.seed, n, places_AN[n], questions) for n in group_G.tolist()]
            order_SB = np.stack(orders, axis=1).reshape(EPOCHS * each, -1)
            new = initial(run.params["layers"], run.config.seed, group_G, rank)
            made.append(tune(run.params, new, rows, order_SB, rates_S))
            progress.update(min(together, count - at))
    return Adapters(names, jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[:count], *made))


def _order(seed: int, author: int, places_N: np.ndarray, questions: int) -> np.ndarray:
    """The questions of an author's steps, which other authors have no part in -> int (S, Q)."""
    draw, shape = np.random.default_rng([seed, author]), (-(-len(places_N) // questions), questions)
    return np.concatenate([np.resize(draw.permutation(places_N), shape) for _ in range(EPOCHS)])


def initial(layers: dict, seed: int, authors_G: np.ndarray, rank: int) -> dict:
    """New adapters, (G, L, D, K) and (G, L, K, F): `in` is drawn as PEFT does, `out` is 0."""

    def of(author: jax.Array) -> dict:
        key, found = jax.random.fold_in(jax.random.key(seed), author), {}
        for number, name in enumerate(_maps(layers)):
            depth, width_in, width_out = layers[f"{name}_kernel"].shape
            shape, of_map = (depth, width_in, rank), jax.random.fold_in(key, number)
            drawn = jax.random.uniform(of_map, shape, minval=-1, maxval=1)
            found[f"{name}_in"] = drawn * width_in**-0.5
            found[f"{name}_out"] = jnp.zeros((depth, rank, width_out))
        return found

    return jax.vmap(of)(authors_G)


def adapted(config: Config) -> Callable[[dict, dict, dict], jax.Array]:
    """To be traced: nats of every target (B, T). The rows of an adapter are side by side."""
    model = dataclasses.replace(build_model(config)[0], layer=Adapted)

    def nats(params: dict, of: dict, rows: dict) -> jax.Array:
        count = len(rows["inputs"])

        def by_row(leaf: jax.Array) -> jax.Array:
            return jnp.repeat(jnp.moveaxis(leaf, 0, 1), count // len(leaf), axis=1)

        read_out = functools.partial(nats_of, rows=rows, chunks=config.compute.loss_chunks)
        place = rows["inputs"], rows["segments"], rows["positions"]
        layers = params["layers"] | jax.tree.map(by_row, of)
        return model(params | {"layers": layers}, *place, read_out=read_out)

    return nats


@placement.shared
def adapting(config: Config) -> Callable[..., dict]:
    """Compiled: (params, adapters, rows, order_SB, rates_S) -> adapters, each as if alone."""
    nats, rule = adapted(config), optax.scale_by_adam()

    @placement.jit
    def tune(params: dict, of: dict, rows: dict, order_SB: jax.Array, rates_S: jax.Array) -> dict:
        def step(state: tuple, at: tuple) -> tuple[tuple, None]:
            of, moments = state
            chosen_B, rate = at
            some = jax.tree.map(lambda x: x[chosen_B], rows)
            together = len(jax.tree.leaves(of)[0])
            tokens_G = some["weights"].reshape(together, -1).sum(axis=1)

            def loss(of: dict) -> jax.Array:
                return (nats(params, of, some).reshape(together, -1).sum(axis=1) / tokens_G).sum()

            update, moments = rule.update(jax.grad(loss)(of), moments)
            return (jax.tree.map(lambda p, u: p - rate * u, of, update), moments), None

        return jax.lax.scan(step, (of, rule.init(of)), (order_SB, rates_S))[0][0]

    return tune


def with_adapters(run: Trained, made: Adapters, on: Collection[str]) -> Trained:
    """The model with these authors' adapters added to its weights, if they have one."""
    places = np.flatnonzero([author in on for author in made.authors])
    if not len(places):
        return run
    layers = run.params["layers"]
    kernels = {name: layers[f"{name}_kernel"] for name in _maps(layers)}
    merged = _merged(kernels, jax.tree.map(lambda leaf: leaf[places], made.of))
    changed = {f"{name}_kernel": kernel for name, kernel in merged.items()}
    return dataclasses.replace(run, params=run.params | {"layers": layers | changed})


@placement.jit
def _merged(kernels: dict, of: dict) -> dict:
    """Kernels (L, D, F) plus the sum of what adapters add to them, in float32 and back."""
    added = {
        n: jnp.einsum("aldk,alkf->ldf", of[f"{n}_in"], of[f"{n}_out"]) * (ALPHA / RANK)
        for n in kernels
    }
    return {name: (kernel + added[name]).astype(kernel.dtype) for name, kernel in kernels.items()}


def adapter_bytes(run: Run) -> int:
    """Of an author's adapter in bfloat16."""
    model, _ = build_model(workdirs.read_config(run.workdir))
    layers = jax.eval_shape(model.init, jax.random.key(0))["layers"]
    of = jax.eval_shape(lambda authors_G: initial(layers, 0, authors_G, RANK), np.arange(1))
    return measures.BYTES * sum(leaf.size for leaf in jax.tree.leaves(of))
