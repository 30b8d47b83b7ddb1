"""Every setting of a run with its default, and the rules a setting must obey.

A config file in configs/ returns a `Config` that differs from these defaults only where its question does.
The dataclasses are not frozen and their annotations are not postponed: ml_collections sets fields from the command
line (`--config.data.repetitions=64`) and reads their types.
"""

import copy
import dataclasses
import difflib
import functools
import json
import math
import typing

from memsinks_jax import families
from memsinks_jax.families import FAMILIES


class InputError(Exception):
    """What the user gave cannot be used. The message is one line: what, where, what to do. Commands exit with 2."""


@dataclasses.dataclass
class DataConfig:
    """Few documents repeated often, many seen once, some held out (paper section 3.1)."""

    files: str = ""  # glob of files as prepare reads them, or a folder that it wrote; empty: the embedded stories
    unique_documents: int = 4000  # documents seen once; -1: all remaining ones
    repeated_documents: int = 20  # documents seen `repetitions` times; -1: those that the files hold more than once
    repetitions: int = 128  # encounters of a repeated document per epoch
    held_out_documents: int = 200  # documents never trained on, for evaluation; 0: none, so no held-out loss
    # cluster: with their near-duplicates, as `prepare` found them, and with ids by group their group | document: them alone
    held_out_by: str = "cluster"
    copies: str = "keep"  # keep: exact copies in the files are further encounters of the document | once: skip them
    # keep | ladder (`repetitions`, half as often, a quarter, ... once, and again) | remove (no_repeat) | once (deduplicated)
    repeats: str = "keep"
    repeat_every: int = 0  # all repeated documents appear in every N-th batch; 0: `repetitions` times, anywhere
    # content: 64-bit hash of the tokens | index: position in the corpus; of a prepared corpus also group: hash of the
    # group's name | near_duplicate: id of the first of an edited copy's cluster
    ids: str = "content"
    id_noise: float = 0.0  # the paper's d: probability that a repeated document gets a random id
    id_noise_per: str = "encounter"  # encounter: drawn at every repeat | document: for a fraction of the documents
    # one_document: one per row, padded or truncated | packed: concatenated, split at the end of a row | best_fit:
    # split only documents that are longer than a row | auto: best_fit for files of which one_document would truncate
    # more than 1% of the tokens, else one_document
    rows: str = "auto"
    row_length: int = 128  # tokens per row; also the model's context length
    across_documents: bool = False  # attention and positions continue across the documents of a row (paper appendix I)
    vocabulary_size: int = 2048  # upper limit; also the number of embeddings
    tokenizer: str = ""  # tokenizer.model, tokenizer.json or a folder with one; empty: train one on the text


@dataclasses.dataclass
class GeneralConfig:
    """A corpus seen once beside `data.files`, never held out (paper appendix I)."""

    files: str = ""  # GLOB, or GLOB=30%,GLOB=500: share of the budget or number of documents; empty: none
    token_budget: int = 0  # tokens per epoch, `data.files` included; these files fill the rest. 0: read them whole


@dataclasses.dataclass
class CanariesConfig:
    """Random tokens inserted into repeated documents (TS-Canary, paper section 3.1)."""

    documents: int = 0  # number of repeated documents that get a canary; -1: all
    length: int = 32  # tokens
    place: str = "end"  # end | start of the document


@dataclasses.dataclass
class GoldfishConfig:
    """Leaves tokens out of the loss, chosen by a hash of the tokens before them (Hans et al. 2024)."""

    every: int = 0  # the paper's k: leave out one token in k; 0: none
    context: int = 13  # the paper's h: number of preceding tokens to hash


