"""Weights & Biases gets what metrics.jsonl gets."""

import importlib.util
import logging
import sys
import types

import pytest
from conftest import expect_input_error, tiny_config

from memsinks_jax.config import with_fields
from memsinks_jax.loop import train_and_evaluate
from memsinks_jax.training.metrics import MetricWriter, Progress, open_wandb, read_metrics


class Service:
    """In the place of the package."""

    Error = type("Error", (Exception,), {})

    def __init__(self):
        self.asked, self.logged, self.ended = None, [], False

    def init(self, **asked):
        if asked["project"] == "closed":
            raise self.Error("api_key not\nconfigured")
        self.asked = asked
        return self

    def log(self, values, step):
        self.logged.append({"step": step, **values})

    def finish(self):
        self.ended = True


@pytest.fixture
def service(monkeypatch):
    made = Service()
    package = types.ModuleType("wandb")
    package.__spec__ = importlib.util.spec_from_loader("wandb", None)
    package.init, package.Error = made.init, made.Error
    monkeypatch.setitem(sys.modules, "wandb", package)
    return made


def test_wandb_gets_every_line(service, tmp_path):
    config = with_fields(tiny_config(), {"model.layers": 1, "training.steps": 2})
    train_and_evaluate(config, tmp_path / "run", wandb="sinks")
    assert service.logged == read_metrics(tmp_path / "run") and service.ended
    assert (service.asked["project"], service.asked["name"]) == ("sinks", "run")
    assert service.asked["config"]["optimizer.b2"] == config.optimizer.b2
    first = service.asked["id"]
    open_wandb("sinks", tmp_path / "run", {})
    assert service.asked["id"] == first and service.asked["resume"] == "allow"  # a run that goes on
    open_wandb("sinks", tmp_path / "other", {})
    assert service.asked["id"] != first


@pytest.mark.parametrize("content", [b"\xbb\xff\n", b'{"step": 1\n'])
def test_a_damaged_file_is_refused(tmp_path, content):
    (tmp_path / "metrics.jsonl").write_bytes(content)
    with expect_input_error(r"metrics.jsonl is damaged"):
        read_metrics(tmp_path)


def test_no_speed_is_logged_before_there_is_one(caplog):
    """The first step compiles."""
    caplog.set_level(logging.INFO)
    progress = Progress("run", 1, 0)
    progress.update(1, 2.5, 0.0)
    progress.update(1, 2.5, 1234.5)
    assert caplog.messages == [
        "run: step 1/1, loss 2.500",
        "run: step 1/1, loss 2.500, 1,234 tokens/s",
    ]


def test_what_wandb_refuses_is_one_line(service, tmp_path, monkeypatch):
    with expect_input_error("--wandb=closed: api_key not configured; run `wandb login`"):
        open_wandb("closed", tmp_path, {})
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with expect_input_error("pip install"):
        train_and_evaluate(tiny_config(), tmp_path / "run", wandb="sinks")
    assert not (tmp_path / "run").exists()


def test_the_package_itself_takes_what_it_is_given(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    writer = MetricWriter(tmp_path, 0, open_wandb("sinks", tmp_path, {"a": 1}))
    writer.write(1, {"train_loss": 2.0})
    writer.write(1, {"held_out_loss": 3.0})
    writer.close()
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
