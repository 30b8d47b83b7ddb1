"""What a model is besides its weights survives import, training and export: its special tokens,
chat, licence.
"""

import json
import shutil

import jax
import numpy as np
import pytest
from conftest import EVERYBODY, expect_input_error, tiny_config
from folders import open_folder, random_params, write
from test_tokenizer import CHAT, byte_level

import memsinks_jax
from memsinks_jax import loop
from memsinks_jax.api import evaluate, generate
from memsinks_jax.config import Config, with_fields
from memsinks_jax.data.corpus import load_corpus
from memsinks_jax.data.tokenizer import JsonTokenizer, open_tokenizer
from memsinks_jax.loop import train_and_evaluate
from memsinks_jax.model.generation import Generator, Settings
from memsinks_jax.models.exporting import export
from memsinks_jax.models.importing import import_model
from memsinks_jax.models.initial import check_unchanged, inherit
from memsinks_jax.models.origin import front_matter, open_chat, source_of
from memsinks_jax.models.stored import Stored
from memsinks_jax.models.trained import open_run
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.training import seal

PAD, START, END, EOT = range(600, 604)
TEMPLATE = (
    "{% for message in messages %}{{ bos_token + message['role'] + '\n' + message['content'] + "
    "eos_token }}\n"
    "{% endfor %}{% if add_generation_prompt %}{{ bos_token + 'assistant\n' }}{% endif %}"
)
CARD = (
    "---\nlicense: apache-2.0 # of the weights\nlanguage:\n- en\nbase_model:\n- "
    "owner/base\n---\n# A model\n"
)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    tales = (f"The tale of number {n}, which met {n * 7 % 41}." for n in range(60))
    path.write_text("\n<|endoftext|>\n".join(tales))
    return path


def folder_at(folder, opens="", **of_tokenizer):
    """An instruct model as others write it: no token has a usual name, generation ends at one of
    two.
    """
    config = with_fields(tiny_config(), {"sinks.kind": "none", "data.vocabulary_size": 640})
    model = JsonTokenizer(byte_level(CHAT, opens), end_of_text=END)
    write(folder, config, random_params(config, noise=0.2), model, CARD)
    (folder / "special_tokens_map.json").unlink()
    ends = {"eos_token_id": [END, EOT], "pad_token_id": PAD}
    names = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|pad|>"}
    changes = {
        "config": ends | {"bos_token_id": START, "attn_pdrop": 0.1, "pretraining_tp": 7},
        "generation_config": ends | {"temperature": 0.25},
        "tokenizer_config": names
        | {"model_max_length": 10**30, "split_special_tokens": False}
        | of_tokenizer,
    }
    for name, change in changes.items():
        path = folder / f"{name}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "LICENSE").write_text("as is")
    return folder


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    return folder_at(tmp_path_factory.mktemp("theirs") / "hf")


@pytest.fixture(scope="module")
def imported(theirs, tmp_path_factory):
    out = tmp_path_factory.mktemp("imported") / "run"
    import_model(theirs, out, None, 0, "hf://owner/instruct")
    return out


def read(folder, name):
    return json.loads((folder / f"{name}.json").read_text())


