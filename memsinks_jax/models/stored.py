"""A trained model where it lies: a run's workdir, a Hugging Face folder or a GGUF file."""

import functools
import hashlib
import json
import pathlib
import re
from collections.abc import Collection, Sequence

import jax
import numpy as np

from memsinks_jax.config import Config, InputError, from_json, with_fields
from memsinks_jax.data import contexts, nearest
from memsinks_jax.data.contexts import Contexts
from memsinks_jax.data.gguf_file import SUFFIX
from memsinks_jax.data.nearest import Nearest
from memsinks_jax.data.opened import Opened, nobody, of_groups, read_ids
from memsinks_jax.data.tokenizer import AnyTokenizer, open_tokenizer
from memsinks_jax.model.decoder import CONTEXTS
from memsinks_jax.models import config_json, context_files, hugging_face, origin, sources, weights
from memsinks_jax.models.gguf_model import GgufModel
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.sinks.kinds import has_sinks, is_sparse
from memsinks_jax.training import seal
from memsinks_jax.training.checkpoint import Checkpoints
from memsinks_jax.training.step import init_params

_WANTED = "the folder of a Hugging Face model"
BEST_KERNEL = {"compute.attention": "auto"}  # a model may have been trained on another machine


class Stored:
    """All of a model that can be known without its parameters. It is read when it is asked for.

    Attributes:
      is_run: it is a workdir, which has the documents of its run.
      sources: of a folder that has a file for each; else None.
      config: with the sinks in the weights, or with those of the source files.
    Raises:
      InputError: it is no model, or one that cannot be read exactly.
    """

    def __init__(
        self, place: pathlib.Path, step: int | None = None, only: Collection[str] | None = None
    ):
        """Opens a place.

        Args:
          step: of a run's checkpoint; None: the newest undamaged one.
          only: names of those source files of a folder that are read; None: all.
        """
        self.place, self._step = place, step
        self._is_gguf = place.suffix == SUFFIX and place.is_file()
        # Our config.json has the first key, and theirs the second.
        keys = {} if self._is_gguf else _content(place)
        self.is_run = "sinks" in keys and "model_type" not in keys
        self.sources = None if self.is_run else sources.in_folder(place)
        if only is not None:
            self.sources = self.sources.only(only)
        ours = place / sources.CONFIG
        if self.is_run:
            self.config = workdirs.read_config(place)
        elif self.sources and (self.sources.files or self.sources.config.sinks.traits.by_context):
            self.sources.fitting()
            self.config = self.sources.config
        elif self.sources is None and not self._is_gguf and ours.is_file():
            self.config = from_json(ours.read_text(), str(ours))
        else:
            self.config = self._theirs

    @functools.cached_property
    def _theirs(self) -> Config:
        """Our config of a folder, without sinks."""
        if self._is_gguf:
            return config_json.read_config(self._weights.content, str(self.place))
        config = config_json.read_config(_content(self.place), str(self.place / "config.json"))
        if config.model.tied_head:
            # As transformers 5: a head of its own in the file is used, whatever is in the config.
            found, both = self._weights, hugging_face.tied(config.model.family)
            tied = not set(both) <= found.shapes.keys() or np.array_equal(*map(found.read, both))
            config = with_fields(config, {"model.tied_head": tied})
        return config

    @functools.cached_property
    def _weights(self) -> weights.Weights | GgufModel:
        return GgufModel(self.place) if self._is_gguf else weights.Weights(self.place)

    @property
    def weights_name(self) -> str:
        """A hash that names the weights. Those of a folder are read, those of a run are not."""
        if self.is_run:
            return workdirs.newest_weights(self.place)
        folder = self.place.parent if self._is_gguf else self.place
        found = seal.checksums(folder, list(self.weights_touched))
        return hashlib.sha256(json.dumps(list(found.items())).encode()).hexdigest()

    @property
    def weights_touched(self) -> dict[str, list[int]]:
        """{file of weights: [size in bytes, time of its last change in ns]} of a folder; empty for
        a run.
        """
        if self.is_run:
            return {}
        folder = self.place.parent if self._is_gguf else self.place
        paths = [self.place] if self._is_gguf else sorted(folder.rglob("*.safetensors"))
        found = {str(path.relative_to(folder)): path.stat() for path in paths}
        return {name: [of.st_size, of.st_mtime_ns] for name, of in found.items()}

    @functools.cached_property
    def tokenizer(self) -> AnyTokenizer:
        if self.is_run:
            return workdirs.read_tokenizer(self.place)
        found, most = open_tokenizer(self.place), self.config.data.vocabulary_size
        if found.vocabulary_size > most:
            raise InputError(
                f"{self.place}: the tokenizer has {found.vocabulary_size} tokens and the model "
                f"{most}; they are not of one model"
            )
        return found

    @functools.cached_property
    def checkpoints(self) -> Checkpoints:
        """Of a run."""
        return Checkpoints(self.place)

    def close(self) -> None:
        """Nothing is read any more."""
        if self.is_run:
            self.checkpoints.close()

    @property
    def step(self) -> int:
        """The number of finished updates, 0 for a folder."""
        return self._step or (self.checkpoints.newest() or 0 if self.is_run else 0)

    @functools.cached_property
    def groups(self) -> Sequence[str]:
        """The groups that have sinks by number, in the order of their numbers."""
        if self.config.sinks.traits.by_context:
            return []
        return list(self.sources.files) if self.sources else workdirs.read_groups(self.place)

    @functools.cached_property
    def nearest(self) -> Nearest | None:
        """What finds the group of a text; None if there are no groups."""
        if not self.groups:
            return None
        if self.sources:
            return nearest.of_groups(list(map(sources.read_words, self.sources.files.values())))
        return nearest.read(self.place, len(self.groups))

    @functools.cached_property
    def contexts(self) -> Contexts | None:
        """The contexts that have sinks; None if sinks are not by context."""
        length = self.config.contexts.length
        if not self.config.sinks.traits.by_context:
            return None
        if self.is_run:
            return contexts.read(self.place, length)
        return context_files.read(self.place, length, self.sources)

    @functools.cached_property
    def opened(self) -> Opened:
        """Whose own sinks are on, in the checkpoint of a run."""
        step = self.step

        def read() -> np.ndarray:
            if self.sources:
                return of_groups(self.groups)
            if self.is_run:
                return read_ids(self.place / "checkpoints" / str(step))
            return read_ids(self.place) if has_sinks(self.config) else nobody()

        return Opened(self.config.sinks, read)

    @functools.cached_property
    def origin(self) -> pathlib.Path | None:
        """Where the small files of the Hugging Face model are that this is, or came from."""
        return origin.source_of(self.place)

    @property
    def shapes(self) -> dict:
        """Of the parameters of a run."""
        return jax.eval_shape(lambda: init_params(with_fields(self.config, BEST_KERNEL)))

    def read_params(self) -> dict:
        """The parameters of a folder, float32. Sinks in its weights or in files of
        sources are sinks again.

        Raises:
          InputError: weights that do not match its config.json exactly; source files that do not
          fit.
        """
        theirs, found = self._theirs, self._weights
        hugging_face.compare(found.shapes, theirs, theirs.model.hidden, str(self.place))
        params = hugging_face.ours(theirs, theirs.model.hidden, found.read)
        if is_sparse(self.config.sinks):
            params |= self.sources.tables()
        if self.config.sinks.traits.by_context:
            params[CONTEXTS] = context_files.read_table(self.place, self.config, self.sources)
        return params

    def read(self, path: str, layer: int | None = None) -> np.ndarray:
        """One parameter by its path, or a layer's slice of it. Nothing else of a run is read."""
        if self.is_run:
            return self.checkpoints.read(path, layer)
        return parameter(self._params, path, layer)

    @functools.cached_property
    def _params(self) -> dict:
        return self.read_params()


