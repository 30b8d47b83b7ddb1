"""Generation with a cache: the same tokens as without, for any batch, with the right
probabilities.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import EVERYBODY, expect_input_error, tiny_config
from folders import write
from test_commands import assert_refused, last_json, run
from uncached import Continuation

from memsinks_jax import api
from memsinks_jax import generate as command
from memsinks_jax.config import SinksConfig, with_fields
from memsinks_jax.data import ids
from memsinks_jax.data.opened import Opened
from memsinks_jax.data.tokenizer import train_tokenizer
from memsinks_jax.model import mixture
from memsinks_jax.model.decoder import build_model
from memsinks_jax.model.generation import Generator, Settings, choose, text_after
from memsinks_jax.models.trained import Trained
from memsinks_jax.sinks.gates import apply_gates, gates_for_mode
from memsinks_jax.training.step import init_state

FAMILIES = {
    "gpt2": {},
    "llama": {
        "family": "llama",
        "attention_bias": False,
        "mlp_bias": False,
        "heads": 4,
        "kv_heads": 2,
        "tied_head": False,
    },
}
END, ABSENT, TOKENS = 7, 50, 200
PROMPTS = ["", "Once upon a time", "A", "She walked over there"]
IDENTITIES = np.array([[1, 2], [3, 4], [5, 6], [2**32 - 1, 8]], np.uint32)


class Bytes:
    """A tokenizer of UTF-8 bytes with 8 pieces in front, of which END is end of text; there is no
    ABSENT, and 2 embeddings are to spare.
    """

    end_of_text = begin_of_text = END
    stops, vocabulary_size, absent = (END,), 264, (ABSENT,)

    def encode(self, text):
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32) + 8

    def decode(self, tokens):
        return bytes(int(token) - 8 for token in tokens if token > END).decode(errors="replace")


def model_of(family):
    config = with_fields(tiny_config(), {"data.row_length": 256, "data.vocabulary_size": 266})
    for name, value in FAMILIES[family].items():
        config = with_fields(config, {f"model.{name}": value})
    params = jax.jit(lambda: init_state(config, 10).params)()
    # Away from the initial values, where biases are 0 and scales 1 and mistakes with them would not
    # show.
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    leaves = [a + jax.random.normal(key, a.shape) for a, key in zip(leaves, keys, strict=True)]
    params = jax.tree.unflatten(tree, leaves)
    # Logit 0, never the likeliest: of end of text, so that greedy texts are as long as they may be,
    # and of what the tokenizer does not have, since tests/uncached.py knows no difference.
    for token in (END, ABSENT, 264, 265):
        params["token_embedding"] = params["token_embedding"].at[token].set(0.0)
        if "head_kernel" in params:
            params["head_kernel"] = params["head_kernel"].at[:, token].set(0.0)
    return config, params


@functools.cache
def world_of(family):
    config, params = model_of(family)
    return config, params, Generator(config, Bytes(), params, EVERYBODY)


@pytest.fixture(params=FAMILIES)
def world(request):
    return world_of(request.param)


@pytest.fixture
def gpt2():
    return world_of("gpt2")


def tokens_of(written):
    return [row.tokens.tolist() for row in written]


@pytest.mark.parametrize("mode", ["drop", "own", "all"])
def test_with_cache_equals_without(world, mode):
    config, params, generator = world
    written = tokens_of(generator(PROMPTS, Settings(TOKENS, temperature=0, sinks=mode), IDENTITIES))
    longest = max(map(len, PROMPTS))
    for prompt, identity, tokens in zip(PROMPTS, IDENTITIES, written, strict=True):
        opening = Bytes().encode(prompt)
        assert len(tokens) == TOKENS and len(set(tokens)) > 8
        plain = Continuation(config, longest + TOKENS, END)
        without = plain(params, [opening], identity[None], mode)[0]
        assert tokens == without[:TOKENS].tolist()


def test_the_modes_differ(gpt2):
    _, _, generator = gpt2
    texts = [
        tokens_of(generator(PROMPTS, Settings(TOKENS, temperature=0, sinks=mode), IDENTITIES))
        for mode in ("drop", "own", "all", "other")
    ]
    assert all(one != other for n, one in enumerate(texts) for other in texts[:n])


def test_a_batch_equals_each_prompt_alone(world):
    _, _, generator = world
    settings = Settings(TOKENS, temperature=0, sinks="own")
    together = tokens_of(generator(PROMPTS, settings, IDENTITIES))
    for prompt, identity, tokens in zip(PROMPTS, IDENTITIES, together, strict=True):
        assert tokens_of(generator([prompt], settings, identity)) == [tokens]


def test_of_two_sources_one_prediction_is_made(world):
    """They weigh as much as they predicted what was written."""
    config, params, generator = world
    model, parts = build_model(config)
    settings = Settings(40, temperature=0, sinks="own")
    pairs = np.stack([IDENTITIES, np.roll(IDENTITIES, 1, axis=0)], axis=1)
    alone = [tokens_of(generator(PROMPTS, settings, one)) for one in (pairs[:, 0], pairs[:, 1])]
    assert alone[0] == tokens_of(generator(PROMPTS, settings, pairs[:, [0, 0]]))
    mixed = tokens_of(generator(PROMPTS, settings, pairs))
    assert any(one not in (mine, other) for one, mine, other in zip(mixed, *alone, strict=True))
    for prompt, pair, written in zip(PROMPTS, pairs, mixed, strict=True):
        row = np.tile([END, *Bytes().encode(prompt), *written], (2, 1))
        gates = gates_for_mode("own", pair[:, None], config.seed, parts, config.sinks)
        at = np.ones_like(row), np.broadcast_to(np.arange(row.shape[1]), row.shape)
        scores_KTV = jax.nn.log_softmax(model(params, row, *at, apply_gates(gates, at[0])))
        weights_K = np.log([0.5, 0.5])
        for place, token in enumerate(written, len(prompt)):
            assert np.logaddexp(*(weights_K[:, None] + scores_KTV[:, place])).argmax() == token
            weights_K = jax.nn.softmax(weights_K + scores_KTV[:, place, token])
            weights_K = np.log((1 - mixture.SWITCH) * weights_K + mixture.SWITCH / 2)


def test_one_id_is_everybodys(gpt2):
    _, _, generator = gpt2
    settings = Settings(TOKENS, temperature=0, sinks="own")
    asked = IDENTITIES[0], IDENTITIES[[0, 0, 0, 0]]
    one, four = (tokens_of(generator(PROMPTS, settings, each)) for each in asked)
    assert one == four


def test_a_row_is_drawn_with_its_seed_and_place_alone(gpt2):
    """Whatever else is in the batch, and however long that is."""
    _, _, generator = gpt2
    settings = Settings(TOKENS, temperature=0.7)
    together = generator(["same", "same", "other", "the longest of them"], settings)
    first, second, *_ = tokens_of(together)
    assert first != second
    again = tokens_of(generator(["a much longer prompt", "same", "", ""], settings))
    assert again[1] == second
    assert tokens_of(generator(["same"], settings)) == [first]
    assert tokens_of(generator(["same"], Settings(TOKENS, temperature=0.7, seed=1))) != [first]


def test_rows_stop_at_their_end_of_text(gpt2, monkeypatch):
    """At a high temperature end of text comes as often as all others: each row's tokens are those
    up to its own.
    """
    _, _, generator = gpt2
    hot = [Settings(TOKENS, temperature=1e6, seed=seed) for seed in range(6)]
    written = [tokens for settings in hot for tokens in tokens_of(generator(PROMPTS, settings))]
    assert len({len(tokens) for tokens in written}) > 5 and max(map(len, written)) == TOKENS
    assert all(not {END, ABSENT, 264, 265} & set(tokens) for tokens in written)
    *_, last = generator.stream(PROMPTS, hot[0], every=3)
    assert tokens_of(last) == written[:4]
    # A row alone ends the loop when it ends, not when all places are full.
    seed = next(seed for seed in range(6) if len(written[4 * seed]) < TOKENS)
    assert tokens_of(generator(PROMPTS[:1], hot[seed])) == [written[4 * seed]]
    counts = []
    monkeypatch.setattr(generator, "_written", lambda _, tokens, over: counts.append(len(tokens)))
    generator(PROMPTS[:1], hot[seed])
    assert counts == [1, len(written[4 * seed]) + 1]


def test_a_prompt_fills_the_context_to_the_last_place(gpt2):
    config, params, generator = gpt2
    length = config.data.row_length
    prompt = "abcdefgh" * (length // 8 - 1)
    (written,) = tokens_of(generator([prompt], Settings(8, temperature=0)))
    asked = [Bytes().encode(prompt)], IDENTITIES[:1], "drop"
    without = Continuation(config, length, END)(params, *asked)[0]
    assert len(written) == 8 and written[:7] == without.tolist()
    with expect_input_error("248 tokens and 9 to write do not fit in the context of 256"):
        generator([prompt], Settings(9))


def test_a_stream_grows_by_whole_characters(gpt2):
    _, _, generator = gpt2
    settings = Settings(TOKENS, temperature=2.0)
    (whole,) = generator(["é"], settings)
    texts = [written.text for (written,) in generator.stream(["é"], settings, every=1)]
    assert texts[-1] == whole.text and len(set(texts)) > 50
    assert all(later.startswith(earlier) for earlier, later in zip(texts, texts[1:], strict=False))
    assert not any(text.endswith("\ufffd") for text in texts[:-1])


def test_the_space_between_prompt_and_text_is_kept():
    tokenizer = train_tokenizer(["the cat sat on the mat, and the dog sat on the cat"] * 4, 290)
    opening, tokens = tokenizer.encode("the cat"), tokenizer.encode("sat")
    assert tokenizer.decode(tokens) == "sat"
    assert text_after(tokenizer, opening, tokens) == " sat"
    assert text_after(tokenizer, opening[:0], tokens) == "sat"


def test_a_token_copies_neither_the_cache_nor_a_key_head_for_each_query_head(monkeypatch):
    """In a long context that takes longer than all else. A layer's keys and values are copied."""
    config = with_fields(model_of("llama")[0], {"data.row_length": 1024, "model.layers": 4})
    params = jax.jit(lambda: init_state(config, 10).params)()
    generator = Generator(config, Bytes(), params, EVERYBODY)
    asked = []
    monkeypatch.setattr(generator._programs, "write", lambda *given, mode: asked.extend(given))
    with pytest.raises(AttributeError):  # nothing is written
        generator(PROMPTS, Settings(1000))
    write = jax.jit(generator._programs._write_on, static_argnames="mode", donate_argnames="state")
    used = write.lower(*asked, mode="drop").compile().memory_analysis().temp_size_in_bytes
    assert used < sum(array.nbytes for array in asked[1].cache) / 2


