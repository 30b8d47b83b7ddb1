"""Groups of documents with sinks of their own: nothing is shared, the base may be frozen, others learn to be silent."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import prepare_apart, tiny_config

from memsinks_jax import sinks
from memsinks_jax.config import InputError, validate, with_fields
from memsinks_jax.data import ids
from memsinks_jax.data.corpus import load_corpus
from memsinks_jax.data.embedded import stories
from memsinks_jax.data.prepared import Prepared, group_id
from memsinks_jax.data.tokenizer import train_tokenizer
from memsinks_jax.model import sparse_sinks
from memsinks_jax.model.decoder import build_model
from memsinks_jax.runs.initial import inherit
from memsinks_jax.runs.trained import open_run
from memsinks_jax.sinks import NONE, Blocks, Others
from memsinks_jax.training.loop import train_and_evaluate
from memsinks_jax.training.method import documents_learning

ACTIVE = 4
GROUPS = [f"author {n}" for n in range(5)]
SETTINGS = sinks.SinksConfig(sampling="disjoint", active=ACTIVE, sparse=True, pool=ACTIVE * len(GROUPS), opens_at=1)


def numbered(*numbers: int) -> np.ndarray:
    return np.stack([ids.numbered_id(group_id(f"author {n}"), n) for n in numbers])


def test_the_nth_group_has_the_nth_sinks():
    drawn = np.asarray(sinks.document_sinks(numbered(0, 3, -1, 5), 0, SETTINGS.pool, SETTINGS))
    assert drawn[0].tolist() == [0, 1, 2, 3] and drawn[1].tolist() == [12, 13, 14, 15]
    assert (drawn[2:] == NONE).all()  # without a group; of another model
    masks = np.asarray(sinks.document_masks(numbered(0, 3, -1, 5), 0, SETTINGS.pool, SETTINGS, layers=2))
    assert masks.shape == (1, 4, SETTINGS.pool)
    assert [np.flatnonzero(mask).tolist() for mask in masks[0]] == [[0, 1, 2, 3], [12, 13, 14, 15], [], []]


def test_others_sinks_are_those_of_another_group():
    everybody = numbered(*range(5))
    others = np.asarray(sinks.document_sinks(everybody, 0, SETTINGS.pool, SETTINGS, other=True))
    own = np.asarray(sinks.document_sinks(everybody, 0, SETTINGS.pool, SETTINGS))
    assert all(other[0] in own[:, 0] and other[0] != mine[0] for other, mine in zip(others, own, strict=True))
    assert len(np.unique(others[:, 0])) > 1
    alone = np.asarray(sinks.document_sinks(numbered(0, -1), 0, ACTIVE, SETTINGS, other=True))
    assert (alone == NONE).all()


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"data.ids": "content"}, "config.data.ids is 'content'; set it to 'group'"),
        ({"sinks.per_layer": True}, "config.sinks.per_layer is True"),
        ({"sinks.active": 0}, "config.sinks.active=16"),
        ({"sinks.sampling": "floyd", "sinks.others": 2}, "config.sinks.others needs groups"),
    ],
)
def test_what_does_not_go_together_is_refused(changed, message):
    config = with_fields(tiny_config(), {"sinks": SETTINGS, "data.ids": "group"})
    validate(config)
    with pytest.raises(InputError, match=message):
        validate(with_fields(config, changed))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Prepared corpora: `first` of three groups, `more` of a known one and two new ones, `plain` without groups."""
    folder = tmp_path_factory.mktemp("groups")
    texts = [stories.story(3, index).text for index in range(40)]
    (folder / "tokenizer.model").write_bytes(train_tokenizer(texts, 600).model)
    groups = {"first": [0, 1, 2], "more": [2, 3, 4], "plain": None}
    for part, (name, known) in enumerate(groups.items()):
        some = texts[part * 12 : part * 12 + 12]
        rows = [
            {"text": text, "author": GROUPS[known[n % 3]]} if known else {"text": text} for n, text in enumerate(some)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        of = {"group_field": "author"} if known else {}
        prepare_apart(folder / f"{name}.jsonl", folder / name, folder / "tokenizer.model", **of)
    return folder


def config_on(corpus, **changed):
    """A small model, frozen but for the sinks of groups; `sinks__others=2` sets config.sinks.others."""
    settings = {
        "data.files": str(corpus), "data.ids": "group", "data.unique_documents": -1, "data.repeated_documents": 0,
        "data.held_out_documents": 0, "data.rows": "packed", "sinks.sampling": "disjoint", "sinks.active": ACTIVE,
        "sinks.sparse": True, "sinks.shared_fraction": 1.0, "sinks.opens_at": 1, "sinks.slows_at": 0,
        "optimizer.base_multiple": 0.0, "training.steps": 3,
    }  # fmt: skip
    return with_fields(tiny_config(), settings | {name.replace("__", "."): value for name, value in changed.items()})


@pytest.fixture(scope="module")
def run(folder):
    train_and_evaluate(config_on(folder / "first"), folder / "run")
    return folder / "run"


def leaves(params):
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(params)}


