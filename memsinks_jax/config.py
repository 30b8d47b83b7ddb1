"""Every setting of a run with its default, and the rules a setting must obey.

A config file in configs/ returns a `Config` that differs from these defaults only where its
question does. A config is replaced, not changed (`with_fields`), so it can be a key. Annotations
are not postponed: ml_collections reads the types of the fields that the command line sets
(`--config.data.repetitions=64`).
"""

import dataclasses
import difflib
import json
import math
import operator
import typing
from collections.abc import Iterator

from memsinks_jax import families
from memsinks_jax.families import FAMILIES


class InputError(Exception):
    """What the user gave cannot be used. The message is one line: what, where, what to do. Commands
    exit with 2.
    """


def shown(name: str, most: int = 60) -> str:
    """A name in quotes, for a message; of a long one only the beginning."""
    return repr(name if len(name) <= most else f"{name[:most]}…")


class Rule(typing.NamedTuple):
    """The description of a setting, and its possible values. A switch and free text have neither
    choices nor bounds.
    """

    about: str
    lowest: float = -math.inf
    highest: float = math.inf
    above: float = -math.inf  # instead of `lowest`: itself not allowed
    choices: dict[str, str] = {}  # {value: what it means}
    # may change on resume: how a run is stored and computed, not what is computed
    free: bool = False

    @property
    def interval(self) -> str:
        """Of a number: "[0, 1]", "(0, inf)"; else empty."""
        low = (
            f"[{self.lowest}"
            if self.lowest > -math.inf
            else f"({self.above}"
            if self.above > -math.inf
            else ""
        )
        return low and f"{low}, {'inf)' if self.highest == math.inf else f'{self.highest}]'}"

    def __str__(self) -> str:
        choices = " | ".join(
            f"{value}: {meaning}" if meaning else value for value, meaning in self.choices.items()
        )
        return (
            f"{self.about}{'; ' if self.about and choices else ''}{choices} {self.interval}".strip()
        )

    def broken_by(self, value) -> str:
        """What a value must be instead; empty if it may be this one."""
        if self.choices and value not in self.choices:
            return f"choose one of: {', '.join(self.choices)}"
        if self.interval and not (
            math.isfinite(value) and self.above < value and self.lowest <= value <= self.highest
        ):
            return f"it must lie in {self.interval}"
        return ""


def setting(default, about: str, *bounds: float, **rule):
    """A field of a config, with its Rule."""
    return dataclasses.field(default=default, metadata={"rule": Rule(about, *bounds, **rule)})