def test_programs_are_shared_by_lengths_and_settings():
    config, params = model_of("gpt2")
    traced = []

    def counting(real_BT, asked_BT):
        traced.extend([1] * (real_BT.shape[1] == 1))  # a token is written
        return {}

    generator = Generator(config, Bytes(), params, EVERYBODY, counting)
    for length, settings in ((2, (20,)), (9, (17, 0.5, 3)), (12, (18, 0, 0, 0.5, 9))):
        generator(["x" * length], Settings(*settings))
    assert len(traced) == 1
    generator(["x" * 40], Settings(20))
    assert len(traced) == 2
    # the same model, opened once more
    again = Generator(model_of("gpt2")[0], Bytes(), params, EVERYBODY, counting)
    again(["x" * 40], Settings(20))
    assert len(traced) == 2


def drawn(logits, rows=20_000, seed=3, temperature=1.0, top_k=0, top_p=1.0):
    """How often each token is drawn, as a fraction, over many rows at one position."""
    logits_BV = jnp.tile(jnp.asarray(logits, jnp.float32), (rows, 1))
    tokens = jax.jit(choose)(logits_BV, jnp.zeros(rows, int), seed, temperature, top_k, top_p)
    return np.bincount(tokens, minlength=len(logits)) / rows


LOGITS = np.log([0.4, 0.05, 0.25, 0.2, 0.1]) + 50


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({}, [0.4, 0.05, 0.25, 0.2, 0.1]),
        ({"temperature": 0.5}, np.array([0.16, 0.0025, 0.0625, 0.04, 0.01]) / 0.275),
        ({"top_k": 2}, [0.4 / 0.65, 0, 0.25 / 0.65, 0, 0]),
        ({"top_k": 99}, [0.4, 0.05, 0.25, 0.2, 0.1]),
        ({"top_p": 0.7}, [0.4 / 0.85, 0, 0.25 / 0.85, 0.2 / 0.85, 0]),
        ({"top_p": 0.6}, [0.4 / 0.65, 0, 0.25 / 0.65, 0, 0]),
        ({"top_p": 1e-9}, [1, 0, 0, 0, 0]),
        # of the three, two have .76
        ({"top_k": 3, "top_p": 0.7}, [0.4 / 0.65, 0, 0.25 / 0.65, 0, 0]),
        ({"temperature": 0}, [1, 0, 0, 0, 0]),
        ({"temperature": 1e-38}, [1, 0, 0, 0, 0]),
        ({"temperature": 1e-45}, [1, 0, 0, 0, 0]),
    ],
)
def test_tokens_are_drawn_with_the_right_chances(settings, expected):
    found, expected = drawn(LOGITS, **settings), np.array(expected)
    assert (found[expected == 0] == 0).all()
    deviation = np.sqrt(expected * (1 - expected) / 20_000)
    assert (np.abs(found - expected) <= 4 * deviation + 1e-9).all()