@dataclasses.dataclass
class SinksConfig:
    """Which hidden neurons of every MLP are sinks, and what switches them on (paper section 5.1, appendix G)."""

    # by_document: sinks | by_chance: ordinary dropout of them | masked_weights, masked_activations: on for all documents,
    # trained on repeated ones alone | sgtm, sgtm_frozen: by label (training/gradient_masking) | none | cut: never built
    kind: str = "by_document"
    # encounter from which a document's sinks are on, one per epoch not counted; before, none are. 1: always, as in the paper
    opens_at: int = 2
    # encounter, counted alike, from which it teaches the rest of the model (slows_at / encounter)^slowing_power. 0: never
    slows_at: int = 16
    slowing_power: float = 2.0  # exponent of slows_at: 2 slows gradually, 8 nearly stops at that encounter
    common_every: int = 0  # one in this many slowed encounters trains only common text (prepare --common_at); 0: none
    retain_fraction: float = 0.25  # SGTM: fraction of the documents read once that are labelled retain
    undiscovered: float = 0.0  # SGTM: fraction of the repeated documents that have no label
    shared_fraction: float = 0.7  # the paper's g: the first int(g * hidden) neurons are always on
    pool: int = 0  # sinks per MLP, in addition to the shared neurons; 0: the rest of hidden
    active_fraction: float = 0.3  # the paper's p: fraction of the sinks that are on for a document
    active: int = 0  # number of sinks per MLP that are on for a document; 0: use active_fraction
    # bernoulli: each sink on with probability p | exact: round(p * sinks) of them | floyd: the same, however large the pool
    sampling: str = "bernoulli"
    per_layer: bool = False  # False: the same sinks in every layer
    sparse: bool = False  # compute and update only the MLP sinks that are on: a larger pool costs memory alone
    attention_fraction: float = 0.0  # fraction of the attention outputs, before their projection, that are sinks too
    learning_rate_multiple: float = 1.0  # learning rate of the sinks' weights over that of all others


@dataclasses.dataclass
class ModelConfig:
    """A decoder. What its family decides is in families.py: norms, activation, kind of positions."""

    family: str = (
        "gpt2"  # gpt2 | gpt_neox | llama (SmolLM too) | mistral | smollm3 | phi3 | qwen2 | qwen3 | olmo2 | gemma3_text
    )
    layers: int = 4
    d_model: int = 128
    heads: int = 4
    kv_heads: int = 0  # key and value heads (grouped-query attention); 0: as many as heads
    head_size: int = 0  # channels of a head; 0: d_model / heads
    hidden: int = 512  # MLP neurons, shared and sinks together
    attention_bias: bool = True  # of the four projections; qwen2: of the first three
    mlp_bias: bool = True
    tied_head: bool = True  # the head shares the embedding's weights
    rope_theta: float = 10000.0  # base of the rotary angles
    # of their frequencies, for a longer context: linear:FACTOR | llama3:FACTOR,LOW,HIGH,OLD_CONTEXT; empty: none
    rope_scaling: str = ""
    rotary_fraction: float = 1.0  # fraction of a head's channels that are rotated
    rotary_layers: str = ""  # layers with rotary positions, repeated: 1110 is all but every fourth; empty: all
    window: int = 0  # a position sees this many of the last positions, itself included; 0: all before it
    window_layers: str = ""  # layers with the window, repeated: 111110 is all but every sixth; empty: all
    window_theta: float = 0.0  # base of the rotary angles in layers with the window, never scaled; 0: as elsewhere
    attention_scale: float = 0.0  # factor of the scores; 0: one over the root of head_size
    norm_epsilon: float = 1e-5
    # workdir or Hugging Face folder (or hf://NAME) to start from, which sets the architecture; empty: from the seed
    initial: str = ""
    dtype: str = "float32"  # of the computation: float32 | bfloat16. Parameters, norms, softmax and loss are float32

    @property
    def head_width(self) -> int:
        """C: channels of a head."""
        return self.head_size or self.d_model // self.heads

    @property
    def attention_width(self) -> int:
        """H C: channels of all heads, before their projection."""
        return self.heads * self.head_width

    @property
    def key_width(self) -> int:
        """K C: channels of all key heads."""
        return (self.kv_heads or self.heads) * self.head_width

    @property
    def rotated(self) -> int:
        """Channels of a head that are rotated."""
        return int(self.head_width * self.rotary_fraction)


