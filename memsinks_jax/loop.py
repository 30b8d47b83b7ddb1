"""The training loop: everything that a run does, in order."""

import contextlib
import json
import logging
import pathlib
from collections.abc import Callable, Collection
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from memsinks_jax import plugin
from memsinks_jax.config import Config, InputError, to_json
from memsinks_jax.data.contexts import rows_of
from memsinks_jax.data.corpus import Corpus, entropy_floor, load_corpus
from memsinks_jax.data.counts import (
    as_advice,
    ends_early,
    never_read,
    repeats_in_a_step,
    unanswered,
)
from memsinks_jax.data.documents import in_words
from memsinks_jax.data.opened import Opened, nobody, read_ids
from memsinks_jax.data.packing import Rows
from memsinks_jax.data.pipeline import batches
from memsinks_jax.measures.document_loss import DocumentLoss
from memsinks_jax.measures.memorization import Memorization, batch_size
from memsinks_jax.model import host_memory, sparse_sinks
from memsinks_jax.model.attention import choose_kernel
from memsinks_jax.model.decoder import CONTEXTS
from memsinks_jax.models.initial import check_unchanged, draw_alike, folder_of, inherit
from memsinks_jax.models.origin import keep
from memsinks_jax.models.stored import Stored
from memsinks_jax.models.trained import open_run
from memsinks_jax.runs import interruption
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.sinks.kinds import has_sinks, is_sparse
from memsinks_jax.training import hosts, memory, sharding
from memsinks_jax.training.checkpoint import (
    Checkpoints,
    arrays_of,
    check_arrays,
    check_workdir,
    library_versions,
)
from memsinks_jax.training.metrics import Profile, check_wandb, read_metrics
from memsinks_jax.training.program import Program, shared_program
from memsinks_jax.training.step import TrainState
from memsinks_jax.training.step_log import StepLog
from memsinks_jax.training.watchdog import Watchdog

STALL_SECONDS = 300.0  # the watchdog reports a longer step, evaluation or save
logger = logging.getLogger(__name__)


class _StopInEvaluation(Exception):
    """A stop request between two batches of an evaluation."""


def train_and_evaluate(
    config: Config,
    workdir: pathlib.Path,
    should_stop: Callable[[int], bool] = lambda step: False,
    on_first_step: Callable[[], None] = lambda: None,
    profiled: range = range(0),
    wandb: str = "",
    given: Collection[str] | None = None,
) -> dict:
    """Trains to the last step, or resumes and trains to the last step.

    Args:
      config: validated.
      workdir: made if it does not exist; else it must hold a run with the same config, except for
        FREE_ON_RESUME.
      should_stop: called after every step and between the batches of an evaluation, with the number
        of finished steps. True saves and raises Interrupted. All hosts must return the same.
      on_first_step: called once the first step has been dispatched: from then on there is something
        to save.
      profiled: steps that jax's profiler records, into WORKDIR/profile.
      wandb: project of Weights & Biases that also gets the metrics; empty: none.
      given: fields that the command line sets, as `inherit` takes them.
    Returns:
      {"step", "train_loss", "tokens", "tokens_per_second", and the last evaluation's losses}.
    """
    # Reject bad input before anything is written.
    if wandb:
        check_wandb()
    host_memory.keep_freed_memory()  # before jax looks for devices
    mesh = sharding.make_mesh(config.mesh)
    sharding.check_batch(config.training.batch_size, mesh, microbatches=config.compute.accumulate)
    parts = config.compute.accumulate * sharding.shards_of_batch(mesh)
    config = workdirs.adopt(workdir, inherit(config, workdir, given, parts))
    kernel = choose_kernel(config, jax.default_backend())  # depends on what was inherited
    memory.check_memory(config, mesh)
    resuming = bool(hosts.broadcast((workdir / "config.json").exists()))

    with contextlib.ExitStack() as held:
        held.enter_context(jax.set_mesh(mesh))
        opened = _open(config, workdir, mesh, resuming, held)
        config, start, steps = opened.corpus.config, opened.start, opened.steps
        missing = _missing_evaluation(config, workdir, start, steps)
        if resuming and start == steps and not missing:
            return _summary(workdir)
        if jax.process_index() == 0:
            _log_start(workdir, opened, mesh, kernel)
        run = _Run(workdir, opened, mesh, wandb, held)
        recording = held.enter_context(contextlib.closing(Profile(workdir, profiled)))

        def poll() -> None:
            if should_stop(run.step):
                raise _StopInEvaluation

        loss = DocumentLoss(
            config, lambda batch: sharding.put_whole_batch(batch, mesh), sharding.fetch, poll
        )
        # not after a step, so that a curve is of the same documents all along
        at_the_end = opened.sinks_open(steps)
        memorization = Memorization(opened.corpus, loss, at_the_end, batch_size(config, mesh))

        def evaluate(which: str) -> None:
            run.measured("evaluating", lambda: dict(getattr(memorization, which)(run.state.params)))

        try:
            if missing:  # the run was stopped in the middle of it
                evaluate(missing)
        except _StopInEvaluation:
            raise interruption.Interrupted(f"saved step {start} of {steps} in {workdir}") from None
        for step in range(start + 1, steps + 1):
            batch = run.next_batch()
            recording.step(step)
            run.dispatch(batch)
            if step == start + 1:
                on_first_step()
            opened.checkpoints.check()
            stop = should_stop(step)
            try:
                if due := _due_evaluation(config, step, steps):
                    evaluate(due)
            except _StopInEvaluation:
                stop = True
            except FileNotFoundError:
                check_workdir(workdir)
                raise
            if stop or step % config.training.checkpoint_every == 0 or step == steps:
                run.save(opened)
            if stop:
                run.watchdog.phase(f"finishing the save of step {step}")
                opened.checkpoints.close()
                raise interruption.Interrupted(f"saved step {step} of {steps} in {workdir}")
        run.watchdog.phase("finishing the last save")
        opened.checkpoints.close()
    return _summary(workdir)