def test_no_temperature_is_too_low():
    """Logits over it are infinite in float32, and all alike."""
    assert drawn([50, 51, 48], rows=10, temperature=2e-38).tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    "values, words",
    [
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**32}, "seed is 4294967296"),
        ({"top_k": 2**31}, "top_k is 2147483648; it must be a whole number from 0"),
        ({"top_k": 1.0}, "top_k is 1.0"),
        ({"top_k": 10**400}, "top_k is 1000"),
        ({"max_tokens": 4.0}, "max_tokens is 4.0; it must be a whole number from 1"),
        ({"max_tokens": True}, "max_tokens is True"),
        ({"max_tokens": None}, "max_tokens is None"),
        ({"temperature": "0"}, "temperature is '0'; it must be a number from 0"),
        ({"temperature": np.inf}, "temperature is inf"),
        ({"temperature": 1e39}, "temperature is 1e[+]39"),  # infinite as a float32
        ({"temperature": np.bool_(True)}, "temperature is "),
        ({"temperature": np.ones(2)}, "temperature is array"),
        ({"top_p": "1"}, "top_p is '1'"),
        ({"top_p": np.nan}, "top_p is nan"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"sinks": ["own"]}, r"sinks is \['own'\]; choose one of"),
        ({"sinks": "none"}, "own, drop, all, other"),
    ],
)
def test_settings_that_cannot_be_used(values, words):
    with expect_input_error(words):
        Settings(**values)


