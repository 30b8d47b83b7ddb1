"""Sources as files: a folder of a base model with one file per group, opened here and by PyTorch,
and what does not fit.
"""

import json
import os
import pathlib
import random
import shutil
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
import tokenizers
from conftest import contents, expect_input_error, python, tiny_config
from folders import random_params

from memsinks_jax.api import evaluate, generate, open_model
from memsinks_jax.config import InputError, TrainingConfig, to_json, with_fields
from memsinks_jax.data import nearest
from memsinks_jax.data.corpus import load_corpus
from memsinks_jax.data.embedded.stories import story
from memsinks_jax.data.opened import of_groups
from memsinks_jax.data.tokenizer import JsonTokenizer
from memsinks_jax.forgetting.removal import Request, forget
from memsinks_jax.model.decoder import build_model
from memsinks_jax.model.generation import Generator, Settings
from memsinks_jax.models import sources, weights
from memsinks_jax.models.exporting import export, export_sources
from memsinks_jax.models.importing import import_model
from memsinks_jax.models.trained import open_run
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.sinks.blocks import Blocks
from memsinks_jax.sinks.kinds import has_sinks
from memsinks_jax.sources import _listing as listing
from memsinks_jax.sources import _named as named
from memsinks_jax.training.checkpoint import Checkpoints
from memsinks_jax.training.step import TrainState

NAMES = ["zoë / 1", "anna", "..", "b%20" * 80, "model"]  # by number in the run; sorted in a folder
TEXTS = [np.arange(at, at + 20) for at in range(0, 300, 30)]  # what groups write about
IN_ORDER = sorted(NAMES)
WORDS = nearest.words_of(TEXTS[0])
ACTIVE = 3
SETTINGS = {"data.ids": "group", "sinks.sampling": "disjoint", "sinks.active": ACTIVE}
SETTINGS |= {"sinks.sparse": True, "sinks.opens_at": 1, "sinks.shared_fraction": 0.5}
SETTINGS |= {"sinks.pool": ACTIVE * len(NAMES), "model.family": "llama", "mesh.data": 1}


@pytest.fixture(scope="module")
def tokenizer():
    return load_corpus(tiny_config()).tokenizer


def write_run(place, tokenizer, names=NAMES, seed=0, texts=TEXTS, read=True, **changed):
    """A workdir with random weights, of which each group has sinks of its own, and wrote a text.
    The run has read it, or not.
    """
    config = with_fields(
        tiny_config(),
        SETTINGS | {name.replace("__", "."): value for name, value in changed.items()},
    )
    place.mkdir(parents=True)
    (place / "config.json").write_text(to_json(config))
    for name, content in tokenizer.files.items():
        (place / name).write_bytes(content)
    workdirs.write_groups(
        place, names, nearest.of_groups([nearest.words_of(text) for text in texts[: len(names)]])
    )
    checkpoints = Checkpoints(place, TrainingConfig())
    checkpoints.save(
        0,
        TrainState(jnp.int32(0), random_params(config, seed), None, None),
        0,
        of_groups(names if read else []),
    )
    checkpoints.close()
    return place


@pytest.fixture(scope="module")
def run(tokenizer, tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("run") / "run", tokenizer)


@pytest.fixture(scope="module")
def folder(run, tmp_path_factory):
    out = tmp_path_factory.mktemp("folder") / "model"
    return out, export_sources(run, out)


def copied(folder, tmp_path, name="copy"):
    return pathlib.Path(shutil.copytree(folder[0], tmp_path / name))


TOKENS = jnp.asarray(np.random.default_rng(0).integers(3, 900, (2, 30)), jnp.int32)


def logits_with(trained, names):
    """With the sinks of these sources on, all at once."""
    rows = [trained.groups.index(name) * ACTIVE + np.arange(ACTIVE) for name in names]
    on = {"sinks": Blocks(jnp.asarray(np.concatenate(rows))[None, None])} if names else {}
    about = jnp.ones_like(TOKENS), jnp.broadcast_to(jnp.arange(TOKENS.shape[1]), TOKENS.shape)
    return np.asarray(build_model(trained.config)[0](trained.params, TOKENS, *about, on))


