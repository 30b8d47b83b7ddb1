"""Checkpoints: one small file over Orbax. Saved in the background, committed atomically, sealed, restored onto any mesh.

`checkpoints/STEP/` holds three items, `params`, `optimizer` (with the guard, and the sketch of the monitor) and `progress`,
and `seal.json` with the size and the hash of every file, which is written before the folder gets its name. So a folder
that has its name is whole, and one that was damaged later is found out by the name of the file.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import logging
import os
import pathlib
import shutil
import time

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore

from memsinks_jax.config import InputError, TrainingConfig
from memsinks_jax.training import hosts
from memsinks_jax.training.optimizer import path_name
from memsinks_jax.training.step import TrainState

logger = logging.getLogger(__name__)

FORMAT = 1  # of the checkpoint; raise it when an older one can no longer be read
_SEAL = "seal.json"
# Orbax writes these two last, after the seal. They say nothing of the state.
_UNSEALED = (_SEAL, "_CHECKPOINT_METADATA", "commit_success.txt")
_CHUNK_BYTES = 2**26
_OVERHEAD_BYTES = 2**20  # what a checkpoint takes besides its arrays; a small model's indexes are as large as it
# The libraries whose version decides the bits of a step.
_LIBRARIES = ("jax", "jaxlib", "flax", "optax", "numpy", "orbax-checkpoint", "grain", "sentencepiece", "tokenizers")
_SAVE_LIMIT_SECONDS = 1200  # after which Orbax gives a save up


class Checkpoints:
    """The checkpoints of one workdir.

    Args:
      config: how many are kept. None for whoever only reads: nothing is moved, written or deleted then.
    Attributes:
      about: what every checkpoint also tells: data, config, versions. Set it before the first save.
    Raises:
      InputError: every checkpoint that there was is damaged.
    """

    def __init__(self, workdir: pathlib.Path, config: TrainingConfig | None = None):
        self._workdir, self._folder = workdir, (workdir / "checkpoints").absolute()
        self._config, self.about = config, {}
        self._saving_since: float | None = None
        self._closed, self._opened = False, {}
        self._newest = self._sound(writer=config is not None)
        self._losses = {step: self.progress(step)["held_out_loss"] for step in steps_in(self._folder)} if config else {}
        if config is None and self._newest is None:
            return
        self._manager = ocp.CheckpointManager(
            self._folder,
            options=ocp.CheckpointManagerOptions(
                read_only=config is None,
                create=config is not None,
                cleanup_tmp_directories=config is not None,
                preservation_policy=self,
                async_options=ocp.AsyncOptions(
                    timeout_secs=_SAVE_LIMIT_SECONDS, post_finalization_callback=self._seal_what_is_saved
                ),
            ),
            item_names=("params", "optimizer", "progress"),
        )

    def newest(self) -> int | None:
        """Steps of the newest sound checkpoint at the time of opening, None when there was none."""
        return self._newest

    def progress(self, step: int) -> dict:
        """What a checkpoint tells besides its arrays: {"step", "tokens", "held_out_loss", "data", ...}."""
        path = self._folder / str(step) / "progress" / "metadata"
        try:
            content = json.loads(path.read_text())
            if content["format"] == FORMAT:
                return content
            raise InputError(f"{path} has format {content['format']}; this version of memsinks_jax reads {FORMAT}")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} cannot be read ({error}); remove that checkpoint to use the one before") from None

    def save(self, step: int, state: TrainState, tokens: int, held_out_loss: float | None = None) -> None:
        """Starts a save; the state may be donated as soon as this returns. Raises InputError as `check` does."""
        self._losses[step] = held_out_loss
        self._saving_since = time.monotonic()
        told = {"format": FORMAT, "step": step, "tokens": tokens, "held_out_loss": held_out_loss}
        told |= {"arrays": arrays_of(state)} | self.about
        with self._errors_named(step):
            if not (self._workdir / "config.json").exists():
                raise FileNotFoundError  # Orbax would make the folder again, without the rest
            self._manager.wait_until_finished()  # for the save before, as Orbax would: it takes space and counts as saved
            # Asked first: a disk that fills up in the middle of a save is told by a flood of traces of other libraries.
            needed, free = bytes_of(state) + _OVERHEAD_BYTES, shutil.disk_usage(self._folder).free
            if jax.process_index() == 0 and free < needed:
                raise OSError(
                    f"it takes {needed / 2**20:,.1f} MiB and {free / 2**20:,.1f} MiB are free; free some space"
                )
            items = {
                "params": ocp.args.StandardSave(state.params, jax.tree_util.tree_map_with_path(_chunks, state.params))
            }
            if state.optimizer is not None:  # an imported model has none
                items["optimizer"] = ocp.args.StandardSave(_memory(state))
            self._manager.save(step, args=ocp.args.Composite(**items, progress=ocp.args.JsonSave(told)))

    def check(self) -> None:
        """Raises InputError when a save that was started has failed since; called at every step."""
        with self._errors_named():
            self._manager.check_for_errors()

    def saving_seconds(self) -> float:
        """How long the save under way has been going on; 0.0 if none is."""
        if self._saving_since is None or not self._manager.is_saving_in_progress():
            return 0.0
        return time.monotonic() - self._saving_since

    def restore(self, placed: TrainState) -> TrainState:
        """The newest checkpoint, for shapes with shardings. Raises InputError naming the arrays that do not match."""
        step = self._require()
        refuse_other_arrays(self.progress(step)["arrays"], arrays_of(placed), self._folder / str(step))
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardRestore(placed.params),
                optimizer=ocp.args.StandardRestore(_memory(placed)),
            ),
        )
        step_there = jax.device_put(jax.numpy.int32(step), placed.step.sharding)
        return TrainState(step_there, restored.params, *restored.optimizer)

    def restore_params(self, placed: dict) -> dict:
        """Only the parameters of the newest checkpoint. Raises InputError as `restore` does."""
        step = self._require()
        saved = {n: a for n, a in self.progress(step)["arrays"].items() if n.startswith("params/")}
        refuse_other_arrays(saved, arrays_of({"params": placed}), self._folder / str(step))
        arguments = ocp.args.Composite(params=ocp.args.StandardRestore(placed))
        return self._manager.restore(step, args=arguments).params

    def read(self, path: str, layer: int | None = None) -> np.ndarray:
        """One parameter of the newest checkpoint, such as 'layers/up_kernel', or a layer's slice of it.

        Nothing else is read, and no device is used: a model may be larger than the memory.
        """
        if path not in self._opened:
            base = f"file://{self._folder / str(self._require()) / 'params'}/"
            store = {"driver": "ocdbt", "base": base, "path": path.replace("/", ".") + "/"}
            self._opened[path] = tensorstore.open({"driver": "zarr", "kvstore": store}).result()
        array = self._opened[path]
        return np.asarray((array if layer is None else array[layer]).read().result())

    def close(self) -> None:
        """Waits for a save under way; raises InputError if it fails."""
        if not self._closed:
            self._closed = True
            with self._errors_named():
                self._manager.wait_until_finished()
                self._manager.close()

    def should_preserve(self, checkpoints, *, context) -> list[bool]:
        """Orbax's question which checkpoints to keep, oldest first: the newest, every so many steps, the best."""
        steps = [checkpoint.step for checkpoint in checkpoints]
        kept = set(steps[-self._config.checkpoints_to_keep :])
        if self._config.keep_every:
            kept |= {step for step in steps if step % self._config.keep_every == 0}
        measured = [step for step in steps if self._losses.get(step) is not None]
        if self._config.keep_best and measured:
            kept.add(min(measured, key=self._losses.get))
        return [step in kept for step in steps]

    def _sound(self, writer: bool) -> int | None:
        """The newest step whose files are as they were sealed. What is damaged is told, and set aside by a writer."""
        aside = self._workdir / "damaged"
        found = None
        if jax.process_index() == 0 or not writer:
            for step in reversed(steps_in(self._folder)):
                damage = find_damage(self._folder / str(step))
                if damage is None:
                    found = step
                    break
                logger.warning("checkpoint %s is damaged: %s; the one before is used", self._folder / str(step), damage)
                if writer:
                    aside.mkdir(exist_ok=True)
                    place = next(p for n in range(10**6) if not (p := aside / f"{step}-{n}").exists())
                    os.replace(self._folder / str(step), place)
                    logger.warning("set aside as %s", place)
        if writer:
            found = hosts.agree(-1 if found is None else found)
            found = None if found < 0 else found
        if found is None and (aside.exists() or (steps_in(self._folder) and not writer)):
            raise InputError(
                f"every checkpoint of {self._workdir} is damaged; restore {self._folder} from a copy, or remove "
                f"{aside} to train from the first step again"
            )
        return found

    def _seal_what_is_saved(self) -> None:
        # Orbax calls this in its own thread, on one host, between the last file and the folder's final name.
        for folder in self._folder.glob("*.orbax-checkpoint-tmp*"):
            write_seal(folder)

    def _require(self) -> int:
        if self._newest is None:
            raise InputError(
                f"{self._workdir} holds no complete checkpoint; train with --workdir={self._workdir} first"
            )
        return self._newest

    @contextlib.contextmanager
    def _errors_named(self, step: int | None = None):
        """Turns whatever a file system answers to a save into one line; what was saved before stays as it is."""
        try:
            yield
        except Exception as error:  # tensorstore and Orbax raise many kinds
            if not (self._workdir / "config.json").exists():
                raise InputError(
                    f"{self._workdir} is gone: it was moved or removed while the run was going on"
                ) from error
            what = "a checkpoint" if step is None else f"the checkpoint of step {step}"
            saved = steps_in(self._folder)
            last = f"the last that is there is of step {saved[-1]}" if saved else "none is there yet"
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise InputError(f"cannot save {what} in {self._folder}: {reason}; {last}") from error