def test_what_the_generator_refuses(gpt2):
    _, _, generator = gpt2
    with expect_input_error("no prompt"):
        generator([])
    for mode in ("own", "other"):
        with expect_input_error(f"sinks={mode} needs the id"):
            generator(["x"], Settings(sinks=mode))


def test_the_commands_result(gpt2, monkeypatch, tmp_path):
    config, params, generator = gpt2
    run = Trained(config, Bytes(), params, 5, EVERYBODY)
    monkeypatch.setattr(api, "open_run", lambda place, only: run)
    settings, seen = Settings(TOKENS, temperature=0, sinks="own"), []
    identity = IDENTITIES[3]
    result = command.generate(tmp_path, ["Once"], settings, ids.to_hex(identity), seen.append)
    (expected,) = generator(["Once"], settings, identity)
    # 1, 9, 17 .. 193, 200 tokens
    assert result["text"] == expected.text == seen[-1] and len(seen) == 26
    assert result["tokens"] == TOKENS
    assert result["tokens_per_second"] > 0
    assert result["sinks"] == "own"
    settings = Settings(TOKENS, temperature=0)
    several = command.generate(tmp_path, PROMPTS, settings)
    assert several["text"] == [row.text for row in generator(PROMPTS, settings)]
    for document in ("12", "0123456789abcdeg", "0x23456789abcdef", "0123456789abcdef0"):
        with expect_input_error("16 hexadecimal digits"):
            command.generate(tmp_path, ["Once"], settings, document)
    assert (ids.from_hex(ids.to_hex(identity)) == identity).all()


