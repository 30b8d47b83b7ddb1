"""Checkpoints: one small file over Orbax. Saved in the background, committed atomically, restored onto any mesh."""

import pathlib

import jax
import orbax.checkpoint as ocp

from memsinks_jax.config import InputError
from memsinks_jax.training.step import TrainState


class Checkpoints:
    """The checkpoints of one workdir.

    A checkpoint holds three items: `params`, `optimizer`, and `progress` with the finished steps, which are the whole
    state of the data, and the tokens seen. Evaluation reads `params` alone.
    """

    def __init__(self, workdir: pathlib.Path, keep: int = 1):
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, enable_async_checkpointing=True)
        self._manager = ocp.CheckpointManager(
            (workdir / "checkpoints").absolute(), options=options, item_names=("params", "optimizer", "progress")
        )
        self._workdir = workdir

    def latest(self) -> int | None:
        """Steps of the newest complete checkpoint, None when there is none."""
        return self._manager.latest_step()

    def save(self, step: int, state: TrainState, tokens: int) -> None:
        """Starts a save; the state may be donated as soon as this returns."""
        self._manager.save(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardSave(state.params),
                optimizer=ocp.args.StandardSave(state.optimizer),
                progress=ocp.args.JsonSave({"step": step, "tokens": tokens}),
            ),
        )

    def restore(self, shapes: TrainState, shardings: TrainState) -> tuple[TrainState, int]:
        """The newest checkpoint on the given shardings -> (state, tokens seen). Names and shapes must match."""
        abstract = _abstract(shapes, shardings)
        restored = self._manager.restore(
            self._require(),
            args=ocp.args.Composite(
                params=ocp.args.StandardRestore(abstract.params),
                optimizer=ocp.args.StandardRestore(abstract.optimizer),
                progress=ocp.args.JsonRestore(),
            ),
        )
        step = jax.device_put(jax.numpy.int32(restored.progress["step"]), shardings.step)
        return TrainState(step, restored.params, restored.optimizer), restored.progress["tokens"]

    def restore_params(self, shapes: dict, shardings: dict) -> dict:
        """Only the parameters of the newest checkpoint, on the given shardings."""
        arguments = ocp.args.Composite(params=ocp.args.StandardRestore(_abstract(shapes, shardings)))
        return self._manager.restore(self._require(), args=arguments).params

    def close(self) -> None:
        """Waits for a save under way; raises what went wrong in it."""
        self._manager.wait_until_finished()
        self._manager.close()

    def _require(self) -> int:
        if self.latest() is None:
            raise InputError(
                f"{self._workdir} holds no complete checkpoint; train with --workdir={self._workdir} first"
            )
        return self.latest()


def _abstract(shapes, shardings):
    return jax.tree.map(lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s), shapes, shardings)
