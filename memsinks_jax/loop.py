"""The training loop: everything that happens in a run, in the order in which it happens."""

import contextlib
import functools
import json
import logging
import math
import pathlib
import time
from collections.abc import Callable, Iterator

import jax
import numpy as np

from memsinks_jax import workdir as workdirs
from memsinks_jax.attention import choose_kernel
from memsinks_jax.command_line import Interrupted
from memsinks_jax.config import Config, InputError, to_json
from memsinks_jax.data import ids
from memsinks_jax.data.corpus import Corpus, entropy_floor, load_corpus
from memsinks_jax.data.packing import Rows
from memsinks_jax.data.pipeline import batches, steps_of
from memsinks_jax.evals.document_loss import BATCH_SIZE, DocumentLoss, document_batches, mean_loss
from memsinks_jax.evals.memorization import Memorization
from memsinks_jax.trained import open_run
from memsinks_jax.training import hosts, sharding
from memsinks_jax.training.checkpoint import Checkpoints, arrays_of, library_versions, refuse_other_arrays
from memsinks_jax.training.flops import utilization
from memsinks_jax.training.metrics import MetricWriter, Profile, Progress, read_metrics
from memsinks_jax.training.monitor import Monitor
from memsinks_jax.training.program import train_program
from memsinks_jax.training.step import init_state
from memsinks_jax.training.watchdog import Watchdog

logger = logging.getLogger(__name__)


class _StopInEvaluation(Exception):
    """Asked to stop between two batches of an evaluation."""