def choice(default: str, about: str = "", free: bool = False, **choices: str):
    """A field of a config that is one of `choices`, {value: what it means}."""
    return setting(default, about, choices=choices, free=free)


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Few documents repeated often, many seen once, some held out (paper section 3.1)."""

    files: str = setting(
        "", "glob of files, or a folder that `prepare` wrote; empty: the embedded stories"
    )
    unique_documents: int = setting(4000, "documents seen once; -1: all remaining ones", -1)
    repeated_documents: int = setting(
        20,
        "number of documents seen `repetitions` times; -1: those that the files contain more "
        "than once, as often",
        -1,
    )
    repetitions: int = setting(128, "encounters of a repeated document per epoch", 1, 2**20)
    held_out_documents: int = setting(
        200, "never trained on, for evaluation; 0: none, so no held-out loss", 0
    )
    held_out_by: str = choice(
        "cluster",
        "what is held out as a whole",
        cluster="near-duplicates; with ids by group, a group",
        document="each document by itself",
    )
    copies: str = choice(
        "keep", keep="exact copies are further encounters of a document", once="skip them"
    )
    repeats_at_most: int = setting(
        -1,
        "upper limit of a repeated document's encounters per epoch; -1: none; 0 is variant "
        "no_repeat, 1 deduplicated",
        -1,
    )
    schedule: str = setting(
        "",
        "MODULE:CLASS,SETTING=VALUE of an experiment's schedule of repeats, such as those in "
        "memsinks_jax.studies.schedules; empty: the usual one",
    )
    ids: str = choice(
        "content",
        "what identifies a document; the others need a prepared corpus",
        content="64-bit hash of the tokens",
        group="hash of the name of its group",
        near_duplicate="id of the first document of its cluster of edited copies",
    )
    rows: str = choice(
        "auto",
        "how documents fill rows",
        auto="one_document; for files of which it would truncate more than 1% of the tokens, "
        "best_fit",
        one_document="one per row, padded or truncated",
        packed="concatenated, split at the end of a row",
        best_fit="several whole ones per row; only those longer than a row are split",
    )
    row_length: int = setting(128, "tokens per row; also the model's context length", 2)
    across_documents: bool = setting(
        False, "attention and positions continue across documents (paper appendix I)"
    )
    # Bytes, padding, end of text and unknown are always there.
    vocabulary_size: int = setting(2048, "upper limit; also the number of embeddings", 259)
    tokenizer: str = setting(
        "", "tokenizer.model, tokenizer.json or a folder with one; empty: train one on the text"
    )


@dataclasses.dataclass(frozen=True)
class GeneralConfig:
    """A second corpus: seen once, never held out (paper appendix I)."""

    files: str = setting(
        "", "GLOB, or GLOB=30%,GLOB=500: share of the remaining budget, or documents; empty: none"
    )
    token_budget: int = setting(
        0, "tokens per epoch, those of `data.files` included; 0: all of both", 0
    )


@dataclasses.dataclass(frozen=True)
class CanariesConfig:
    """Random tokens at the end of repeated documents (TS-Canary, paper section 3.1)."""

    documents: int = setting(0, "number of repeated documents that get a canary; -1: all", -1)
    length: int = setting(32, "tokens", 1)


class Traits(typing.NamedTuple):
    """What a model has with a kind of sinks. training/method.py has what a kind does to a step."""

    about: str
    exist: bool = True
    cut: bool = False  # the neurons that would be sinks are not built
    owned: bool = False  # every document has sinks of its own
    on_for_all: bool = False  # they are on for every document
    tied: bool = True  # the document decides which of them learn
    # they are rows of a table that is read before the head, see data/contexts.py
    by_context: bool = False


KINDS = {
    "by_document": Traits("a document has its own", owned=True),
    "by_chance": Traits("ordinary dropout, drawn at every position", tied=False),
    "always": Traits("on for every document; training.method is how they learn", on_for_all=True),
    "by_context": Traits(
        "each context of repeated text has one, before the head",
        exist=False,
        on_for_all=True,
        by_context=True,
    ),
    "none": Traits("all neurons are shared", exist=False),
    "cut": Traits("the sinks' neurons are left out of the model", exist=False, cut=True),
}


@dataclasses.dataclass(frozen=True)
class SinksConfig:
    """Which hidden neurons of every MLP are sinks, and what switches them on (paper section 5.1,
    appendix G).
    """

    kind: str = choice("by_document", **{name: traits.about for name, traits in KINDS.items()})
    opens_at: int = setting(
        2,
        "a document's own sinks turn on at its N-th encounter; 1: always on (the paper). One "
        "encounter per finished epoch "
        "is not counted, so a document without repeats stays at its first",
        1,
    )
    slows_at: int = setting(
        16,
        "from a document's N-th encounter on (counted as for opens_at), all weights but its own "
        "sinks learn less from it: "
        "their gradient is scaled by (N / encounter)^slowing_power; 0: never",
        0,
    )
    slowing_power: float = setting(
        2.0, "exponent of slows_at; 2 slows gradually, 8 almost stops", above=0, highest=100
    )
    shared_fraction: float = setting(
        0.7, "the paper's g: the first int(g * hidden) are shared", above=0, highest=1
    )
    pool: int = setting(0, "sinks per MLP, instead of the rest of hidden; 0: that rest", 0)
    active_fraction: float = setting(
        0.3, "the paper's p: fraction of the sinks on for a document", above=0, highest=1
    )
    active: int = setting(
        0, "number of sinks per MLP that are on for a document; 0: use active_fraction", 0
    )
    sampling: str = choice(
        "bernoulli",
        "how a document's sinks are drawn",
        bernoulli="each with probability p; with `active`, as exact",
        exact="`active` or round(p * sinks) of them",
        floyd="the same number; faster for large pools",
        disjoint="`active` for each group of documents, which no other group has; pool=0: as "
        "many as needed",
    )
    sparse: bool = setting(
        False, "compute and update only sinks that are on; needs sampling=floyd or disjoint"
    )
    learning_rate_multiple: float = setting(
        1.0, "factor of the learning rate of the sinks' weights", above=0
    )

    @property
    def traits(self) -> Traits:
        return KINDS[self.kind]

    @property
    def by_group(self) -> bool:
        """Whether groups of documents have sinks by their numbers."""
        return self.sampling == "disjoint" and self.traits.exist


@dataclasses.dataclass(frozen=True)
class ContextsConfig:
    """Which contexts have a sink with sinks.kind=by_context (data/contexts.py)."""

    length: int = setting(
        6, "words of a context; near a document's beginning all before it", 1, 256
    )
    stretch: int = setting(
        16,
        "text is repeated where this many words in a row come again, or a whole shorter document",
        1,
        1024,
    )
    times: int = setting(
        2, "how often a stretch, and in repeated text a context, must come at least", 2
    )
    share: float = setting(
        0.5, "a context has a sink if at least this share of its places are in repeated text", 0, 1
    )
    rate: float = setting(
        0.3,
        "length of a sink's step, over the one that would take its loss to 0 if it were linear",
        0,
        highest=2,
    )
    reads: int = setting(
        0,
        "after so many reads of a document, what has a sink trains its sink alone; 0: it "
        "always trains all",
        0,
    )
    rows: int = setting(
        0,
        "the most sinks, of which the most frequent contexts have one; 0: as many as are needed",
        0,
    )


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A decoder. What its family decides is in families.py: norms, activation, kind of
    positions.
    """

    family: str = choice(
        "gpt2",
        gpt2="",
        gpt_neox="Pythia",
        llama="SmolLM too",
        mistral="",
        smollm3="",
        phi3="",
        qwen2="2.5 too",
        qwen3="",
        olmo2="",
        gemma3_text="",
    )
    layers: int = setting(
        4, "blocks of attention and MLP; 0: the amount of text decides the model's size", 0
    )
    d_model: int = setting(128, "width of the residual stream", 1)
    heads: int = setting(4, "attention heads; they divide d_model, or have a head_size", 1)
    kv_heads: int = setting(
        0, "key and value heads (grouped-query attention); 0: as many as heads", 0
    )
    head_size: int = setting(0, "channels of a head; 0: d_model / heads", 0)
    hidden: int = setting(
        512, "MLP neurons, shared and sinks; with sinks.pool only the shared are built", 1
    )
    attention_bias: bool = setting(
        True, "biases of attention's four projections; qwen2: of the first three"
    )
    mlp_bias: bool = setting(True, "biases of the MLP's projections")
    tied_head: bool = setting(True, "the head shares the embedding's weights")
    rope_theta: float = setting(10000.0, "base of the rotary angles", above=0)
    rope_scaling: str = setting(
        "", "of frequencies: linear:FACTOR or llama3:FACTOR,LOW,HIGH,OLD_CONTEXT; empty: none"
    )
    rotary_fraction: float = setting(
        1.0, "fraction of a head's channels that are rotated", above=0, highest=1
    )
    rotary_layers: str = setting(
        "", "layers with rotary positions, repeated: 1110 is all but every fourth; empty: all"
    )
    window: int = setting(
        0, "a position sees this many of the last positions, itself included; 0: all before it", 0
    )
    window_layers: str = setting(
        "", "layers with the window, repeated: 111110 is all but every sixth; empty: all"
    )
    window_theta: float = setting(
        0.0, "rope_theta of layers with the window, never scaled; 0: as elsewhere", 0
    )
    attention_scale: float = setting(
        0.0, "factor of the scores; 0: one over the root of head_size", 0
    )
    norm_epsilon: float = setting(1e-5, "added to the variance in every norm", above=0, highest=1)
    initial: str = setting(
        "",
        "workdir, Hugging Face folder, hf://NAME or GGUF file to start from, and its "
        "architecture; empty: the seed",
    )
    dtype: str = choice(
        "float32",
        "of activations; parameters, norms, softmax, loss: float32",
        float32="",
        bfloat16="",
    )

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