def test_a_frozen_base_does_not_change_by_a_bit(folder, run):
    trained = open_run(run)
    assert trained.config.sinks.pool == 3 * ACTIVE and list(trained.groups) == GROUPS[:3]
    earlier = leaves(open_run(run, step=2).params)
    for name, after in leaves(trained.params).items():
        if "sink_" in name:
            moved = np.abs(after - earlier[name]).reshape(len(GROUPS[:3]), -1).max(axis=1)
            assert (moved > 0).all(), name
        else:
            np.testing.assert_array_equal(after, earlier[name], err_msg=name)


def test_new_groups_are_numbered_after_the_known_ones_and_change_none_of_their_sinks(folder, run):
    train_and_evaluate(config_on(folder / "more", model__initial=str(run)), folder / "longer")
    before, after = open_run(run), open_run(folder / "longer")
    assert list(after.groups) == GROUPS and after.config.sinks.pool == 5 * ACTIVE
    for name, array in leaves(before.params).items():
        longer = leaves(after.params)[name]
        if "sink_" in name:
            np.testing.assert_array_equal(longer[: 2 * ACTIVE], array[: 2 * ACTIVE])  # groups that were not read
            assert (longer[2 * ACTIVE : 3 * ACTIVE] != array[2 * ACTIVE :]).any()  # the one that was read again
        else:
            np.testing.assert_array_equal(longer, array)
    assert after.group_id("author 2").tolist() == before.group_id("author 2").tolist()
    with pytest.raises(InputError, match="no group 'author 9' among 5; did you mean author"):
        after.group_id("author 9")


def test_text_without_a_group_has_no_sinks_and_is_never_slowed(folder):
    config = config_on(folder / "first", general__files=str(folder / "plain"), sinks__slows_at=1)
    corpus = load_corpus(inherit(config))
    numbers = np.arange(len(corpus.table))
    identities = corpus.identities(numbers)
    drawn = np.asarray(sinks.document_sinks(identities, 0, 3 * ACTIVE, config.sinks))
    assert (drawn[12:] == NONE).all() and (drawn[:12] < NONE).all()
    assert identities.any(axis=1).all()  # (0, 0) is padding
    batch = {"identities": identities[None], "seen": np.full((1, 24), 9), "epoch": np.zeros(1, np.int32)}
    learning = np.asarray(documents_learning(batch, inherit(config).sinks))
    assert (learning[0, 12:] == 1).all() and (learning[0, :12] < 1).all()


