"""Sinks by context in a Hugging Face folder: the plain model, the keys, the table, and a PyTorch
class.
"""

import pathlib

import numpy as np
import safetensors
import safetensors.numpy

from memsinks_jax.config import Config, InputError
from memsinks_jax.data import contexts
from memsinks_jax.data.contexts import Contexts
from memsinks_jax.model.decoder import CONTEXTS
from memsinks_jax.models.hugging_face import DIALECTS
from memsinks_jax.models.sources import source_text, write_class

TABLE = "contexts.safetensors"


def write(folder: pathlib.Path, config: Config, found: Contexts, table: np.ndarray) -> dict:
    """Writes the contexts and their table, (M, D), in its type -> entries for config.json."""
    contexts.write(folder, found)
    safetensors.numpy.save_file({CONTEXTS: np.ascontiguousarray(table)}, folder / TABLE)
    code = (  # so that it finds what we find
        contexts.window,
        contexts.mixed,
        contexts.begins,
        contexts._where,
        contexts.lanes,
        contexts.keys_of,
        contexts.rows_of,
    )
    values = {
        "architecture": DIALECTS[config.model.family].architecture,
        "length": config.contexts.length,
        "table": TABLE,
        "keys": contexts.FILE,
        "name": CONTEXTS,
        "none": contexts.NONE,
        "seeds": _listed(contexts.SEEDS),
        "longest": contexts.LONGEST,
        "bits": (contexts._HAS_LETTERS, contexts._OPENS, contexts._CLOSES),
        "lookup": source_text(*code),
    }
    return write_class(folder, "modeling_contexts", "ModelWithContexts", values)


def _listed(numbers: tuple[np.uint32, ...]) -> str:
    return f"({', '.join(f'np.uint32({number})' for number in numbers)})"


def read_table(folder: pathlib.Path, config: Config) -> np.ndarray:
    """The table of a folder, float32 (M, D). Raises InputError if it is missing, damaged, or of
    another model.
    """
    path = folder / TABLE
    try:
        with safetensors.safe_open(path, framework="np") as opened:
            table = opened.get_tensor(CONTEXTS)
    except (OSError, safetensors.SafetensorError) as error:
        raise InputError(f"{path} is missing or damaged ({error}); export the model anew") from None
    wanted = config.contexts.rows, config.model.d_model
    if table.shape != wanted:
        raise InputError(
            f"{path} has a table of {table.shape}, and {folder} needs one of {wanted}; use its own"
        )
    return table.astype(np.float32)