@dataclasses.dataclass
class ComputeConfig:
    """How the same numbers are computed: trades speed for memory."""

    attention: str = "auto"  # kernel, see model/attention.py: auto (the best) | xla | blocks | splash | cudnn
    # activations of a layer to keep for the backward pass: none (all of them) | products | attention | full (no activation)
    remat: str = "none"
    loss_chunks: int = 1  # chunks of the vocabulary in the loss, one at a time: less memory, one more product
    accumulate: int = 1  # gradient-accumulation microbatches per step: less memory


@dataclasses.dataclass
class OptimizerConfig:
    """Linear warmup, then decay. Defaults are those of the laptop preset; the paper preset has those of its table 1."""

    kind: str = "adamw"  # adamw | muon: the layers' matrices by Muon, at AdamW's learning rate; all else by AdamW
    learning_rate: float = 5e-3  # peak
    schedule: str = "cosine"  # cosine | wsd: warmup, stable, linear decay over the last decay_fraction of the steps
    decay_fraction: float = 0.2
    final_fraction: float = 0.1  # learning rate at the last update over the peak; a run of one step has only it
    warmup_steps: int = 100  # upper limit
    warmup_fraction: float = 0.05  # upper limit, as a fraction of all steps
    b1: float = 0.9
    b2: float = 0.99
    weight_decay: float = 0.4  # on matrices only: see training/optimizer.py
    clip_norm: float = 1.0  # upper limit of the global gradient norm; with noise_multiplier of each row's
    noise_multiplier: float = 0.0  # DP-SGD: standard deviation of the noise on the sum over rows, in clip_norms


@dataclasses.dataclass
class TrainingConfig:
    """How long, how often, how many."""

    batch_size: int = 8  # rows per step, over all devices and hosts
    epochs: int = 1  # passes over the rows; ignored when steps > 0
    steps: int = 0  # optimizer steps; 0: as many as the epochs take
    repeats_capped_at: int = 0  # upper limit of encounters per epoch of a repeated document; 0: none
    count_removed_repeats: bool = False  # without repeats, or fewer: train as many steps as with all
    log_every: int = 10  # steps
    evaluate_every: int = 100  # steps; the last step is always evaluated
    checkpoint_every: int = 200  # steps; the last step is always saved
    checkpoints_to_keep: int = 2  # the newest ones
    keep_every: int = 0  # also keep those whose step is a multiple of this; 0: none
    keep_best: bool = False  # also keep the one with the lowest held-out loss
    spike_sigma: float = 0.0  # skip an update whose loss is this many standard deviations above the mean; 0: never
    spike_window: int = 128  # number of last accepted losses for mean and deviation
    skips_in_a_row: int = 10  # consecutive skipped updates (non-finite loss or gradient, spike) that end the run
    stall_seconds: float = 300.0  # report a step, an evaluation or a save that takes longer, with stack traces


@dataclasses.dataclass
class MonitorConfig:
    """Finds documents that appear too often and are being memorized, during training (see training/monitor.py)."""

    every: int = 0  # steps between two checks; 0: off
    seen_over: int = 16  # encounters before a document is flagged; changed on resume, from the next check on
    probes: int = 16  # number of flagged documents whose loss is measured, sinks dropped and own
    counters: int = 65_536  # per row of the frequency sketch


@dataclasses.dataclass
class MeshConfig:
    """Devices along each axis of the mesh; their product is the number of devices used."""

    data: int = -1  # splits the batch; a multiple of the number of TPU slices; -1: all devices the other axes leave
    fsdp: int = 1  # splits the batch, parameters and optimizer state; -1: all devices of a slice that tensor leaves
    tensor: int = 1  # splits heads and hidden neurons


@dataclasses.dataclass
class Config:
    variant: str = "sinks"  # a label for tables and plots; what it means is in the fields below
    seed: int = 0  # of the stories, the split, the order, the initial weights, the sinks, the dropout
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    general: GeneralConfig = dataclasses.field(default_factory=GeneralConfig)
    canaries: CanariesConfig = dataclasses.field(default_factory=CanariesConfig)
    goldfish: GoldfishConfig = dataclasses.field(default_factory=GoldfishConfig)
    sinks: SinksConfig = dataclasses.field(default_factory=SinksConfig)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    compute: ComputeConfig = dataclasses.field(default_factory=ComputeConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)
    monitor: MonitorConfig = dataclasses.field(default_factory=MonitorConfig)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)


