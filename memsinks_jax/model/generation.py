"""Generates continuations of a batch of prompts with a trained model and a cache of keys and
values.

    run = open_run(pathlib.Path("runs/sinks"))
    generator = Generator.of(run)
    for written in generator(["Once upon a time", ""], Settings(max_tokens=50, temperature=0.8)):
        print(written.text)

As in training, a document opens with the tokenizer's `begin_of_text`. A prompt is the beginning of
a document, and may be empty. Q prompts, each about K sources, mostly one; B rows: those of a prompt
stand one after the other, and `mixture` makes one prediction of them. P places hold the longest
prompt with what opens it, T places also its continuation; V vocabulary.
"""

import dataclasses
import numbers
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from memsinks_jax.config import Config, InputError
from memsinks_jax.data.contexts import Contexts, window
from memsinks_jax.data.opened import Opened
from memsinks_jax.data.tokenizer import PADDING, AnyTokenizer
from memsinks_jax.model import mixture, placement
from memsinks_jax.model.context_rows import Lookup
from memsinks_jax.model.decoder import Cache, Change, build_model, compose, empty_cache, no_change
from memsinks_jax.model.losses import logits
from memsinks_jax.sinks.interventions import sink_interventions
from memsinks_jax.sinks.kinds import MODES

_SMALLEST = 16  # places; lengths are rounded up to powers of two from here, to compile few programs
_UNFINISHED = "\ufffd"  # how a tokenizer decodes an incomplete character


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to sample. Another `sinks` compiles again, and so may a larger `max_tokens`."""

    max_tokens: int = 64  # per prompt; end of text stops earlier
    temperature: float = 1.0  # 0: always the most likely token
    top_k: int = 0  # sample from the K most likely tokens; 0: from all
    # sample from the fewest most likely tokens with at least this probability together
    top_p: float = 1.0
    seed: int = 0
    sinks: str = "drop"  # one of MODES

    @classmethod
    def of(cls, **settings) -> "Settings":
        """Raises InputError for a name that is none of the fields."""
        names = [field.name for field in dataclasses.fields(cls)]
        if unknown := sorted(settings.keys() - set(names)):
            raise InputError(f"{unknown[0]} is no setting; choose from {', '.join(names)}")
        return cls(**settings)

    def __post_init__(self):
        """Raises InputError for a value that cannot be used, of another type too. Scalars of NumPy
        are fine.
        """
        whole, real, most = numbers.Integral, numbers.Real, float(np.finfo(np.float32).max)
        for name, kind, fits, wanted in (
            ("max_tokens", whole, lambda value: 1 <= value < 2**31, "a whole number from 1"),
            (
                "temperature",
                real,
                lambda value: 0 <= value <= most,
                "a number from 0 (the likeliest token)",
            ),
            (
                "top_k",
                whole,
                lambda value: 0 <= value < 2**31,
                f"a whole number from 0 (all tokens) to {2**31 - 1}",
            ),
            (
                "top_p",
                real,
                lambda value: 0 < value <= 1,
                "a number over 0 and at most 1 (all tokens)",
            ),
            (
                "seed",
                whole,
                lambda value: 0 <= value < 2**32,
                f"a whole number from 0 to {2**32 - 1}",
            ),
        ):
            value = getattr(self, name)
            if not isinstance(value, kind) or isinstance(value, bool) or not fits(value):
                raise InputError(f"{name} is {value!r:.60}; it must be {wanted}")
        if self.sinks not in MODES:
            raise InputError(f"sinks is {self.sinks!r:.60}; choose one of: {', '.join(MODES)}")


class Written(NamedTuple):
    """A continuation, without its prompt and without end of text; `tokens` int32 (tokens,)."""

    text: str
    tokens: np.ndarray


class _State(NamedTuple):
    """What changes from token to token: the first `count` columns of `written_BT` are written."""

    cache: Cache
    written_BT: jax.Array
    open_B: jax.Array  # whether a row has no end of text yet
    weights_QK: jax.Array  # of the K sources of each prompt, see `mixture`
    count: jax.Array


class Generator:
    """Generates continuations. Compiles once for each mode of the sinks, number of prompts and
    rounded lengths.

    `opened` is which documents have sinks of their own: in the mode own, other ids have none.
    `contexts` are those that have sinks: then no id is needed. `change` adds interventions
    to the sinks, such as memories: (B, T) bool of the tokens that are real, and of those that need
    a next token -> interventions.
    """

    def __init__(
        self,
        config: Config,
        tokenizer: AnyTokenizer,
        params: dict,
        opened: Opened,
        change: Change = no_change,
        contexts: Contexts | None = None,
    ):
        self._lookup = contexts and Lookup.of(contexts)
        self._config, self._tokenizer = config, tokenizer
        self._params, self._opened = params, opened
        beyond = range(tokenizer.vocabulary_size, config.data.vocabulary_size)
        unseeded = dataclasses.replace(config, seed=0)  # the seed is an argument
        self._programs = _programs(
            unseeded, change, (*tokenizer.absent, *beyond), tuple(tokenizer.stops)
        )

    @classmethod
    def of(cls, run, change: Change = no_change) -> "Generator":
        """For a trained model, as `models.trained.open_run` gives it."""
        return cls(run.config, run.tokenizer, run.params, run.opened, change, run.contexts)

    def __call__(
        self,
        prompts: list[str | np.ndarray],
        settings: Settings | None = None,
        identities: np.ndarray | None = None,
        complete: bool = False,
    ) -> list[Written]:
        """The last result of `stream`."""
        settings = settings or Settings()
        *_, written = self.stream(prompts, settings, identities, settings.max_tokens, complete)
        return written

    def stream(
        self,
        prompts: list[str | np.ndarray],
        settings: Settings,
        identities: np.ndarray | None = None,
        every: int = 8,
        complete: bool = False,
    ) -> Iterator[list[Written]]:
        """Yields all continuations so far: after the first token, then after `every` more tokens,
        until all are done.

        A row's tokens depend on its prompt, its index, its id and the settings, not on other rows.

        Args:
          prompts: texts, or int32 (tokens,) without end of text.
          identities: uint32 (2,) or (prompts, 2), ids of the documents that start with the prompts,
            for the modes own and other. The beginning of a document does not determine its id.
            (prompts, sources, 2): of the sources that each is about, read one by one.
          complete: the prompts are tokens that bring what opens them, as those of a chat do.
        Raises:
          InputError: no prompts, no identities but a mode that needs them, more tokens than the
          context.
        """
        room = self._config.data.row_length
        if not prompts:
            raise InputError("there is no prompt; give at least one, '' for text from nothing")
        if identities is None and settings.sinks in ("own", "other") and not self._lookup:
            raise InputError(
                f"sinks={settings.sinks} needs the id of the document that starts with the "
                "prompt (see documents.jsonl "
                "of the run), or take sinks=drop"
            )
        openings = [
            self._tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
            for prompt in prompts
        ]
        if not complete:
            openings = [
                np.concatenate([[self._tokenizer.begin_of_text], opening]) for opening in openings
            ]
        longest = max(map(len, openings)) - 1
        # The row is what opens it, the prompt, and all written tokens but the last, which is never
        # read.
        if longest + settings.max_tokens > room:
            raise InputError(
                f"a prompt of {longest} tokens and {settings.max_tokens} to write do not fit in "
                f"the context of {room}; "
                "shorten the prompt or lower max_tokens"
            )
        request, sources = self._request(
            openings, _rounded(1 + longest, room), settings, identities
        )
        mode, places = settings.sinks, _rounded(longest + settings.max_tokens, room)
        about = {"mode": mode, "room": places, "sources": sources}
        state, until = self._programs.read(self._params, request, **about), 1
        while True:
            state = self._programs.write(self._params, state, request, np.int32(until), mode=mode)
            count, written_QT = int(state.count), np.asarray(state.written_BT)[::sources]
            over = count == settings.max_tokens or not np.asarray(state.open_B).any()
            yield [
                self._written(o, row[:count], over)
                for o, row in zip(openings, written_QT, strict=True)
            ]
            if over:
                return
            until = min(count + every, settings.max_tokens)

    def _request(
        self,
        openings: list[np.ndarray],
        places: int,
        settings: Settings,
        identities: np.ndarray | None,
    ) -> tuple[dict, int]:
        """What the programs read, and the number of sources of each prompt."""
        ids = np.zeros(2, np.uint32) if identities is None else np.asarray(identities, np.uint32)
        ids = ids if ids.ndim == 3 else ids[..., None, :]
        sources = ids.shape[-2]
        identities_B2 = np.broadcast_to(ids, (len(openings), sources, 2)).reshape(-1, 2)
        tokens_QP = np.full((len(openings), places), PADDING, np.int32)
        for row, opening in zip(tokens_QP, openings, strict=True):
            row[: len(opening)] = opening
        return {
            "known_B": np.repeat([len(opening) for opening in openings], sources).astype(np.int32),
            "tokens_BP": np.repeat(tokens_QP, sources, axis=0),
            "lookup": self._lookup if settings.sinks != "drop" else None,
            "identities_B12": identities_B2[:, None],
            "opened_B1": self._opened(identities_B2)[:, None] if settings.sinks == "own" else None,
            "sinks_seed": np.uint32(self._config.seed),
            "temperature": np.float32(settings.temperature),
            "top_k": np.int32(settings.top_k),
            "top_p": np.float32(settings.top_p),
            "seed": np.uint32(settings.seed),
        }, sources

    def _written(self, opening: np.ndarray, tokens: np.ndarray, over: bool) -> Written:
        ended = np.isin(tokens, self._tokenizer.stops)
        tokens = tokens[: np.argmax(ended)].copy() if ended.any() else tokens.copy()
        text = text_after(self._tokenizer, opening, tokens)
        return Written(text if over or ended.any() else text.rstrip(_UNFINISHED), tokens)


class _Programs:
    """What a generator of a model runs, compiled."""

    def __init__(
        self, config: Config, change: Change, without_token: tuple[int, ...], stops: tuple[int, ...]
    ):
        self._config, self._change, self._without_token, self._stops = (
            config,
            change,
            without_token,
            stops,
        )
        self._model, _ = build_model(config)
        self.read = placement.jit(self._read_prompts, static_argnames=("mode", "room", "sources"))
        self.write = placement.jit(self._write_on, static_argnames="mode", donate_argnames="state")

    def _read_prompts(
        self, params: dict, request: dict, mode: str, room: int, sources: int
    ) -> _State:
        """Reads all prompts in one pass, and draws the first token after each. The cache gets
        `room` places.

        Prompts are padded on the right. Earlier places do not see the padding in the cache, and new
        tokens overwrite it.
        """
        tokens_BP = request["tokens_BP"]
        batch, length = tokens_BP.shape
        cache = empty_cache(self._config.model, batch, room)
        positions_BP = jnp.broadcast_to(jnp.arange(length), tokens_BP.shape)
        known_B1 = request["known_B"][:, None]
        interventions = compose(
            self._gates(request, mode, tokens_BP, positions_BP, length),
            self._change(positions_BP < known_B1, positions_BP == known_B1 - 1),
        )

        def of_last(x_BPD: jax.Array, head_DV: jax.Array) -> jax.Array:
            return logits(
                jnp.take_along_axis(x_BPD, known_B1[:, :, None] - 1, axis=1)[:, 0], head_DV
            )

        logits_BV, cache = self._model(
            params, tokens_BP, jnp.ones_like(tokens_BP), positions_BP, interventions, cache, of_last
        )
        nothing = _State(
            cache,
            jnp.zeros((batch, room), jnp.int32),
            jnp.ones(batch, bool),
            mixture.equal(batch // sources, sources),
            jnp.zeros((), jnp.int32),
        )
        return self._append(nothing, logits_BV, request)

    def _write_on(
        self, params: dict, state: _State, request: dict, until: jax.Array, mode: str
    ) -> _State:
        """Adds tokens until there are `until`, or every row has its end of text."""
        every_B1 = jnp.ones((state.written_BT.shape[0], 1), bool)
        window_N = jnp.arange(1 - window(self._config.contexts.length), 1)

        def write_one(state: _State) -> _State:
            last_B1 = jax.lax.dynamic_slice_in_dim(state.written_BT, state.count - 1, 1, axis=1)
            positions_B1 = request["known_B"][:, None] + state.count - 1
            gates = self._gates(
                request, mode, *self._before(positions_B1 + window_N, request, state), 1
            )
            interventions = compose(gates, self._change(every_B1, every_B1))
            logits_B1V, cache = self._model(
                params, last_B1, jnp.ones_like(last_B1), positions_B1, interventions, state.cache
            )
            return self._append(state._replace(cache=cache), logits_B1V[:, 0], request)

        return jax.lax.while_loop(
            lambda state: (state.count < until) & state.open_B.any(), write_one, state
        )

    def _before(
        self, places_BN: jax.Array, request: dict, state: _State
    ) -> tuple[jax.Array, jax.Array]:
        """The tokens at some places of the rows, and the places; nothing is at those below 0."""
        written_BN = places_BN - request["known_B"][:, None]
        known, written = (
            jnp.take_along_axis(tokens, jnp.maximum(places, 0), axis=1)
            for tokens, places in (
                (request["tokens_BP"], places_BN),
                (state.written_BT, written_BN),
            )
        )
        return jnp.where(written_BN < 0, known, written), places_BN

    def _gates(
        self, request: dict, mode: str, tokens_BT: jax.Array, places_BT: jax.Array, last: int
    ) -> dict:
        """The interventions at the `last` ones of some tokens, which are at `places_BT` in their
        documents.
        """
        own, rows_BT = (
            (request["identities_B12"], request["sinks_seed"], None, request["opened_B1"]),
            None,
        )
        if request["lookup"] is not None:
            rows_BT = request["lookup"].rows(tokens_BT, places_BT, self._config.contexts.length)[
                :, -last:
            ]
        return sink_interventions(self._config, mode, *own, contexts_BT=rows_BT)

    def _append(self, state: _State, logits_BV: jax.Array, request: dict) -> _State:
        # A model may have more embeddings than its tokenizer has tokens. They are exported too.
        has_token_V = np.isin(np.arange(logits_BV.shape[-1]), self._without_token, invert=True)
        logits_BV = jnp.where(has_token_V, logits_BV, -jnp.inf)
        weights_QK, sources = state.weights_QK, state.weights_QK.shape[1]
        if sources > 1:
            scores_QKV = jax.nn.log_softmax(logits_BV).reshape(*weights_QK.shape, -1)
            logits_BV = mixture.mixed(weights_QK, scores_QKV)
        tokens_Q = choose(
            logits_BV,
            request["known_B"][::sources] + state.count,
            request["seed"],
            request["temperature"],
            request["top_k"],
            request["top_p"],
        )
        if sources > 1:
            chosen_QKV = jnp.take_along_axis(scores_QKV, tokens_Q[:, None, None], axis=-1)
            weights_QK = mixture.after(weights_QK, chosen_QKV[..., 0])
        tokens_B = jnp.repeat(tokens_Q, sources)
        written_BT = jax.lax.dynamic_update_slice_in_dim(
            state.written_BT, tokens_B[:, None], state.count, axis=1
        )
        open_B = state.open_B & ~jnp.isin(tokens_B, jnp.array(self._stops))
        return _State(state.cache, written_BT, open_B, weights_QK, state.count + 1)


_programs = placement.shared(_Programs)


def text_after(tokenizer: AnyTokenizer, opening: np.ndarray, tokens: np.ndarray) -> str:
    """The text that `tokens` add to `opening`. Many tokenizers would drop its first space if they
    decoded it alone.
    """
    return tokenizer.decode(np.concatenate([opening, tokens]))[len(tokenizer.decode(opening)) :]


def choose(
    logits_BV: jax.Array, positions_B: jax.Array, seed, temperature, top_k, top_p
) -> jax.Array:
    """The next token of every row -> int32 (B,).

    Drawn with a key of (seed, row, position), independent of other rows. The parameters are those
    of Settings; all may be traced.
    """

    def draw() -> jax.Array:
        # The maximum is 0, so that no temperature, however low, makes it infinite.
        scaled_BV = (logits_BV - logits_BV.max(axis=-1, keepdims=True)) / temperature
        cut_BV = jax.lax.cond(
            (top_k > 0) | (top_p < 1),
            lambda: _likeliest(scaled_BV, top_k, top_p),
            lambda: scaled_BV,
        )
        root = jax.random.key(seed, impl="threefry2x32")
        rows_B = jnp.arange(logits_BV.shape[0])
        fold = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
        keys_B = jax.vmap(jax.random.fold_in)(fold(root, rows_B), positions_B)
        return jax.vmap(jax.random.categorical)(keys_B, cut_BV).astype(jnp.int32)

    return jax.lax.cond(temperature > 0, draw, lambda: logits_BV.argmax(axis=-1).astype(jnp.int32))


def _likeliest(logits_BV: jax.Array, top_k, top_p) -> jax.Array:
    """Keeps the `top_k` most likely tokens, and of those the fewest that together have `top_p`;
    -inf for all others.

    Tokens as likely as the last one are kept too.
    """
    sorted_BV = jnp.sort(logits_BV, axis=-1, descending=True)
    ranks_V = jnp.arange(logits_BV.shape[-1])
    sorted_BV = jnp.where((top_k == 0) | (ranks_V < top_k), sorted_BV, -jnp.inf)
    chances_BV = jax.nn.softmax(sorted_BV, axis=-1)
    before_BV = jnp.cumsum(chances_BV, axis=-1) - chances_BV
    # At 1 nothing is cut: with rounding, the sum of many small probabilities may reach 1 too early.
    allowed_BV = (before_BV < top_p) | (top_p >= 1) | (ranks_V == 0)
    lowest_B1 = jnp.where(allowed_BV & (sorted_BV > -jnp.inf), sorted_BV, jnp.inf).min(
        axis=-1, keepdims=True
    )
    return jnp.where(logits_BV >= lowest_B1, logits_BV, -jnp.inf)


def _rounded(length: int, most: int) -> int:
    return min(max(_SMALLEST, 1 << (length - 1).bit_length()), most)
