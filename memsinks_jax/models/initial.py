"""What a run begins with: the fields that it inherits from the model it starts from, and neurons to
be sinks.
"""

import dataclasses
import logging
import pathlib
from collections.abc import Collection

from memsinks_jax.config import Config, InputError, ModelConfig, flatten, validate, with_fields
from memsinks_jax.data.mixture import general_sources
from memsinks_jax.data.prepared import Prepared, is_prepared
from memsinks_jax.families import FAMILIES
from memsinks_jax.models import sizes
from memsinks_jax.models.hub import folder_of
from memsinks_jax.models.stored import Stored
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.sinks.kinds import is_sparse, partition

logger = logging.getLogger(__name__)

# The meaning of the parameters depends on these.
_ARCHITECTURE = (
    *(
        f"model.{field.name}"
        for field in dataclasses.fields(ModelConfig)
        if field.name not in ("initial", "dtype")
    ),
    "data.vocabulary_size",
)
_SINKS = ("sinks.shared_fraction", "sinks.pool", "sinks.sparse")
# These decide which sinks a document has; a run may choose others.
_CHOICE_OF_SINKS = ("sinks.active_fraction", "sinks.active", "sinks.sampling")
# Of sinks that a model without any is given: all its neurons stay shared.
_NEW_SINKS = {"sinks.shared_fraction": 1.0, "sinks.sparse": True, "sinks.sampling": "floyd"}


def inherit(
    config: Config,
    workdir: pathlib.Path | None = None,
    given: Collection[str] | None = None,
    parts: int = 0,
) -> Config:
    """The config of a run with what it takes from elsewhere: a size from the amount of text, if
    `config.model.layers` is 0; its length from the groups of documents, if `config.training.epochs`
    is 0; fields that are not given from `config.model.initial`.

    Args:
      workdir: of the run. Once it has begun, its config has the inherited fields, so the initial
        model may be gone.
      given: fields that the command line sets; the architecture of a config file is overridden.
        None: those that differ from their default.
      parts: what divides the rows of a step, as `sizes.by_sources` takes it.
    Raises:
      InputError: a given field differs from the model's; sinks for a model without sinks; no neuron
      is a sink; there are no groups.
    """
    config = _sized(config, workdir, given)
    if config.model.initial:
        config = _inherited(config, workdir, given)
    config = _with_pool(config, workdir)
    config = _with_length(config, workdir, given, parts)
    if config.sinks.traits.exist and not _has_neurons(config):
        raise InputError(
            f"config.sinks.kind is {config.sinks.kind}, but "
            f"config.sinks.shared_fraction={config.sinks.shared_fraction} leaves no neuron to be a "
            "sink; lower it, set config.sinks.pool, or train without sinks: config.sinks.kind=none"
        )
    return config


def _sized(config: Config, workdir: pathlib.Path | None, given: Collection[str] | None) -> Config:
    """The config with a size for its text, if it asks for one."""
    if config.model.layers:
        return config
    if config.model.initial:  # has a size
        size = {
            name: default for name, default in flatten(Config()).items() if name in sizes.FIELDS
        }
    elif _begun(workdir):
        size = {name: flatten(workdirs.read_config(workdir))[name] for name in sizes.FIELDS}
    else:
        size = sizes.by_text(config.data.files)
    if given is None:
        default = flatten(Config()) | sizes.BY_TEXT
        given = {name for name, value in flatten(config).items() if value != default[name]}
    taken = {name: value for name, value in size.items() if name not in given}
    return validate(with_fields(config, taken))


def check_unchanged(workdir: pathlib.Path, place: str) -> None:
    """Raises InputError if `config.model.initial` now has other weights than those from which the
    workdir's run started. A model that is gone is not needed any more.
    """
    if not pathlib.Path(place).exists():
        return
    before, there = workdirs.read_initial(workdir), Stored(pathlib.Path(place))
    # Its weights are read only if their files were touched: a resume would wait for them.
    if not there.is_run and there.weights_touched == before["touched"]:
        return
    if there.weights_name != before["name"]:
        raise InputError(
            f"config.model.initial={place} has other weights now than those that {workdir} started "
            "from; put them back, or use another --workdir"
        )


def _has_neurons(config: Config) -> bool:
    """Whether neurons are sinks."""
    return partition(config.model, config.sinks).sinks > 0


def _begun(workdir: pathlib.Path | None) -> bool:
    return workdir is not None and (workdir / "config.json").exists()


def _with_pool(config: Config, workdir: pathlib.Path | None) -> Config:
    """The config with as many sinks as its groups need: those of the run or of its initial model,
    and of the corpus.
    """
    if not config.sinks.by_group or config.sinks.pool:
        return config
    folders = [config.data.files, *(files for files, _ in general_sources(config.general))]
    groups = {
        name for folder in filter(is_prepared, folders) for name in Prepared(folder).group_names
    }
    if _begun(workdir) or config.model.initial:
        groups |= {*Stored(workdir if _begun(workdir) else folder_of(config.model.initial)).groups}
    if not groups:
        raise _no_groups(
            config,
            "config.sinks.sampling is disjoint, which gives each group of documents sinks of its "
            "own",
        )
    return with_fields(config, {"sinks.pool": len(groups) * config.sinks.active})