def train_and_evaluate(
    config: Config,
    workdir: pathlib.Path,
    should_stop: Callable[[int], bool] = lambda step: False,
    on_first_step: Callable[[], None] = lambda: None,
    profiled: range = range(0),
) -> dict:
    """Trains to the last step, or resumes and trains to the last step.

    Args:
      config: validated.
      workdir: made if it does not exist; else it must hold a run with the same config, but for FREE_ON_RESUME.
      should_stop: asked after every step and between the batches of an evaluation, with the number of finished steps;
        True saves and raises Interrupted. With several hosts all must answer the same.
      on_first_step: called when the first step has been dispatched: from then on there is something to lose.
      profiled: steps that jax's profiler records, into WORKDIR/profile.
    Returns:
      {"step", "train_loss", "tokens", "tokens_per_second", and the last evaluation's losses}.
    """
    # What can be refused is refused before anything is written.
    mesh = sharding.make_mesh(config.mesh)
    sharding.check_batch(config.training.batch_size, mesh, turns=config.compute.accumulate)
    kernel = choose_kernel(config, jax.default_backend())
    workdirs.refuse_other_config(workdir, config)
    leads = jax.process_index() == 0
    resuming = bool(hosts.agree((workdir / "config.json").exists()))

    with contextlib.ExitStack() as held:
        held.enter_context(jax.set_mesh(mesh))
        # Data, and what the workdir remembers of it.
        if resuming:
            if leads:
                held.enter_context(workdirs.reopen(workdir, config))
            checkpoints = Checkpoints(workdir, config.training)
            newest = checkpoints.newest()
            progress = None if newest is None else checkpoints.progress(newest)
            corpus = workdirs.read_corpus(workdir, progress and progress["data"])
        else:
            corpus, checkpoints, progress = load_corpus(config), None, None
        fingerprints = workdirs.fingerprints(corpus)
        if not hosts.all_equal(fingerprints["documents"]):
            raise InputError(f"host {jax.process_index()}: not all hosts read the same documents; check their files")
        end_of_text = corpus.tokenizer.end_of_text
        rows = Rows(config, corpus.mixture, corpus.tokens, corpus.lengths, corpus.identities, end_of_text)
        steps = steps_of(config, rows)

        # State: shapes give shardings, shardings place what is initialised or restored.
        program = train_program(config, steps, mesh, rows.documents_per_row)
        shardings = jax.tree.map(lambda shape: shape.sharding, program.state)
        initial = None
        if config.model.initial and progress is None:
            initial = _initial_params(config, corpus, program.state.params)
        if not resuming:
            if leads:
                held.enter_context(workdirs.create(workdir, config, corpus))
            hosts.agree(0)  # nobody goes on before the workdir is there
            checkpoints = Checkpoints(workdir, config.training)
        versions = library_versions()
        checkpoints.about = {"data": fingerprints, "config": json.loads(to_json(config)), "versions": versions}
        held.callback(checkpoints.close)
        if progress is None:
            state, start, tokens = jax.jit(lambda: init_state(config, steps), out_shardings=shardings)(), 0, 0
            state = state if initial is None else state._replace(params=initial)
        else:
            _tell_other_versions(progress["versions"], versions)
            start, tokens = progress["step"], progress["tokens"]
            if start == steps and not _missing_evaluation(config, workdir, start, steps):
                return _summary(workdir)
            state = checkpoints.restore(program.state)
        if leads:
            _log_start(config, workdir, corpus, program.state, mesh, kernel, start, steps)

        seed = np.uint32(config.seed)
        stream = batches(rows, config.training.batch_size, start, jax.process_index(), jax.process_count())

        # The evaluation.
        step = start

        def poll() -> None:
            if should_stop(step):
                raise _StopInEvaluation

        loss = DocumentLoss(config, lambda batch: sharding.put_whole_batch(batch, mesh), sharding.fetch, poll)
        parts = mesh.shape["data"] * mesh.shape["fsdp"]
        # Documents that come every so many steps are few, and measured often: no rows of weight 0 beside them.
        at_once = config.data.repeated_documents if config.data.repeat_every else BATCH_SIZE
        memorization = Memorization(config, corpus, loss, math.ceil(at_once / parts) * parts)

        # The monitor, where it is on.
        unseen, watch = _missing_look(config, workdir, start), None
        if config.monitor.every:
            as_batches = functools.partial(document_batches, row_length=config.data.row_length, end_of_text=end_of_text)
            watch = Monitor(config, corpus, rows, workdir, start, unseen, as_batches, parts)

        # What is written and shown, by one host.
        writer = held.enter_context(contextlib.closing(MetricWriter(workdir, start))) if leads else None
        label = f"{config.variant}, seed {config.seed}"
        utilized = utilization(config, mesh.devices.flat[0].device_kind)
        bar = held.enter_context(contextlib.closing(Progress(label, steps, start))) if leads else None
        recording = held.enter_context(contextlib.closing(Profile(workdir, profiled)))
        clock = _Clock()
        pending, held_out_loss, delivered = None, None, 0

        def describe() -> str:
            ready = "nothing" if pending is None else f"step {pending[0]}, finished: {pending[1]['tokens'].is_ready()}"
            return f"the loader has delivered {delivered} batches; on the device: {ready}"

        watchdog = held.enter_context(
            contextlib.closing(Watchdog(config.training.stall_seconds, describe, checkpoints.saving_seconds))
        )

        def fetch() -> None:
            nonlocal tokens, pending
            watchdog.phase(f"waiting for the device to finish step {pending[0]}")
            (of_step, values), pending = pending, None
            values = {name: float(value) for name, value in jax.device_get(values).items()}
            tokens += int(values["tokens"])
            in_a_row = int(values.pop("skipped_in_a_row"))
            speed = clock.tokens_per_second(tokens)
            values |= {"tokens": tokens, "tokens_per_second": speed, **utilized(speed / mesh.size)}
            if leads:
                bar.update(of_step, values["train_loss"], values["tokens_per_second"])
                if of_step % config.training.log_every == 0 or of_step == steps:
                    writer.write(of_step, {n: v for n, v in values.items() if math.isfinite(v)})
                if values["invalid_labels"]:
                    logger.warning("step %d: %d labels are no tokens; left out", of_step, values["invalid_labels"])
                if in_a_row:
                    writer.write_skipped(of_step, values, _documents_of(rows, of_step, config.training.batch_size))
                    logger.warning(
                        "step %d: update skipped, loss %g, gradient norm %g",
                        of_step, values["train_loss"], values["gradient_norm"],
                    )  # fmt: skip
            if in_a_row >= config.training.skips_in_a_row:
                raise InputError(
                    f"{in_a_row} updates in a row were skipped, the last at step {of_step} (loss {values['train_loss']:g}, "
                    f"gradient norm {values['gradient_norm']:g}); the documents of their batches are in "
                    f"{workdir / 'skipped.jsonl'}; remove them or lower config.optimizer.learning_rate"
                )

        def evaluate(what: str) -> None:
            nonlocal held_out_loss
            watchdog.phase(f"evaluating after step {step}")
            with clock.paused():
                values = dict(getattr(memorization, what)(state.params))
            held_out_loss = values.get("held_out_loss")
            if leads:
                writer.write(step, values)

        def look() -> None:
            watchdog.phase(f"looking for documents that came too often, after step {step}")
            with clock.paused():
                values = watch.look(
                    step, sharding.fetch(state.sketch), lambda *asked: mean_loss(loss, state.params, *asked)
                )
            if leads:
                writer.write(step, values)

        def save() -> None:
            watchdog.phase(f"starting to save step {step}")
            if leads:
                writer.sync()
            checkpoints.save(step, state, tokens, held_out_loss)

        # The loop: step t is dispatched before the metrics of t - 1 are fetched, so the device never waits for Python.
        if missing := _missing_evaluation(config, workdir, start, steps):
            evaluate(missing)  # the run was stopped in the middle of it
        if unseen:
            look()
        for step in range(start + 1, steps + 1):
            watchdog.phase(f"waiting for the batch of step {step}")
            batch = next(stream)
            delivered += 1
            if watch:
                watch.saw(batch["identities"])
            recording.step(step)
            watchdog.phase(f"dispatching step {step}; the first compiles")
            state, metrics = program.step(state, sharding.put_batch(batch, mesh), seed)
            if step == start + 1:
                on_first_step()
            if pending:
                fetch()
            pending = (step, metrics)
            held_out_loss = None
            checkpoints.check()
            stop = should_stop(step)
            try:
                due, looks = _due_evaluation(config, step, steps), watch and step % config.monitor.every == 0
                if due or looks:
                    fetch()
                if due:
                    evaluate(due)
                if looks:
                    look()
            except _StopInEvaluation:
                stop = True
            if step % config.training.checkpoint_every == 0 or step == steps or stop:
                if pending:
                    fetch()
                save()
            if stop:
                watchdog.phase(f"finishing the save of step {step}")
                checkpoints.close()
                raise Interrupted(f"saved step {step} of {steps} in {workdir}")
        watchdog.phase("finishing the last save")
        checkpoints.close()
    return _summary(workdir)


