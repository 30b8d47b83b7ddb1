"""Models in GGUF files: written here as llama.cpp's converter lays them out, read as the Hugging
Face folder is.
"""

import json
import shutil

import gguf
import jax
import numpy as np
import pytest
import sentencepiece
import tokenizers
from conftest import expect_input_error
from folders import open_folder
from tokenizers import decoders, models, pre_tokenizers, trainers

from memsinks_jax.config import Config, with_fields
from memsinks_jax.data.gguf_file import open_gguf
from memsinks_jax.data.tokenizer import JsonTokenizer, open_tokenizer
from memsinks_jax.loop import train_and_evaluate
from memsinks_jax.models import config_json, gguf_model, hugging_face
from memsinks_jax.models.exporting import export
from memsinks_jax.models.importing import import_model
from memsinks_jax.models.initial import inherit
from memsinks_jax.models.origin import keep, open_chat
from memsinks_jax.models.stored import Stored
from memsinks_jax.models.tokenizer_files import same_tokens
from memsinks_jax.models.trained import open_run

TEXTS = [
    "The story of number 7, who met a fox in 1984.",
    "  Two spaces,\ta tab\n\nand déjà vu 漢字 'll don't.",
] * 20
LLAMA = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64}
LLAMA |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192, "rope_theta": 500000.0}
TIED = {"tie_word_embeddings": True, "attention_bias": True}
GEMMA = {"num_hidden_layers": 7, "head_dim": 256, "query_pre_attn_scalar": 256}
GPT2 = {"n_layer": 2, "n_embd": 32, "n_head": 4, "n_inner": 128, "n_positions": 1024}
MODELS = {
    "llama": ("llama", LLAMA),
    "llama 3.2": ("llama", LLAMA | TIED | {"rope_parameters": LLAMA3}),
    "qwen2": ("qwen2", LLAMA),
    "qwen3": ("qwen3", LLAMA | {"head_dim": 128}),
    "phi3": ("phi3", LLAMA),
    # which transformers does not read of these files
    "phi3 with a window": ("phi3", LLAMA | {"sliding_window": 7}),
    "gemma3": ("gemma3_text", LLAMA | GEMMA | {"sliding_window": 7}),
    "gpt2": ("gpt2", GPT2),
    "gptneox": ("gpt_neox", {k: v for k, v in LLAMA.items() if "key_value" not in k}),
    "olmo2": ("olmo2", LLAMA),
    "smollm3": ("smollm3", LLAMA | {"num_hidden_layers": 4}),
}
THEIRS = ("llama", "qwen2", "qwen3", "phi3", "gemma3", "gpt2")  # which transformers reads too


