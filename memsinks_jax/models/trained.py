"""A trained model on the local devices."""

import dataclasses
import difflib
import pathlib
from collections.abc import Collection, Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from memsinks_jax.config import Config, InputError, MeshConfig, shown, with_fields
from memsinks_jax.data import ids
from memsinks_jax.data.contexts import Contexts
from memsinks_jax.data.nearest import Nearest, words_of
from memsinks_jax.data.opened import Opened
from memsinks_jax.data.prepared import NO_NUMBER, group_id
from memsinks_jax.data.tokenizer import AnyTokenizer
from memsinks_jax.model import host_memory
from memsinks_jax.models.stored import BEST_KERNEL, Stored, parameter
from memsinks_jax.training import sharding

_SPLIT = MeshConfig(fsdp=-1)


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
    stored: Stored | None = None

    @property
    def origin(self) -> pathlib.Path | None:
        """Where the small files of the Hugging Face model are that this came from."""
        return self.stored and self.stored.origin

    def read(self, path: str, layer: int | None = None) -> np.ndarray:
        """One parameter by its path, or a layer's slice of it."""
        return parameter(self.params, path, layer)

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
        return self.ids_of_groups(nearest_groups(self, texts, most=1))[:, 0]

    def ids_of_groups(self, names: Sequence[Sequence[str]]) -> np.ndarray:
        """The ids of the groups of each text -> uint32 (texts, most, 2). A text with fewer groups
        has its last one again; one without has the id of no group.
        """
        most = max(map(len, names), default=1) or 1
        ids_of = [[*map(self.group_id, of)] or [NO_NUMBER] for of in names]
        return np.stack([np.stack(of + of[-1:] * (most - len(of))) for of in ids_of])


def nearest_groups(
    model: Trained | Stored, texts: Sequence[np.ndarray], most: int = 2
) -> list[list[str]]:
    """The names of the groups that each text is about, the nearest first: none, one, or two. Of
    equally near ones the first by name.
    """

    def first_by_name(numbers: Sequence[int]) -> list[int]:
        return sorted(numbers, key=lambda number: model.groups[number])[:1]

    found = []
    for text in texts:
        words = words_of(text, model.tokenizer.special)
        near = first_by_name(model.nearest(words))
        if near and most > 1:
            near += first_by_name(model.nearest.second(words, near[0]))
        found.append([model.groups[number] for number in near])
    return found


def numbered_id(name: str, groups: Sequence[str]) -> np.ndarray:
    """The id of one of the groups that have sinks by number -> uint32 (2,). Raises InputError if it
    is none of them.
    """
    if name not in groups:
        near = difflib.get_close_matches(name, groups, n=3, cutoff=0.0)
        meant = f"did you mean {', '.join(map(shown, near))}?" if near else "there are none"
        raise InputError(f"there is no group {shown(name)} among {len(groups)}; {meant}")
    return ids.numbered_id(group_id(name), groups.index(name))


def open_run(
    place: pathlib.Path, step: int | None = None, only: Collection[str] | None = None
) -> Trained:
    """Reads a workdir, a Hugging Face folder or a GGUF file onto the local devices.

    Args:
      step, only: as `Stored` takes them.

    Parameters are sharded on the run's mesh if it covers these devices. Otherwise, and for a
    folder, fsdp splits them over all devices.

    Raises:
      InputError: it is none of these, or damaged.
    """
    host_memory.keep_freed_memory()
    stored = Stored(place, step, only)
    config = with_fields(stored.config, BEST_KERNEL)
    if stored.is_run:
        params = stored.checkpoints.restore_params(
            sharding.placed(stored.shapes, _mesh(config)), step
        )
        stored.close()
    else:
        params = stored.read_params()
        mesh = sharding.make_mesh(_SPLIT, jax.local_devices())
        params = jax.device_put(params, sharding.shardings(params, mesh))
    known = stored.opened, stored.groups, stored.nearest, stored.contexts
    return Trained(config, stored.tokenizer, params, stored.step, *known, stored)


def _mesh(config: Config) -> Mesh:
    try:
        return sharding.make_mesh(config.mesh, jax.local_devices())
    except InputError:
        return sharding.make_mesh(_SPLIT, jax.local_devices())
