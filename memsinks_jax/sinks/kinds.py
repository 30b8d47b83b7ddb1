"""What sinks a model has: how many, of which kind, and the modes in which a model is used."""

from typing import NamedTuple

import numpy as np

from memsinks_jax.config import Config, InputError, ModelConfig, SinksConfig

# How sinks are set when a model is used:
#   own    the document's own sinks are on, as in training (none for one that never came back)
#   drop   every sink is off (the paper's measure)
#   all    every sink is on
#   other  sinks of another, random id: an attack's probe
MODES = ("own", "drop", "all", "other")


NONE = np.iinfo(np.int32).max  # stands for no sink, no row of a table


class Partition(NamedTuple):
    """Numbers of shared neurons and of sinks in every MLP; together the width that is built."""

    shared: int
    sinks: int


def partition(model: ModelConfig, sinks: SinksConfig) -> Partition:
    """Splits `model.hidden` neurons, or adds `sinks.pool` sinks to the shared ones.

    Without sinks all are shared; `cut` builds only the shared ones (narrow control).

    Raises:
      InputError: a document would have more sinks than exist, or almost never one.
    """
    shared = max(int(sinks.shared_fraction * model.hidden), 1)
    if not sinks.traits.exist:
        return Partition(shared if sinks.traits.cut else model.hidden, 0)
    parts = Partition(shared, sinks.pool or model.hidden - shared)
    if sinks.active > parts.sinks:
        raise InputError(
            f"config.sinks.active is {sinks.active}, but an MLP has {parts.sinks} sinks; lower "
            "it, or raise "
            "config.sinks.pool"
        )
    if sinks.sampling == "bernoulli" and 0 < share_on(sinks, parts.sinks or 1) * parts.sinks < 0.5:
        raise InputError(
            f"config.sinks.active_fraction={sinks.active_fraction:g}: most documents would have "
            "no sink; raise it"
        )
    if is_sparse(sinks) and sinks.sampling not in ("floyd", "disjoint"):
        raise InputError(
            "config.sinks.sparse needs sinks that are known by number; set "
            "config.sinks.sampling=floyd"
        )
    return parts


def is_sparse(sinks: SinksConfig) -> bool:
    """Whether the MLPs have sinks that are tables of rows. With `by_chance` or masking all are on
    somewhere, so all are computed.
    """
    return sinks.sparse and sinks.traits.owned and (sinks.pool > 0 or sinks.shared_fraction < 1)


def has_sinks(config: Config) -> bool:
    return config.sinks.traits.by_context or partition(config.model, config.sinks).sinks > 0


def has_tables(config: Config) -> bool:
    """Whether sinks are rows of tables, of which a step reads and writes those that are on."""
    return config.sinks.traits.by_context or is_sparse(config.sinks)


def share_on(sinks: SinksConfig, count: int) -> float:
    """Share of the `count` sinks of an MLP that is on for a document."""
    return sinks.active / count if sinks.active else sinks.active_fraction


def number_on(sinks: SinksConfig, count: int) -> int:
    """How many of an MLP's `count` sinks are on for a document, if all documents have equally
    many.
    """
    return sinks.active or max(round(sinks.active_fraction * count), 1)


def check_mode(mode: str) -> None:
    if mode not in MODES:
        raise ValueError(f"sinks={mode!r}; choose one of: {', '.join(MODES)}")