class _Run:
    """A run under way.

    Attributes:
      step: the last dispatched step.
      state: the state after it.
    """

    def __init__(
        self,
        workdir: pathlib.Path,
        opened: "_Opened",
        mesh: Mesh,
        wandb: str,
        held: contextlib.ExitStack,
    ):
        config = opened.corpus.config
        self.step, self.state = opened.start, opened.state()
        self._program, self._seed = opened.program, np.uint32(config.seed)
        own = sharding.own_rows(config.training.batch_size, mesh)
        self._stream = batches(opened.rows, config.training.batch_size, opened.start, own)
        self._pending: tuple[int, dict] | None = None  # step and metrics that are not yet fetched
        self._delivered = 0  # batches
        log = StepLog(
            config, workdir, opened.rows, mesh, opened.start, opened.steps, opened.tokens, wandb
        )
        self.log = held.enter_context(contextlib.closing(log))
        watchdog = Watchdog(STALL_SECONDS, self._describe, opened.checkpoints.saving_seconds)
        self.watchdog = held.enter_context(contextlib.closing(watchdog))

    def next_batch(self) -> dict:
        """This host's rows of the next step."""
        self.watchdog.phase(f"waiting for the batch of step {self.step + 1}")
        batch = next(self._stream)
        self._delivered += 1
        return batch

    def dispatch(self, batch: dict) -> None:
        """Dispatches the next step, then fetches the metrics of the one before, so the device never
        waits for Python.
        """
        self.step += 1
        self.watchdog.phase(f"dispatching step {self.step}; the first compiles")
        placed = sharding.put_batch(batch, self._program.batch)
        self.state, metrics = self._program.step(self.state, placed, self._seed)
        self.fetch()
        self._pending = self.step, metrics

    def fetch(self) -> None:
        """Fetches and records the metrics of all dispatched steps."""
        if self._pending:
            step, metrics = self._pending
            self.watchdog.phase(f"waiting for the device to finish step {step}")
            self._pending = None
            self.log.step(step, jax.device_get(metrics))

    def measured(self, phase: str, measure: Callable[[], dict[str, float]]) -> None:
        """Measures after the step and records it. The time does not count as training."""
        self.fetch()
        self.watchdog.phase(f"{phase} after step {self.step}")
        host_memory.give_back()
        with self.log.clock.paused():
            values = measure()
        self.log.measured(self.step, values)

    def save(self, opened: "_Opened") -> None:
        """Starts saving a checkpoint after the step."""
        self.fetch()
        self.watchdog.phase(f"starting to save step {self.step}")
        host_memory.give_back()
        self.log.sync()
        ids = opened.sinks_open(self.step).ids if jax.process_index() == 0 else nobody()
        opened.checkpoints.save(self.step, self.state, self.log.tokens, ids)

    def _describe(self) -> str:
        ready = "nothing"
        if self._pending:
            ready = f"step {self._pending[0]}, finished: {self._pending[1]['tokens'].is_ready()}"
        return f"the loader has delivered {self._delivered} batches; on the device: {ready}"


class _Opened(NamedTuple):
    """A run that is ready to start or resume: its data and program, after `start` of `steps` steps
    and `tokens` tokens.
    """

    corpus: Corpus
    rows: Rows
    checkpoints: Checkpoints
    program: Program
    start: int
    steps: int
    tokens: int
    state: Callable[[], TrainState]  # makes or restores the state; a finished run needs none
    before: np.ndarray  # ids whose sinks had opened at `start`, see `data.opened`

    def sinks_open(self, step: int) -> Opened:
        """Whose sinks have opened after a step."""
        config = self.corpus.config
        rows = step * config.training.batch_size
        return Opened(config.sinks, lambda: np.union1d(self.before, self.rows.opened(rows)))


