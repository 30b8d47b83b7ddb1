"""Models of other families, as transformers writes them: what it computes is computed here, before
and after training.
"""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import expect_input_error, tiny_config
from folders import open_folder, write

from memsinks_jax.config import MeshConfig, ModelConfig, SinksConfig, with_fields
from memsinks_jax.data.corpus import load_corpus
from memsinks_jax.data.opened import nobody
from memsinks_jax.model.decoder import build_model
from memsinks_jax.model.generation import Generator, Settings
from memsinks_jax.model.losses import cross_entropy
from memsinks_jax.models import config_json, hugging_face
from memsinks_jax.models.importing import import_model
from memsinks_jax.models.stored import Stored
from memsinks_jax.models.tokenizer_files import write_tokenizer
from memsinks_jax.models.trained import open_run
from memsinks_jax.sinks.interventions import sink_interventions
from memsinks_jax.training import sharding

LENGTH = 64
SIZES = {"vocab_size": 1024, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4}
SIZES |= {"intermediate_size": 48, "max_position_embeddings": LENGTH}
SIZES |= {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
SHARED, TIED = {"num_key_value_heads": 2}, {"tie_word_embeddings": True}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 16, "rope_theta": 100.0}
BIASES = {"attention_bias": True, "mlp_bias": True}
GEMMA = {"head_dim": 16, "sliding_window": 7}
TWO_ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
WINDOWS = {"use_sliding_window": True, "sliding_window": 7}
MODELS = {
    "GPT-2": ("GPT2", {"n_inner": 48}),
    "GPT-2, own head": ("GPT2", {"tie_word_embeddings": False}),
    "Llama, biases, one key": ("Llama", BIASES | {"num_key_value_heads": 1, "rms_norm_eps": 1e-6}),
    "Llama 3.2": ("Llama", SHARED | TIED | {"rope_parameters": LLAMA3, "eos_token_id": [1, 2]}),
    "Llama, heads of their own size": ("Llama", SHARED | {"head_dim": 12, "mlp_bias": True}),
    "SmolLM2": ("Llama", SHARED | TIED | {"rope_theta": 1e5, "rms_norm_eps": 1e-5}),
    "SmolLM3": (
        "SmolLM3",
        SHARED | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e6}},
    ),
    "SmolLM3, other layers": ("SmolLM3", SHARED | WINDOWS | {"no_rope_layers": [0, 1, 1, 0]}),
    "Qwen2.5": ("Qwen2", SHARED | TIED | {"rope_theta": 1e6}),
    "Qwen2.5, windows above": ("Qwen2", SHARED | WINDOWS | {"max_window_layers": 2}),
    "Qwen3": ("Qwen3", SHARED | TIED | {"head_dim": 24}),
    "Mistral": ("Mistral", SHARED | {"sliding_window": None, "head_dim": 16}),
    "Mistral 0.1": ("Mistral", SHARED | {"sliding_window": 7}),
    "OLMo 2": ("Olmo2", SHARED),
    "Gemma 3": (
        "Gemma3Text",
        SHARED | GEMMA | {"num_hidden_layers": 7, "query_pre_attn_scalar": 20},
    ),
    "Gemma 3, long": (
        "Gemma3Text",
        GEMMA
        | {"num_key_value_heads": 1, "query_pre_attn_scalar": 16, "rope_parameters": TWO_ROPES}
        | {"layer_types": ["sliding_attention", "full_attention"] * 2},
    ),
    "Phi-3": ("Phi3", {"sliding_window": 7}),
    "Phi-4 mini": ("Phi3", SHARED | TIED | {"partial_rotary_factor": 0.5}),
    "Pythia": ("GPTNeoX", {}),
}


@pytest.fixture(scope="module")
def tokenizer():
    return load_corpus(tiny_config()).tokenizer


