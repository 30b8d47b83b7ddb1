"""Checkpoints: one small file over Orbax. Saved in the background, committed atomically, sealed,
restored onto any mesh.

`checkpoints/STEP/` holds three items, `params`, `optimizer` (with the guard) and
`progress`, besides `opened.npy` (see data/opened.py) and `seal.json` (see seal.py).
The seal is written before the folder gets its name, so a folder with its name is complete. The seal
names the file if it is damaged later.
"""

import contextlib
import functools
import importlib.metadata
import json
import logging
import os
import pathlib
import shutil
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import tensorstore
from orbax.checkpoint import v1 as ocp

from memsinks_jax import private_interfaces
from memsinks_jax.config import InputError, TrainingConfig
from memsinks_jax.data.opened import write_ids
from memsinks_jax.training import hosts, seal
from memsinks_jax.training.paths import path_name
from memsinks_jax.training.step import TrainState

logger = logging.getLogger(__name__)

FORMAT = 1  # raise it whenever checkpoints change
_READ = ("params", "progress")  # the items that a reader checks
_CHUNK_BYTES = 2**26
# of an array that several devices hold: each writes a slice, if slices are as large
_LEAST_SLICE_BYTES = 2**20
# disk space besides the arrays; a small model's indexes are as large as the model
_OVERHEAD_BYTES = 2**20
# The libraries whose versions affect the bits of a step.
_LIBRARIES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "numpy",
    "orbax-checkpoint",
    "grain",
    "sentencepiece",
    "tokenizers",
)
_INDEX_CACHE_BYTES = 10**8  # of OCDBT, as in Orbax
_SAVE_LIMIT_SECONDS = 1200  # then Orbax gives up a save