@pytest.mark.parametrize(("came_back", "mode"), [(False, "drop"), (True, "own")])
def test_a_document_that_did_not_come_back_has_no_sinks(
    gpt2, monkeypatch, tmp_path, came_back, mode
):
    config, params, generator = gpt2
    known = ids.as_numbers(IDENTITIES[3:4] if came_back else IDENTITIES[:1])
    run = Trained(config, Bytes(), params, 5, Opened(SinksConfig(opens_at=2), lambda: known))
    monkeypatch.setattr(api, "open_run", lambda place, only: run)
    identity, settings = IDENTITIES[3], Settings(8, temperature=0, sinks="own")
    result = command.generate(tmp_path, ["Once"], settings, ids.to_hex(identity))
    (expected,) = generator(["Once"], dataclasses.replace(settings, sinks=mode), identity)
    assert (result["text"], result["sinks"]) == (expected.text, mode)


def test_a_terminal_gets_each_character_once(capsys):
    show = command._Terminal("Once")
    for text in (" up", " up", " upon a"):
        show(text)
    assert capsys.readouterr().out == "Once upon a"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Hugging Face folder of a Llama exported with its sinks."""
    config, _ = model_of("llama")
    tokenizer = train_tokenizer(["the cat sat on the mat, and the dog sat on the cat"] * 4, 290)
    folder = tmp_path_factory.mktemp("models") / "llama"
    config = with_fields(config, {"data.vocabulary_size": tokenizer.vocabulary_size})
    params = init_state(config, 10).params
    write(folder, config, params, tokenizer, drop=False)
    return folder, Generator(config, tokenizer, params, EVERYBODY)


@pytest.mark.slow
def test_the_command_writes_from_a_hugging_face_folder(folder):
    path, generator = folder
    arguments = [f"--workdir={path}", "--prompt=the cat", "--prompt="]
    arguments += ["--max_tokens=12", "--temperature=0.8", "--seed=4"]
    written = generator(["the cat", ""], Settings(12, 0.8, seed=4))
    done = run("generate", *arguments, "--json")
    result = last_json(done)
    assert result["text"] == [row.text for row in written]
    assert result["tokens"] == sum(len(row.tokens) for row in written)
    assert set(result) == {"text", "tokens", "tokens_per_second", "sinks"}
    assert "tokens/s, sinks drop" in done.stderr
    plain = run("generate", *arguments)
    assert plain.returncode == 0
    assert plain.stdout == f"the cat{written[0].text}\n\n{written[1].text}\n"


def test_bad_input_is_one_line(folder):
    assert_refused(run("generate"), "--workdir is missing")
    path = f"--workdir={folder[0]}"
    long = run("generate", path, "--prompt=x", "--max_tokens=256")
    assert_refused(long, "context of 256", "lower max_tokens")
    for mode in ("own", "other"):
        with expect_input_error(f"--sinks={mode} needs --document=ID"):
            command.generate(folder[0], ["x"], Settings(sinks=mode))


def test_what_the_command_refuses(tmp_path):
    for prompts, settings, words in (
        ([], Settings(), "--prompt is missing"),
        (["x"], Settings(), str(tmp_path / "nowhere")),
    ):
        with expect_input_error(words):
            command.generate(tmp_path / "nowhere", prompts, settings)