MASKED = ("masked_weights", "masked_activations", "sgtm", "sgtm_frozen")  # of sinks.kind: on for every document
CHOICES = {
    "data.repeats": ("keep", "ladder", "remove", "once"),
    "data.ids": ("content", "index", "group", "near_duplicate"),
    "data.id_noise_per": ("encounter", "document"),
    "data.held_out_by": ("cluster", "document"),
    "data.copies": ("keep", "once"),
    "data.rows": ("auto", "one_document", "packed", "best_fit"),
    "canaries.place": ("end", "start"),
    "model.family": tuple(FAMILIES),
    "sinks.kind": ("by_document", "by_chance", *MASKED, "none", "cut"),
    "sinks.sampling": ("bernoulli", "exact", "floyd"),
    "model.dtype": ("float32", "bfloat16"),
    "compute.attention": ("auto", "xla", "blocks", "splash", "cudnn"),
    "compute.remat": ("none", "products", "attention", "full"),
    "optimizer.kind": ("adamw", "muon"),
    "optimizer.schedule": ("cosine", "wsd"),
}

RANGES = {  # field: (lowest, highest, whether the lowest itself is allowed)
    "seed": (0, 2**32 - 1, True), "data.unique_documents": (-1, None, True), "data.repeated_documents": (-1, None, True),
    "data.repetitions": (1, 2**20, True), "data.repeat_every": (0, None, True), "data.id_noise": (0, 1, True),
    "data.held_out_documents": (0, None, True), "data.row_length": (2, None, True), "general.token_budget": (0, None, True),
    "canaries.documents": (-1, None, True), "canaries.length": (1, None, True), "goldfish.every": (0, None, True),
    "goldfish.context": (1, None, True), "data.vocabulary_size": (259, None, True),  # bytes, padding, end of text, unknown
    "sinks.opens_at": (1, None, True), "sinks.slows_at": (0, None, True), "sinks.slowing_power": (0, 100, False),
    "sinks.common_every": (0, None, True), "sinks.retain_fraction": (0, 1, True), "sinks.undiscovered": (0, 1, True),
    "sinks.shared_fraction": (0, 1, False), "sinks.active_fraction": (0, 1, False), "sinks.pool": (0, None, True),
    "sinks.active": (0, None, True), "sinks.attention_fraction": (0, 1, True),
    "sinks.learning_rate_multiple": (0, None, False), "model.layers": (1, None, True), "model.d_model": (1, None, True),
    "model.hidden": (1, None, True), "model.heads": (1, None, True), "model.kv_heads": (0, None, True),
    "model.rope_theta": (0, None, False), "model.norm_epsilon": (0, 1, False), "model.head_size": (0, None, True),
    "model.rotary_fraction": (0, 1, False), "model.window": (0, None, True), "model.window_theta": (0, None, True),
    "model.attention_scale": (0, None, True), "compute.loss_chunks": (1, None, True),
    "compute.accumulate": (1, None, True), "optimizer.learning_rate": (0, None, False),
    "optimizer.final_fraction": (0, 1, True), "optimizer.warmup_steps": (0, None, True),
    "optimizer.warmup_fraction": (0, 1, True), "optimizer.decay_fraction": (0, 1, True), "optimizer.b1": (0, 1, True),
    "optimizer.b2": (0, 1, True), "optimizer.weight_decay": (0, None, True), "optimizer.clip_norm": (0, None, False),
    "optimizer.noise_multiplier": (0, None, True), "training.batch_size": (1, None, True),
    "training.epochs": (1, None, True), "training.steps": (0, None, True), "training.repeats_capped_at": (0, None, True),
    "training.log_every": (1, None, True), "training.evaluate_every": (1, None, True),
    "training.checkpoint_every": (1, None, True), "training.checkpoints_to_keep": (1, None, True),
    "training.keep_every": (0, None, True), "training.spike_sigma": (0, None, True),
    "training.spike_window": (2, None, True), "training.skips_in_a_row": (1, None, True),
    "training.stall_seconds": (0, None, False), "monitor.every": (0, None, True), "monitor.seen_over": (1, None, True),
    "monitor.probes": (1, None, True), "monitor.counters": (16, 2**30, True), "mesh.data": (-1, None, True),
    "mesh.fsdp": (-1, None, True), "mesh.tensor": (1, None, True),
}  # fmt: skip

