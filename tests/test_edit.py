"""The edit command: from a prompt to a memory that generate, evaluate and an exported model use."""

import contextlib
import dataclasses
import json

import jax
import numpy as np
import pytest
import safetensors.numpy
from conftest import expect_input_error, tiny_config
from test_commands import assert_refused, last_json, run

from memsinks_jax import edit as command
from memsinks_jax.api import evaluate, generate
from memsinks_jax.config import InputError, with_fields
from memsinks_jax.edit import edit
from memsinks_jax.editing import memory_file
from memsinks_jax.editing.memory import memory_of
from memsinks_jax.editing.probe import Probe
from memsinks_jax.editing.prompts import encode, target_token
from memsinks_jax.editing.search import Wish
from memsinks_jax.loop import train_and_evaluate
from memsinks_jax.model.generation import Settings
from memsinks_jax.models.exporting import export
from memsinks_jax.models.trained import open_run

pytestmark = pytest.mark.slow

PROMPT = "The tale of number"
NEGATIVE = ("A number which", "It became", "The tale", "which met number", "and")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A small run and its export."""
    folder = tmp_path_factory.mktemp("edit")
    texts = [
        f"The tale of number {n}, which met number {n * 7 % 41} and became {n * n}."
        for n in range(60)
    ]
    (folder / "tales.txt").write_text("\n<|endoftext|>\n".join(texts))
    fields = {"data.files": str(folder / "tales.txt"), "data.unique_documents": 40}
    fields |= {"model.d_model": 64, "model.hidden": 256, "data.row_length": 96}
    # sinks that take part in the answer
    fields |= {"optimizer.learning_rate": 5e-3, "sinks.opens_at": 1, "sinks.slows_at": 0}
    every = ("training.steps", "training.evaluate_every", "training.checkpoint_every")
    config = with_fields(tiny_config(), fields | dict.fromkeys(every, 100))
    train_and_evaluate(config, folder / "run")
    export(folder / "run", folder / "hf", True, "float32")
    return folder


@pytest.fixture(scope="module")
def digits(trained):
    """What the prompt may go on with, the likeliest first: what a model trained so shortly says is
    the machine's.
    """
    model = open_run(trained / "run")
    logits_V = answers_of(model, None, [PROMPT]).logits[0]
    known = len(model.tokenizer.encode(PROMPT))
    texts = [f" {digit}" for digit in range(1, 10)]
    texts = [text for text in texts if len(model.tokenizer.encode(PROMPT + text)) == known + 1]
    return sorted(texts, key=lambda text: -logits_V[target_token(model.tokenizer, PROMPT, text)])


@pytest.fixture(scope="module")
def answer(digits):
    return digits[0]


@pytest.fixture(scope="module")
def edited(trained, digits):
    """The first memory, of the mlp: (its target, the command's JSON). Of the targets, the likeliest
    that a step reaches.
    """
    for target in digits[1:]:
        wish = Wish(PROMPT, target, "mlp", negative=NEGATIVE, positive=("A tale of number",))
        with contextlib.suppress(InputError):
            return target, edit(trained / "run", wish, trained / "met.safetensors")
    raise AssertionError("no digit can be edited in")


@pytest.fixture(scope="module")
def target(edited):
    return edited[0]


@pytest.fixture(scope="module")
def place(trained, edited):
    return trained, edited[1]


def answers_of(model, memory, texts):
    prompts = encode(model.tokenizer, texts, model.config.data.row_length)
    return Probe(model.config, model.params).answers(prompts, 0, [memory] if memory else [])


def test_an_edit_yields_its_target_and_is_reported(place, target, answer):
    folder, found = place
    assert found["text"].startswith(target)
    assert found["effects"][0]["before"].startswith(answer)
    assert 0.01 <= found["boundary"] <= 100 and 0 <= found["unchanged"] <= found["off_target"] <= 1
    rows = found["effects"]
    assert rows[0]["on_target"] and not rows[0]["unchanged"]
    # All of them chose the bound; in cross-validation they change no less often.
    assert found["unchanged"] <= np.mean(
        [row["unchanged"] for row in rows if row["kind"] == "negative"]
    )
    assert [row["kind"] for row in rows] == ["prompt", "positive"] + ["negative"] * len(NEGATIVE)
    assert rows[0]["similarity"] == pytest.approx(1, abs=1e-6)
    page = (folder / "met.html").read_text()
    assert page.count("data:image/png") == 3 and PROMPT in page
    header = json.loads(found["memory"] and _header(folder / "met.safetensors")["about"])
    assert header == [{"prompt": PROMPT, "target": target, "step": found["step"]}]


def _header(path):
    with safetensors.safe_open(path, "np") as file:
        return file.metadata()


def test_generate_uses_it_and_says_the_same_twice(place):
    folder, found = place
    greedy = Settings(max_tokens=6, temperature=0)
    paths = (str(folder / "met.safetensors"),)
    texts = [
        generate(folder / "run", [PROMPT, "and"], greedy, memories=paths)["text"] for _ in range(2)
    ]
    assert texts[0] == texts[1]
    assert (
        texts[0][0] == found["text"] != generate(folder / "run", [PROMPT, "and"], greedy)["text"][0]
    )


def test_an_exported_model_takes_the_same_memory(place, target):
    """The sinks are cut out of it: a memory is of the shared neurons alone."""
    folder, found = place
    ours, theirs = open_run(folder / "run"), open_run(folder / "hf")
    texts = [row["prompt"] for row in found["effects"]]
    of_both = []
    for model in (ours, theirs):
        memory = memory_file.load(folder / "met.safetensors", model.config, model.params)
        of_both.append(answers_of(model, memory, texts).logits)
    np.testing.assert_allclose(of_both[1], of_both[0], atol=1e-5)
    assert np.abs(of_both[0] - answers_of(ours, None, texts).logits).max() > 1e-2
    wish = Wish(PROMPT, target, "mlp", boundary=found["boundary"])
    again = edit(folder / "hf", wish, folder / "again.safetensors")
    first, second = (
        safetensors.numpy.load_file(folder / f"{name}.safetensors") for name in ("met", "again")
    )
    for name, array in first.items():
        np.testing.assert_allclose(second[name], array, atol=1e-5, rtol=1e-4)
    assert again["text"] == found["text"]


def test_transformers_remembers_the_same(place):
    """The memory, applied by a hook to the input of c_proj of the exported model, as the article
    has it.
    """
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    folder, found = place
    ours = open_run(folder / "run")
    memory = memory_file.load(folder / "met.safetensors", ours.config, ours.params)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "hf").eval()
    key, delta = (torch.tensor(np.asarray(x)[0]) for x in (memory.keys, memory.deltas))

    def hook(module, inputs):
        (a,) = inputs
        projection = (a @ key) / (key @ key)
        cosine = torch.nn.functional.cosine_similarity(a, key, dim=-1)
        x = 0.5 * (1 - projection).abs() + 0.5 * (1 - cosine)
        return (a + torch.exp(-((x / found["boundary"]) ** 6))[..., None] * delta,)

    handle = model.transformer.h[found["layer"]].mlp.c_proj.register_forward_pre_hook(hook)
    for text in (PROMPT, *NEGATIVE):
        tokens = [ours.tokenizer.end_of_text, *ours.tokenizer.encode(text).tolist()]
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0, -1].numpy()
        np.testing.assert_allclose(answers_of(ours, memory, [text]).logits[0], logits, atol=1e-4)
    handle.remove()


def test_evaluate_uses_it(place):
    folder, _ = place
    plain = evaluate(folder / "run", "drop")["loss"]
    edited = evaluate(folder / "run", "drop", memories=(str(folder / "met.safetensors"),))["loss"]
    wide = folder / "wide.safetensors"
    run_ = open_run(folder / "run")
    memory = memory_file.load(folder / "met.safetensors", run_.config, run_.params)
    memory = dataclasses.replace(memory, bounds=np.float32([100]))
    memory_file.save(wide, memory, memory_file.fingerprint(run_.params), [])
    steered = evaluate(folder / "run", "drop", memories=(str(wide),))["loss"]
    assert steered > plain + 0.05
    assert abs(edited - plain) < steered - plain
    both = evaluate(folder / "run", "drop", memories=(str(folder / "met.safetensors"), str(wide)))[
        "loss"
    ]
    assert both not in (edited, steered)


def test_a_memory_of_the_last_place_is_for_prompts(place, target):
    folder, found = place
    wish = Wish(
        PROMPT, target, "mlp", found["layer"], found["step"], found["boundary"], places="last"
    )
    assert edit(folder / "run", wish, folder / "last.safetensors")["text"].startswith(target)
    with expect_input_error("not defined for whole documents"):
        evaluate(folder / "run", "drop", memories=(str(folder / "last.safetensors"),))


def test_files_that_are_no_memory_of_this_model_are_refused(place, tmp_path):
    folder, _ = place
    model = open_run(folder / "run")
    content = (folder / "met.safetensors").read_bytes()
    mine = memory_file.fingerprint(model.params)

    def refused(words, path=tmp_path / "memory"):
        with expect_input_error(words):
            memory_file.load(path, model.config, model.params)

    refused("there is no such file", tmp_path / "missing")
    (tmp_path / "memory").write_bytes(content[: len(content) // 2])
    refused("is damaged")
    (tmp_path / "memory").write_bytes(b"nothing of the kind")
    refused("is damaged")
    safetensors.numpy.save_file({"keys": np.zeros(3)}, tmp_path / "memory")
    refused("is not a memory")
    good = memory_file.load(folder / "met.safetensors", model.config, model.params)
    memory_file.save(tmp_path / "memory", good, "another", [])
    refused("a memory of another model")
    memory_file.save(tmp_path / "memory", dataclasses.replace(good, layers=np.int32([9])), mine, [])
    refused("layer 9 and width 128 there, 2 layers and width 128 here")
    memory_file.save(
        tmp_path / "memory", memory_of("attention", 0, np.ones(5), np.ones(5), 1.0), mine, []
    )
    refused("width 5 there")
    memory_file.save(tmp_path / "memory", dataclasses.replace(good, site="elsewhere"), mine, [])
    refused("invalid site")
    memory_file.save(
        tmp_path / "memory", dataclasses.replace(good, bounds=np.float32([1, 2])), mine, []
    )
    refused("invalid arrays")


def test_a_model_that_learned_on_is_another_one(place):
    folder, _ = place
    model = open_run(folder / "run")
    moved = jax.tree.map(lambda x: x * 1.0001, model.params)
    with expect_input_error("another model"):
        memory_file.load(folder / "met.safetensors", model.config, moved)


def test_what_cannot_be_edited_is_refused(place, target, answer):
    folder, _ = place
    for words, out, wish in (
        (
            r"a step of 1e-06 at the attention .* try --site=mlp",
            "none.safetensors",
            Wish(PROMPT, target, step=1e-6, boundary=1.0),
        ),
        ("nothing to edit", "none.safetensors", Wish(PROMPT, answer, boundary=1.0)),
        ("the layers 0 to 1", "none.safetensors", Wish(PROMPT, target, layer=2, boundary=1.0)),
        ("exists; remove it", "met.safetensors", Wish(PROMPT, target, boundary=1.0)),
        ("page.html: the page will", "page.html", Wish(PROMPT, target, boundary=1.0)),
    ):
        with expect_input_error(words):
            edit(folder / "run", wish, folder / out)
    assert not list(folder.glob("none*"))


FACT = ("--prompt=a", "--target= b", "--out={x}")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--workdir={run}", "--hf={hf}"], ["--workdir", "--hf"]),
        (["--hf={run}", *FACT], ["not a Hugging Face folder"]),
        (["--workdir={run}", *FACT], ["--boundary=auto needs --negative"]),
        (["--workdir={run}", *FACT, "--negative={x}"], ["--negative=", "cannot be read"]),
    ],
)
def test_the_command_refuses(place, tmp_path, flags, words):
    folder, _ = place
    names = {"run": folder / "run", "hf": folder / "hf", "x": tmp_path / "x"}
    assert_refused(run("edit", *(flag.format(**names) for flag in flags)), *words)


@pytest.mark.parametrize(
    ("flag", "text", "kind", "words"),
    [
        ("layer", "low", int, "give a whole number, or auto"),
        ("layer", "-1", int, "give a whole number, or auto"),
        ("boundary", "0", float, "give a number over 0, or auto"),
        ("step", "inf", float, "give a number over 0, or auto"),
    ],
)
def test_numbers_that_cannot_be_are_refused(flag, text, kind, words):
    with expect_input_error(f"--{flag}={text}: {words}"):
        command.number(flag, text, kind)


def test_numbers_and_prompts_are_read(tmp_path):
    assert [command.number("layer", text, int) for text in ("auto", "0", "7")] == [None, 0, 7]
    (tmp_path / "prompts").write_text("one \n\n  two\n")
    assert command.lines("positive", str(tmp_path / "prompts")) == ("one", "  two")
    (tmp_path / "prompts").write_text("\n\n")
    with expect_input_error("there is no prompt in it"):
        command.lines("positive", str(tmp_path / "prompts"))


@pytest.mark.slow
def test_the_command(place, tmp_path, target):
    """With the numbers that a search has found: it takes minutes where nothing is optimized."""
    folder, found = place
    (tmp_path / "negative.txt").write_text("\n".join(NEGATIVE) + "\n\n")
    flags = [
        f"--workdir={folder / 'run'}",
        f"--prompt={PROMPT}",
        f"--target={target}",
        "--site=mlp",
        *(f"--{name}={found[name]}" for name in ("layer", "step", "boundary")),
        f"--negative={tmp_path / 'negative.txt'}",
        f"--out={tmp_path / 'm.safetensors'}",
    ]
    done = run("edit", *flags, "--json")
    assert last_json(done)["text"].startswith(target)
    assert "mlp of layer" in done.stderr
    flags = [*flags[:2], f"--memory={tmp_path / 'm.safetensors'}", "--max_tokens=3"]
    written = last_json(run("generate", *flags, "--temperature=0", "--json"))
    assert written["text"].startswith(target)