@dataclasses.dataclass(frozen=True)
class ComputeConfig:
    """How the same numbers are computed: trades speed for memory."""

    attention: str = choice(
        "auto",
        "kernel, see model/attention.py",
        free=True,
        auto="the best",
        xla="",
        blocks="",
        splash="",
        cudnn="",
    )
    remat: str = choice(
        "none",
        "rematerialization: which activations the backward pass computes again",
        free=True,
        none="nothing",
        products="all but the outputs of matrix products",
        attention="all but the outputs of attention",
        full="everything",
    )
    loss_chunks: int = setting(
        1, "logits in N chunks of the vocabulary: less memory, one more product", 1, free=True
    )
    accumulate: int = setting(
        1, "microbatches of a step, whose gradients are summed: less memory", 1, free=True
    )


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Linear warmup, then decay. Defaults: the laptop preset's. The paper preset has those of the
    paper's table 1.
    """

    kind: str = choice(
        "adamw", adamw="", muon="the layers' matrices by Muon at AdamW's rate; all else by AdamW"
    )
    learning_rate: float = setting(5e-3, "peak", above=0)
    schedule: str = choice(
        "cosine", cosine="", wsd="warmup, stable, linear decay over the last decay_fraction"
    )
    decay_fraction: float = setting(0.2, "wsd: fraction of the steps that decay", 0, 1)
    final_fraction: float = setting(
        0.1, "last learning rate over the peak; a run of one step has only it", 0, 1
    )
    warmup_steps: int = setting(100, "upper limit of the steps of warmup", 0)
    warmup_fraction: float = setting(
        0.05, "upper limit of warmup, as a fraction of all steps", 0, 1
    )
    b1: float = setting(0.9, "decay of Adam's first moments", 0, 1)
    b2: float = setting(0.99, "decay of Adam's second moments", 0, 1)
    weight_decay: float = setting(0.4, "on matrices only: see training/optimizer.py", 0)
    base_multiple: float = setting(
        1.0,
        "factor of the learning rate of all weights but the sinks'; 0: they are frozen, without "
        "gradients or moments",
        0,
    )
    clip_norm: float = setting(
        1.0, "upper limit of the gradient's global norm; in DP-SGD, of each row's", above=0
    )


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How long, how often, how many."""

    method: str = setting(
        "", "another method of training: MODULE:CLASS,SETTING=VALUE,...; empty: ours"
    )
    batch_size: int = setting(8, "rows per step, over all devices and hosts", 1)
    epochs: int = setting(
        1, "passes over the rows; 0: as many as groups of documents need; ignored when steps > 0", 0
    )
    steps: int = setting(0, "optimizer steps; 0: as many as the epochs take", 0)
    count_removed_repeats: bool = setting(
        False, "with data.repeats_at_most, train as many steps as with all repeats"
    )
    log_every: int = setting(10, "steps between two records of metrics", 1, free=True)
    evaluate_every: int = setting(
        100, "steps between two evaluations; the last step is always evaluated", 1, free=True
    )
    checkpoint_every: int = setting(
        200, "steps between two checkpoints; the last step is always saved", 1, free=True
    )
    keep_every: int = setting(
        0,
        "besides the two newest checkpoints keep those whose step is a multiple of this; 0: none",
        0,
        free=True,
    )
    spike_sigma: float = setting(
        0.0,
        "skip updates whose loss is N standard deviations above the mean of the last; 0: none",
        0,
    )
    skips_in_a_row: int = setting(
        10, "end the run after N skipped updates in a row (not finite, spikes)", 1, free=True
    )


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Devices along each axis of the mesh; their product is the number of devices used."""

    data: int = setting(
        -1,
        "splits the batch; a multiple of slices or nodes; -1: what the others leave",
        -1,
        free=True,
    )
    fsdp: int = setting(
        1, "splits batch, parameters, optimizer; -1: a slice or node / tensor", -1, free=True
    )
    tensor: int = setting(1, "splits heads and hidden neurons", 1, free=True)


@dataclasses.dataclass(frozen=True)
class Config:
    variant: str = setting(
        "sinks", "a label for tables and plots; what it means is in the fields below"
    )
    seed: int = setting(
        0, "of the stories, the split, the order, initial weights, sinks, dropout", 0, 2**32 - 1
    )
    data: DataConfig = DataConfig()
    general: GeneralConfig = GeneralConfig()
    canaries: CanariesConfig = CanariesConfig()
    sinks: SinksConfig = SinksConfig()
    contexts: ContextsConfig = ContextsConfig()
    model: ModelConfig = ModelConfig()
    compute: ComputeConfig = ComputeConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
    mesh: MeshConfig = MeshConfig()


def _rules(kind: type, prefix: str = "") -> Iterator[tuple[str, Rule]]:
    for field in dataclasses.fields(kind):
        if dataclasses.is_dataclass(field.type):
            yield from _rules(field.type, f"{field.name}.")
        else:
            yield prefix + field.name, field.metadata["rule"]


RULES = dict(_rules(Config))  # {"data.repetitions": its rule, ...} of every setting
# workdir.FREE_IN_PART adds fields of which something must stay, such as the documents when their
# files move.
FREE_ON_RESUME = tuple(name for name, rule in RULES.items() if rule.free)


def validate(config: Config) -> Config:
    """Checks every rule that needs no data and no device; returns the config unchanged or raises
    InputError.
    """
    values = flatten(config)
    for name, value in values.items():
        if instead := RULES[name].broken_by(value):
            raise InputError(f"config.{name} is {value!r}; {instead}")
    of = {
        "model.heads": "model.d_model",
        "model.kv_heads": "model.heads",
        "compute.accumulate": "training.batch_size",
    }
    for part, whole in of.items():
        if (
            values[part]
            and values[whole] % values[part]
            and not (part == "model.heads" and config.model.head_size)
        ):
            factor = f"a multiple of config.{part}, which is {values[part]}"
            raise InputError(f"config.{whole} is {values[whole]}; it must be {factor}")
    _validate_model(config.model)
    data = config.data
    if data.repeats_at_most > 1 and data.repeated_documents < 0:
        raise InputError(
            f"config.data.repeats_at_most={data.repeats_at_most} caps what the plan repeats, not "
            "what the files hold more than once (config.data.repeated_documents=-1); take 1, or "
            "leave one of them out"
        )
    _validate_groups(config, values)
    chosen = max(data.repeated_documents, 0)
    if config.canaries.documents > chosen or (config.canaries.documents and not chosen):
        raise InputError(
            f"config.canaries.documents is {config.canaries.documents}, but only {chosen} "
            "documents are repeated; raise "
            "config.data.repeated_documents"
        )
    if config.canaries.documents and config.canaries.length > data.row_length - 2:
        raise InputError(
            f"config.canaries.length is {config.canaries.length}: a row of {data.row_length} has "
            "no room for it, one token "
            "of the document and end of text; raise config.data.row_length"
        )
    for axis in ("data", "fsdp"):
        if values[f"mesh.{axis}"] == 0:
            raise InputError(
                f"config.mesh.{axis} is 0; use -1 for all devices that are left, or a number of "
                "devices"
            )
    return config


def _validate_model(model: ModelConfig) -> None:
    if FAMILIES[model.family].rotary and model.rotated % 2:
        raise InputError(
            f"config.model: {model.rotated} channels of a head are rotated, in pairs; choose an "
            "even number by "
            "head_size, or d_model over heads, and rotary_fraction"
        )
    for name in ("rotary_layers", "window_layers"):
        if set(pattern := getattr(model, name)) - set("01"):
            raise InputError(
                f"config.model.{name} is {pattern!r}; give a 1 or 0 for each layer, such as 1110"
            )
    try:
        families.scaling(model.rope_scaling)
    except ValueError:
        raise InputError(
            f"config.model.rope_scaling is {model.rope_scaling!r}; give linear:FACTOR or "
            "llama3:FACTOR,LOW,HIGH,OLD_CONTEXT with LOW below HIGH"
        ) from None


def _validate_groups(config: Config, values: dict) -> None:
    """Checks what sinks of their own for groups of documents need; `values` are the flattened
    config.
    """
    if not config.sinks.by_group:
        return
    needed = {
        "data.ids": "group",
        "sinks.kind": "by_document",
    }
    for name, value in needed.items():
        if values[name] != value:
            raise InputError(
                "config.sinks.sampling is disjoint, which gives groups of documents sinks of "
                f"MLPs, and config.{name} is "
                f"{values[name]!r}; set it to {value!r}, or choose another sampling"
            )
    if not config.sinks.active:
        raise InputError(
            "config.sinks.sampling is disjoint; set how many sinks a group has: "
            "config.sinks.active=16"
        )


def with_fields(config: Config, values: dict) -> Config:
    """The config with other values of some fields: {'data.rows': 'packed', 'seed': 1}."""
    for name, value in values.items():
        first, _, rest = name.partition(".")
        changed = with_fields(getattr(config, first), {rest: value}) if rest else value
        config = dataclasses.replace(config, **{first: changed})
    return config


def settable(config):
    """A copy whose fields can be set, of a config or a section; anything else as it is."""
    if not dataclasses.is_dataclass(config):
        return config
    values = {field: settable(getattr(config, field.name)) for field in dataclasses.fields(config)}
    types = [
        (f.name, type(value) if dataclasses.is_dataclass(value) else f.type)
        for f, value in values.items()
    ]
    return dataclasses.make_dataclass(type(config).__name__, types)(*values.values())


def flatten(config: Config) -> dict:
    """{'data.repetitions': 128, ...} of every field."""
    return {name: operator.attrgetter(name)(config) for name in RULES}


def nearest_field(name: str) -> str:
    """The field whose name looks most like `name`: 'data.repetition' -> 'data.repetitions'."""
    known, name = list(RULES), name[:100]  # the time grows with its length; no field's is as long
    if name in known:
        return name
    # the first of equal ones stays
    by_last_word = {field.rsplit(".", 1)[-1]: field for field in reversed(known)}
    by_initials = {
        "".join(part[0] for part in word.split("_")): field for word, field in by_last_word.items()
    }
    if (initials := name.rsplit(".", 1)[-1]) in by_initials:  # lr
        return by_initials[initials]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    # A right field in the wrong section is a likelier slip than a wrong field in the right one.
    close_last = difflib.get_close_matches(name.rsplit(".", 1)[-1], by_last_word, n=1, cutoff=0.85)
    return by_last_word[close_last[0]] if close_last else close[0]


def to_json(config: Config) -> str:
    return json.dumps(dataclasses.asdict(config), indent=2) + "\n"


def from_json(text: str, where: str) -> Config:
    """Reads what `to_json` wrote.

    Raises:
      InputError: damaged JSON, an unknown field or a value of another type.
    """
    usual, values = flatten(Config()), {}
    try:
        for name, value in json.loads(text).items():
            of = (
                {f"{name}.{field}": inner for field, inner in value.items()}
                if isinstance(value, dict)
                else None
            )
            values |= {name: value} if of is None else of
        for name, value in values.items():
            if name not in usual:
                raise TypeError(
                    f"unknown field {shown(name)}; the nearest is {nearest_field(name)}"
                )
            if type(value) is int and type(usual[name]) is float:
                values[name] = float(value)
            elif type(value) is not type(usual[name]):
                raise TypeError(
                    f"field {name} is {value!r}, not of type {type(usual[name]).__name__}"
                )
    except (ValueError, RecursionError, AttributeError, TypeError) as error:
        raise InputError(f"{where} is not a config of this version: {error}") from None
    return validate(with_fields(Config(), values))


def first_difference(
    one: Config, other: Config, besides: tuple = ()
) -> tuple[str, object, object] | None:
    """The first field, besides those named, in which two configs differ, with both values; None
    when they are equal.
    """
    one_flat, other_flat = flatten(one), flatten(other)
    names = (
        name for name in one_flat if name not in besides and one_flat[name] != other_flat[name]
    )
    return next(((name, one_flat[name], other_flat[name]) for name in names), None)