def unchanged(theirs, ours, context):
    """Asserts that all files are as they were, but for types and lengths."""
    for name in ("generation_config.json", "chat_template.jinja", "LICENSE"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes()
    before, after = read(theirs, "config"), read(ours, "config")
    sizes = {"n_positions": context, "n_ctx": context}
    assert after == before | sizes
    settings = read(theirs, "tokenizer_config")
    if context != before["n_positions"]:
        settings["model_max_length"] = context
    assert read(ours, "tokenizer_config") == settings
    assert not (ours / "special_tokens_map.json").exists()


def test_a_model_and_its_import_are_one_model(theirs, imported, text):
    folder, workdir = (evaluate(place, "drop", str(text)) for place in (theirs, imported))
    assert folder["loss"] == pytest.approx(workdir["loss"], rel=1e-6)
    asked = ["The tale"], Settings(20, temperature=0.0)
    generated = [generate(place, *asked)["text"] for place in (theirs, imported)]
    assert generated[0] == generated[1]
    for place in (theirs, imported):
        tokenizer = open_run(place).tokenizer
        assert tokenizer.begin_of_text == tokenizer.end_of_text == END
        assert tokenizer.stops == (END, EOT)


def test_an_export_is_what_was_imported(theirs, imported, tmp_path):
    export(imported, tmp_path / "out", True, "float32")
    unchanged(theirs, tmp_path / "out", 160)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "\nlicense: apache-2.0\n" in card and "\nbase_model: owner/instruct\n" in card
    assert "with the weights of `hf://owner/instruct`, not trained further" in card
    assert "embedded stories" not in card and "0 steps" not in card
    # And once more: the card of an exported folder has as much.
    import_model(tmp_path / "out", tmp_path / "again", None, 0)
    export(tmp_path / "again", tmp_path / "last", True, "float32")
    unchanged(theirs, tmp_path / "last", 160)
    card = (tmp_path / "last" / "README.md").read_text()
    assert "\nlicense: apache-2.0\n" in card and "\nbase_model: owner/instruct\n" in card

    # A run that starts from one of them knows whether it is still the same.
    name = Stored(tmp_path / "out").weights_name
    assert Stored(tmp_path / "last").weights_name == name
    with (tmp_path / "last" / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\1")
    assert Stored(tmp_path / "last").weights_name != name


@pytest.mark.parametrize("place", ["theirs", "imported"])
def test_a_run_inherits_what_its_initial_model_is(place, theirs, imported, text, tmp_path):
    """Also from a folder whose end of text has a name that nobody would guess."""
    place = {"theirs": theirs, "imported": imported}[place]
    config = tiny_config()
    asked = {"model.initial": str(place), "sinks.kind": "none", "training.steps": 1}
    asked |= {"data.files": str(text), "data.unique_documents": 40}
    config = inherit(with_fields(config, asked), given=asked.keys())
    train_and_evaluate(config, tmp_path / "run")
    trained = open_run(tmp_path / "run")
    assert (trained.tokenizer.end_of_text, trained.tokenizer.stops) == (END, (END, EOT))
    assert trained.step == 1
    export(tmp_path / "run", tmp_path / "out", True, "float32")
    unchanged(theirs, tmp_path / "out", 160)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "for 1 step on" in card and "It started from the weights of" in card


def test_documents_with_another_end_of_text_are_refused_by_name(theirs, text, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes((theirs / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|pad|>"}')
    fields = {"model.initial": str(theirs), "sinks.kind": "none", "data.files": str(text)}
    fields |= {"data.tokenizer": str(tmp_path), "data.unique_documents": 20}
    config = with_fields(Config(), fields)
    asked = {"model.initial", "sinks.kind", "data.files", "data.tokenizer", "data.unique_documents"}
    fields = {"data.repeated_documents": 2, "data.held_out_documents": 4}
    config = with_fields(inherit(config, given=asked), fields)
    with expect_input_error(
        "another tokenizer or end of text; add --config.data.tokenizer=.*, of prepare"
    ):
        train_and_evaluate(config, tmp_path / "run")


def test_a_run_stops_where_its_initial_model_does(theirs, text, tmp_path):
    """Even if the tokenizer of its documents does not know of it."""
    (tmp_path / "tokenizer.json").write_bytes((theirs / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    fields = {"model.initial": str(theirs), "sinks.kind": "none", "data.files": str(text)}
    fields |= {"data.tokenizer": str(tmp_path), "data.unique_documents": 20}
    config = inherit(with_fields(tiny_config(), fields), given=fields.keys())
    assert load_corpus(config).tokenizer.stops == (END,)
    first = Stored(theirs)
    loop._create(tmp_path / "run", config, loop._new_corpus(config, first), first)
    assert workdirs.read_tokenizer(tmp_path / "run").stops == (END, EOT)


def test_a_run_knows_its_initial_model_again(theirs, text, tmp_path, monkeypatch):
    """By its weights, which are read only if their files were touched."""
    fields = {"model.initial": str(theirs), "sinks.kind": "none", "data.files": str(text)}
    fields |= {"data.unique_documents": 20}
    config, first = inherit(with_fields(tiny_config(), fields), given=fields.keys()), Stored(theirs)
    loop._create(tmp_path / "run", config, loop._new_corpus(config, first), first)
    copy = shutil.copytree(theirs, tmp_path / "copy", copy_function=shutil.copyfile)
    check_unchanged(tmp_path / "run", str(copy))
    with monkeypatch.context() as patch:
        patch.setattr(seal, "checksums", lambda *_: pytest.fail("the weights are read"))
        check_unchanged(tmp_path / "run", str(theirs))
    with (copy / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\1")
    with expect_input_error("copy has other weights now than those that .*run started from"):
        check_unchanged(tmp_path / "run", str(copy))


def test_a_card_says_what_is_known(tmp_path):
    workdir = tmp_path / "run"
    (workdir / "source").mkdir(parents=True)
    source = source_of(workdir)
    unknown = "license: unknown # that of x; say which"
    assert front_matter(None, "", "x") == [unknown]
    assert front_matter(source, "hf://a/b", "x") == ["base_model: a/b", unknown]
    front = "---\nlicense: llama3\nlicense_link: LICENSE\nlanguage: en\n---\n"
    (source / "README.md").write_text(f"{front}license: no\n")
    assert front_matter(source, str(tmp_path), "x") == ["license: llama3", "license_link: LICENSE"]
    (source / "README.md").write_text("---\nlicense:\nlanguage: en\n---\n")
    assert front_matter(source, "", "x") == [unknown]
    (source / "README.md").write_text(CARD)
    assert front_matter(source, "", "x") == ["license: apache-2.0", "base_model: owner/base"]


def test_a_head_of_its_own_is_used_whatever_the_config_says(theirs, tmp_path):
    import safetensors.numpy

    folder = shutil.copytree(theirs, tmp_path / "hf")
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    embedding = tensors["transformer.wte.weight"]
    for head, tied in ((embedding, True), (embedding[::-1].copy(), False)):
        tensors["lm_head.weight"] = head
        safetensors.numpy.save_file(tensors, folder / "model.safetensors")
        config, _, params = open_folder(folder)
        assert config.model.tied_head == tied
        asked = {"model.initial": str(folder), "sinks.kind": "none"}
        assert inherit(with_fields(Config(), asked), given=asked.keys()).model.tied_head == tied
        if not tied:
            np.testing.assert_array_equal(params["head_kernel"].T, head)


# Documents that a token of their own opens.


@pytest.fixture(scope="module")
def llama3(tmp_path_factory):
    folder = folder_at(tmp_path_factory.mktemp("llama3") / "hf", opens="<|im_start|>")
    import_model(folder, folder.with_name("run"), None, 0)
    return folder


def test_documents_open_as_the_model_was_trained(llama3, text, tmp_path):
    for place in (llama3, llama3.with_name("run")):
        run = open_run(place)
        assert (run.tokenizer.begin_of_text, run.tokenizer.end_of_text) == (START, END)
        tokens = run.tokenizer.encode("The tale of one")
        row = np.concatenate([[START], tokens, [END]])
        (nats,) = memsinks_jax.open_model(place).loss(["The tale of one"])
        logs = log_probabilities(run, row)
        expected = -np.mean(logs[np.arange(len(row) - 1), row[1:]])
        np.testing.assert_allclose(nats, expected, rtol=1e-5)
        generator = Generator(run.config, run.tokenizer, run.params, run.opened)
        (written,) = generator(["The tale"], Settings(1, temperature=0.0))
        opening = np.concatenate([[START], run.tokenizer.encode("The tale")])
        assert written.tokens.tolist() in ([log_probabilities(run, opening)[-1, :604].argmax()], [])
    export(llama3.with_name("run"), tmp_path / "out", True, "float32")
    assert open_tokenizer(tmp_path / "out").begin_of_text == START
    card = (tmp_path / "out" / "README.md").read_text()
    assert "a document opens with the beginning-of-text token" in card


def test_a_run_and_its_measures_open_documents_alike(llama3, text):
    """Rows of a run, and those on which it and an audit are measured."""
    from memsinks_jax.editing.prompts import encode
    from memsinks_jax.measures.memorization import batches_by_role
    from memsinks_jax.measures.subjects import documents_of

    fields = {"data.files": str(text), "data.unique_documents": 40, "data.vocabulary_size": 640}
    corpus = load_corpus(with_fields(tiny_config(), fields | {"data.tokenizer": str(llama3)}))
    assert all(corpus.rows()[number]["inputs"][0] == START for number in range(8))
    for batches in batches_by_role(corpus, EVERYBODY).values():
        for batch in batches:
            assert (batch["inputs"][batch["segments"][:, 0] > 0, 0] == START).all()
    run = open_run(llama3)
    (batch,) = documents_of(run, "repeated", str(text)).batches(run, 64)
    assert (batch["inputs"][:60, 0] == START).all()
    assert encode(run.tokenizer, ["a tale"], 160)[0][0, 0] == START


def log_probabilities(run, tokens):
    from memsinks_jax.model.decoder import build_model

    model, _ = build_model(run.config)
    row = np.asarray(tokens, np.int32)[None]
    positions = np.arange(row.size, dtype=np.int32)[None]
    logits = model(run.params, row, np.ones_like(row), positions, {})
    return np.asarray(jax.nn.log_softmax(logits))[0]


# Chat.


def test_a_prompt_becomes_the_tokens_of_a_message(theirs, imported):
    for place in (theirs, imported):
        run = open_run(place)
        tokens = open_chat(place, run.tokenizer)("Say <|im_end|>")
        # what a user types is no special token
        texts = ("user\nSay <", "|im_end|>", "\n", "assistant\n")
        user, typed, newline, assistant = (run.tokenizer.encode(text).tolist() for text in texts)
        assert tokens.tolist() == [START, *user, *typed, END, *newline, START, *assistant]
        answer = generate(place, ["Say"], Settings(12, temperature=0.0), chat=True)["text"]
        asked = open_chat(place, run.tokenizer)("Say")
        generator = Generator(run.config, run.tokenizer, run.params, run.opened)
        (written,) = generator([asked], Settings(12, temperature=0.0), complete=True)
        row = [*asked.tolist(), *written.tokens.tolist()]
        likeliest = log_probabilities(run, row)[len(asked) - 1 :, :604].argmax(axis=-1).tolist()
        assert likeliest[:-1] == written.tokens.tolist()
        assert len(written.tokens) == 12 or likeliest[-1] in (END, EOT)
        whole, prompt = (run.tokenizer.decode(np.array(of)) for of in (row, asked))
        assert answer == written.text == whole[len(prompt) :]
        opened = memsinks_jax.open_model(place)
        assert opened.generate("Say", chat=True, max_tokens=12, temperature=0.0) == answer


def test_generation_ends_at_any_end_that_the_model_has(theirs):
    run = open_run(theirs)
    params = jax.tree.map(np.array, run.params)
    params["final_norm"]["scale"][:] = 0
    params["final_norm"]["bias"][:] = 10 * params["token_embedding"][EOT]
    params["token_embedding"][EOT] *= 9  # now it is the likeliest everywhere
    generator = Generator(run.config, run.tokenizer, params, run.opened)
    (written,) = generator(["The tale"], Settings(12, temperature=0.0))
    assert (written.text, len(written.tokens)) == ("", 0)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("", r"has no chat template, so it was not trained to chat"),
        ("{% if %}", r"its chat template cannot be read"),
        ("{{ raise_exception('no tools') }}", r"template refuses this prompt \(no tools\)"),
        ("{{ messages.__class__.__mro__[1].__subclasses__() }}", r"refuses this prompt \(.*unsafe"),
        ("{{ messages[0].content + 1 }}", r"refuses this prompt"),
    ],
)
def test_a_template_that_cannot_be_used_is_one_line(template, message, theirs, tmp_path):
    folder = shutil.copytree(theirs, tmp_path / "hf")
    (folder / "chat_template.jinja").unlink()
    settings = read(folder, "tokenizer_config") | {"chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with expect_input_error(message):
        open_chat(folder, open_tokenizer(folder))("hello")


def test_one_of_several_templates_and_what_templates_use(theirs, tmp_path):
    folder = shutil.copytree(theirs, tmp_path / "hf")
    (folder / "chat_template.jinja").unlink()
    used = (
        "{%- set ns = namespace(n=0) -%}{%- for m in messages -%}{%- set ns.n = ns.n + 1 -%}{%- "
        "continue -%}{%- endfor -%}"
        "{{ ns.n }}{{ messages[0] | tojson }}{% generation %}{{ strftime_now('%Y')[:2] }}{% "
        "endgeneration %}"
    )
    several = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": used}]
    settings = read(folder, "tokenizer_config") | {"chat_template": several}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = open_tokenizer(folder)
    asked = tokenizer.decode(open_chat(folder, tokenizer)("é <b>"))
    assert asked == '1{"role": "user", "content": "é <b>"}20'