def test_a_folder_has_a_file_for_each_source(run, folder):
    out, summary = folder
    assert summary["sources"] == NAMES  # those of the run
    files = sorted((out / "sources").iterdir())
    assert len(files) == len(NAMES)
    assert summary["bytes_of_sources"] == sum(file.stat().st_size for file in files)
    trained, there = open_run(run), open_run(out)
    assert there.groups == IN_ORDER and there.config.sinks.pool == ACTIVE * len(NAMES)
    for number, name in enumerate(IN_ORDER):
        source = sources.open_sources(out).find(name)
        with safetensors.safe_open(source.path, framework="np") as opened:
            about = {"format": "memsinks source 1", "name": name, "sinks": str(ACTIVE)}
            assert opened.metadata() == about | {"base": sources.base_of(out, there.config)}
            for table in ("sink_gate", "sink_up", "sink_down"):
                rows = np.asarray(trained.params[table])[NAMES.index(name) * ACTIVE :][:ACTIVE]
                found = opened.get_tensor(table)
                assert found.dtype == ml_dtypes.bfloat16
                np.testing.assert_array_equal(found, rows.astype(ml_dtypes.bfloat16))
                here = np.asarray(there.params[table])[number * ACTIVE : (number + 1) * ACTIVE]
                np.testing.assert_array_equal(here, found.astype(np.float32))
    jax.tree.map(np.testing.assert_array_equal, trained.params["layers"], there.params["layers"])


def test_two_exports_of_a_run_are_equal_to_the_byte(run, folder, tmp_path):
    export_sources(run, tmp_path / "again")
    assert contents(tmp_path / "again") == contents(folder[0])
    for name in ("one", "two"):
        export(run, tmp_path / name, False, "float32")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_file_with_metadata_is_the_same_for_the_same_content():
    header = {"zoë": 'a "quoted" \u2028 \x1b name', "a": "b" * 37}
    header |= {f"{n}": str(n) for n in range(9)}
    tensors = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.ones(5, np.uint64)}
    headers = header, dict(reversed(header.items()))
    (content,) = {weights.packed(tensors, each) for each in headers}
    again = safetensors.numpy.load(content)
    for name, array in tensors.items():
        np.testing.assert_array_equal(again[name], array)
    size = int.from_bytes(content[:8], "little")
    assert json.loads(content[8 : 8 + size])["__metadata__"] == header and size % 8 == 0


def test_float32_files_compute_what_the_run_does(run, tmp_path):
    export_sources(run, tmp_path / "whole", "float32")
    trained, there = open_run(run), open_run(tmp_path / "whole")
    for names in ([], ["anna"], ["anna", ".."], NAMES):
        ours, theirs = logits_with(there, names), logits_with(trained, names)
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert np.abs(logits_with(trained, ["anna"]) - logits_with(trained, [])).max() > 0.01


PLAIN = {"model__attention_bias": False, "model__mlp_bias": False}


def opened_by_pytorch(folder, **options):
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options)