@pytest.fixture(scope="module")
def pieces():
    """A tokenizer as GPT-2's, trained here."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=["<|end|>"],
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    return made


def add_tokenizer(writer, made, cut="gpt-2"):
    content = json.loads(made.to_str())["model"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(cut)
    writer.add_token_list(list(content["vocab"]))
    writer.add_token_types([3] + [1] * (len(content["vocab"]) - 1))
    writer.add_token_merges([" ".join(pair) for pair in content["merges"]])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_chat_template("{% for m in messages %}<|end|>{{ m['content'] }}{% endfor %}")


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def interleaved(array, heads):
    return array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def write(path, name, pieces, kind=None):
    """A random model -> (its config.json, {Hugging Face's name: tensor})"""
    family, content = MODELS[name]
    architecture = name.split(" ")[0]
    content = {"model_type": family, "vocab_size": pieces.get_vocab_size(), **content}
    config = config_json.read_config(content, "here")
    draw, tensors = np.random.default_rng(0), {}
    for tensor in hugging_face.tensors(config, config.model.hidden):
        tensors[tensor.name] = draw.normal(0, 0.3, tensor.shape).astype(np.float32)
    writer = gguf.GGUFWriter(path, architecture)
    model = config.model
    for field, value in {
        "block_count": model.layers,
        "context_length": config.data.row_length,
        "embedding_length": model.d_model,
        "feed_forward_length": model.hidden,
        "head_count": model.heads,
        "head_count_kv": model.kv_heads,
    }.items():
        getattr(writer, f"add_{field}")(value)
    epsilon = (
        writer.add_layer_norm_eps if family.startswith("gpt") else writer.add_layer_norm_rms_eps
    )
    epsilon(model.norm_epsilon)
    if family != "gpt2":
        writer.add_rope_freq_base(model.rope_theta)
        writer.add_rope_dimension_count(model.rotated)
    if "head_dim" in content:
        writer.add_key_length(model.head_width)
        writer.add_value_length(model.head_width)
    if model.window:
        writer.add_sliding_window(model.window)
    if family == "gpt_neox":
        writer.add_parallel_residual(True)
    if model.rope_scaling:
        waves = 2 * np.pi * model.rope_theta ** (np.arange(0, 8, 2) / 8)
        smooth = (8192 / waves - 1) / 3
        between = 1 / ((1 - smooth) / 32 + smooth)
        factors = np.where(waves > 8192, 32, np.where(waves < 2048, 1, between))
        writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))
    add_tokenizer(writer, pieces)
    numbers = {of: number for number, of in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(numbers[architecture], model.layers)
    for hf, array in tensors.items():
        stored = array
        if architecture in ("llama", "smollm3") and (".q_proj" in hf or ".k_proj" in hf):
            stored = interleaved(array, model.kv_heads if ".k_proj" in hf else model.heads)
        if architecture == "gptneox" and ".query_key_value" in hf:
            stored = (
                array.reshape(model.heads, 3, -1, *array.shape[1:])
                .swapaxes(0, 1)
                .reshape(array.shape)
            )
        if architecture == "gemma3" and hf.endswith("norm.weight"):
            stored = array + 1
        if architecture == "gpt2" and array.ndim == 2 and ".h." in hf:
            stored = array.T
        stored = np.ascontiguousarray(stored)
        quantized = kind is not None and array.ndim == 2
        if quantized:
            stored = gguf.quants.quantize(stored, kind)
        named = names.get_name(hf, (".weight", ".bias"))
        writer.add_tensor(named, stored, raw_dtype=kind if quantized else None)
    finish(writer)
    return content, tensors


@pytest.mark.parametrize("name", MODELS)
def test_a_file_is_the_model_that_was_written(name, pieces, tmp_path):
    path = tmp_path / "a.gguf"
    content, tensors = write(path, name, pieces)
    assert not Stored(path).is_run
    config, tokenizer, params = open_folder(path)
    expected = config_json.read_config(content, "here")
    assert config.model == expected.model and config.data == expected.data
    wanted = hugging_face.ours(expected, expected.model.hidden, tensors.__getitem__)
    exact = 1e-6 if name == "gemma3" else 0  # one is added and taken away
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, atol=exact), params, wanted
    )
    for text in TEXTS[:2]:
        assert tokenizer.encode(text).tolist() == pieces.encode(text, add_special_tokens=False).ids
    assert same_tokens(tokenizer, JsonTokenizer(pieces.to_str().encode(), end_of_text=0))