def _with_length(
    config: Config, workdir: pathlib.Path | None, given: Collection[str] | None, parts: int
) -> Config:
    """The config with as many epochs as its groups need, if it asks for that."""
    if config.training.epochs or config.training.steps:
        return config
    keeps_rows = "training.batch_size" in (given or ())
    if _begun(workdir):
        before = flatten(workdirs.read_config(workdir))
        length = {name: before[name] for name in ("training.epochs", "training.batch_size")}
    elif is_prepared(config.data.files) and Prepared(config.data.files).group_names:
        length = sizes.by_sources(config, 0 if keeps_rows else parts)
    else:
        why = "config.training.epochs is 0, for as many as groups of documents need"
        raise _no_groups(config, why)
    if keeps_rows:
        length["training.batch_size"] = config.training.batch_size
    return with_fields(config, length)


def _no_groups(config: Config, what: str) -> InputError:
    files, why = config.data.files, "config.data.files is empty"
    if files:
        without = "was prepared without --group_field"
        why = f"{files} {without if is_prepared(files) else 'is not prepared'}"
    return InputError(
        f"{what}, but there are no groups: {why}; run memsinks_jax.prepare --group_field=FIELD "
        "and give its folder as config.data.files"
    )


def draw_alike(one: Config, other: Config) -> bool:
    """Whether a document has the same sinks in both runs."""
    fixed = {"seed", "sinks.kind", *_SINKS, *_CHOICE_OF_SINKS}
    if one.sinks.by_group:
        fixed -= {"seed", "sinks.pool"}
    one, other = flatten(one), flatten(other)
    return all(one[name] == other[name] for name in fixed)


def _inherited(
    config: Config, workdir: pathlib.Path | None, given: Collection[str] | None
) -> Config:
    place = config.model.initial
    begun = _begun(workdir)
    source = workdir if begun else folder_of(place)
    model = Stored(source).config
    by_group = config.sinks.by_group
    fixed = [*_ARCHITECTURE, *(() if FAMILIES[model.model.family].rotary else ("data.row_length",))]
    free = ["data.tokenizer"] if begun else []
    default = flatten(Config())
    changed = {name for name, value in flatten(config).items() if value != default[name]}
    given = changed if given is None else given
    if _has_neurons(model) and model.sinks.by_group:  # its pool grows with new groups
        fixed += [name for name in (*_SINKS, *_CHOICE_OF_SINKS) if name != "sinks.pool"]
    elif _has_neurons(model):
        fixed += _SINKS
        free += _CHOICE_OF_SINKS
    elif (config.sinks.pool or by_group) and config.sinks.kind == "by_document":
        new = _NEW_SINKS | ({"sinks.sampling": "disjoint"} if by_group else {})
        config = _with_pool(
            with_fields(config, {name: new[name] for name in new if name not in given}), workdir
        )
        if config.sinks.shared_fraction != new["sinks.shared_fraction"]:
            raise InputError(
                f"config.sinks.shared_fraction is {config.sinks.shared_fraction}, but a pool is "
                "added to all neurons of "
                f"config.model.initial={place}, which stay shared; leave it out"
            )
    if (
        not _has_neurons(model)
        and _has_neurons(config)
        and not (config.sinks.pool and is_sparse(config.sinks))
    ):
        raise InputError(
            f"config.model.initial={place} has no sinks, and with "
            f"config.sinks.kind={config.sinks.kind} trained neurons would become sinks; add new "
            "ones with config.sinks.pool=4096 and config.sinks.active=32, or turn neurons into "
            "sinks (memsinks_jax.import --shared_fraction), or set config.sinks.kind=none"
        )
    if model.sinks.traits.by_context and not config.sinks.traits.by_context:
        raise InputError(
            f"config.model.initial={place} has sinks by context, and config.sinks.kind is "
            f"{config.sinks.kind}; set it to "
            "by_context, or start from what memsinks_jax.export --sinks=drop writes"
        )
    here, there = flatten(config), flatten(model)
    there["model.kv_heads"] = there["model.kv_heads"] or there["model.heads"]
    inherited = {name: there[name] for name in fixed if name not in given}
    inherited |= {name: there[name] for name in free if name not in changed and name not in given}
    if not begun and not config.data.tokenizer:
        inherited["data.tokenizer"] = str(source)
    for name in fixed:
        if name not in inherited and here[name] != there[name]:
            raise InputError(
                f"config.{name} is {here[name]!r}, and that of config.model.initial={place} is "
                f"{there[name]!r}; leave it out, or start from another model"
            )
    taken = {name: value for name, value in inherited.items() if value != here[name]}
    if taken:
        logger.info(
            "from %s: %s", place, ", ".join(f"{name}={value}" for name, value in taken.items())
        )
    return with_fields(config, taken)