class Checkpoints:
    """The checkpoints of one workdir.

    Args:
      config: which checkpoints to keep. None to read only: nothing is moved, written or deleted.
    Attributes:
      about: data, config and versions, stored in every checkpoint. Set it before the first save.
    Raises:
      InputError: all checkpoints are damaged.
    """

    def __init__(self, workdir: pathlib.Path, config: TrainingConfig | None = None):
        self._workdir, self._folder = workdir, (workdir / "checkpoints").absolute()
        self._config, self.about = config, {}
        self._saving_since: float | None = None
        self._closed, self._open_array = config is None, None
        self._newest = self._sound()
        if config is not None:
            self._saving: ocp.AsyncResponse | None = None
            self._checkpointer = ocp.training.Checkpointer(
                self._folder,
                # a method would be copied with all that is here
                context=_context(lambda: self._finish()),
                preservation_policy=self,
                cleanup_tmp_directories=True,
            )
            private_interfaces.without_preemption(self._checkpointer)

    def newest(self) -> int | None:
        """The step of the newest undamaged checkpoint at the time of opening, None if there was
        none.
        """
        return self._newest

    def progress(self, step: int) -> dict:
        """What a checkpoint stores besides its arrays: {"step", "tokens", "data", ...}."""
        path = self._folder / str(step) / seal.PROGRESS
        try:
            content = json.loads(path.read_text())
            if content["format"] == FORMAT:
                return content
            raise InputError(
                f"{path} has format {content['format']}; this version of memsinks_jax reads "
                f"{FORMAT}"
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._damaged(step, f"{seal.PROGRESS} cannot be read ({error})") from None

    def save(
        self,
        step: int,
        state: TrainState,
        tokens: int,
        ids: np.ndarray,
    ) -> None:
        """Starts a save. The state may be donated once this returns. Raises InputError as `check`
        does.

        Args:
          ids: those whose sinks have opened, see `data.opened`; host 0 alone needs them.
        """
        self._saving_since = time.monotonic()
        progress = {"format": FORMAT, "step": step, "tokens": tokens, "arrays": arrays_of(state)}
        progress |= self.about
        with self._errors_named(step):
            if not (self._workdir / "config.json").exists():
                # Orbax would make the folder anew, without the other checkpoints
                raise FileNotFoundError
            # for the previous save, as Orbax would: it takes space and counts as saved
            self._wait()
            self._ids = ids
            # Check first: if a disk fills up during a save, other libraries print a flood of
            # traces.
            needed, free = (
                bytes_of(state) + ids.nbytes + _OVERHEAD_BYTES,
                shutil.disk_usage(self._folder).free,
            )
            if jax.process_index() == 0 and free < needed:
                raise OSError(
                    f"it takes {needed / 2**20:,.1f} MiB and {free / 2**20:,.1f} MiB are free; "
                    "free some space"
                )
            trees = {"params": state.params}
            if state.optimizer is not None:  # an imported model has no optimizer
                trees["optimizer"] = _memory(state)
            items = trees | {"progress": progress}
            self._saving = self._checkpointer.save_checkpointables_async(step, items, force=True)

    def check(self) -> None:
        """Raises InputError if a background save has failed; called at every step."""
        with self._errors_named():
            if not self._checkpointer.is_saving_in_progress():
                self._wait()

    def saving_seconds(self) -> float:
        """How long the current save has been running; 0.0 if none is."""
        if self._saving_since is None or not self._checkpointer.is_saving_in_progress():
            return 0.0
        return time.monotonic() - self._saving_since

    def restore(self, placed: TrainState) -> TrainState:
        """Restores the newest checkpoint onto shapes with shardings. Raises InputError naming
        arrays that do not match.
        """
        step = self._require()
        if self._config is None:  # its parameters were checked when it was opened
            damage = seal.find_damage(self._folder / str(step), ("optimizer",))
            if damage:
                raise self._damaged(step, damage)
        check_arrays(self.progress(step)["arrays"], arrays_of(placed), self._folder / str(step))
        items = {"params": placed.params, "optimizer": _memory(placed)}
        restored = ocp.load_checkpointables(self._folder / str(step), items)
        step_there = jax.device_put(jax.numpy.int32(step), placed.step.sharding)
        return TrainState(step_there, restored["params"], *restored["optimizer"])

    def restore_params(self, placed: dict, of_step: int | None = None) -> dict:
        """Restores only the parameters: of the newest checkpoint, or of one step. Raises InputError
        as `restore` does.
        """
        step = of_step or self._require()
        place = self._folder / str(step)
        if step != self._newest and (damage := seal.find_damage(place, _READ)):
            raise self._damaged(step, damage)
        self.check_params(placed, step)
        params = ocp.load_checkpointables(place, {"params": placed})["params"]
        self._check_finite(step, jax.device_get(_finite(params)))
        return params

    def check_params(self, shapes: dict, of_step: int | None = None) -> None:
        """Raises InputError unless the newest checkpoint, or that of one step, has parameters of
        these shapes.
        """
        step = of_step or self._require()
        saved = {n: a for n, a in self.progress(step)["arrays"].items() if n.startswith("params/")}
        check_arrays(saved, arrays_of({"params": shapes}), self._folder / str(step))

    def read(self, path: str, layer: int | None = None) -> np.ndarray:
        """Reads one parameter of the newest checkpoint, such as 'layers/up_kernel', or a layer's
        slice of it.

        Reads nothing else and uses no device, so the model may be larger than the memory.

        Raises:
          InputError: the parameter holds nan or inf.
        """
        step = self._require()
        if self._open_array is None:
            self._open_array = _array_opener(self._folder / str(step) / "params")
        array = self._open_array(path)
        found = np.asarray((array if layer is None else array[layer]).read().result())
        self._check_finite(step, {path: np.isfinite(found).all()})
        return found

    def _check_finite(self, step: int, finite: dict) -> None:
        """Raises InputError naming the first array with nan or inf. `finite` has for each array
        whether it is finite.
        """
        for path, is_finite in jax.tree_util.tree_leaves_with_path(finite):
            if not is_finite:
                raise InputError(
                    f"{self._folder / str(step)}: {path_name(path)} holds nan or inf; this model "
                    "is broken, take another"
                )

    def close(self) -> None:
        """Waits for the current save; raises InputError if it fails."""
        if not self._closed:
            self._closed = True
            with self._errors_named():
                self._wait()
                self._checkpointer.close()

    def _finish(self) -> None:
        # Orbax calls this in its own thread, on host 0, after the last file and before the folder
        # gets its final name.
        for saved in self._folder.glob("*.orbax-checkpoint-tmp*"):
            write_ids(saved, self._ids)
            seal.write_seal(saved)

    def _wait(self) -> None:
        if self._saving is not None:
            self._saving.result()

    def should_preserve(self, checkpoints, *, context) -> list[bool]:
        """Answers Orbax which checkpoints to keep, oldest first: the newest two, of which one may
        be damaged, and those of every N-th step.
        """
        steps = [checkpoint.step for checkpoint in checkpoints]
        preserved = set(steps[-2:])
        if self._config.keep_every:
            preserved |= {step for step in steps if step % self._config.keep_every == 0}
        return [step in preserved for step in steps]

    def _sound(self) -> int | None:
        """The newest step whose files match the seal. Damage is reported; a writer also moves
        damaged checkpoints away.

        A writer checks the whole checkpoint, every host its share. A reader checks alone, and only
        the items of _READ: it reads all parameters anyway.
        """
        aside, writer = self._workdir / "damaged", self._config is not None
        items = seal.ITEMS if writer else _READ
        share = (jax.process_index(), jax.process_count()) if writer else (0, 1)
        steps = steps_in(self._folder)
        while True:
            step = steps.pop() if steps else -1
            if writer:
                step = hosts.broadcast(step)
            if step < 0:
                break
            place = self._folder / str(step)
            damage = seal.find_damage(place, items, share)
            if damage is not None:
                then = "the one before is used" if steps else "there is none before it"
                logger.warning("checkpoint %s is damaged: %s; %s", place, damage, then)
            if not (any(hosts.all_gather(damage is not None)) if writer else damage):
                return step
            if writer and jax.process_index() == 0:
                aside.mkdir(exist_ok=True)
                there = next(p for n in range(10**6) if not (p := aside / f"{step}-{n}").exists())
                os.replace(place, there)
                logger.warning("set aside as %s", there)
        if aside.exists() or (steps_in(self._folder) and not writer):
            raise InputError(
                f"every checkpoint of {self._workdir} is damaged; restore {self._folder} from a "
                "copy, or remove "
                f"{aside if aside.exists() else self._folder} to train from the first step again"
            )
        return None

    def _damaged(self, step: int, damage: str) -> InputError:
        remedy = "restore it from a copy: there is none before it"
        if before := [other for other in steps_in(self._folder) if other < step]:
            remedy = f"remove it to use that of step {before[-1]}"
        return InputError(f"checkpoint {self._folder / str(step)} is damaged: {damage}; {remedy}")

    def _require(self) -> int:
        if self._newest is None:
            raise InputError(
                f"{self._workdir} holds no complete checkpoint; train with "
                f"--workdir={self._workdir} first"
            )
        return self._newest

    @contextlib.contextmanager
    def _errors_named(self, step: int | None = None):
        """Turns every error of a save into one line. Earlier checkpoints stay as they are."""
        try:
            yield
        except Exception as error:  # tensorstore and Orbax raise many kinds
            check_workdir(self._workdir)
            what = "a checkpoint" if step is None else f"the checkpoint of step {step}"
            saved = steps_in(self._folder)
            last = (
                f"the last that is there is of step {saved[-1]}" if saved else "none is there yet"
            )
            reason = next(
                (line.strip() for line in str(error).splitlines() if line.strip()),
                type(error).__name__,
            )
            raise InputError(f"cannot save {what} in {self._folder}: {reason}; {last}") from error


def check_workdir(workdir: pathlib.Path) -> None:
    """Raises InputError if a run's folder has disappeared."""
    if not (workdir / "config.json").exists():
        raise InputError(f"{workdir} is gone: it was moved or removed during the run")


def library_versions() -> dict[str, str]:
    """Versions of the libraries that affect what a step computes."""
    return {name: importlib.metadata.version(name) for name in _LIBRARIES}


def steps_in(folder: pathlib.Path) -> list[int]:
    """Steps of the checkpoints under a folder, intact or damaged, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def _memory(state: TrainState) -> tuple:
    """The state of a run besides its parameters."""
    return state.optimizer, state.guard


def _context(finish: Callable[[], None]) -> ocp.Context:
    """How Orbax saves under a folder of checkpoints; `finish` is called before a checkpoint gets
    its name.

    Version 1 of its API is a front of version 0 (Orbax 0.12), with the same files and times. Only
    savers with a manager call `finish`; these ask for preemptions, see `private_interfaces`.
    """
    context = ocp.Context()
    context.asynchronous.timeout_secs = _SAVE_LIMIT_SECONDS
    context.asynchronous.post_finalization_callback = finish
    context.array.saving.use_zarr3 = False  # as `_array_opener` opens them
    context.array.saving.min_slice_bytes_for_replica_parallel = _LEAST_SLICE_BYTES
    context.array.saving.scoped_storage_options_creator = _chunks
    context.checkpointables.registry = ocp.handlers.local_registry().add(
        ocp.handlers.JsonHandler, checkpointable_name="progress"
    )
    return context


def _chunks(path: tuple, array: jax.Array) -> ocp.options.ArrayOptions.Saving.StorageOptions | None:
    """Stores each layer in its own chunk, so that it can be read without the others."""
    if "layers/" in path_name(path):  # axis 0 is the layers
        return ocp.options.ArrayOptions.Saving.StorageOptions(
            chunk_byte_size=_CHUNK_BYTES, shard_axes=(0,)
        )
    return None


def _array_opener(item: pathlib.Path) -> Callable[[str], tensorstore.TensorStore]:
    """-> a function that opens an array of a checkpoint's item by its name, as 'layers/up_kernel'.
    All share an index. Orbax itself reads whole arrays only.
    """
    context = tensorstore.Context({"cache_pool#index": {"total_bytes_limit": _INDEX_CACHE_BYTES}})

    @functools.cache
    def open_array(name: str) -> tensorstore.TensorStore:
        store = {"driver": "ocdbt", "base": f"file://{item}/", "path": name.replace("/", ".") + "/"}
        store["cache_pool"] = "cache_pool#index"
        return tensorstore.open({"driver": "zarr", "kvstore": store}, context=context).result()

    return open_array


def arrays_of(tree) -> dict[str, list]:
    """{'params/layers/up_kernel': [[4, 128, 512], 'float32'], ...}, without the step, which is a
    number, not an array.
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    arrays = {path_name(path): [list(leaf.shape), str(leaf.dtype)] for path, leaf in leaves}
    arrays.pop("step", None)
    return arrays


def bytes_of(tree) -> int:
    """The bytes of all arrays of a tree, or of their shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def check_arrays(saved: dict, wanted: dict, where: pathlib.Path) -> None:
    """Raises InputError with a named diff unless names, shapes and types are equal."""
    parts = []
    if missing := sorted(wanted.keys() - saved.keys()):
        parts.append(f"lacks {', '.join(missing)}")
    if unexpected := sorted(saved.keys() - wanted.keys()):
        parts.append(f"has besides {', '.join(unexpected)}")
    for name in sorted(saved.keys() & wanted.keys()):
        if list(saved[name]) != list(wanted[name]):
            parts.append(
                f"has {name} of {saved[name][1]}{saved[name][0]} instead of "
                f"{wanted[name][1]}{wanted[name][0]}"
            )
    if parts:
        more = f"; and {len(parts) - 3} more" * (len(parts) > 3)
        raise InputError(
            f"{where} is not a checkpoint of this model: it {'; '.join(parts[:3])}{more}"
        )


@jax.jit
def _finite(params: dict) -> dict:
    return jax.tree.map(lambda array: jnp.isfinite(array).all(), params)