@pytest.fixture
def own_modules(tmp_path, monkeypatch):
    """For the code of folders: transformers puts its place into the path."""
    pytest.importorskip("transformers")
    place = "transformers.dynamic_module_utils.HF_MODULES_CACHE"
    monkeypatch.setattr(place, str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.mark.parametrize(
    "family, changed",
    [
        ("llama", PLAIN),
        ("llama", {"model__attention_bias": True, "model__mlp_bias": True}),
        ("gpt2", {}),
        ("gpt_neox", {}),
        ("phi3", PLAIN | {"data__vocabulary_size": 33_000}),
        ("gemma3_text", PLAIN),
        ("olmo2", PLAIN),
    ],
    ids=["llama", "llama, biases", "gpt2", "gpt_neox", "phi3", "gemma3_text", "olmo2"],
)
def test_pytorch_computes_the_same(family, changed, tokenizer, tmp_path, own_modules):
    torch = pytest.importorskip("torch")
    run = write_run(tmp_path / "run", tokenizer, model__family=family, **changed)
    export_sources(run, tmp_path / "model")
    ours, tokens = open_run(tmp_path / "model"), torch.tensor(np.asarray(TOKENS))
    plain = opened_by_pytorch(tmp_path / "model")
    assert not hasattr(plain, "set_sources")
    model = opened_by_pytorch(tmp_path / "model", trust_remote_code=True)
    with torch.no_grad():
        none = model(tokens).logits.numpy()
        np.testing.assert_array_equal(none, plain(tokens).logits.numpy())
        np.testing.assert_allclose(none, logits_with(ours, []), atol=1e-4)
        for names in (["anna"], ["..", "zoë / 1"], "all", []):
            model.set_sources(names)
            found = model(tokens).logits.numpy()
            expected = IN_ORDER if names == "all" else names
            assert model.sources == expected
            np.testing.assert_allclose(found, logits_with(ours, expected), atol=1e-4)
            assert (np.abs(found - none).max() > 0.01) == bool(names)
        for text in (*TEXTS, *[text[3:6] for text in TEXTS], np.arange(500, 520), TEXTS[0][:0]):
            assert model.nearest_sources(text.tolist()) == found_by(ours, text)
        model.set_sources(["anna"])
        asked = {"max_new_tokens": 6, "min_new_tokens": 6, "pad_token_id": 0}
        written = model.generate(tokens, do_sample=False, **asked)
        expected = model(written).logits[:, -7:-1].clone()
        expected[..., model.generation_config.eos_token_id] = -np.inf  # which would end it early
        assert (written[:, -6:] == expected.argmax(dim=-1)).all()
    model.save_pretrained(tmp_path / "saved")  # the base alone
    assert not [name for name in model.state_dict() if "sinks" in name]
    if family == "llama":
        for names, message in ((["nobody"], "no source 'nobody'"), (["anna", "anna"], "twice")):
            with pytest.raises(ValueError, match=message):
                model.set_sources(names)
        assert model.sources == ["anna"]
        (tmp_path / "model" / "sources" / "anna.safetensors").unlink()
        with pytest.raises(ValueError, match="no source 'anna'"):
            model.set_sources(["anna"])


def found_by(trained, text):
    name = trained.group_of(trained.nearest_ids([text])[0])
    return [] if name == "none" else [name]


@pytest.mark.parametrize(
    "kind", ["ours", "bytes", "bytes, begin", "bytes, begin and end", "spaces, begin"]
)
def test_pytorch_finds_the_source_that_we_find(kind, tokenizer, tmp_path, own_modules):
    transformers = pytest.importorskip("transformers")
    tokenizer = tokenizer if kind == "ours" else JsonTokenizer(tokenizer_json(kind))
    texts = [story(0, number).text for number in range(len(NAMES))]
    texts[3] = texts[4] = texts[2]  # these three are equal for every text
    write_run(tmp_path / "run", tokenizer, texts=list(map(tokenizer.encode, texts)))
    export_sources(tmp_path / "run", tmp_path / "model")
    run, folder = open_run(tmp_path / "run"), open_run(tmp_path / "model")
    model = opened_by_pytorch(tmp_path / "model", trust_remote_code=True)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    draw, found = random.Random(0), []
    words = [*" ".join(texts[:3]).split(), *" ".join(story(1, n).text for n in range(9)).split()]
    for _ in range(300):
        prompt = " ".join(draw.choices(words, k=draw.randrange(1, 6)))
        tokens = theirs(prompt)["input_ids"]
        assert model.nearest_sources(tokens) == found_by(folder, tokenizer.encode(prompt))
        assert model.nearest_sources(tokens) == found_by(run, np.asarray(tokens))
        found += model.nearest_sources(tokens) or [""]
    assert set(found) == {"", *NAMES[:2], min(NAMES[2:])}  # of equal ones the first by name
    with pytest.raises(ValueError, match="tokens of 2 texts"):
        model.nearest_sources(two := np.ones((2, 3), int))
    assert model.nearest_sources(two[:1]) == model.nearest_sources(two[0])


def tokenizer_json(kind):
    """The content of a tokenizer.json: of bytes as GPT-2's, or of words with their spaces as
    Llama's.

    With `begin` it puts a token first, and with `end` one last.
    """
    texts = [story(0, number).text for number in range(100)]
    made = tokenizers.Tokenizer(tokenizers.models.BPE(byte_fallback=True))
    begin = "<s>"
    end = "</s>"
    if kind.startswith("bytes"):
        made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = tokenizers.decoders.ByteLevel()
        alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    else:
        normalizers = tokenizers.normalizers
        spaces = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        made.normalizer = normalizers.Sequence(spaces)
        alphabet = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=800, initial_alphabet=alphabet, show_progress=False, special_tokens=[begin, end]
    )
    made.train_from_iterator(texts, trainer)
    if "begin" in kind:
        made.post_processor = tokenizers.processors.TemplateProcessing(
            f"{begin} $A {end}" if "and end" in kind else f"{begin} $A",
            special_tokens=[(token, made.token_to_id(token)) for token in (begin, end)],
        )
    return made.to_str().encode()