@pytest.mark.parametrize("name", THEIRS)
def test_transformers_reads_the_same_model(name, pieces, tmp_path):
    """Its own reader of GGUF files: so the layout that these tests write is the usual one."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    from test_families import TOKENS, logits_of

    write(tmp_path / "a.gguf", name, pieces)
    config, _, params = open_folder(tmp_path / "a.gguf")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="a.gguf", dtype=torch.float32
    )
    tokens = TOKENS % pieces.get_vocab_size()
    with torch.no_grad():
        expected = theirs(torch.tensor(tokens)).logits.numpy()
    np.testing.assert_allclose(logits_of(config, params, tokens), expected, atol=1e-4)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_quantised_weights_are_those_that_the_package_restores(kind, pieces, tmp_path):
    number = gguf.GGMLQuantizationType[kind]
    _, tensors = write(tmp_path / "a.gguf", "qwen2", pieces, number)
    name = "model.layers.0.self_attn.o_proj.weight"
    restored = gguf.quants.dequantize(gguf.quants.quantize(tensors[name], number), number)
    found = open_folder(tmp_path / "a.gguf")[2]["layers"]["attention_output_kernel"][0]
    np.testing.assert_array_equal(found.T, restored)
    assert 0 < np.abs(found.T - tensors[name]).max() < 0.2


def test_a_workdir_has_what_the_file_says(pieces, tmp_path):
    write(tmp_path / "a.gguf", "llama 3.2", pieces)
    import_model(tmp_path / "a.gguf", tmp_path / "run", None, 0)
    run = open_run(tmp_path / "run")
    assert run.config.model.rope_scaling == "llama3:32,1,4,8192" and run.tokenizer.end_of_text == 0
    settings = json.loads((tmp_path / "run" / "source" / "tokenizer_config.json").read_text())
    assert settings["eos_token"] == "<|end|>" and settings["add_bos_token"] is False
    for place in (tmp_path / "run", tmp_path / "a.gguf"):
        asked = open_chat(place, run.tokenizer)("A fox.")
        assert asked.tolist() == [0, *run.tokenizer.encode("A fox.")]
    keep(
        Stored(tmp_path / "a.gguf").origin,
        (tmp_path / "other").mkdir() or tmp_path / "other",
        "a.gguf",
    )
    assert (tmp_path / "other" / "source" / "chat_template.jinja").is_file()


def test_a_run_gives_it_sinks_trains_and_drops_them(pieces, tmp_path):
    """One command: config.model.initial=FILE and a pool. The export is the model that dropping
    leaves, and its context is that of the file, not the rows'.
    """
    write(tmp_path / "a.gguf", "qwen3", pieces)
    (tmp_path / "texts").mkdir()
    for number in range(12):
        (tmp_path / "texts" / f"{number}.txt").write_text(
            f"Number {number} said: {TEXTS[number % 2]} {number * 7919}"
        )
    fields = {"model.initial": str(tmp_path / "a.gguf"), "optimizer.learning_rate": 1e-3}
    fields |= {"sinks.pool": 40, "sinks.active": 4, "sinks.opens_at": 1}
    fields |= {"sinks.learning_rate_multiple": 30.0, "training.batch_size": 8}
    fields |= {"data.files": str(tmp_path / "texts" / "*.txt"), "data.row_length": 32}
    fields |= {"data.unique_documents": -1, "data.held_out_documents": 2}
    fields |= {"data.repeated_documents": 4, "data.repetitions": 8}
    config = inherit(with_fields(Config(), fields), given=set(fields))
    train_and_evaluate(config, tmp_path / "run")
    run = open_run(tmp_path / "run")
    assert run.params["sink_down"].shape[0] == 40 and np.asarray(run.params["sink_down"]).any()
    export(tmp_path / "run", tmp_path / "out", True, "float32")
    exported, _, params = open_folder(tmp_path / "out")
    assert exported.model.hidden == 64 and exported.model.head_size == 128
    settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert run.config.data.row_length == 32
    assert exported.data.row_length == settings["model_max_length"] == 64
    for name in ("query_kernel", "down_kernel"):
        np.testing.assert_array_equal(params["layers"][name], run.params["layers"][name])
    template = "chat_template.jinja"
    assert (tmp_path / "out" / template).read_text() == (
        tmp_path / "run" / "source" / template
    ).read_text()


def test_a_tokenizer_with_scores_cuts_as_sentencepiece(tmp_path):
    """As Llama 2, Mistral, Phi-3 and, without a space in front, Gemma have it."""
    (tmp_path / "text.txt").write_text("\n".join(TEXTS))
    for prefix in (True, False):
        sentencepiece.SentencePieceTrainer.train(
            input=str(tmp_path / "text.txt"),
            model_prefix=str(tmp_path / "m"),
            model_type="bpe",
            vocab_size=350,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=prefix,
            minloglevel=2,
        )
        theirs = sentencepiece.SentencePieceProcessor(str(tmp_path / "m.model"))
        every = range(theirs.vocab_size())
        writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
        writer.add_tokenizer_model("llama")
        writer.add_token_list([theirs.id_to_piece(i) for i in every])
        writer.add_token_scores([theirs.get_score(i) for i in every])
        special = {2: theirs.is_unknown, 3: theirs.is_control, 6: theirs.is_byte}
        kinds = [next((kind for kind, of in special.items() if of(i)), 1) for i in every]
        writer.add_token_types(kinds)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_add_space_prefix(prefix)
        finish(writer)
        ours = open_tokenizer(tmp_path / "a.gguf")
        # bos, unless the file says otherwise
        assert (ours.begin_of_text, ours.end_of_text) == (1, 2)
        for text in (*TEXTS[:2], "zebra ☃ 2024", "a"):
            assert ours.encode(text).tolist() == theirs.encode(text)
            assert ours.decode(ours.encode(text)) == text
        (tmp_path / "a.gguf").unlink()


BY_DIGIT = ["in", "Ġ", "1", "2", "3", "4", "5", "Ġdon", "'t"]


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        ("gpt-2", ["in", "Ġ12345", "Ġdon", "'t"]),
        ("smollm", BY_DIGIT),
        ("llama-bpe", ["in", "Ġ", "123", "45", "Ġdon", "'t"]),
        ("qwen2", BY_DIGIT),
    ],
)
def test_text_is_cut_as_the_file_says(cut, words, pieces, tmp_path):
    """Digits one by one (SmolLM, Qwen) or up to three together (Llama 3); GPT-2's as the tokenizer
    was trained.
    """
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    add_tokenizer(writer, pieces, cut)
    finish(writer)
    made = tokenizers.Tokenizer.from_buffer(open_gguf(tmp_path / "a.gguf").tokenizer())
    cut_here = made.pre_tokenizer.pre_tokenize_str("in 12345 don't")
    assert [word for word, _ in cut_here] == words


@pytest.fixture
def written(pieces, tmp_path):
    write(tmp_path / "a.gguf", "llama", pieces)
    return tmp_path / "a.gguf"


def expect_refused(path, message):
    with expect_input_error(message) as error:
        open_folder(path)
    assert "\n" not in str(error.value)


def test_what_cannot_be_read_is_refused_in_a_line(written, pieces, tmp_path, monkeypatch):
    (tmp_path / "cut.gguf").write_bytes(written.read_bytes()[:2000])
    expect_refused(tmp_path / "cut.gguf", "cut.gguf: cannot be read as GGUF")
    (tmp_path / "text.gguf").write_text("no model")
    expect_refused(tmp_path / "text.gguf", "text.gguf: cannot be read as GGUF")
    shutil.copy(written, tmp_path / "m-00001-of-00002.gguf")
    expect_refused(
        tmp_path / "m-00001-of-00002.gguf", "m-00002-of-00002.gguf is missing, a part of"
    )
    unknown = "which is not known here"
    for field, value, message in (
        (
            "llama.expert_count",
            8,
            r"a mixture of experts \(llama.expert_count is 8\), which cannot be",
        ),
        ("general.architecture", "mamba", "architecture is 'mamba'; these can be read: llama"),
        ("tokenizer.ggml.pre", "tekken", f"its tokenizer cuts text as 'tekken', {unknown}"),
        ("tokenizer.ggml.pre", None, f"its tokenizer cuts text as 'default', {unknown}"),
        ("tokenizer.ggml.model", "bert", "its tokenizer is of the kind 'bert'"),
        ("llama.rope.scaling.type", "yarn", "its rotary positions are scaled by 'yarn'"),
        (
            "llama.block_count",
            3,
            "weights are not those of its config.json: it lacks model.layers.2",
        ),
        ("llama.block_count", 1, "it has besides blk.1"),
        ("llama.attention.head_count", None, "llama.attention.head_count is missing"),
    ):
        with monkeypatch.context() as patch:
            patch.setitem(open_gguf(written).fields, field, value)
            expect_refused(written, message)
    open_folder(written)


@pytest.mark.parametrize(
    "field, value, key, expected",
    [
        ("llama.rope.freq_base", np.float32(8388608), "rope_theta", 8388608.0),
        ("llama.rope.scaling.factor", 4.0, "factor", 4.0),  # llama.cpp's default type is linear
        ("llama.rope.scale_linear", 2.0, "factor", 2.0),  # of 2023
    ],
)
def test_rotary_numbers_are_those_of_the_file(field, value, key, expected, written, monkeypatch):
    monkeypatch.setitem(open_gguf(written).fields, field, value)
    assert gguf_model.GgufModel(written).content["rope_parameters"][key] == expected


def test_tokens_around_documents_follow_from_what_is_there(written, monkeypatch):
    """A file may have no token that opens documents, and name the one that ends them twice."""
    for field, value in (("bos_token_id", None), ("pre", "llama-bpe"), ("eot_token_id", 0)):
        monkeypatch.setitem(open_gguf(written).fields, f"tokenizer.ggml.{field}", value)
    assert open_gguf(written).tokens_around() == (0, None, [0])


def test_an_unused_piece_is_no_token(written, monkeypatch, capfd):
    """Neither one that fills the vocabulary up nor one between others: text never becomes it, and
    none is generated.
    """
    listed = open_gguf(written).fields["tokenizer.ggml.tokens"]
    between, last = listed.index("\u0100"), len(listed) - 1  # of a byte that no text has
    monkeypatch.setitem(open_gguf(written).fields, "tokenizer.ggml.tokens", [*listed[:-1], "[PAD]"])
    merges = open_gguf(written).fields["tokenizer.ggml.merges"]
    monkeypatch.setitem(open_gguf(written).fields, "tokenizer.ggml.merges", merges[:-1])
    types = [5 if number in (between, last) else 1 for number in range(len(listed))]
    monkeypatch.setitem(open_gguf(written).fields, "tokenizer.ggml.token_type", types)
    tokenizer = open_tokenizer(written)
    assert (tokenizer.vocabulary_size, tokenizer.absent) == (last, (between,))
    assert open_folder(written)[0].data.vocabulary_size == len(listed)
    assert "".join(capfd.readouterr()) == ""
    monkeypatch.setitem(open_gguf(written).fields, "tokenizer.ggml.merges", ["nothing known"])
    with expect_input_error("its tokenizer is damaged"):
        open_tokenizer(written)


def test_a_head_with_the_embeddings_bytes_is_tied(written, monkeypatch):
    assert not open_folder(written)[0].model.tied_head
    stored = open_gguf(written)._tensors
    monkeypatch.setitem(stored, "output.weight", stored["token_embd.weight"])
    config, _, params = open_folder(written)
    assert config.model.tied_head and "head_kernel" not in params


@pytest.mark.parametrize(
    ("name", "fields", "warning"),
    [
        ("llama", {"general.name": "Mistral-7B-v0.1"}, "looks like Mistral 0.1, which attends"),
        ("llama", {"general.name": "Mistral-7B-v0.3", "llama.rope.freq_base": 1e6}, ""),
        ("phi3", {"phi3.context_length": 4096}, "looks like an early Phi-3, which attends within"),
        ("phi3 with a window", {"phi3.context_length": 4096}, ""),
    ],
)
def test_a_window_that_a_file_leaves_out_is_reported_once(
    name, fields, warning, pieces, tmp_path, monkeypatch, caplog
):
    write(tmp_path / "a.gguf", name, pieces)
    for field, value in fields.items():
        monkeypatch.setitem(open_gguf(tmp_path / "a.gguf").fields, field, value)
    open_folder(tmp_path / "a.gguf")
    assert len(caplog.messages) == bool(warning) and warning in "".join(caplog.messages)


def test_other_rotary_factors_are_refused(pieces, tmp_path, monkeypatch):
    write(tmp_path / "a.gguf", "llama 3.2", pieces)
    with monkeypatch.context() as patch:
        patch.setitem(open_gguf(tmp_path / "a.gguf").fields, "llama.attention.key_length", 16)
        expect_refused(tmp_path / "a.gguf", "are not scaled as Llama 3.1's or 3.2's")
    monkeypatch.setattr(gguf_model, "_LLAMA3", gguf_model._LLAMA3 | {"high_freq_factor": 3.0})
    expect_refused(tmp_path / "a.gguf", "are not scaled as Llama 3.1's or 3.2's")


def test_a_quantisation_that_cannot_be_read_is_refused(written, monkeypatch):
    def fails(data, kind):
        raise NotImplementedError("Dequantization for IQ9 is not yet implemented")

    monkeypatch.setattr(gguf.quants, "dequantize", fails)
    expect_refused(
        written,
        "which the gguf package cannot read .*; take another quantisation of this model, such as "
        "Q8_0",
    )
