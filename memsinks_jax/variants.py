"""The variants in which every experiment trains its model. Select one by --config=FILE:VARIANT."""

import importlib.util
import pathlib
import types

from memsinks_jax.config import Config, with_fields

_HERE = pathlib.Path(__file__).resolve().parent
# Those of the installed package, or of the checkout.
CONFIGS = (_HERE if (_HERE / "configs").is_dir() else _HERE.parent) / "configs"


def _other(method: str, kind: str) -> dict:
    """A method of studies/methods/, on a model with that kind of sinks."""
    return {"sinks.kind": kind, "training.method": f"memsinks_jax.studies.methods.{method}"}


# Fields that differ from the defaults, which are `sinks`.
VARIANTS = {
    "sinks": {},  # they open when a document comes back
    "context": {"sinks.kind": "by_context"},  # of each context of repeated text
    "standard": {"sinks.kind": "none"},
    # every document's are on from its first encounter on
    "sinks_paper": {"sinks.opens_at": 1, "sinks.slows_at": 0},
    "no_repeat": {"sinks.kind": "none", "data.repeats_at_most": 0},  # as many epochs as standard
    "no_repeat_steps": {
        "sinks.kind": "none",
        "data.repeats_at_most": 0,
        "training.count_removed_repeats": True,
    },
    "deduplicated": {"sinks.kind": "none", "data.repeats_at_most": 1},
    # control: the width that is left after dropping, from the start
    "narrow": {"sinks.kind": "cut"},
    # control: the same neurons dropped at the same rate, tied to nothing
    "dropout": {"sinks.kind": "by_chance"},
    # baselines: gradients of repeated documents go to the sinks' weights alone (appendix E), or to
    # their activations alone (the code of Cloud et al. 2024), or by labels (arXiv 2512.05648); a
    # token is left out of the loss by a hash of those before it (Hans et al. 2024); DP-SGD: rows'
    # gradients are clipped and get noise (Abadi et al. 2016)
    "gradient_masking": _other("gradient_masking:MaskedWeights", "always"),
    "gradient_detach": _other("gradient_masking:MaskedActivations", "always"),
    "sgtm": _other("gradient_masking:Selective", "always"),
    "dp_sgd": _other("private:Private,noise_multiplier=0.1", "none"),
    "goldfish": _other("goldfish:Goldfish,every=4", "none"),
}


def make_config(variant: str, *settings: dict) -> Config:
    """The defaults, changed by `settings` ({"data.repetitions": 64, ...}, later ones win), then by
    the variant.
    """
    changes = dict(item for each in (*settings, VARIANTS[variant]) for item in each.items())
    return with_fields(Config(variant=variant), changes)


def config_file(name: str) -> pathlib.Path:
    """A config file by its path, or one of configs/ by its name there ("smollm", "sweeps/opens")
    from any folder.
    """
    path = pathlib.Path(name)
    ours = CONFIGS.parent / (
        path if path.parts[:1] == (CONFIGS.name,) else pathlib.Path(CONFIGS.name, path)
    )
    ours = ours if ours.suffix else ours.with_suffix(".py")
    return ours if not path.is_file() and ours.is_file() else path


def choose(file: str, choice: str, *tables: dict) -> list[str]:
    """Splits a choice like '360m,sinks' into one name of every table; what is left out is the
    table's first name.

    Raises:
      ValueError: a name that is in no table, or two of the same.
    """
    chosen = [next(iter(table)) for table in tables]
    left = list(range(len(tables)))
    for name in filter(None, choice.split(",")):
        at = next((i for i in left if name in tables[i]), None)
        if at is None:
            known = "; ".join(", ".join(tables[i]) for i in left)
            raise ValueError(
                f"{file} has no {name!r}{f' besides {choice!r}' if not left else ''}; choose one "
                f"of: {known}"
            )
        chosen[at] = name
        left.remove(at)
    return chosen


def open_config(path: pathlib.Path) -> types.ModuleType:
    """A config file as a module, for what stands in it besides `get_config`."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