def test_it_opens_like_any_model_and_imports(folder, tokenizer, tmp_path):
    out, text = folder[0], "Once there was a fox, who had a friend."
    model = open_model(out)
    losses = {name: float(model.loss([text], "own", group=name)[0]) for name in NAMES}
    losses |= {mode: float(model.loss([text], mode)[0]) for mode in ("drop", "all")}
    assert len(set(losses.values())) == len(NAMES) + 2
    (tmp_path / "text.txt").write_text(text)
    of_anna = evaluate(out, "own", str(tmp_path / "text.txt"), group="anna")
    assert of_anna["loss"] == pytest.approx(losses["anna"])
    assert model.loss([text], "own") == model.loss([text])  # it is about none of them
    with expect_input_error("no group 'ana' among 5; did you mean 'anna"):
        generate(out, ["Once"], Settings(sinks="own"), groups=["ana"])
    settings = Settings(sinks="own", max_tokens=4, temperature=0)
    assert generate(out, ["Once"], settings, groups=["anna"])["tokens"] == 4
    import_model(out, tmp_path / "run", None, 0)
    imported = open_run(tmp_path / "run")
    assert imported.groups == IN_ORDER and imported.opened(imported.group_id("anna"))
    jax.tree.map(np.testing.assert_array_equal, imported.params, model.run.params)
    with expect_input_error("has sinks of 5 groups; leave out --pool"):
        import_model(out, tmp_path / "other", model.run.config.sinks, 0)


def test_a_text_about_two_sources_is_read_with_each_on(folder, caplog, monkeypatch):
    place, settings = folder[0], Settings(sinks="own", max_tokens=4)
    model, zoe = open_model(place), NAMES[0]
    decode, of = model.run.tokenizer.decode, dict(zip(NAMES, TEXTS, strict=False))
    prompts = [decode(np.concatenate([of[zoe], of["anna"]])), decode(of["anna"])]
    read, asked, rows, stream = [], [], sources.read_rows, Generator.stream

    def spied(self, prompts, settings, identities, *rest, **others):
        asked.append(identities.tolist())
        return stream(self, prompts, settings, identities, *rest, **others)

    monkeypatch.setattr(Generator, "stream", spied)
    with monkeypatch.context() as patched, caplog.at_level("INFO"):
        patched.setattr(
            sources, "read_rows", lambda one, *of: (read.append(one.name), rows(one, *of))[1]
        )
        generate(place, prompts, settings)
    assert f"groups: {zoe}, anna; anna" in caplog.text and sorted(read) == ["anna", zoe]
    two = open_run(place, only=[zoe, "anna"])
    ids = {name: two.group_id(name).tolist() for name in (zoe, "anna")}
    assert asked[-1] == [[ids[zoe], ids["anna"]], [ids["anna"], ids["anna"]]]
    generate(place, prompts[1:], settings, groups=["anna", zoe])
    assert asked[-1] == [[ids["anna"], ids[zoe]]]
    ids = {name: model.run.group_id(name).tolist() for name in NAMES}
    model.generate(prompts[0], "own", max_tokens=4)
    assert asked[-1] == [[ids[zoe], ids["anna"]]]
    model.generate(prompts[0], "own", group=["anna", "model"], max_tokens=4)
    assert asked[-1] == [[ids["anna"], ids["model"]]]
    with expect_input_error("group is 3; give a text"):
        model.generate("x", "own", group=["anna", 3])


