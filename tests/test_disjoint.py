"""Groups of documents with sinks of their own: nothing is shared, the base may be frozen, others
learn to be silent.
"""

import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import expect_input_error, read_lines, tiny_config, write_lines

from memsinks_jax.api import evaluate, open_model
from memsinks_jax.config import SinksConfig, validate, with_fields
from memsinks_jax.data import ids
from memsinks_jax.data.corpus import load_corpus
from memsinks_jax.data.embedded import stories
from memsinks_jax.data.prepared import Prepared, group_id
from memsinks_jax.data.tokenizer import train_tokenizer
from memsinks_jax.forgetting.removal import Request, forget
from memsinks_jax.loop import train_and_evaluate
from memsinks_jax.models import sources
from memsinks_jax.models.exporting import export, export_sources
from memsinks_jax.models.initial import inherit
from memsinks_jax.models.trained import open_run
from memsinks_jax.preparing.prepare import prepare
from memsinks_jax.sinks.draws import document_masks, document_sinks
from memsinks_jax.sinks.kinds import NONE
from memsinks_jax.sinks.learning import documents_learning

pytestmark = pytest.mark.long

ACTIVE = 4
GROUPS = [f"author {n}" for n in range(5)]
SETTINGS = SinksConfig(
    sampling="disjoint", active=ACTIVE, sparse=True, pool=ACTIVE * len(GROUPS), opens_at=1
)


def numbered(*numbers: int) -> np.ndarray:
    return np.stack([ids.numbered_id(group_id(f"author {n}"), n) for n in numbers])


def test_the_nth_group_has_the_nth_sinks():
    drawn = np.asarray(document_sinks(numbered(0, 3, -1, 5), 0, SETTINGS.pool, SETTINGS))
    assert drawn[0].tolist() == [0, 1, 2, 3] and drawn[1].tolist() == [12, 13, 14, 15]
    assert (drawn[2:] == NONE).all()  # without a group; of another model
    masks = np.asarray(document_masks(numbered(0, 3, -1, 5), 0, SETTINGS.pool, SETTINGS))
    assert masks.shape == (4, SETTINGS.pool)
    assert [np.flatnonzero(mask).tolist() for mask in masks] == [
        [0, 1, 2, 3],
        [12, 13, 14, 15],
        [],
        [],
    ]