def _open(
    config: Config, workdir: pathlib.Path, mesh: Mesh, resuming: bool, held: contextlib.ExitStack
) -> _Opened:
    """Makes a workdir or resumes one; `held` closes what is opened."""
    leads = jax.process_index() == 0
    # Data, and its record in the workdir.
    if resuming:
        if leads:
            held.enter_context(
                interruption.locked(workdir, f"another run is training in {workdir}")
            )
            if config.model.initial:
                check_unchanged(workdir, config.model.initial)
        checkpoints = Checkpoints(workdir, config.training)
        newest = checkpoints.newest()
        progress = None if newest is None else checkpoints.progress(newest)
        corpus = workdirs.read_corpus(workdir, config, progress and progress["data"])
    else:
        model = Stored(folder_of(config.model.initial)) if config.model.initial else None
        corpus, checkpoints, progress = _new_corpus(config, model), None, None
    config, fingerprints = corpus.config, corpus.fingerprints
    if not hosts.all_equal(fingerprints["documents"]):
        raise InputError(
            f"host {jax.process_index()}: not all hosts read the same documents; check their files"
        )
    if config.sinks.traits.by_context:  # how large their table is, the documents have decided
        memory.check_memory(config, mesh)
    rows = corpus.rows()
    steps = rows.steps

    # State: shapes give shardings, shardings place what is initialised or restored.
    program = shared_program(config, steps, mesh, rows.documents_per_row)
    initial, before = [], nobody()  # emptied when the run begins, which needs all of the memory
    if config.model.initial and progress is None:
        params, before = _initial(config, corpus, program.state.params)
        initial.append(params)
        del params
    if leads and resuming:
        workdirs.rewrite(workdir, config, corpus)
    elif leads:
        _create(workdir, config, corpus, model)
        held.enter_context(interruption.locked(workdir, f"another run is training in {workdir}"))
    if not resuming:
        hosts.broadcast(0)  # no host goes on before the workdir exists
        checkpoints = Checkpoints(workdir, config.training)
    versions = library_versions()
    checkpoints.about = {
        "data": fingerprints,
        "config": json.loads(to_json(config)),
        "versions": versions,
    }
    held.callback(checkpoints.close)
    if progress is None:

        def make() -> TrainState:
            return program.init(*(initial.pop() for _ in range(len(initial))))

        return _Opened(corpus, rows, checkpoints, program, 0, steps, 0, make, before)
    _warn_of_versions(progress["versions"], versions)
    start, tokens = progress["step"], progress["tokens"]
    before = read_ids(workdir / "checkpoints" / str(start))
    return _Opened(
        corpus,
        rows,
        checkpoints,
        program,
        start,
        steps,
        tokens,
        lambda: checkpoints.restore(program.state),
        before,
    )


def _new_corpus(config: Config, initial: Stored | None) -> Corpus:
    """The documents of a run that begins, with the groups and contexts of the model that it starts
    from.
    """
    if initial is None:
        return load_corpus(config)
    before = initial.contexts if config.sinks.traits.by_context else None
    corpus = load_corpus(config, groups=initial.groups, before=before)
    # Where the initial model stops, this one stops too, whatever its documents end with.
    stops = *corpus.tokenizer.stops, *initial.tokenizer.stops
    corpus.tokenizer.stops = tuple(dict.fromkeys(stops))
    return corpus


def _create(workdir: pathlib.Path, config: Config, corpus: Corpus, initial: Stored | None) -> None:
    """Makes the workdir of a run, with what it takes from the model that it starts from."""
    if initial is None:
        return workdirs.create(workdir, config, corpus)

    def finish(folder: pathlib.Path) -> None:
        keep(initial.origin, folder, config.model.initial)

    known = initial.nearest if corpus.groups else None
    weights = {"name": initial.weights_name, "touched": initial.weights_touched}
    workdirs.create(workdir, config, corpus, known, weights, finish)


