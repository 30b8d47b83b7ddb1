"""Methods of training from outside of the library: `config.training.method` names a class.

The class is a `training.method.Method`. Only training asks for it, so a run can be opened, measured
and exported where its method is not installed.
"""

import dataclasses
import functools
import importlib
from collections.abc import Callable

from memsinks_jax.config import Config, InputError


def method_class(config: Config) -> tuple[type, object] | None:
    """The class that MODULE:CLASS,SETTING=VALUE,... names, and its settings; None if the config
    names none.

    A class declares its settings like a section of the config, as the dataclass `Settings`. All are
    numbers.

    Raises:
      InputError: there is no such class, or it has no such setting.
    """
    if not config.training.method:
        return None
    asked = f"config.training.method is {config.training.method!r}"
    place, *given = config.training.method.split(",")
    module, _, name = place.partition(":")
    try:
        method = getattr(importlib.import_module(module), name)
        fields = {field.name: field for field in dataclasses.fields(method.Settings)}
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise InputError(
            f"{asked}: {error}; give MODULE:CLASS of a method of training, and its settings as "
            "MODULE:CLASS,SETTING=VALUE"
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
    """Which tokens of a document count in the loss, `Method.counted` with its settings; None: all."""
    found = method_class(config)
    return found and found[0].counted and functools.partial(found[0].counted, found[1])