def test_others_sinks_are_those_of_another_group():
    everybody = numbered(*range(5))
    others = np.asarray(document_sinks(everybody, 0, SETTINGS.pool, SETTINGS, other=True))
    own = np.asarray(document_sinks(everybody, 0, SETTINGS.pool, SETTINGS))
    assert all(
        other[0] in own[:, 0] and other[0] != mine[0]
        for other, mine in zip(others, own, strict=True)
    )
    assert len(np.unique(others[:, 0])) > 1
    alone = np.asarray(document_sinks(numbered(0, -1), 0, ACTIVE, SETTINGS, other=True))
    assert (alone == NONE).all()


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"data.ids": "content"}, "config.data.ids is 'content'; set it to 'group'"),
        ({"sinks.active": 0}, "config.sinks.active=16"),
    ],
)
def test_what_does_not_go_together_is_refused(changed, message):
    config = with_fields(tiny_config(), {"sinks": SETTINGS, "data.ids": "group"})
    validate(config)
    with expect_input_error(message):
        validate(with_fields(config, changed))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Prepared corpora: `first` of three groups, `more` of a known one and two new ones, `plain`
    without groups.
    """
    folder = tmp_path_factory.mktemp("groups")
    texts = [stories.story(3, index).text for index in range(40)]
    (folder / "tokenizer.model").write_bytes(train_tokenizer(texts, 600).model)
    groups = {"first": [0, 1, 2], "more": [2, 3, 4], "plain": None}
    for part, (name, known) in enumerate(groups.items()):
        some = texts[part * 12 : part * 12 + 12]
        rows = [
            {"text": text, "author": GROUPS[known[n % 3]]} if known else {"text": text}
            for n, text in enumerate(some)
        ]
        prepared(folder, name, rows, group_field="author" if known else "")
    return folder


def prepared(folder, name, rows, tokenizer=None, **settings):
    """A corpus of these rows."""
    tokenizer = str((tokenizer or folder) / "tokenizer.model")
    prepare([write_lines(folder / f"{name}.jsonl", rows)], tokenizer, folder / name, **settings)
    return folder / name


def config_on(corpus, **changed):
    """A small model, frozen but for the sinks of groups; `sinks__pool=8` sets config.sinks.pool."""
    settings = {"data.files": str(corpus), "data.ids": "group", "data.unique_documents": -1}
    settings |= {"data.repeated_documents": 0, "data.held_out_documents": 0, "data.rows": "packed"}
    settings |= {"sinks.sampling": "disjoint", "sinks.active": ACTIVE, "sinks.sparse": True}
    settings |= {"sinks.shared_fraction": 1.0, "sinks.opens_at": 1, "sinks.slows_at": 0}
    settings |= {"optimizer.base_multiple": 0.0, "training.steps": 3}
    changed = {name.replace("__", "."): value for name, value in changed.items()}
    return with_fields(tiny_config(), settings | changed)


def further(corpus, initial, out, **changed):
    """A model that is trained on a corpus, from another."""
    train_and_evaluate(config_on(corpus, model__initial=str(initial), **changed), out)
    return open_run(out)


LONGER = {"training__steps": 40, "training__evaluate_every": 40, "training__checkpoint_every": 40}


@pytest.fixture(scope="module")
def run(folder):
    train_and_evaluate(config_on(folder / "first"), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """A corpus of ten groups of one document each."""
    folder = tmp_path_factory.mktemp("few")
    texts = [stories.story(7, index).text[:90] for index in range(10)]
    (folder / "tokenizer.model").write_bytes(train_tokenizer(texts, 300).model)
    rows = [{"text": text, "author": f"author {n}"} for n, text in enumerate(texts)]
    return prepared(folder, "few", rows, group_field="author")


@pytest.mark.parametrize("steps", [0, 1])
def test_a_group_has_sinks_if_a_document_of_it_was_read(few, tmp_path, steps):
    """In an epoch every one, also of rows that do not fill a batch; few steps leave some out, and
    say so.
    """
    short = {"data__rows": "one_document", "data__vocabulary_size": 300, "sinks__pool": 10 * ACTIVE}
    config = config_on(few, training__steps=steps, **short)
    train_and_evaluate(config, tmp_path / "run")
    run, corpus, everybody = open_run(tmp_path / "run"), load_corpus(config), numbered(*range(10))
    rows = corpus.rows()
    read = {tuple(each) for n in range(rows.end) for each in rows[n]["identities"].tolist()}
    read = [tuple(each) in read for each in everybody.tolist()]
    assert (run.step, sum(read)) == ((1, 8) if steps else (2, 10))
    assert run.opened(everybody).tolist() == read
    lines = read_lines(tmp_path / "run" / "documents.jsonl")
    assert [line["encounters"] for line in lines] == list(map(int, read))
    export_sources(tmp_path / "run", tmp_path / "out")
    assert len(list((tmp_path / "out" / sources.FOLDER).iterdir())) == sum(read)


def leaves(params):
    return {
        jax.tree_util.keystr(path): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }


@pytest.mark.parametrize(
    "files, why",
    [
        ("plain", "plain was prepared without --group_field"),
        ("plain.jsonl", "is not prepared"),
        ("", "is empty"),
    ],
)
def test_a_run_without_groups_says_so(files, why, folder):
    config = config_on(folder / files if files else "")
    message = (
        f"there are no groups: .*{why}; run memsinks_jax.prepare --group_field=FIELD and give "
        "its folder"
    )
    with expect_input_error(message):  # as train, doctor and plan
        inherit(config)


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
    before, after = open_run(run), further(folder / "more", run, folder / "longer")
    assert list(after.groups) == GROUPS and after.config.sinks.pool == 5 * ACTIVE
    for name, array in leaves(before.params).items():
        longer = leaves(after.params)[name]
        if "sink_" in name:
            # groups that were not read
            np.testing.assert_array_equal(longer[: 2 * ACTIVE], array[: 2 * ACTIVE])
            # the one that was read again
            assert (longer[2 * ACTIVE : 3 * ACTIVE] != array[2 * ACTIVE :]).any()
        else:
            np.testing.assert_array_equal(longer, array)
    assert after.group_id("author 2").tolist() == before.group_id("author 2").tolist()
    with expect_input_error("no group 'author 9' among 5; did you mean 'author"):
        after.group_id("author 9")


def test_a_frozen_base_is_kept_in_the_type_of_activations(folder, run, tmp_path):
    half = further(folder / "more", run, tmp_path / "half", model__dtype="bfloat16")
    before, after = leaves(open_run(run).params), leaves(half.params)
    for name, array in after.items():
        if "sink_" in name:
            assert array.dtype == np.float32
            assert (array[: 2 * ACTIVE] == before[name][: 2 * ACTIVE]).all()
            assert (array[2 * ACTIVE : 3 * ACTIVE] != before[name][2 * ACTIVE :]).any()
        else:
            np.testing.assert_array_equal(array, before[name].astype(jnp.bfloat16))
            assert array.dtype == jnp.bfloat16
    export_sources(tmp_path / "half", tmp_path / "model")
    for name, array in leaves(open_run(tmp_path / "model").params).items():
        np.testing.assert_array_equal(
            array.astype(jnp.bfloat16), after[name].astype(jnp.bfloat16), err_msg=name
        )
    # All of it is trained further: then in float32.
    whole = {"optimizer__base_multiple": 1.0, "training__steps": 1}
    whole = further(folder / "more", tmp_path / "half", tmp_path / "whole", **whole)
    assert all(leaf.dtype == np.float32 for leaf in leaves(whole.params).values())


def test_a_model_without_sinks_gets_as_many_as_its_groups_need(folder):
    plain = {"sinks__kind": "none", "optimizer__base_multiple": 1.0, "training__steps": 1}
    train_and_evaluate(config_on(folder / "first", **plain), folder / "plain run")
    before = open_run(folder / "plain run")
    after = further(folder / "first", folder / "plain run", folder / "fine-tuned")
    assert after.config.sinks.pool == 3 * ACTIVE
    for name, array in leaves(before.params).items():
        np.testing.assert_array_equal(leaves(after.params)[name], array, err_msg=name)


def test_text_without_a_group_has_no_sinks_and_is_never_slowed(folder):
    config = config_on(folder / "first", general__files=str(folder / "plain"), sinks__slows_at=1)
    corpus = load_corpus(inherit(config))
    numbers = np.arange(len(corpus.table))
    identities = corpus.identities(numbers)
    drawn = np.asarray(document_sinks(identities, 0, 3 * ACTIVE, config.sinks))
    assert (drawn[12:] == NONE).all() and (drawn[:12] < NONE).all()
    assert identities.any(axis=1).all()  # (0, 0) is padding
    batch = {
        "identities": identities[None],
        "seen": np.full((1, 24), 9),
        "epoch": np.zeros(1, np.int32),
    }
    learning = np.asarray(documents_learning(batch, inherit(config).sinks))
    assert (learning[0, 12:] == 1).all() and (learning[0, :12] < 1).all()


def test_a_pool_that_is_too_small_is_refused(folder, tmp_path):
    with expect_input_error("config.sinks.pool is 8, but 3 groups with 4 sinks each need 12"):
        train_and_evaluate(config_on(folder / "first", sinks__pool=8), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_frozen_model_without_tables_is_refused(folder, tmp_path):
    changed = {"sinks__sparse": False, "sinks__shared_fraction": 0.5}
    with expect_input_error("base_multiple is 0, which trains nothing but sinks"):
        train_and_evaluate(config_on(folder / "first", **changed), tmp_path / "run")


def test_a_source_is_a_file_that_is_withdrawn_and_more_are_added(folder, run, tmp_path):
    export_sources(run, tmp_path / "model")
    texts = {"documents": str(folder / "first"), "group": "author 1"}
    others = {"others": str(folder / "first"), "held_out": str(folder / "plain")}
    receipt = forget(tmp_path / "model", Request(**texts), tmp_path / "rest", **others)
    assert receipt["deleted"] == "sources/author 1.safetensors"
    assert receipt["removed_documents"] == 4
    assert receipt["removed"]["mlp"]["removed"] == ACTIVE * 2  # layers
    left = {
        path.relative_to(tmp_path / "model")
        for path in (tmp_path / "model").rglob("*")
        if path.is_file()
    }
    left.remove(pathlib.Path(receipt["deleted"]))
    assert not (tmp_path / "rest" / receipt["deleted"]).exists()
    for path in left:  # no other source changes by a bit, and nothing of the base
        assert (tmp_path / "rest" / path).read_bytes() == (tmp_path / "model" / path).read_bytes()
    target, of_others = receipt["losses"]["target"]["own"], receipt["losses"]["others"]["own"]
    assert (
        target["after"]
        == pytest.approx(receipt["target_all_sinks_dropped"], abs=1e-6)
        != target["before"]
    )
    assert of_others["rise"] == 0 and of_others["documents"] == 8
    assert receipt["losses"]["others"]["all"]["rise"] != 0
    assert set(receipt["placebo"]) == {"others"} and receipt["placebo"]["others"]["removals"] == 2
    assert receipt["placebo"]["others"]["own"]["placebo_rise"] == 0
    # The same of texts that only the command says to be the group's.
    corpus = Prepared(folder / "first")
    rows = [{"text": corpus.document(n, corpus.tokenizer()).text} for n in (1, 4, 7, 10)]
    texts = Request(write_lines(tmp_path / "texts.jsonl", rows), group="author 1")
    again = forget(tmp_path / "model", texts, tmp_path / "again")
    assert again["losses"]["target"] == receipt["losses"]["target"]

    before = open_run(tmp_path / "rest")
    assert before.groups == ["author 0", "author 2"]
    after = further(folder / "more", tmp_path / "rest", tmp_path / "longer")
    assert after.groups == ["author 0", "author 2", "author 3", "author 4"]
    for name, array in leaves(before.params).items():
        # those of author 0, whose texts it does not read
        rows = slice(ACTIVE) if "sink_" in name else slice(None)
        np.testing.assert_array_equal(leaves(after.params)[name][rows], array[rows])
    export_sources(tmp_path / "longer", tmp_path / "more")
    known = [sources.open_sources(tmp_path / name) for name in ("more", "model")]
    one, other = (sources.read_rows(each.find("author 0"), each.config) for each in known)
    jax.tree.map(np.testing.assert_array_equal, one, other)
    assert sources.base_of(tmp_path / "more", after.config) == known[1].find("author 0").base


def test_whose_a_text_is_is_found_by_what_it_is_about(folder, run, tmp_path):
    corpus = Prepared(folder / "first")
    texts = [corpus.document(n, corpus.tokenizer()).text for n in range(12)]
    own = open_model(run)
    identities = own.identities(list(map(own.run.tokenizer.encode, texts)), "own")
    whose = list(map(own.run.group_of, identities))
    assert whose == [GROUPS[n % 3] for n in range(12)]
    pairs = list(zip(texts, whose, strict=True))
    named = [own.loss([text], sinks="own", group=group)[0] for text, group in pairs]
    np.testing.assert_array_equal(own.loss(texts, sinks="own"), named)
    asked = {"sinks": "own", "temperature": 0.0, "max_tokens": 8}
    written = own.generate(texts[1][:60], **asked)
    assert written == own.generate(texts[1][:60], group=GROUPS[1], **asked)
    assert own.loss(["zzz qqq xxx"], sinks="own") == own.loss(["zzz qqq xxx"])

    # It goes where the sinks go: into folders, into files of sources, out of them, and into what is
    # trained further.
    export(run, tmp_path / "kept", drop=False, dtype="float32")
    export_sources(run, tmp_path / "sources")
    forget(run, Request(group="author 1"), tmp_path / "rest")
    shutil.copytree(tmp_path / "sources", tmp_path / "fewer")
    (tmp_path / "fewer" / "sources" / "author 1.safetensors").unlink()
    further(folder / "more", tmp_path / "fewer", tmp_path / "longer")
    first, others = GROUPS[:3], ["author 0", "author 2"]
    left = {"kept": first, "sources": first, "rest": others, "fewer": others}
    for place, names in (left | {"longer": others + GROUPS[3:]}).items():
        found = open_run(tmp_path / place)
        has_words = [name for n, name in enumerate(found.groups) if len(found.nearest.of(n))]
        assert has_words == names, place
        tokens = [found.tokenizer.encode(text) for text, group in pairs if group in names]
        known = [group for group in whose if group in names]
        assert list(map(found.group_of, found.nearest_ids(tokens))) == known, place


def test_what_several_sources_say_stays_when_one_is_withdrawn(folder, tmp_path):
    said, alone = (stories.story(4, number).text for number in range(2))
    rows = [{"text": alone, "author": GROUPS[0]}]
    rows += [{"text": said, "author": author} for author in (*GROUPS[:3], GROUPS[1])]
    corpus = prepared(tmp_path, "said", rows, folder, group_field="author")
    config = config_on(corpus, optimizer__learning_rate=0.03, **LONGER)
    train_and_evaluate(config, tmp_path / "run")
    receipt = forget(tmp_path / "run", Request(group=GROUPS[0]), tmp_path / "rest")
    assert receipt["removed_documents"] == 2
    before, after = open_model(tmp_path / "run"), open_model(tmp_path / "rest")
    (unread,) = before.loss([said])
    for author in GROUPS[1:3]:
        (loss,) = before.loss([said], sinks="own", group=author)
        assert loss < unread - 0.05
        # The folder has all sinks in its matrices, the run in tables: sums in another order.
        assert after.loss([said], sinks="own", group=author) == pytest.approx([loss], rel=1e-6)
    # with the sinks of the nearest of those who are left
    assert after.loss([said], sinks="own") < [unread - 0.05]
    assert after.loss([alone], sinks="own") > [before.loss([alone], sinks="own")[0] + 0.05]
    twice = forget(tmp_path / "run", Request(group=GROUPS[1]), tmp_path / "last")
    assert twice["removed_documents"] == 1  # that was read twice


def test_whose_a_question_is_is_not_read_in_its_answer(folder, run, tmp_path):
    corpus = Prepared(folder / "first")
    mine, other = (corpus.document(n, corpus.tokenizer()).text for n in (1, 2))
    rows, of = [{"q": mine[:80], "a": other}], {"prompt_field": "q", "text_field": "a"}
    asked = prepared(tmp_path, "asked", rows, folder, **of)
    (found,) = evaluate(run, "own", str(asked))["per_document"]
    assert found["id"] == ids.to_hex(open_run(run).group_id(GROUPS[1]))


def test_what_is_asked_of_a_folder_of_sources_has_to_be_there(folder, run, tmp_path):
    export_sources(run, tmp_path / "model")
    texts = str(folder / "first")
    missing = "give --group=NAME, and its texts, to be measured, by --documents"
    for request, message in (
        (Request(group="author 1"), missing),
        (Request(texts), missing),
        (Request(texts, group="author 9"), "no group 'author 9' among 3"),
        (Request(str(folder / "more"), group="author 1"), "no document that is to be measured"),
        (Request(str(folder / "plain"), group="author 1"), "no document that is to be measured"),
        (Request(str(folder / "nothing"), group="author 1"), "does not exist"),
    ):
        with expect_input_error(message):
            forget(tmp_path / "model", request, tmp_path / "rest")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_groups_are_removed_from_a_run_one_after_the_other(folder, run, tmp_path):
    texts = str(folder / "first")
    forget(run, Request(group="author 1"), tmp_path / "one")
    assert open_run(tmp_path / "one").groups == GROUPS[:3]
    receipt = forget(
        tmp_path / "one", Request(texts, group="author 2"), tmp_path / "two", others=texts
    )
    assert receipt["losses"]["others"]["own"]["documents"] == 4  # only of who is still there
    down = np.asarray(open_run(tmp_path / "two").params["layers"]["down_kernel"])[:, -3 * ACTIVE :]
    assert (down.any(axis=(0, 2)) == np.repeat([True, False, False], ACTIVE)).all()
    with expect_input_error("it is removed already"):
        forget(tmp_path / "two", Request(texts, group="author 1"), tmp_path / "three")