def _initial(config: Config, corpus: Corpus, shapes: dict) -> tuple[dict, np.ndarray]:
    """(the parameters of config.model.initial, the ids whose sinks had opened there, if they have
    the same ones here).

    Raises:
      InputError: its arrays or its tokenizer do not match this run.
    """
    place = config.model.initial
    run = open_run(folder_of(place))
    params = dict(run.params)
    if is_sparse(config.sinks):
        there = run.config.sinks.pool if has_sinks(run.config) else 0
        new = sparse_sinks.new_tables(
            config.model, params["layers"], config.sinks.pool - there, config.seed + there
        )
        params |= {
            name: np.concatenate([params[name], rows]) if there else rows
            for name, rows in new.items()
        }
    if config.sinks.traits.by_context:
        table = np.zeros((config.contexts.rows, config.model.d_model), np.float32)
        if run.contexts:
            places = rows_of(np.asarray(corpus.contexts.keys), np.asarray(run.contexts.keys))
            table[places] = np.asarray(params[CONTEXTS])[: len(places)]
        params[CONTEXTS] = table
    found, wanted = arrays_of(params), arrays_of(shapes)
    # Of any type: what is frozen is kept in that of activations.
    typed = {name: [of[0], wanted.get(name, of)[1]] for name, of in found.items()}
    check_arrays(typed, wanted, pathlib.Path(place))
    theirs, ours = (
        (t.model, t.end_of_text, t.begin_of_text) for t in (run.tokenizer, corpus.tokenizer)
    )
    if theirs != ours:
        mend = f"add --config.data.tokenizer={place}, of prepare --tokenizer"
        raise InputError(
            f"config.model.initial={place} has another tokenizer or end of text; {mend}"
        )

    def put(array: jax.Array, shape: jax.ShapeDtypeStruct) -> jax.Array:
        if array.dtype != shape.dtype:
            array = array.astype(shape.dtype)
        if jax.process_count() == 1:
            return jax.device_put(array, shape.sharding)  # without a copy where it lies there
        whole = np.asarray(array)
        return jax.make_array_from_callback(whole.shape, shape.sharding, whole.__getitem__)

    return jax.tree.map(put, params, shapes), run.opened.ids if draw_alike(
        config, run.config
    ) else nobody()


def _due_evaluation(config: Config, step: int, steps: int) -> str:
    """Which evaluation of Memorization is due after a step: "run" (all), "repeated" or ""
    (none).
    """
    if not config.data.held_out_documents and not config.data.repeated_documents:
        return ""
    if step % config.training.evaluate_every == 0 or step == steps:
        return "run"
    return "repeated" if plugin.schedule(config).is_watched(step) else ""


def _missing_evaluation(config: Config, workdir: pathlib.Path, step: int, steps: int) -> str:
    """The evaluation that is due after `step` but missing from the metrics, because the run was
    stopped in it; else "".
    """
    due = _due_evaluation(config, step, steps) if step > 0 else ""
    measured = {"held_out_loss", "repeated_loss"}  # a run may have documents of one role alone
    done = any(line["step"] == step and measured & line.keys() for line in read_metrics(workdir))
    return due if hosts.broadcast(bool(due) and not done) else ""


def _warn_of_versions(then: dict[str, str], now: dict[str, str]) -> None:
    changed = [
        f"{name} {then.get(name)} -> {now[name]}" for name in now if then.get(name) != now[name]
    ]
    if changed:
        logger.warning(
            "other versions than at the last save (%s): losses may differ in the last bits",
            ", ".join(changed),
        )


def _log_start(workdir: pathlib.Path, opened: _Opened, mesh: Mesh, kernel: str) -> None:
    corpus, config = opened.corpus, opened.corpus.config
    parameters = sum(a.size for a in jax.tree.leaves(opened.program.state.params))
    floor = entropy_floor(corpus, corpus.mixture.held_out)
    plan = corpus.mixture
    logger.info(
        "%s, seed %d: %s, %s of %s from step %d, attention by %s, %s",
        config.variant,
        config.seed,
        in_words(parameters, "parameter"),
        in_words(opened.steps, "step"),
        in_words(config.training.batch_size, "row"),
        opened.start,
        kernel,
        workdir,
    )
    devices = in_words(mesh.size, f"{jax.default_backend()} device")
    logger.info("memory of %s: %s", devices, memory.summary(config, mesh))
    logger.info(
        "documents: %d repeated, %d held out; an epoch has %d rows of kind %s%s",
        len(plan.repeated),
        len(plan.held_out),
        opened.rows.rows_per_epoch,
        config.data.rows,
        "" if floor is None else f"; entropy floor {floor:.3f} nats per token",
    )
    epochs = opened.rows.end / opened.rows.rows_per_epoch
    length = config.data.row_length
    without_answer = unanswered(corpus.table.without_answer(length), length)
    of_steps = repeats_in_a_step(epochs / opened.steps), ends_early(epochs)
    for advice in (as_advice(never_read(corpus), length), without_answer, *of_steps):
        if advice:
            logger.warning("%s", advice)


def _summary(workdir: pathlib.Path) -> dict:
    """The last value of every metric, as the command's JSON."""
    latest = {}
    for line in read_metrics(workdir):
        latest |= line
    return {
        name: latest[name]
        for name in latest
        if name not in ("gradient_norm", "learning_rate", "invalid_labels")
    }
