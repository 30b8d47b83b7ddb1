"""Tracing and patching a model: against one patch at a time, and against generation with a
cache.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import EVERYBODY, expect_input_error
from test_generation import Bytes, model_of

from memsinks_jax.config import with_fields
from memsinks_jax.editing import boundary, patching
from memsinks_jax.editing.memory import interventions, memory_of
from memsinks_jax.editing.probe import Answers, Probe
from memsinks_jax.editing.prompts import encode, target_token
from memsinks_jax.model.decoder import build_model
from memsinks_jax.model.generation import Generator, Settings
from memsinks_jax.sinks.kinds import partition

TARGET = ord("q") + 8
TEXTS = ["Once upon", "A dog and a cat", "She"]


@functools.cache
def probe_of(family):
    return Probe(*model_of(family))


@pytest.fixture(params=["gpt2", "llama"])
def probe(request):
    return probe_of(request.param)


def forward(probe, prompts, change=None, to=np):
    """Logits after the last place, with the sinks dropped by a product of our own."""
    model, parts = build_model(probe.config)
    on_F = jnp.arange(sum(parts)) < parts.shared

    def at(site):
        def f(x, layer):
            x = x * on_F if site == "mlp" else x
            return change[1](x, layer) if change and change[0] == site else x

        return f

    @jax.jit
    def apply(params):
        changes = {site: at(site) for site in ("attention", "mlp")}
        return model(params, *prompts[:3], changes)

    logits_BTV = apply(probe.params)
    return to.asarray(logits_BTV[np.arange(len(prompts.last)), prompts.last])


def loss_of(logits_BV):
    return -np.asarray(jax.nn.log_softmax(logits_BV))[:, TARGET]


def test_answers_are_the_models(probe):
    prompts = encode(Bytes(), TEXTS, 64)
    answers, expected = probe.answers(prompts, TARGET), forward(probe, prompts)
    np.testing.assert_allclose(answers.logits, expected, atol=1e-4)
    np.testing.assert_allclose(answers.losses, loss_of(expected), atol=1e-4)
    assert (answers.tokens == expected.argmax(axis=-1)).all()


@pytest.mark.parametrize(("family", "site"), [("gpt2", "attention"), ("llama", "mlp")])
def test_a_trace_is_what_passes_and_what_the_loss_makes_of_it(family, site):
    probe = probe_of(family)
    prompts = encode(Bytes(), TEXTS, 64)
    trace = probe.trace(prompts, TARGET, site)
    width = probe.width(site)
    seen = {}

    def keep(x, layer):
        seen[int(layer)] = np.asarray(x)
        return seen[int(layer)]

    def record(x, layer):
        return jax.pure_callback(keep, jax.ShapeDtypeStruct(x.shape, x.dtype), x, layer)

    forward(probe, prompts, (site, record))
    for layer in range(probe.config.model.layers):
        np.testing.assert_allclose(trace.activations[:, layer], seen[layer][..., :width], atol=1e-4)
    # nothing depends on padding
    assert np.abs(trace.gradients[0, :, prompts.last[0] + 1 :]).max() == 0

    def loss(shift_LBTW):
        def move(x, layer):
            return x.at[..., :width].add(shift_LBTW[layer])

        logits_BV = forward(probe, prompts, (site, move), to=jnp)
        return -jax.nn.log_softmax(logits_BV)[:, TARGET].sum()

    expected = jax.grad(loss)(jnp.zeros(trace.gradients.swapaxes(0, 1).shape)).swapaxes(0, 1)
    np.testing.assert_allclose(trace.gradients, expected, atol=1e-3 * np.abs(expected).max())
    assert np.abs(expected).max() > 1e-2


@pytest.mark.parametrize(("family", "site"), [("gpt2", "mlp"), ("llama", "attention")])
def test_the_map_is_one_forward_a_patch(family, site):
    probe = probe_of(family)
    prompt = encode(Bytes(), TEXTS[:1], 64)
    trace = probe.trace(prompt, TARGET, site)
    found = patching.patch_map(probe, prompt, TARGET, site, trace, 3.0)
    known, layers = len(TEXTS[0]) + 1, probe.config.model.layers
    assert found.losses.shape == found.successes.shape == (layers, known)
    width = probe.width(site)

    @jax.jit
    def patched(at, place, delta):
        def patch(x, layer):
            return x.at[:, place, :width].add(jnp.where(layer == at, delta, 0))

        return forward(probe, prompt, (site, patch), to=jnp)

    for at in range(layers):
        for place in (0, known // 2, known - 1):
            logits = np.asarray(patched(at, place, -3.0 * trace.gradients[0, at, place]))
            assert found.losses[at, place] == pytest.approx(loss_of(logits)[0], rel=1e-4)
            assert found.successes[at, place] == (logits.argmax() == TARGET)
    assert found.base_loss == pytest.approx(loss_of(forward(probe, prompt))[0], rel=1e-4)


def test_a_memory_with_a_tiny_bound_is_the_patch_and_changes_no_other_prompt(probe):
    prompt, others = encode(Bytes(), TEXTS[:1], 64), encode(Bytes(), TEXTS[1:], 64)
    for site in ("attention", "mlp"):
        trace = probe.trace(prompt, TARGET, site)
        memory = patching.remember(trace, prompt, site, 1, 3.0, 1e-3)
        delta = -3.0 * trace.gradients[0, 1, prompt.last[0]]
        patched = probe.patched(prompt, TARGET, site, [1], [prompt.last[0]], delta[None])
        found = [probe.answers(of, TARGET, [memory]).logits for of in (prompt, others)]
        np.testing.assert_allclose(found[0], patched.logits, atol=1e-4)
        assert np.abs(patched.logits - probe.answers(prompt).logits).max() > 1e-2
        np.testing.assert_allclose(found[1], probe.answers(others).logits, atol=1e-5)


@pytest.mark.parametrize(("family", "places"), [("gpt2", "last"), ("llama", "all")])
def test_generation_with_a_cache_remembers_the_same(family, places):
    """A cache, prompts of different lengths, token after token: as when everything is read again
    every time.
    """
    probe = probe_of(family)
    prompts, one = encode(Bytes(), TEXTS, 64, room=12), encode(Bytes(), TEXTS[:1], 64)
    trace = probe.trace(one, TARGET, "mlp")
    first = patching.remember(trace, one, "mlp", 0, 3.0, 0.6, places=places)
    key_and_delta = np.random.default_rng(1).normal(size=(2, 16))
    memories = (first, memory_of("attention", 1, *key_and_delta, 0.9, places=places))

    def tokens(*changes):
        generator = Generator(probe.config, Bytes(), probe.params, EVERYBODY, *changes)
        return [row.tokens.tolist() for row in generator(TEXTS, Settings(12, temperature=0))]

    written = tokens(functools.partial(interventions, memories))
    assert written != tokens()
    if places == "all":
        assert written == probe.write(prompts, 12, memories).tolist()
    else:  # read again, only the newest place would be changed; with a cache all that were once the newest stay changed
        assert [row[0] for row in written] == probe.write(prompts, 12, memories)[:, 0].tolist()


def test_a_row_does_not_depend_on_the_others():
    probe = probe_of("gpt2")
    key_and_delta = np.random.default_rng(2).normal(size=(2, probe.width("mlp")))
    memory = memory_of("mlp", 0, *key_and_delta, 0.9)
    prompts = encode(Bytes(), TEXTS, 64)
    together = probe.answers(prompts, TARGET, [memory]).logits
    for n in range(len(TEXTS)):
        alone = probe.answers(prompts.take([n]), TARGET, [memory]).logits
        np.testing.assert_allclose(alone[0], together[n], atol=1e-5)


def test_all_bounds_at_once_are_each_alone():
    probe = probe_of("gpt2")
    prompts = encode(Bytes(), TEXTS, 64)
    memory = memory_of("attention", 1, *np.random.default_rng(3).normal(size=(2, 16)), 1.0)
    bounds = np.array([0.1, 0.8, 1.2, 50.0])
    swept = probe.answers_over_bounds(prompts, TARGET, memory, bounds)
    assert len({row.tobytes() for row in swept.logits}) > 2
    for bound, logits in zip(bounds, swept.logits, strict=True):
        alone = dataclasses.replace(memory, bounds=np.float32([bound]))
        expected = probe.answers(prompts, TARGET, [alone]).logits
        np.testing.assert_allclose(logits, expected, atol=1e-4)


def test_distances_are_of_what_comes_in():
    probe = probe_of("llama")
    prompt = encode(Bytes(), TEXTS[1:2], 64)
    memory = patching.remember(probe.trace(prompt, TARGET, "mlp"), prompt, "mlp", 1, 3.0, 0.2)
    x_BTM = probe.distances(prompt, memory)
    assert x_BTM[0, prompt.last[0], 0] == pytest.approx(0, abs=1e-6)
    assert np.isinf(x_BTM[0, prompt.last[0] + 1 :]).all()
    assert (x_BTM[0, : prompt.last[0], 0] > 1e-3).all()


def test_the_step_is_the_first_of_the_ladder_that_succeeds_in_three_layers():
    class Counting:
        """A probe whose patches succeed in as many layers as a step has reached of the ladder."""

        def __init__(self, counts):
            self.counts = counts

        def patched(self, prompt, target, site, layers, places, deltas):
            assert set(places) == {4}
            if len(layers) == len(self.counts):  # one layer alone
                assert set(layers) == {3}
                return Answers(np.where(self.counts, target, 0), None, None)
            reached = [layer < self.counts[n // 5] for n, layer in enumerate(layers)]
            return Answers(np.where(reached, target, 0), None, None)

    prompt = encode(Bytes(), ["abcd"], 64)
    trace = probe_of("gpt2").trace(prompt, TARGET, "mlp")
    ones = np.ones((1, 5, 8, 16), np.float32)
    trace = trace._replace(gradients=ones, activations=2 * ones)
    for counts, rung in (
        ([0, 1, 3, 3, 5, 5, 5], 0),
        ([4, 0, 0, 0, 5, 0, 0], -2),
        ([0, 0, 0, 1, 2, 2, 1], 2),
    ):
        step = patching.choose_step(Counting(counts), prompt, TARGET, "mlp", trace)
        assert step == pytest.approx(2.0 * 10 ** (rung / 2))
    few = Counting(np.array([0, 0, 0, 1, 1, 0, 0]))
    step = patching.choose_step(few, prompt, TARGET, "mlp", trace, layer=3)
    assert step == pytest.approx(2.0 * 10**0.5)


def test_the_layer_is_the_lowest_that_succeeds_at_the_last_token():
    tokens = np.array([[9, 0], [0, 0], [0, 9], [9, 9]])
    found = patching.PatchMap(np.zeros((4, 2)), tokens, 1.0, 0, 1.0, "mlp", target=9)
    assert patching.choose_layer(found) == 2
    assert patching.choose_layer(found._replace(tokens=tokens[:2])) is None


def sweep_of(positive, negative):
    """`positive` and `negative`: how many of 4 prompts are right at each of 5 bounds."""
    pairs = ((positive, 1), (negative, 2))
    swept = [np.where(np.arange(4) < np.array(of)[:, None], right, 7) for of, right in pairs]
    return boundary.Sweep(10.0 ** np.arange(5), *swept, before=np.full(4, 2), target=1)


def test_the_bound_is_the_middle_of_the_best_stretch():
    assert boundary.choose_bound(sweep_of([0, 4, 4, 4, 4], [4, 4, 4, 4, 0])) == pytest.approx(100)
    assert boundary.choose_bound(sweep_of([4, 0, 2, 2, 0], [4, 0, 2, 2, 0])) == pytest.approx(1)
    # Two stretches that are equally good: the longer one.
    two = sweep_of([4, 0, 0, 4, 4], [4, 4, 4, 4, 4])
    assert boundary.choose_bound(two) == pytest.approx(10**3.5)


def test_the_two_measures_of_negative_prompts_differ():
    swept = sweep_of([4, 4, 4, 4, 4], [4, 3, 2, 1, 0])
    assert swept.unchanged().tolist() == [1, 0.75, 0.5, 0.25, 0]
    # another wrong token counts as right in the article
    assert swept.off_target().tolist() == [1] * 5
    assert swept.on_target([0, 1]).tolist() == [1] * 5


def test_a_bound_is_not_evaluated_on_what_it_is_chosen_on():
    chosen, evaluated = boundary.halves(7)
    assert sorted([*chosen, *evaluated]) == list(range(7))
    assert [rows.tolist() for rows in boundary.halves(3)] == [[0, 1, 2]] * 2


def test_all_prompts_choose_the_bound_and_each_is_evaluated_by_the_others():
    # Of four negative prompts the second and fourth change from the second bound on, the others
    # from the fourth.
    before = np.full(4, 2)
    ends = np.array([3, 1, 3, 1])
    negative = np.where(np.arange(5)[:, None] < ends, 2, 7)
    swept = boundary.Sweep(10.0 ** np.arange(5), np.full((5, 1), 1), negative, before, target=1)
    assert boundary.choose_bound(swept) == pytest.approx(1.0)  # where no prompt changes
    # where half of them do
    assert boundary.choose_bound(swept, negative_rows=[0, 2]) == pytest.approx(10.0)
    found = boundary.cross_validated(swept)
    assert found == {"on_target": 1.0, "unchanged": 1.0, "off_target": 1.0}
    # One that changes at every bound where the others do not is evaluated there.
    odd = swept._replace(negative=np.array([[2, 2, 2, 7], *[[7, 7, 7, 2]] * 4]))
    assert boundary.cross_validated(odd)["unchanged"] == 0.75
    # Alone, it chooses for want of others; without negative prompts there is nothing to measure of
    # them.
    alone = swept._replace(negative=negative[:, 1:2], before=before[:1])
    assert boundary.cross_validated(alone)["unchanged"] == 1.0


def test_a_refined_sweep_searches_between_the_best_ones_neighbours():
    probe = probe_of("gpt2")
    prompts = encode(Bytes(), TEXTS, 64)
    memory = memory_of("attention", 1, *np.random.default_rng(3).normal(size=(2, 16)), 1.0)
    bounds = np.array([0.1, 1.0, 10.0])
    made_up = {"negative": np.zeros((3, 2)), "before": np.zeros(2)}
    made_up["positive"] = np.array([[0], [TARGET], [0]])
    rough = boundary.sweep(probe, memory, TARGET, prompts, 1, bounds)._replace(**made_up)
    fine = boundary.refined(probe, memory, rough, prompts)
    between = np.geomspace(0.1, 10, boundary.REFINED + 2)[1:-1]
    np.testing.assert_allclose(fine.bounds, np.sort([*bounds, *between]))
    assert fine.positive.shape == (len(fine.bounds), 1)
    assert fine.negative.shape == (len(fine.bounds), 2)


def test_the_divergence_of_answers():
    logits = np.log(np.array([[0.5, 0.5], [0.9, 0.1]]))
    one, other = (Answers(None, None, rows) for rows in (logits, logits[::-1]))
    first = 0.5 * np.log(0.5 / 0.9) + 0.5 * np.log(0.5 / 0.1)
    expected = [first, 0.9 * np.log(1.8) + 0.1 * np.log(0.2)]
    np.testing.assert_allclose(boundary.divergence(one, other), expected)
    np.testing.assert_allclose(boundary.divergence(one, one), 0, atol=1e-12)


def test_prompts_are_rows_of_their_own():
    prompts = encode(Bytes(), ["ab", "abcd"], 64)
    expected = [7, 105, 106, 0, 0, 0, 0, 0], [7, 105, 106, 107, 108, 0, 0, 0]
    assert prompts.tokens.tolist() == list(expected)
    assert prompts.segments.tolist() == [[1, 1, 1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0, 0, 0]]
    assert prompts.last.tolist() == [2, 4]
    assert encode(Bytes(), ["ab"], 64, opening=False).tokens.tolist() == [[105, 106, 0, 0]]
    assert encode(Bytes(), ["ab"], 64, room=2).tokens.shape == (1, 8)


@pytest.mark.parametrize(
    ("texts", "room", "words"),
    [
        ([], 0, "no prompt"),
        (["a", ""], 0, "has no tokens"),
        (["abc"], 6, "context is 8"),
        (["abcdefgh"], 0, "context is 8"),
    ],
)
def test_prompts_that_cannot_be_read_are_refused(texts, room, words):
    with expect_input_error(words):
        encode(Bytes(), texts, 8, room=room)


def test_a_target_is_what_follows_the_prompt():
    assert target_token(Bytes(), "ab", " c") == ord(" ") + 8
    with expect_input_error("--target is empty"):
        target_token(Bytes(), "ab", " ")


def test_a_target_that_changes_the_prompts_tokens_is_refused():
    class Words(Bytes):
        def encode(self, text):
            return np.array([len(word) for word in text.split(" ")], np.int32)

        def decode(self, tokens):
            return ""

    with expect_input_error("begin the target with a space"):
        target_token(Words(), "ab", "c")
    with expect_input_error("not in the vocabulary"):
        target_token(Words(), "ab", " c")


def test_sinks_are_dropped():
    config, params = model_of("gpt2")
    prompts = encode(Bytes(), TEXTS, 64)
    with_sinks = Probe(config, params).answers(prompts).logits
    parts = partition(config.model, config.sinks)
    cut = jax.tree.map(lambda x: x, params)
    for name in ("up_kernel", "up_bias"):
        cut["layers"][name] = cut["layers"][name][..., : parts.shared]
    cut["layers"]["down_kernel"] = cut["layers"]["down_kernel"][:, : parts.shared]
    smaller = with_fields(config, {"model.hidden": parts.shared, "sinks.kind": "none"})
    np.testing.assert_allclose(Probe(smaller, cut).answers(prompts).logits, with_sinks, atol=1e-4)