def test_a_pool_that_is_too_small_is_refused(folder, tmp_path):
    with pytest.raises(InputError, match="config.sinks.pool is 8, but 3 groups with 4 sinks each need 12"):
        train_and_evaluate(config_on(folder / "first", sinks__pool=8), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_frozen_model_without_tables_is_refused(folder, tmp_path):
    changed = {"sinks__sparse": False, "sinks__shared_fraction": 0.5}
    with pytest.raises(InputError, match="base_multiple is 0, which trains nothing but sinks"):
        train_and_evaluate(config_on(folder / "first", **changed), tmp_path / "run")


def test_others_learn_to_add_nothing_and_nothing_else_changes(folder, run):
    """The gradient of others' rows is that of the mean square of what they add, and there is no other."""
    trained = open_run(run)
    config, params = trained.config, trained.params
    model, parts = build_model(config)
    random = np.random.default_rng(0)
    tables = {
        name: jnp.asarray(random.normal(0, 0.3, params[name].shape), jnp.float32) for name in params if "sink_" in name
    }
    params = params | tables
    tokens = jnp.asarray(random.integers(3, 500, (4, 20)))
    about = jnp.ones_like(tokens), jnp.tile(jnp.arange(20), (4, 1))
    own = Blocks(jnp.arange(ACTIVE)[None, None].repeat(4, axis=0))
    foreign = jnp.asarray(random.integers(0, 2, (4, 20, 2 * ACTIVE)), bool)
    on_B = jnp.zeros(4, bool)
    others = Others(jnp.arange(ACTIVE, 3 * ACTIVE)[None, None], foreign, 0.5, on_B)

    def loss(params, interventions):
        return jnp.square(model(params, tokens, *about, interventions)).mean()

    plain, gradients = jax.value_and_grad(loss)(params, {"sinks": own})
    with_others, theirs = jax.value_and_grad(loss)(params, {"sinks": own, "others": others})
    assert plain == with_others
    gradients, theirs = leaves(gradients), leaves(theirs)
    for name, before in gradients.items():
        rows = slice(0, ACTIVE) if "sink_" in name else slice(None)
        np.testing.assert_allclose(theirs[name][rows], before[rows], atol=1e-7, err_msg=name)
    h = 1e-3
    name, row = "sink_down", ACTIVE + 1
    seen = []
    original = sparse_sinks._to_be_small
    try:
        sparse_sinks._to_be_small = lambda y, x, weight: seen.append((weight * jnp.square(x)).sum()) or y
        direction = random.normal(0, 1, (config.model.layers, config.model.d_model)).astype(np.float32)

        def penalty(size):
            seen.clear()
            moved = params | {name: params[name].at[row].add(size * direction)}
            with jax.disable_jit():
                model(moved, tokens, *about, {"sinks": own, "others": others})
            assert len(seen) == config.model.layers
            return float(sum(seen))

        slope = (penalty(h) - penalty(-h)) / (2 * h)
    finally:
        sparse_sinks._to_be_small = original
    found = float((theirs["['sink_down']"][row] * direction).sum())
    assert found == pytest.approx(slope, rel=2e-2) and abs(found) > 1e-4


def test_others_are_groups_of_the_batch_and_never_a_positions_own(folder):
    config = inherit(config_on(folder / "first", sinks__others=2))
    identities = numbered(0, 1, 2, 2, -1, 0).reshape(3, 2, 2)
    segments = jnp.asarray([[1, 1, 2, 0]] * 3)
    chosen = sinks.document_sinks(identities, 0, config.sinks.pool, config.sinks)
    batch = {"identities": identities, "segments": segments, "sinks": chosen, "rows": jnp.arange(3)}
    met = set()
    for step in range(20):
        others = sinks.others(batch, jnp.int32(step), jnp.uint32(0), config.sinks.pool, config)
        groups = (np.asarray(others.sinks_BRk).reshape(2, ACTIVE)[:, 0] // ACTIVE).tolist()
        assert len(set(groups)) == 2 and set(groups) <= {0, 1, 2}
        met |= set(groups)
        own = np.array([[0, 0, 1, -1], [2, 2, 2, -1], [-2, -2, 0, -1]])
        foreign = np.asarray(others.foreign_BTk).reshape(3, 4, 2, ACTIVE)
        for place, group in enumerate(groups):
            np.testing.assert_array_equal(foreign[:, :, place].all(axis=-1), (own != group) & (own != -1))
    assert met == {0, 1, 2}


def test_training_with_others_lowers_what_they_add(folder, tmp_path):
    config = config_on(folder / "first", sinks__others=2, sinks__others_weight=10.0, training__steps=40)
    found = {}
    for name, changed in {"silent": {}, "loud": {"sinks.others": 0}}.items():
        train_and_evaluate(with_fields(config, changed), tmp_path / name)
        trained = open_run(tmp_path / name)
        model, _ = build_model(trained.config)
        corpus = Prepared(folder / "first")
        texts = [corpus.read(number)[:100] for number in range(3)]
        row = jnp.asarray(np.stack([np.resize(text, 100) for text in texts]))
        about = jnp.ones_like(row), jnp.tile(jnp.arange(100), (3, 1))
        own = jnp.arange(3 * ACTIVE).reshape(3, 1, ACTIVE)
        logits = [
            model(trained.params, row, *about, {"sinks": Blocks(on)})
            for on in (own, jnp.arange(3 * ACTIVE)[None, None])
        ]
        found[name] = float(jnp.square(logits[0] - logits[1]).mean() / jnp.square(logits[0]).mean())
    assert found["silent"] < 0.5 * found["loud"]
