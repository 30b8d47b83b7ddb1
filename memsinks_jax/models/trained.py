"""Opens a trained model: a run's workdir or a Hugging Face folder."""

import dataclasses
import difflib
import pathlib
from collections.abc import Sequence

import jax
import numpy as np

from memsinks_jax.config import Config, InputError, MeshConfig, shown, with_fields
from memsinks_jax.data import contexts, ids
from memsinks_jax.data.contexts import Contexts
from memsinks_jax.data.nearest import Nearest, words_of
from memsinks_jax.data.opened import Opened, nobody, of_groups, read_ids
from memsinks_jax.data.prepared import NO_NUMBER, group_id
from memsinks_jax.data.tokenizer import AnyTokenizer
from memsinks_jax.model import host_memory
from memsinks_jax.models import sources
from memsinks_jax.models.folder import is_folder, open_folder, read_config
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.sinks import has_sinks
from memsinks_jax.training import sharding
from memsinks_jax.training.checkpoint import Checkpoints
from memsinks_jax.training.step import init_state

_SPLIT = MeshConfig(fsdp=-1)
_BEST_KERNEL = {"compute.attention": "auto"}  # a model may have been trained on another machine


@dataclasses.dataclass(frozen=True)
class Trained:
    """A model without its optimizer; `step` counts its finished updates, 0 for one that was
    imported.

    `opened` has the documents whose own sinks are on. `groups` has their names by number, if they
    have sinks by number, and `nearest` finds the one that a text is about. `contexts` are those
    that have sinks, if sinks are by context.
    """

    config: Config
    tokenizer: AnyTokenizer
    params: dict
    step: int
    opened: Opened
    groups: Sequence[str] = ()
    nearest: Nearest | None = None
    contexts: Contexts | None = None

    def group_id(self, name: str) -> np.ndarray:
        """The id of a group of documents -> uint32 (2,). Raises InputError if it has no sinks by
        number, and others do.
        """
        return numbered_id(name, self.groups) if self.config.sinks.by_group else group_id(name)

    def group_of(self, identity: np.ndarray) -> str:
        """The inverse for groups that have sinks by number: "none" for the id of no group."""
        number = int(identity[1]) - 1
        return self.groups[number] if 0 <= number < len(self.groups) else "none"

    def nearest_ids(self, texts: Sequence[np.ndarray]) -> np.ndarray:
        """The ids of the groups that texts are about, each int32 (tokens,) -> uint32 (texts, 2).

        Of groups with equal shares the first by name is chosen: numbers are others in a run than in
        its folder with sources. A text that is about no group has the id of none, and so no sinks.
        """
        return np.stack(
            [self._nearest_id(words_of(text, self.tokenizer.special)) for text in texts]
        )

    def _nearest_id(self, words: np.ndarray) -> np.ndarray:
        number = min(self.nearest(words), key=self.groups.__getitem__, default=None)
        return (
            NO_NUMBER if number is None else ids.numbered_id(group_id(self.groups[number]), number)
        )


def numbered_id(name: str, groups: Sequence[str]) -> np.ndarray:
    """The id of one of the groups that have sinks by number -> uint32 (2,). Raises InputError if it
    is none of them.
    """
    if name not in groups:
        near = difflib.get_close_matches(name, groups, n=3, cutoff=0.0)
        meant = f"did you mean {', '.join(map(shown, near))}?" if near else "there are none"
        raise InputError(f"there is no group {shown(name)} among {len(groups)}; {meant}")
    return ids.numbered_id(group_id(name), groups.index(name))


def open_run(workdir: pathlib.Path, step: int | None = None) -> Trained:
    """Reads a workdir or a Hugging Face folder onto the local devices.

    Args:
      step: of a run's checkpoint; None: the newest undamaged one.

    Parameters are sharded on the run's mesh if it covers these devices. Otherwise, and for a
    folder, fsdp splits them over all devices.

    Raises:
      InputError: it is neither, or damaged.
    """
    host_memory.keep_freed_memory()
    if is_folder(workdir):
        config, tokenizer, params = open_folder(workdir)
        config = with_fields(config, _BEST_KERNEL)
        mesh = sharding.make_mesh(_SPLIT, jax.local_devices())
        placed = jax.device_put(params, sharding.shardings(params, mesh))
        return Trained(
            config, tokenizer, placed, 0, opened_in(workdir, config), *_lookups(workdir, config)
        )
    config = with_fields(workdirs.read_config(workdir), _BEST_KERNEL)
    try:
        mesh = sharding.make_mesh(config.mesh, jax.local_devices())
    except InputError:
        mesh = sharding.make_mesh(_SPLIT, jax.local_devices())
    tokenizer = workdirs.read_tokenizer(workdir)
    shapes = jax.eval_shape(lambda: init_state(config, steps=1)).params
    checkpoints = Checkpoints(workdir)
    params = checkpoints.restore_params(sharding.placed(shapes, mesh), step)
    step = step or checkpoints.newest()
    checkpoints.close()
    opened = opened_in(workdir, config, step)
    return Trained(config, tokenizer, params, step, opened, *_lookups(workdir, config))


def _lookups(
    place: pathlib.Path, config: Config
) -> tuple[list[str], Nearest | None, Contexts | None]:
    return workdirs.read_groups(place), workdirs.read_nearest(place), contexts_in(place, config)


def contexts_of(place: pathlib.Path) -> Contexts | None:
    """The same of a place whose config is not known yet."""
    return contexts_in(
        place, read_config(place) if is_folder(place) else workdirs.read_config(place)
    )


def contexts_in(place: pathlib.Path, config: Config) -> Contexts | None:
    """The contexts that have sinks in a workdir or a folder; None if sinks are not by context."""
    return contexts.read(place, config.contexts.length) if config.sinks.traits.by_context else None


def opened_in(place: pathlib.Path, config: Config, step: int | None = None) -> Opened:
    """Whose own sinks are on in a Hugging Face folder's model, or in a checkpoint of a workdir.
    Read when it is asked.
    """

    def read() -> np.ndarray:
        if sources.config_of(place):
            return of_groups(workdirs.read_groups(place))
        if step is None and not has_sinks(config):
            return nobody()
        return read_ids(place if step is None else place / "checkpoints" / str(step))

    return Opened(config.sinks, read)