def library_versions() -> dict[str, str]:
    """Versions of the libraries that decide what a step computes."""
    return {name: importlib.metadata.version(name) for name in _LIBRARIES}


def steps_in(folder: pathlib.Path) -> list[int]:
    """Steps of the checkpoints under a folder, sound or damaged, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def _memory(state: TrainState) -> tuple:
    """What a checkpoint holds of a run besides its parameters."""
    return (state.optimizer, state.guard, *([] if state.sketch is None else [state.sketch]))


def _chunks(path: tuple, array: jax.Array) -> ocp.SaveArgs:
    """Layers of large parameters are stored apart, so that one can be read without the others."""
    apart = path_name(path).startswith("layers/")
    return ocp.SaveArgs(chunk_byte_size=_CHUNK_BYTES, shard_axes=(0,)) if apart else ocp.SaveArgs()


def write_seal(folder: pathlib.Path) -> None:
    """Writes down size and hash of every file under a folder."""
    content = {"files": {name: [path.stat().st_size, _hash(path)] for name, path in _files(folder).items()}}
    with (folder / _SEAL).open("w") as file:
        json.dump(content, file, indent=0)
        file.flush()
        os.fsync(file.fileno())


def find_damage(folder: pathlib.Path) -> str | None:
    """What differs between a checkpoint's files and its seal, in words; None when nothing does."""
    try:
        reading = "_CHECKPOINT_METADATA"
        json.loads((folder / reading).read_text())
        reading = _SEAL
        sealed = json.loads((folder / reading).read_text())["files"]
        files = _files(folder)
        for name in sorted(sealed.keys() | files.keys()):
            if name not in files:
                return f"{name} is missing"
            if name not in sealed:
                return f"{name} was added later"
            size, digest = sealed[name]
            if files[name].stat().st_size != size:
                return f"{name} has {files[name].stat().st_size} bytes instead of {size}"
            if _hash(files[name]) != digest:
                return f"{name} was changed"
        for name in _UNSEALED:
            if not (folder / name).is_file():
                return f"{name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{reading} cannot be read ({error})"
    return None


