"""The monitor flags frequent documents, on any mesh, and alike in stopped and uninterrupted
runs.
"""

import jax
import numpy as np
import pytest
from conftest import expect_input_error, read_lines, tiny_config

from memsinks_jax.config import Config, MonitorConfig, with_fields
from memsinks_jax.data import ids
from memsinks_jax.data.corpus import load_corpus
from memsinks_jax.data.ids import as_numbers
from memsinks_jax.loop import train_and_evaluate
from memsinks_jax.models.trained import open_run
from memsinks_jax.runs.interruption import Interrupted
from memsinks_jax.training.metrics import read_metrics
from memsinks_jax.training.monitor import Monitor, count, estimates, init_sketch


def seen(identities, counters, batches=1):
    """Estimates of all ids after they were counted in so many batches."""
    sketch = init_sketch(Config(monitor=MonitorConfig(every=1, counters=counters)))
    for batch in np.split(identities, batches):
        sketch = jax.jit(count)(sketch, batch[:, None])
    return estimates(np.asarray(sketch), identities)


def test_an_estimate_is_never_too_low_and_rarely_too_high():
    rng = np.random.default_rng(0)
    distinct = rng.integers(0, 2**32, (2000, 2), dtype=np.uint32)
    distinct[:1000, 0] = 0  # of these only the low lane says which
    often = rng.integers(1, 9, 2000)
    identities = np.repeat(distinct, often, axis=0)[: 2 * (often.sum() // 2)]
    truth = np.repeat(often, often)[: len(identities)]
    found = seen(identities, 65_536, batches=2)
    assert (found[:-9] == truth[:-9]).mean() > 0.99
    crowded = seen(identities, 256)
    assert (crowded[:-9] >= truth[:-9]).all()
    assert np.median(crowded - truth) < 2.5 * len(identities) / 256


def test_a_place_without_a_document_is_nobody():
    assert seen(np.zeros((50, 2), np.uint32), 16).max() == 0


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """Two documents come 8 times, 24 once; checked after steps 3, 6, 9 and 12 of three epochs of
    5.
    """
    workdir = tmp_path_factory.mktemp("watched") / "run"
    train_and_evaluate(config(), workdir)
    return workdir


def config(**fields):
    changed = {"monitor": MonitorConfig(every=3, seen_over=5, counters=4096), "training.epochs": 3}
    changed |= {"training.evaluate_every": 100, "training.checkpoint_every": 100}
    made = with_fields(tiny_config(), changed)
    for name, value in fields.items():
        made = with_fields(made, {f"mesh.{name}": value})
    return made


def flagged(workdir):
    return read_lines(workdir / "flagged.jsonl")


def monitored(workdir):
    return [
        (line["step"], {n: v for n, v in line.items() if n.startswith("monitor")})
        for line in read_metrics(workdir)
        if "monitor_flagged" in line
    ]


def test_documents_that_come_too_often_are_flagged_once(watched):
    roles = read_lines(watched / "documents.jsonl")
    repeated = {line["id"]: line["index"] for line in roles if line["role"] == "repeated"}
    lines = flagged(watched)
    assert {line["id"]: line["index"] for line in lines} == repeated
    assert len(lines) == 2
    assert all(line["step"] in (3, 6) and 5 < line["seen"] <= 16 for line in lines)
    steps, values = zip(*monitored(watched), strict=True)
    assert steps == (3, 6, 9, 12, 15)
    assert values[-1]["monitor_flagged"] == 2
    assert values[-1]["monitor_loss_own"] != values[-1]["monitor_loss"] < values[1]["monitor_loss"]


@pytest.mark.slow
@pytest.mark.parametrize(("stop", "mesh"), [(3, {}), (8, {"data": 2, "fsdp": 2, "tensor": 2})])
def test_a_run_that_was_stopped_flags_the_same(watched, tmp_path, stop, mesh):
    def at(step):
        return step == stop

    with pytest.raises(Interrupted):
        train_and_evaluate(config(), tmp_path / "run", should_stop=at)
    train_and_evaluate(config(**mesh), tmp_path / "run")
    assert flagged(tmp_path / "run") == flagged(watched)
    for (step, values), (other_step, other) in zip(
        monitored(tmp_path / "run"), monitored(watched), strict=True
    ):
        assert step == other_step
        assert values == (pytest.approx(other, rel=1e-4) if mesh else other)


def monitor_of(workdir, start, since=0, own=range(8)):
    corpus = load_corpus(config())
    return Monitor(config(), corpus, corpus.rows(), own, workdir, start, since, None)


def test_a_host_that_goes_on_reads_its_own_rows_again(tmp_path):
    rows = load_corpus(config()).rows()
    own = [1, 2, 6]  # other hosts may have some of them as well
    window = monitor_of(tmp_path, 3, own=own)._window
    read = [rows[8 * step + place]["identities"] for step in range(3) for place in own]
    assert window == set(as_numbers(np.concatenate(read)).tolist())
    assert window < monitor_of(tmp_path, 3)._window


def test_what_was_read_before_a_stop_is_checked_after_it(tmp_path, monkeypatch):
    """Also a document that does not come again."""
    monkeypatch.setattr("memsinks_jax.training.monitor.PROBES", 0)
    rows = load_corpus(config()).rows()
    everything = np.full((4, 4096), 9, np.uint32)  # a sketch for which every document came 9 times

    def names(start):
        monitor = monitor_of(tmp_path / f"{start}", start)
        for number in range(start * 8, 3 * 8):
            monitor.observe(rows[number]["identities"])
        (tmp_path / f"{start}").mkdir()
        monitor.check(3, everything, None)
        return {line["id"] for line in flagged(tmp_path / f"{start}")}

    assert len(names(0)) > 10
    assert names(2) == names(3) == names(1) == {line["id"] for line in flagged(tmp_path / "0")}


def test_the_interval_of_checks_may_change_when_a_run_is_resumed(watched, tmp_path):
    """The next check covers all that was read since the last: nothing stays unchecked. The model
    becomes the same.
    """
    changed = config()
    fields = {"monitor": MonitorConfig(every=10, seen_over=15, counters=4096)}
    changed = with_fields(changed, fields)
    with pytest.raises(Interrupted):
        train_and_evaluate(changed, tmp_path / "run", should_stop=lambda step: step == 9)
    assert monitored(tmp_path / "run") == []
    changed = with_fields(changed, {"monitor": MonitorConfig(every=4, seen_over=1, counters=4096)})
    train_and_evaluate(changed, tmp_path / "run")
    ((step, values),) = monitored(tmp_path / "run")
    assert step == 12
    corpus = load_corpus(changed)
    rows = corpus.rows()
    read = [ids.to_hex(rows[number]["identities"][0]) for number in range(12 * 8)]
    twice = {name for name in read if read.count(name) > 1}
    assert {line["id"] for line in flagged(tmp_path / "run")} == twice and len(twice) > 20
    assert values["monitor_flagged"] == len(twice)
    one, other = open_run(tmp_path / "run").params, open_run(watched).params
    assert jax.tree.all(jax.tree.map(np.array_equal, one, other))


def test_a_workdir_that_is_moved_before_a_check_is_reported(tmp_path):
    fields = {"model.layers": 1, "monitor.every": 1, "monitor.seen_over": 1}
    config = with_fields(tiny_config(), fields)

    def move(step):
        if step == 1:
            (tmp_path / "run").rename(tmp_path / "elsewhere")
        return False

    with expect_input_error("run is gone: it was moved or removed during the run"):
        train_and_evaluate(config, tmp_path / "run", should_stop=move)