def _initial_params(config: Config, corpus: Corpus, shapes: dict) -> dict:
    """Those of config.model.initial. Raises InputError when its arrays or its tokenizer are not this run's."""
    place = config.model.initial
    run = open_run(pathlib.Path(place))
    refuse_other_arrays(arrays_of(run.params), arrays_of(shapes), pathlib.Path(place))
    if (run.tokenizer.model, run.tokenizer.end_of_text) != (corpus.tokenizer.model, corpus.tokenizer.end_of_text):
        raise InputError(f"config.model.initial={place} has another tokenizer; add --config.data.tokenizer={place}")

    def put(array: jax.Array, shape: jax.ShapeDtypeStruct) -> jax.Array:
        whole = np.asarray(array)
        return jax.make_array_from_callback(whole.shape, shape.sharding, whole.__getitem__)

    return jax.tree.map(put, run.params, shapes)


def _due_evaluation(config: Config, step: int, steps: int) -> str:
    """What of Memorization is measured after a step: "run" (all), "repeated" or "" (nothing).

    Documents that come every so many steps are measured before and after each step that sees them, and one step on: the
    cycle of learning and forgetting (paper section 5.4).
    """
    if step % config.training.evaluate_every == 0 or step == steps:
        return "run"
    every = config.data.repeat_every
    return "repeated" if every and step >= every - 1 and step % every in (every - 1, 0, 1) else ""