def test_no_other_source_is_read_to_serve_one(folder, tmp_path, monkeypatch, caplog):
    place, decode = folder[0], open_model(folder[0]).run.tokenizer.decode
    (tmp_path / "text.txt").write_text("Once there was a fox, who had a friend.")
    # what `anna` writes about, and what nobody does
    prompts = [decode(TEXTS[NAMES.index("anna")]), "Once there was a fox."]
    settings = Settings(sinks="own", max_tokens=4, temperature=0)

    def asked():
        return [
            generate(place, prompts, settings)["text"],
            generate(place, prompts[:1], settings, groups=["model"])["text"],
            generate(place, prompts[1:], settings)["text"],
            evaluate(place, "own", str(tmp_path / "text.txt"), group="..")["loss"],
        ]

    # with all of them open
    trained = open_model(place)
    texts = [trained.generate(one, "own", max_tokens=4, temperature=0) for one in prompts]
    named = trained.generate(prompts[0], "own", group="model", max_tokens=4, temperature=0)
    (loss,) = trained.loss([(tmp_path / "text.txt").read_text()], "own", group="..")
    read, rows = [], sources.read_rows
    monkeypatch.setattr(
        sources, "read_rows", lambda source, *of: (read.append(source.name), rows(source, *of))[1]
    )
    with caplog.at_level("INFO"):
        assert asked() == [texts, named, texts[1], pytest.approx(loss)]
    assert read == ["anna", "model", ".."]
    assert "groups: anna; none" in caplog.text and "about none of the sources" in caplog.text
    with expect_input_error("no group 'ana' among 5; did you mean 'anna"):
        evaluate(place, "own", str(tmp_path / "text.txt"), group="ana")


def test_a_removed_source_is_gone_and_nothing_else_changes(folder, tmp_path):
    place = copied(folder, tmp_path)
    before, whole = contents(place), open_run(place)
    source = sources.open_sources(place).remove("anna")
    assert before.pop(f"sources/{source.path.name}") and contents(place) == before
    there, left = open_run(place), [name for name in IN_ORDER if name != "anna"]
    assert there.groups == left and there.config.sinks.pool == ACTIVE * len(left)
    for names in ([], *([name] for name in left), left):
        np.testing.assert_array_equal(logits_with(there, names), logits_with(whole, names))
    # An id names its group, not only the number that another group now has.
    assert not there.opened(whole.group_id("anna")) and not there.opened(whole.group_id(left[-1]))
    assert there.opened(there.group_id(left[-1]))
    for name in left:
        sources.open_sources(place).remove(name)
    base = open_run(place)
    assert base.groups == [] and not has_sinks(base.config)
    np.testing.assert_array_equal(logits_with(base, []), logits_with(whole, []))
    # The file that is put back is the one that was there.
    original = folder[0] / "sources" / source.path.name
    assert sources.open_sources(place).add(original).path.read_bytes() == original.read_bytes()
    assert open_run(place).groups == ["anna"]
    assert sorted(path.name for path in (place / "sources").iterdir()) == [source.path.name]


def test_a_source_is_withdrawn_with_a_receipt_whatever_its_name(folder, tmp_path):
    (tmp_path / "text.txt").write_text("Once there was a fox, who had a friend.")
    asked = Request(str(tmp_path / "text.txt"), group="model")
    receipt = forget(folder[0], asked, tmp_path / "rest")
    before = contents(folder[0])
    del before["sources/model.safetensors"]
    after = contents(tmp_path / "rest")
    assert set(after) - set(before) == {"receipt.json", "receipt.png", "index.html"}
    assert before.items() <= after.items() and receipt == json.loads(after["receipt.json"])
    assert "The sinks of sources/model.safetensors" in after["index.html"].decode()
    assert receipt["placebo"]["others"]["removals"] == 4


def test_the_base_is_known_however_it_is_stored(folder, tmp_path, monkeypatch):
    out, config = folder[0], open_run(folder[0]).config
    known = sources.base_of(out, config)
    files = safetensors.numpy.load_file(out / "model.safetensors")
    rounded = {name: tensor.astype(ml_dtypes.bfloat16) for name, tensor in files.items()}
    changed = {name: tensor.copy() for name, tensor in files.items()}
    changed["model.norm.weight"][3] += 0.01
    for stored, same in ((rounded, True), (changed, False)):
        place = copied(folder, tmp_path, f"{same}")
        (place / "model.safetensors").unlink()
        monkeypatch.setattr("memsinks_jax.models.weights.SHARD_BYTES", 10_000)
        names = weights.write(place, ([(name, tensor)] for name, tensor in stored.items()))
        assert len(names) > 1 and (sources.base_of(place, config) == known) == same
        if same:
            assert open_run(place).groups == IN_ORDER
        else:
            with expect_input_error("trained with another base than the weights of"):
                open_run(place)