@pytest.fixture(scope="module")
def written(tokenizer, tmp_path_factory):
    """-> a function: name -> (the folder that transformers writes, its model); weights far from the
    initial ones.
    """
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    made = {}

    def write(name):
        if name not in made:
            kind, changes = MODELS[name]
            sizes = {k: v for k, v in SIZES.items() if k != "intermediate_size" or kind != "GPT2"}
            config = getattr(transformers, f"{kind}Config")(**sizes | changes)
            torch.manual_seed(0)
            model = transformers.AutoModelForCausalLM.from_config(config).eval()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.2 * torch.randn_like(parameter))
            folder = tmp_path_factory.mktemp("theirs") / "hf"
            # of one file, and of several
            model.save_pretrained(folder, max_shard_size="20KB" if kind == "Llama" else "5GB")
            write_tokenizer(tokenizer, folder, LENGTH)
            made[name] = folder, model
        return made[name]

    return write


TOKENS = np.random.default_rng(0).integers(3, 1000, (3, 40))


def logits_of(config, params, tokens, segments=None):
    tokens = jnp.asarray(tokens, jnp.int32)
    segments = jnp.ones_like(tokens) if segments is None else segments
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    return build_model(config)[0](params, tokens, segments, positions)


def losses_of(config, params):
    return cross_entropy(logits_of(config, params, TOKENS)[:, :-1], TOKENS[:, 1:]).mean()


