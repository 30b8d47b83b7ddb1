"""A hanging run reports where it hangs."""

import logging
import time

import pytest

from memsinks_jax import loop
from memsinks_jax.loop import train_and_evaluate
from memsinks_jax.training.watchdog import Watchdog


@pytest.fixture
def warnings(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("memsinks_jax"), "propagate", True)
    caplog.set_level(logging.WARNING)
    return lambda: [
        record.getMessage() for record in caplog.records if "stalled" in record.getMessage()
    ]


def wait_for(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    assert condition()


def test_a_phase_that_lasts_is_reported_with_state_and_stacks(warnings):
    watchdog = Watchdog(0.2, lambda: "7 batches delivered", lambda: 0.0)
    watchdog.phase("waiting for the batch of step 8")
    wait_for(lambda: len(warnings()) >= 2)  # and again while it lasts
    watchdog.close()
    assert (
        "waiting for the batch of step 8; 7 batches delivered; stacks of all threads:"
        in warnings()[0]
    )
    assert "wait_for" in warnings()[0]


def test_phases_that_follow_each_other_are_not(warnings):
    watchdog = Watchdog(1.0, lambda: "", lambda: 0.0)
    for _ in range(15):
        watchdog.phase("a step")
        time.sleep(0.1)
    watchdog.close()
    assert not warnings()


def test_a_save_that_hangs_in_the_background_is_reported(warnings):
    begin = time.monotonic()
    watchdog = Watchdog(0.3, lambda: "", lambda: time.monotonic() - begin)

    def others_go_on():
        watchdog.phase("a step")
        return warnings()

    wait_for(others_go_on)
    watchdog.close()
    assert "saving a checkpoint in the background" in warnings()[0]


def test_a_run_reports_a_loader_that_hangs(tiny, tmp_path, warnings, monkeypatch):
    real = loop.batches

    def slow(*arguments):
        for number, batch in enumerate(real(*arguments)):
            if number == 2:
                time.sleep(3)
            yield batch

    monkeypatch.setattr(loop, "batches", slow)
    monkeypatch.setattr(loop, "STALL_SECONDS", 1.0)
    train_and_evaluate(tiny, tmp_path / "run")
    found = [line for line in warnings() if "waiting for the batch of step 3" in line]
    assert found
    assert "the loader has delivered 2 batches; on the device: nothing" in found[0]