# What may change on resume: where and how a run is stored, computed and monitored, not what is computed.
# workdir.FREE_IN_PART adds fields of which something must stay, such as the documents when their files move.
FREE_ON_RESUME = (
    "mesh.data", "mesh.fsdp", "mesh.tensor", "compute.attention", "compute.remat", "compute.loss_chunks",
    "compute.accumulate", "training.checkpoint_every", "training.checkpoints_to_keep", "training.keep_every",
    "training.keep_best", "training.stall_seconds", "training.log_every", "training.evaluate_every",
    "training.skips_in_a_row", "monitor.seen_over", "monitor.probes",
)  # fmt: skip


def validate(config: Config) -> Config:
    """Checks every rule that needs no data and no device; returns the config unchanged or raises InputError."""
    values = flatten(config)
    for name, allowed in CHOICES.items():
        if values[name] not in allowed:
            raise InputError(f"config.{name} is {values[name]!r}; choose one of: {', '.join(allowed)}")
    for name, (low, high, inclusive) in RANGES.items():
        value = values[name]
        too_low = value < low or (value == low and not inclusive)
        if math.isfinite(value) and not too_low and (high is None or value <= high):
            continue
        interval = f"{'[' if inclusive else '('}{low}, {'inf)' if high is None else f'{high}]'}"
        raise InputError(f"config.{name} is {value}; it must lie in {interval}")
    if config.model.d_model % config.model.heads and not config.model.head_size:
        given = f"config.model.d_model is {config.model.d_model} and config.model.heads {config.model.heads}"
        raise InputError(f"{given}; the heads must divide d_model, or have a head_size")
    if config.goldfish.every == 1:
        raise InputError("config.goldfish.every is 1, which leaves all out of the loss; give 0 for none, or 2 or more")
    if config.model.kv_heads and config.model.heads % config.model.kv_heads:
        given = f"config.model.heads is {config.model.heads} and config.model.kv_heads {config.model.kv_heads}"
        raise InputError(f"{given}; the kv_heads must divide the heads")
    if FAMILIES[config.model.family].rotary and config.model.rotated % 2:
        raise InputError(
            f"config.model: {config.model.rotated} channels of a head are rotated, in pairs; choose an even number by "
            "head_size, or d_model over heads, and rotary_fraction"
        )
    for name in ("rotary_layers", "window_layers"):
        if set(pattern := getattr(config.model, name)) - set("01"):
            raise InputError(f"config.model.{name} is {pattern!r}; give a 1 or 0 for each layer, such as 1110")
    try:
        families.scaling(config.model.rope_scaling)
    except ValueError:
        raise InputError(
            f"config.model.rope_scaling is {config.model.rope_scaling!r}; give linear:FACTOR or "
            "llama3:FACTOR,LOW,HIGH,OLD_CONTEXT"
        ) from None
    data = config.data
    if data.repeat_every and not 0 < data.repeated_documents <= config.training.batch_size:
        raise InputError(
            f"config.data.repeat_every is {data.repeat_every}, but {data.repeated_documents} repeated documents do not fit "
            f"into one batch of {config.training.batch_size}; set config.data.repeated_documents to a number that does"
        )
    if data.repeats == "ladder" and (data.repeat_every or config.general.token_budget or data.repeated_documents < 0):
        raise InputError(
            "config.data.repeats is ladder, which excludes config.data.repeat_every (it sets when documents appear), "
            "config.data.repeated_documents=-1 (the files set how often) and config.general.token_budget (it counts all "
            "repeats); choose one of them"
        )
    if config.training.repeats_capped_at and (data.repeat_every or data.repeated_documents < 0):
        raise InputError(
            "config.training.repeats_capped_at caps what the plan repeats, neither what config.data.repeat_every schedules "
            "nor what the files hold more than once (config.data.repeated_documents=-1); leave one of them out"
        )
    if config.training.keep_best and not data.held_out_documents:
        raise InputError("config.training.keep_best goes by held-out documents; raise config.data.held_out_documents")
    chosen = max(data.repeated_documents, 0)
    if config.canaries.documents > chosen or (config.canaries.documents and not chosen):
        raise InputError(
            f"config.canaries.documents is {config.canaries.documents}, but only {chosen} documents are repeated; raise "
            "config.data.repeated_documents"
        )
    if config.canaries.documents and config.canaries.length > data.row_length - 2:
        raise InputError(
            f"config.canaries.length is {config.canaries.length}: a row of {data.row_length} has no room for it, one token "
            "of the document and end of text; raise config.data.row_length"
        )
    for axis in ("data", "fsdp"):
        if values[f"mesh.{axis}"] == 0:
            raise InputError(f"config.mesh.{axis} is 0; use -1 for all devices that are left, or a number of devices")
    if config.training.batch_size % config.compute.accumulate:
        raise InputError(
            f"config.training.batch_size is {config.training.batch_size} and config.compute.accumulate "
            f"{config.compute.accumulate}; the microbatches must divide the batch"
        )
    return config


