"""Classes from outside of the library, which a config names: a method of training
(`config.training.method`, a `training.method.Method`), and a schedule of an experiment's repeats
(`config.data.schedule`, a `Schedule`).

Only training asks for the method, so a run can be opened, measured and exported where its method is
not installed.
"""

import dataclasses
import functools
import importlib
from collections.abc import Callable

import numpy as np

from memsinks_jax.config import Config, InputError


class Schedule:
    """What an experiment changes of its repeats: how often, when and under which ids they come.

    This one changes nothing. A schedule is asked before training; one that lists encounters, only
    for corpora that fit one block (data/epochs.py).

    Attributes:
      shuffles: repeated documents come in an epoch's random order, as often as `times` says. Else
        that has others alone, and `epoch` places them.
      lists: an epoch is what `epoch` says.

    A class with settings has a dataclass `Settings` of numbers, like a section of the config.
    """

    shuffles, lists = True, False

    def __init__(self, config: Config, settings: object = None):
        self.config, self.settings = config, settings

    def times(self, repetitions: int, documents: int) -> np.ndarray:
        """How often an epoch has each repeated document, with all repeats -> int64 (documents,)."""
        return np.full(documents, repetitions)

    def epoch(self, mixture, usual, number: int) -> tuple[np.ndarray, np.ndarray]:
        """All encounters of an epoch in order, as many in every epoch.

        Args:
          mixture: data.mixture.Mixture, the roles of the documents.
          usual: data.epochs.Encounters, those of the usual schedule.
          number: of the epoch, from 0.
        Returns:
          (int64 (n,), their records in the table; uint32 (n, 2), their ids)
        """
        return usual.records, mixture.table.identities(usual.records)

    def is_watched(self, step: int) -> bool:
        """Whether the repeated documents are measured after a step, besides the usual ones."""
        return False


def method_class(config: Config) -> tuple[type, object] | None:
    """The method of training and its settings, as `_named`."""
    return _named("training.method", config.training.method)


@functools.lru_cache(maxsize=64)
def schedule(config: Config) -> Schedule:
    """The schedule of a config, as `_named`; without one, a schedule that changes nothing."""
    found = _named("data.schedule", config.data.schedule)
    return found[0](config, found[1]) if found else Schedule(config)


def _named(name: str, text: str) -> tuple[type, object] | None:
    """The class that MODULE:CLASS,SETTING=VALUE,... names, and its settings; None for no text.

    A class declares its settings like a section of the config, as the dataclass `Settings`. All are
    numbers.

    Raises:
      InputError: there is no such class, or it has no such setting.
    """
    if not text:
        return None
    asked = f"config.{name} is {text!r}"
    place, *given = text.split(",")
    module, _, of_class = place.partition(":")
    try:
        method = getattr(importlib.import_module(module), of_class)
        fields = {field.name: field for field in dataclasses.fields(method.Settings)}
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise InputError(
            f"{asked}: {error}; give MODULE:CLASS, and its settings as MODULE:CLASS,SETTING=VALUE"
        ) from None
    values = {}
    for setting in given:
        name, _, value = setting.partition("=")
        if name not in fields:
            known = ", ".join(fields) or "none"
            raise InputError(f"{asked}, which has no setting {name!r}; its settings: {known}")
        try:
            values[name] = fields[name].type(value)
        except ValueError:
            raise InputError(f"{asked}; {name} must be a number") from None
        if instead := fields[name].metadata["rule"].broken_by(values[name]):
            raise InputError(f"{asked}; of {name}, {instead}")
    return method, method.Settings(**values)


def counted(config: Config) -> Callable | None:
    """Which tokens of a document count in the loss, `Method.counted` with its settings; None:
    all.
    """
    found = method_class(config)
    return found and found[0].counted and functools.partial(found[0].counted, found[1])
