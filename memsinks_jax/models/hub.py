"""Models of the Hugging Face hub: hf://organisation/name, downloaded into the hub's own cache."""

import pathlib

from memsinks_jax.config import InputError

PREFIX = "hf://"
_FILES = (
    "*.json",
    "*.safetensors",
    "*.model",
    "*.txt",
    "*.jinja",
    "README.md",
    "LICENSE*",
    "NOTICE*",
)


def folder_of(place: str) -> pathlib.Path:
    """The folder of a model; one of the hub is downloaded first. Raises InputError if the hub
    cannot be read.
    """
    if not place.startswith(PREFIX):
        return pathlib.Path(place)
    import huggingface_hub  # takes half a second

    try:
        return pathlib.Path(
            huggingface_hub.snapshot_download(place.removeprefix(PREFIX), allow_patterns=_FILES)
        )
    except Exception as error:  # of the network, the hub or the name, of many types
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"{place}: the hub cannot be read ({reason}); check the name and the network, or "
            "download the model and give its folder"
        ) from None