def _missing_evaluation(config: Config, workdir: pathlib.Path, step: int, steps: int) -> str:
    """What is due after `step` but not in the metrics, since the run was stopped in it; "" where nothing is missing."""
    due = _due_evaluation(config, step, steps) if step > 0 else ""
    name = {"run": "held_out_loss", "repeated": "repeated_loss", "": "step"}[due]
    done = any(line["step"] == step and name in line for line in read_metrics(workdir))
    return due if hosts.agree(bool(due) and not done) else ""


def _missing_look(config: Config, workdir: pathlib.Path, step: int) -> bool:
    """Whether the monitor was stopped before it had looked at `step`."""
    due = step > 0 and config.monitor.every > 0 and step % config.monitor.every == 0
    done = due and any(line["step"] == step and "monitor_flagged" in line for line in read_metrics(workdir))
    return bool(hosts.agree(due and not done))


def _documents_of(rows: Rows, step: int, batch_size: int) -> list[str]:
    """Ids of the documents that a step saw, on all hosts."""
    batch = [rows[number]["identities"] for number in range((step - 1) * batch_size, step * batch_size)]
    return sorted({ids.to_hex(identity) for row in batch for identity in row if identity.any()})


def _tell_other_versions(then: dict[str, str], now: dict[str, str]) -> None:
    changed = [f"{name} {then.get(name)} -> {now[name]}" for name in now if then.get(name) != now[name]]
    if changed:
        logger.warning(
            "other versions than at the last save (%s): losses may differ in the last bits", ", ".join(changed)
        )


class _Clock:
    """Tokens a second of this process, without the first step, which compiles, and without evaluations."""

    def __init__(self):
        self._start, self._tokens_at_start = None, 0

    def tokens_per_second(self, tokens: int) -> float:
        if self._start is None:
            self._start, self._tokens_at_start = time.monotonic(), tokens
            return 0.0
        return (tokens - self._tokens_at_start) / (time.monotonic() - self._start)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        before = time.monotonic()
        yield
        if self._start is not None:
            self._start += time.monotonic() - before


def _log_start(config, workdir, corpus: Corpus, shapes, mesh, kernel: str, start: int, steps: int) -> None:
    parameters = sum(a.size for a in jax.tree.leaves(shapes.params))
    floor = entropy_floor(corpus, corpus.mixture.held_out, config.data.row_length)
    plan = corpus.mixture
    logger.info(
        "%s, seed %d: %d parameters, %d steps of %d rows from step %d, %d %s device(s), attention by %s, %s",
        config.variant, config.seed, parameters, steps, config.training.batch_size, start,
        mesh.size, jax.default_backend(), kernel, workdir,
    )  # fmt: skip
    logger.info(
        "documents: %d unique, %d repeated (%d encounters an epoch in all), %d held out, %d exact copies left out%s",
        len(plan.unique), len(plan.repeated), len(plan.encounters), len(plan.held_out), corpus.duplicates,
        "" if floor is None else f"; entropy floor {floor:.3f} nats per token",
    )  # fmt: skip


def _summary(workdir: pathlib.Path) -> dict:
    """The last value of everything that was written, as the command's JSON."""
    latest = {}
    for line in read_metrics(workdir):
        latest |= line
    return {name: latest[name] for name in latest if name not in ("gradient_norm", "learning_rate", "invalid_labels")}