def test_chosen_sources_are_merged_into_a_plain_model(folder, tmp_path):
    there = open_run(folder[0])
    export(folder[0], tmp_path / "two", True, "float32", groups=["..", "anna"])
    export(folder[0], tmp_path / "none", True, "float32")
    export(folder[0], tmp_path / "all", False, "float32")
    for name, names in (("two", ["..", "anna"]), ("none", [])):
        plain = open_run(tmp_path / name)
        assert not has_sinks(plain.config)
        assert plain.config.model.hidden == 16 + ACTIVE * len(names)
        np.testing.assert_allclose(logits_with(plain, []), logits_with(there, names), atol=1e-4)
    whole_folder = open_run(tmp_path / "all")
    assert whole_folder.groups == IN_ORDER
    every = logits_with(there, IN_ORDER)
    np.testing.assert_allclose(logits_with(whole_folder, []), every, atol=1e-4)
    assert "sources --folder=" in (tmp_path / "two" / "README.md").read_text()
    for names, message in ((["anna", "anna"], "named twice"), (["ana"], "no group 'ana'")):
        with expect_input_error(message):
            export(folder[0], tmp_path / "refused", True, "float32", groups=names)
    assert not (tmp_path / "refused").exists()


@pytest.fixture(scope="module")
def strangers(tokenizer, folder, tmp_path_factory):
    """{what is wrong with it: a source file, what is said}"""
    place = tmp_path_factory.mktemp("strangers")
    source, found = sources.open_sources(folder[0]).find("anna"), {}
    of_three = sources.read_rows(source, sources.open_sources(folder[0]).config)
    base = source.base
    good = source.path.read_bytes()
    export_sources(
        write_run(place / "run", tokenizer, ["new"], 1, sinks__pool=ACTIVE), place / "other"
    )
    found["of another base"] = (
        place / "other" / "sources" / "new.safetensors",
        "with another base than the weights of",
    )

    def written(name, rows, message):
        (place / name).mkdir()
        found[name] = (
            sources.write_source(place / name, "new", rows | {"words": WORDS}, base),
            message,
        )

    of_two = {name: rows[:2] for name, rows in of_three.items()}
    written("of another k", of_two, "has 2 sinks, and a source of .* has 3")
    wide = {name: rows[..., :-1] for name, rows in of_three.items()}
    needs = r"sink_down is \(3, 2, 15\), and this model needs \(3, 2, 16\)"
    written("of another model", wide, needs)
    few = {name: of_three[name] for name in ("sink_up", "sink_down")}
    written("without a table", few, "sink_gate is None")
    broken = of_three | {"sink_up": of_three["sink_up"] * np.float32("nan")}
    written("not finite", broken, "holds nan or inf")
    other = safetensors.numpy.save(of_three)
    for name, content, message in (
        ("truncated", good[:-7], "not a source file, or damaged"),
        ("text", b"a letter", "not a source file, or damaged"),
        ("other safetensors", other, "metadata does not have 'memsinks source 1'"),
        ("known already", good, "has the source 'anna' already"),
    ):
        path = place / f"{name}.safetensors"
        path.write_bytes(content)
        found[name] = path, message
    found["nowhere"] = place / "nowhere.safetensors", "not a source file"
    return found


STRANGERS = "of another base", "of another k", "of another model", "without a table", "not finite"
STRANGERS += "truncated", "text", "other safetensors", "known already", "nowhere"


@pytest.mark.parametrize("name", STRANGERS)
def test_a_file_that_does_not_fit_is_neither_added_nor_opened(name, strangers, folder, tmp_path):
    assert set(strangers) == set(STRANGERS)
    path, message = strangers[name]
    place = copied(folder, tmp_path)
    before = contents(place)
    with expect_input_error(message):
        sources.open_sources(place).add(path)
    assert contents(place) == before and len(list((place / "sources").iterdir())) == len(NAMES)
    if path.exists():  # put there by hand
        shutil.copyfile(path, place / "sources" / "put.safetensors")
        with expect_input_error(
            "are both the source 'anna'" if name == "known already" else message
        ):
            open_run(place)