def theirs_of(model):
    """-> logits and loss"""
    import torch

    with torch.no_grad():
        out = model(torch.tensor(TOKENS), labels=torch.tensor(TOKENS))
    return out.logits.numpy(), float(out.loss)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_what_transformers_does(name, written, tokenizer, tmp_path):
    """Logits, loss, gradients; after a step of training, what transformers reads of the export."""
    import torch
    import transformers

    folder, model = written(name)
    config, _, params = open_folder(folder)
    logits, loss = theirs_of(model)
    np.testing.assert_allclose(logits_of(config, params, TOKENS), logits, atol=1e-4)
    ours, gradients = jax.value_and_grad(lambda params: losses_of(config, params))(params)
    assert float(ours) == pytest.approx(loss, abs=1e-5)
    model.zero_grad()
    model(torch.tensor(TOKENS), labels=torch.tensor(TOKENS)).loss.backward()
    named = {name: p.grad.numpy() for name, p in model.named_parameters()}
    named["embed_out.weight"] = named.get("lm_head.weight")  # GPT-NeoX in a file
    expected = hugging_face.ours(config, config.model.hidden, named.__getitem__)
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, atol=1e-4), gradients, expected
    )
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(expected))
    trained = jax.tree.map(lambda weights, gradient: weights - 0.1 * gradient, params, gradients)
    write(tmp_path / "hf", config, trained, tokenizer, stored=Stored(folder))
    back, loading = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "hf", output_loading_info=True
    )
    assert not any(loading.values()) and type(back) is type(model), loading
    after, _ = theirs_of(back)
    np.testing.assert_allclose(logits_of(config, trained, TOKENS), after, atol=1e-4)
    assert np.abs(after - logits).max() > 1e-3
    assert open_folder(tmp_path / "hf")[0] == config


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_model_writes_what_transformers_does(name, written, tokenizer):
    """Greedy, with both caches, beyond every window."""
    import torch

    folder, model = written(name)
    config, _, params = open_folder(folder)
    prompt = np.array([tokenizer.begin_of_text, 5, 9, 17, 33, 8])  # which opens a document here
    with torch.no_grad():
        whole = model.generate(
            torch.tensor(prompt[None]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=40,
            do_sample=False,
            eos_token_id=None,
            suppress_tokens=[1, *range(tokenizer.vocabulary_size, 1024)],
        )[0, len(prompt) :].tolist()
    generator = Generator(config, tokenizer, params, nobody())
    (ours,) = generator([prompt[1:]], Settings(max_tokens=40, temperature=0, sinks="all"))
    count = len(ours.tokens)
    assert ours.tokens.tolist() == whole[:count] and count > 10


@pytest.mark.parametrize("name", ["Mistral 0.1", "Gemma 3", "SmolLM3, other layers"])
def test_a_window_ends_at_the_document(name, written):
    """The second document of a row is read as if alone."""
    config, _, params = open_folder(written(name)[0])
    segments = jnp.asarray(np.repeat([[1] * 5 + [2] * 35], 3, axis=0))
    alone = build_model(config)[0](
        params,
        jnp.asarray(TOKENS[:, 5:], jnp.int32),
        segments[:, 5:],
        jnp.broadcast_to(jnp.arange(5, 40), (3, 35)),
    )
    np.testing.assert_allclose(logits_of(config, params, TOKENS, segments)[:, 5:], alone, atol=1e-5)


POOL = SinksConfig(shared_fraction=1.0, pool=50, active=5, sampling="floyd", sparse=True)


@pytest.mark.parametrize("name", ["SmolLM2", "Gemma 3", "Pythia", "OLMo 2"])
def test_new_sinks_change_nothing_at_first(name, written, tmp_path):
    """Also where their output is normed; each layer's are drawn as its own neurons are spread."""
    folder, _ = written(name)
    loading = import_model(folder, tmp_path / "run", POOL, 0)
    run, (config, _, params) = open_run(tmp_path / "run"), open_folder(folder)
    assert (loading["shared"], loading["sinks"]) == (48, 50)
    identities = jnp.ones((3, 1, 2), jnp.uint32)
    own = sink_interventions(run.config, "own", identities, 0, jnp.ones_like(TOKENS))
    tokens = jnp.asarray(TOKENS, jnp.int32)
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    model, _ = build_model(run.config)
    computed = model(run.params, tokens, jnp.ones_like(tokens), positions, own)
    np.testing.assert_allclose(computed, logits_of(config, params, TOKENS), atol=1e-4)
    drawn, neurons = np.asarray(run.params["sink_up"]), params["layers"]["up_kernel"]
    np.testing.assert_allclose(drawn.std((0, 2)), neurons.std((1, 2)), rtol=0.1)
    assert not np.asarray(run.params["sink_down"]).any() and np.unique(drawn[:, 0, 0]).size == 50


OF_WINDOWS = {"layer_types": ["sliding_attention"] * 4}
REFUSED = """
SmolLM2 | attn_temperature_tuning=true | attn_temperature_tuning is True, which is not known here
SmolLM2 | hidden_act="gelu" | hidden_act is 'gelu'; only 'silu' can be read
SmolLM2 | is_causal=false | is_causal is False; only True can be read
SmolLM2 | rope_parameters=null | partial_rotary_factor=0.5 | partial_rotary_factor is 0.5; only 1 can be
SmolLM2 | tie_word_embeddings=null | a value is of the wrong kind \\(model.tied_head is None\\)
Phi-3 | rope_parameters={"rope_type": "longrope", "rope_theta": 1e4} | rope_type is 'longrope'; only
Phi-4 mini | rope_scaling={"rope_type": "default", "rope_theta": 5.0} | and rope_scaling differ; leave one
Pythia | use_parallel_residual=false | use_parallel_residual is False; only True
Gemma 3 | final_logit_softcapping=30.0 | final_logit_softcapping is 30.0; only None
Gemma 3 | rope_parameters={"rope_theta": 5.0} | rope_parameters are those of no type of layer
Llama 3.2 | original_max_position_embeddings=0 | llama3:8,1,4,0'
SmolLM3, other layers | no_rope_layers=[] | no_rope_layers has 0 layers
Mistral 0.1 | sliding_window=true | a value is of the wrong kind \\(model.window is True\\)
"""


@pytest.mark.parametrize("line", REFUSED.strip().splitlines())
def test_what_would_compute_otherwise_is_refused(line, written):
    name, *changes, message = line.split(" | ")
    pairs = (change.split("=", 1) for change in changes)
    check_refused(name, {field: json.loads(value) for field, value in pairs}, message, written)


@pytest.mark.parametrize(
    "name, change, message",
    [
        ("Qwen2.5", {"layer_types": ["chunked_attention"] * 4}, "has 'chunked_attention'; only"),
        ("Qwen3", OF_WINDOWS | {"sliding_window": None}, "but there is no sliding_window"),
        ("Qwen3", OF_WINDOWS | {"sliding_window": 7}, "or use_sliding_window is off"),
        (
            "Llama 3.2",
            {"rope_parameters": LLAMA3 | {"low_freq_factor": 4}},
            "llama3:8,4,4,16'; .* with LOW below HIGH",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(name, change, message, written):
    check_refused(name, change, message, written)


def check_refused(name, change, message, written):
    content = json.loads((written(name)[0] / "config.json").read_text())
    with expect_input_error(message):
        config_json.read_config(content | change, "config.json")


HUB = json.loads((pathlib.Path(__file__).parent / "configs_of_the_hub.json").read_text())
LIKE_LLAMA = {"attention_bias": False, "mlp_bias": False, "tied_head": False}
LIKE_PYTHIA = {"attention_bias": True, "mlp_bias": True}


LIKE_QWEN = {"rope_theta": 1e6, "norm_epsilon": 1e-6, "tied_head": True}
LIKE_GEMMA = {"window": 512, "window_layers": "111110", "window_theta": 1e4}
LLAMA32 = {"tied_head": True, "rope_theta": 5e5, "rope_scaling": "llama3:32,1,4,8192"}
SMOLLM3 = LIKE_QWEN | {"rope_theta": 5e6, "rotary_layers": "1110"}
OLMO = {"rope_theta": 5e5, "norm_epsilon": 1e-6}


@pytest.mark.parametrize(
    "name, sizes, fields",
    [
        ("Llama-3.2-1B", (16, 2048, 32, 8, 0, 8192), LLAMA32),
        ("vicuna-7b-v1.3", (32, 4096, 32, 32, 0, 11008), {"norm_epsilon": 1e-6}),
        ("Qwen2.5-0.5B", (24, 896, 14, 2, 0, 4864), LIKE_QWEN | {"attention_bias": True}),
        ("Qwen3-0.6B", (28, 1024, 16, 8, 128, 3072), LIKE_QWEN),
        ("Mistral-7B-v0.3", (32, 4096, 32, 8, 0, 14336), {"rope_theta": 1e6}),
        ("OLMo-2-0425-1B", (16, 2048, 16, 16, 0, 8192), OLMO),
        ("gemma-3-1b-it", (26, 1152, 4, 1, 256, 6912), LIKE_QWEN | LIKE_GEMMA),
        ("Phi-3-mini-4k-instruct", (32, 3072, 32, 32, 0, 8192), {"window": 2047}),
        ("SmolLM3-3B", (36, 2048, 16, 4, 0, 11008), SMOLLM3),
        ("pythia-160m", (12, 768, 12, 12, 0, 3072), LIKE_PYTHIA | {"rotary_fraction": 0.25}),
        ("gpt2-xl", (48, 1600, 25, 25, 0, 6400), LIKE_PYTHIA | {"tied_head": True}),
    ],
)
def test_a_file_of_the_hub_is_read(name, sizes, fields):
    """`fields`: what differs from a Llama with our defaults."""
    content = HUB[name]
    config = config_json.read_config(content, "config.json")
    assert config.model == ModelConfig(content["model_type"], *sizes, **LIKE_LLAMA | fields)
    assert config.data.row_length == content.get(
        "max_position_embeddings", content.get("n_positions")
    )


def test_what_a_class_does_not_read_of_windows_says_nothing():
    content = HUB["vicuna-7b-v1.3"] | {"use_sliding_window": True, "sliding_window": 4096}
    content["layer_types"] = ["sliding_attention"] * 32
    assert config_json.read_config(content, "config.json").model.window == 0
    content |= {
        "model_type": "mistral",
        "use_sliding_window": False,
        "layer_types": ["full_attention"] * 32,
    }
    model = config_json.read_config(content, "config.json").model
    assert (model.window, model.window_layers) == (4096, "")


def test_numbers_and_lists_are_read_whole():
    llama, smollm = HUB["Llama-3.2-1B"], HUB["SmolLM3-3B"]
    for scaling, expected in (
        ({"type": "linear", "factor": 8 / 3}, f"linear:{8 / 3!r}"),
        (
            llama["rope_scaling"] | {"original_max_position_embeddings": 1048576},
            "llama3:32,1,4,1048576",
        ),
    ):
        config = config_json.read_config(llama | {"rope_scaling": scaling}, "config.json")
        assert config.model.rope_scaling == expected
    for name in ("layer_types", "no_rope_layers"):
        with expect_input_error(f"{name} has 35 layers, and num_hidden_layers is 36"):
            config_json.read_config(smollm | {name: smollm[name][:-1]}, "config.json")


@pytest.mark.parametrize(
    "change", [{"vocab_size": "many"}, {"vocab_size": [5]}, {"model_type": ["llama"]}]
)
def test_a_value_of_the_wrong_kind_is_refused_in_a_line(change):
    with expect_input_error("config.json: (a value is of the wrong kind|model_type is )"):
        config_json.read_config(HUB["Llama-3.2-1B"] | change, "config.json")


def test_an_export_names_no_code_that_it_lacks(tokenizer):
    content = HUB["Phi-3-mini-4k-instruct"]
    config = config_json.read_config(content, "config.json")
    written = config_json.write_config(config, config.model.hidden, tokenizer, "float32", content)
    assert "auto_map" not in written and written["original_max_position_embeddings"] == 4096


@pytest.mark.parametrize(
    "name, length, expected",
    [("Llama-3.2-1B", 128, 131072), ("Llama-3.2-1B", 262144, 262144), ("gpt2-xl", 128, 128)],
)
def test_a_model_keeps_its_context_if_no_table_was_cut(name, length, expected, tokenizer):
    content = HUB[name]
    fields = {"data.row_length": length}
    config = with_fields(config_json.read_config(content, "config.json"), fields)
    written = config_json.write_config(config, config.model.hidden, tokenizer, "float32", content)
    assert config_json.read_config(written, "config.json").data.row_length == expected


def test_what_stops_a_file_of_the_hub_is_named():
    """Not one of the fields before it, which say nothing."""
    with expect_input_error("rope_type is 'longrope'; only default, linear and llama3"):
        config_json.read_config(HUB["Phi-4-mini-instruct"], "config.json")


def test_what_a_family_lacks_is_not_exported(written, tokenizer, tmp_path):
    config, _, params = open_folder(written("SmolLM2")[0])
    config = with_fields(config, {"model.window": 5})
    with expect_input_error(
        "llama as Hugging Face has it computes with window 0, but config.model.window is 5"
    ):
        write(tmp_path / "hf", config, params, tokenizer)
    assert not (tmp_path / "hf").exists()


def test_a_workdir_keeps_every_field(written, tmp_path):
    """What was imported is opened as the folder is."""
    folder, _ = written("Gemma 3")
    import_model(folder, tmp_path / "run", None, 0)
    run, (config, _, params) = open_run(tmp_path / "run"), open_folder(folder)
    assert run.config.model == config.model
    np.testing.assert_allclose(
        logits_of(run.config, run.params, TOKENS), logits_of(config, params, TOKENS), atol=1e-5
    )


@pytest.mark.parametrize("name", ["Qwen3", "Gemma 3", "OLMo 2", "Pythia"])
def test_a_model_is_the_same_on_a_mesh(name, written):
    """Rows, parameters, heads and neurons split: also norms over all heads, which are on several
    devices.
    """
    config, _, params = open_folder(written(name)[0])
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    placed = jax.device_put(params, sharding.shardings(params, mesh))
    tokens = np.concatenate([TOKENS, TOKENS[:1]])
    with jax.set_mesh(mesh):
        split = jax.jit(lambda params: logits_of(config, params, tokens))(placed)
    np.testing.assert_allclose(split, logits_of(config, params, tokens), atol=1e-4)