def parameter(params: dict, path: str, layer: int | None = None) -> np.ndarray:
    """A parameter by its path, such as 'layers/up_kernel', or a layer's slice of it."""
    for name in path.split("/"):
        params = params[name]
    return np.asarray(params if layer is None else params[layer])


def _content(place: pathlib.Path) -> dict:
    """The content of a config.json, ours or theirs."""
    where = place / "config.json"
    try:
        content = json.loads(where.read_text(errors="replace"))
        if not isinstance(content, dict):
            raise ValueError("no object")
        return content
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            _advice(place)
            or f"{where} cannot be read ({error}); give the folder of a training run, or {_WANTED}"
        ) from None


def _advice(place: pathlib.Path) -> str:
    """What to do with a place that looks like a model of another form; empty if it does not."""
    if gguf := next(iter(sorted(place.glob(f"*{SUFFIX}"))), None):
        return f"{place} holds a GGUF file; give the file: {gguf}"
    if (place / "adapter_config.json").exists():
        return (
            f"{place} is an adapter (LoRA); merge it into its base model first "
            f"(merge_and_unload), then give {_WANTED}"
        )
    if not place.exists() and re.fullmatch(r"[\w.-]+/[\w.-]+", str(place)):
        return f"{place} is no folder; give {_WANTED}, or for a model of the hub: hf://{place}"
    return ""