def _files(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    paths = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path for name, path in paths.items() if name not in _UNSEALED}


def _hash(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def arrays_of(tree) -> dict[str, list]:
    """{'params/layers/up_kernel': [[4, 128, 512], 'float32'], ...}, the step apart, which is a number of its own."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    arrays = {path_name(path): [list(leaf.shape), str(leaf.dtype)] for path, leaf in leaves}
    arrays.pop("step", None)
    return arrays


def bytes_of(tree) -> int:
    """Of all arrays of a tree, or of their shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def refuse_other_arrays(saved: dict, wanted: dict, where: pathlib.Path) -> None:
    """Raises InputError with a named diff unless names, shapes and types are equal."""
    parts = []
    if missing := sorted(wanted.keys() - saved.keys()):
        parts.append(f"lacks {', '.join(missing)}")
    if unexpected := sorted(saved.keys() - wanted.keys()):
        parts.append(f"has besides {', '.join(unexpected)}")
    for name in sorted(saved.keys() & wanted.keys()):
        if list(saved[name]) != list(wanted[name]):
            parts.append(
                f"has {name} of {saved[name][1]}{saved[name][0]} instead of {wanted[name][1]}{wanted[name][0]}"
            )
    if parts:
        raise InputError(f"{where} is not a checkpoint of this model: it {'; '.join(parts)}")