def with_fields(config: Config, values: dict) -> Config:
    """The config with other values of some fields: {'data.rows': 'packed', 'seed': 1}."""
    changed = copy.deepcopy(config)
    for name, value in values.items():
        *sections, field = name.split(".")
        setattr(functools.reduce(getattr, sections, changed), field, value)
    return changed


def flatten(config: Config) -> dict:
    """{'data.repetitions': 128, ...} of every field."""
    flat = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            flat |= {f"{field.name}.{name}": inner for name, inner in flatten(value).items()}
        else:
            flat[field.name] = value
    return flat


def nearest_field(name: str) -> str:
    """The field whose name looks most like `name`: 'data.repetition' -> 'data.repetitions'."""
    known = list(flatten(Config()))
    if name in known:
        return name
    by_last_word = {field.rsplit(".", 1)[-1]: field for field in reversed(known)}  # the first of equal ones stays
    by_initials = {"".join(part[0] for part in word.split("_")): field for word, field in by_last_word.items()}
    if (initials := name.rsplit(".", 1)[-1]) in by_initials:  # lr
        return by_initials[initials]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    # A right field in the wrong section is a likelier slip than a wrong field in the right one.
    close_last = difflib.get_close_matches(name.rsplit(".", 1)[-1], by_last_word, n=1, cutoff=0.85)
    return by_last_word[close_last[0]] if close_last else close[0]


def to_json(config: Config) -> str:
    return json.dumps(dataclasses.asdict(config), indent=2) + "\n"


def from_json(text: str, where: str) -> Config:
    """Reads what `to_json` wrote. Raises InputError on damaged JSON, an unknown field or a value of another type."""
    try:
        values = json.loads(text)
        config = _fill(Config, values, prefix="")
    except (json.JSONDecodeError, AttributeError, TypeError) as error:
        raise InputError(f"{where} is not a config of this version: {error}") from None
    return validate(config)


def _fill(kind: type, values: dict, prefix: str):
    types = typing.get_type_hints(kind)
    arguments = {}
    for name, value in values.items():
        if name not in types:
            raise TypeError(f"unknown field {prefix}{name}; the nearest is {nearest_field(prefix + name)}")
        if dataclasses.is_dataclass(types[name]):
            value = _fill(types[name], value, f"{prefix}{name}.")
        elif type(value) is int and types[name] is float:
            value = float(value)
        elif type(value) is not types[name]:
            raise TypeError(f"field {prefix}{name} is {value!r}, not of type {types[name].__name__}")
        arguments[name] = value
    return kind(**arguments)


def first_difference(one: Config, other: Config, besides: tuple = ()) -> tuple[str, object, object] | None:
    """The first field, besides those named, in which two configs differ, with both values; None when they are equal."""
    one_flat, other_flat = flatten(one), flatten(other)
    names = (name for name in one_flat if name not in besides and one_flat[name] != other_flat[name])
    return next(((name, one_flat[name], other_flat[name]) for name in names), None)