def test_what_has_no_sources_of_its_own_is_refused(run, folder, tokenizer, tmp_path):
    hashed = write_run(tmp_path / "hashed", tokenizer, sinks__sampling="floyd")
    dense = write_run(tmp_path / "dense", tokenizer, sinks__sparse=False)
    never = write_run(tmp_path / "never", tokenizer, read=False)
    export(folder[0], tmp_path / "plain", True, "float32")
    how = "train with --config.data.ids=group --config.sinks.sampling=disjoint"
    for place, message in (
        (hashed, f"sampling is floyd, sparse True.; {how}"),
        (dense, "sampling is disjoint, sparse False"),
        (never, "no group came back in training"),
        (tmp_path / "plain", "without sinks"),
    ):
        with expect_input_error(message):
            export_sources(place, tmp_path / "out")
    with expect_input_error("exists; use another --sources"):
        export_sources(run, folder[0])
    for place in (tmp_path / "plain", run, tmp_path / "nowhere"):
        with expect_input_error("no folder with source files"):
            sources.open_sources(place).remove("anna")
    with expect_input_error("has no source 'ana'; it has '..', "):
        sources.open_sources(folder[0]).remove("ana")
    assert not [path for path in tmp_path.iterdir() if "out" in path.name]


def command(name, *flags):
    return python("-m", f"memsinks_jax.{name}", *flags, env=os.environ | {"JAX_PLATFORMS": "cpu"})


def test_names_of_any_kind_are_listed_in_a_line_each(folder, tmp_path, capsys):
    place = copied(folder, tmp_path)
    anna = sources.open_sources(place).find("anna")
    rows = sources.read_rows(anna, sources.open_sources(place).config)
    names = ["\n\t\x1b[31m\u202e", "\u05d0\u05d1", "x" * 300]
    files = [
        sources.write_source(place / "sources", name, rows | {"words": WORDS}, anna.base).name
        for name in names
    ]
    assert [one["name"] for one in listing(sources.open_sources(place))["sources"]] == sorted(
        [*NAMES, *names]
    )
    head, _, *lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(NAMES) + 3
    assert all(map(str.isprintable, lines))
    assert max(map(len, lines)) < 160
    shown = {r"\n\t\x1b[31m\u202e", "\u05d0\u05d1", "x" * 59 + "…"}
    assert {line[head.index("source") :] for line in lines} >= shown
    assert all(file.isascii() and file.isprintable() and len(file) < 240 for file in files)
    sources.write_source(place / "sources", "a,b ", rows | {"words": WORDS}, anna.base)
    assert named(sources.open_sources(place), ["anna,..", "a,b ", "\u05d0\u05d1"]) == [
        "anna",
        "..",
        "a,b ",
        "\u05d0\u05d1",
    ]
    for name in names:
        assert sources.open_sources(place).remove(name).name == name
        with pytest.raises(InputError) as refused:
            sources.open_sources(place).find(name)
        assert str(refused.value).isprintable() and len(str(refused.value)) < 600
    export(folder[0], tmp_path / "two", True, "float32", groups=["anna", "b%20" * 80])
    assert max(map(len, (tmp_path / "two" / "README.md").read_text().splitlines())) < 400


def test_the_commands(run, tmp_path):
    done = command("export", f"--workdir={run}", f"--sources={tmp_path / 'model'}", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sources"] == NAMES
    place = f"--folder={tmp_path / 'model'}"
    listed = json.loads(command("sources", place, "--json").stdout)
    found = [(one["name"], one["sinks"], one["base_matches"]) for one in listed["sources"]]
    assert found == [(name, ACTIVE, True) for name in IN_ORDER]
    before = contents(tmp_path / "model")
    for flags, message in (
        (["--remove=ana"], "has no source 'ana'"),
        (["--add=README.md"], "not a source file"),
        (["--merge=anna"], "--out is missing"),
        (["--merge=anna,ana", f"--out={tmp_path / 'out'}"], "has no source 'ana'"),
        (["--merge=anna", "--remove=anna"], "exclude each other"),
        (["--merge=anna,anna", f"--out={tmp_path / 'out'}"], "named twice"),
    ):
        done = command("sources", place, *flags)
        assert done.returncode == 2 and message in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert contents(tmp_path / "model") == before and not (tmp_path / "out").exists()
    imports = "import sys; from memsinks_jax import sources; sys.exit('jax' in sys.modules)"
    assert python("-c", imports).returncode == 0  # so that a removal takes no second
    done = command("sources", place, "--remove=anna", "--json")
    file = str(tmp_path / "model" / "sources" / "anna.safetensors")
    assert json.loads(done.stdout) == {"removed": "anna", "file": file}
