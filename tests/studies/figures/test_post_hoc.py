"""Post-hoc methods: when they run, on which documents, and the plane of figure 4c."""

import dataclasses
import pathlib
import shutil
import types

import numpy as np
import pytest
from conftest import EVERYBODY, seal_of
from measured import details
from planted import MEMORIZED, OTHERS, batches_of, planted_model

from memsinks_jax.config import Config, to_json
from memsinks_jax.measures import memorization
from memsinks_jax.models import trained
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.studies.baselines import removal, scores, tuning
from memsinks_jax.studies.baselines.learned_masks import HardConcrete
from memsinks_jax.studies.figures import figure_4, post_hoc
from memsinks_jax.studies.figures.runs import Run


def test_every_method_has_its_place():
    for named in (scores.METHODS, post_hoc.LABELS, figure_4.METHODS):
        assert set(named) == set(post_hoc.METHODS)


@pytest.fixture
def measured_methods(monkeypatch):
    """Methods that were measured, in the place of measuring."""
    names = []

    class Subject:
        def __init__(self, workdir):
            pass

        def removal(self, method):
            names.append(method)
            return {"found": {}, "repeated": [[len(names)]]}

    monkeypatch.setattr(post_hoc, "_Subject", Subject)
    return names


def test_what_is_measured_is_measured_once(tmp_path, measured_methods, monkeypatch):
    workdir = tmp_path / "standard-seed0"
    workdir.mkdir()
    (workdir / "config.json").write_text(to_json(Config()))
    seal_of(workdir, "a")
    run = Run("standard", 0, workdir, {"step": 9}, [])
    first = post_hoc.removals(run, ("random", "zero_out"))
    progress = []
    methods = ("zero_out", "random", "activation")
    again = post_hoc.removals(run, methods, lambda: progress.append(1))
    assert again["random"] == first["random"]
    assert (measured_methods, len(progress)) == (["random", "zero_out", "activation"], 3)
    shutil.rmtree(workdir / "checkpoints")
    seal_of(workdir, "b")  # deleted and trained anew, or further
    post_hoc.removals(run, ("random",))
    assert measured_methods[3:] == ["random"]
    seal_of(workdir, "b", data="other documents")
    post_hoc.removals(run, ("random", "zero_out"))
    assert measured_methods[4:] == ["random", "zero_out"]
    del measured_methods[4:]
    monkeypatch.setattr(post_hoc, "FEW", 4)
    post_hoc.removals(run, ("random", "zero_out", "zero_out"))
    assert measured_methods[4:] == ["zero_out"]
    (tmp_path / "standard-seed0.post_hoc.random.json").write_text("{")
    post_hoc.removals(run, ("random",))
    assert measured_methods[5:] == ["random"]


def test_only_some_runs_are_measured(measured_methods, tmp_path):
    (tmp_path / "config.json").write_text(to_json(Config()))
    seal_of(tmp_path, "a")
    one, other = (Run(name, 0, tmp_path, {"step": 9}, []) for name in ("standard", "sinks"))
    found = post_hoc.measured([one, other], lambda run: run.variant == "standard", ("random",))
    assert [set(run.details) for run in found] == [{"random"}, set()]


def test_documents_and_settings_of_a_method(monkeypatch):
    config, params = planted_model()
    batches = {
        "repeated": batches_of(MEMORIZED * 4),
        "held_out": batches_of(OTHERS),
        "canary": batches_of(MEMORIZED[:1]),
    }
    seen, chosen = [], HardConcrete(7.0, 30)

    def find(config, params, documents, settings=None):
        seen.append((len(scores_of := documents[0]["weights"]), settings))
        return np.zeros((len(scores_of), 2, 11), np.float32)

    def tune(loss, config, params, documents, held_out, settings, iterations):
        assert [len(one[0]["weights"]) for one in (documents, held_out)] == [5, 4]
        assert (settings.learning_rate, iterations) == (1e-2, [100, 200, 400])
        return [tuning.Trial(chosen, 0.0, 0.0), None]

    model = types.SimpleNamespace(config=config, params=params, opened=EVERYBODY)
    monkeypatch.setattr(trained, "open_run", lambda workdir: model)
    monkeypatch.setattr(workdirs, "read_corpus", lambda workdir: None)
    monkeypatch.setattr(memorization, "batches_by_role", lambda corpus, opened, size: batches)
    monkeypatch.setattr(scores, "METHODS", dict.fromkeys(scores.METHODS, find))
    monkeypatch.setattr(tuning, "tune", tune)
    subject = post_hoc._Subject(pathlib.Path())
    found = subject.removal("zero_out")
    count = len(removal.RATIOS)
    lengths = {name: len(points) for name, points in found.items()}
    assert lengths == {"found": 0, "repeated": count, "canary": count}
    assert subject.removal("hard_concrete")["found"] == {"strength": 7.0, "iterations": 30}
    assert seen == [(5, None), (9, chosen)]  # rows, with the one that fills the batch up


def run(variant, seed, repeated, held_out, curves=None):
    made = details(curves, (repeated, held_out)) if curves else {}
    metrics = {"repeated_loss": repeated, "held_out_loss": held_out}
    return Run(variant, seed, pathlib.Path(), metrics, [], made)


CURVES = dict.fromkeys(post_hoc.METHODS, [(0.4, 0.2), (0.8, 0.6)]) | {"random": [(0.1, 0.5)]}
LINES = [{"step": 9, "repeated_loss": 0.9}]
RUNS = [run("standard", seed, 0.1, 1.3, CURVES) for seed in (0, 1)]
RUNS += [run("sinks_paper", seed, 0.9, 1.3 + 0.1 * seed) for seed in (0, 1)]
RUNS += [run("no_repeat", seed, 1.1, 1.4) for seed in (0, 1)]


def trade_off_claims(runs):
    found = figure_4.FIGURE.of(runs).claims(figure_4.against_methods())
    return [claim for claim in found if claim.holds is not None]


def test_sinks_are_compared_with_the_methods():
    found = {claim.id: claim.values for claim in trade_off_claims(RUNS)}
    assert set(found) == {*(f"dominates_{method}" for method in post_hoc.METHODS), "hypervolume"}
    assert found["dominates_slimming"] == pytest.approx([0.6, 0.5])  # at 0.8 forgotten
    assert found["dominates_random"] == pytest.approx([0.5, 0.4])  # which it never forgets
    # Of a box of 1 x 0.5: sinks 0.8 x 0.5 and 0.8 x 0.4, the others 0.4 x 0.3.
    assert found["hypervolume"] == pytest.approx([0.8 - 0.24, 0.64 - 0.24])
    assert not trade_off_claims(RUNS[2:])
    assert {claim.id for claim in trade_off_claims(RUNS[:4])} == set(found) - {"hypervolume"}
    assert figure_4.share_of_box([figure_4.moved(RUNS[2], RUNS[0])], enough=-0.1) == 0


def test_sinks_that_open_on_return_are_shown_with_the_papers(tmp_path):
    runs = [*RUNS, *(run("sinks", seed, 1.0, 1.3) for seed in (0, 1))]
    found = {claim.id: claim.values for claim in trade_off_claims(runs)}
    # of a box of 1 x 0.5
    assert found["hypervolume_on_return"] == pytest.approx([1.0 * 0.9 - 0.24] * 2)
    alone = {claim.id: claim.values for claim in trade_off_claims(RUNS)}
    assert found["hypervolume"] == alone["hypervolume"]
    page = " ".join(figure_4.trade_off(figure_4.FIGURE.of(runs), tmp_path))
    assert "sinks that open on return, dropped" in page
    runs = [dataclasses.replace(run, lines=LINES) for run in runs]
    found = {claim.id: claim.values for claim in figure_4.FIGURE.claims(runs)}
    assert found["gap_closed"] == pytest.approx([1 - 0.4 / 1.2, 1 - 0.5 / 1.2])
    assert found["gap_closed_on_return"] == pytest.approx([1 - 0.3 / 1.2] * 2)
    assert found["held_out_standard_on_return"] == pytest.approx([1.0, 1.0])
    assert found["gap_left"] == pytest.approx([0.75, 0.6])


def test_the_section_of_4c(tmp_path):
    page = " ".join(figure_4.trade_off(figure_4.FIGURE.of(RUNS), tmp_path))
    assert (tmp_path / "figure_4c.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    for words in ("sinks as in the paper, dropped", "0.800 ± 0.000", "16 steps"):
        assert words in page
    assert "Chosen: strength 100, 100 iterations" in page
    short = " ".join(figure_4.trade_off(figure_4.FIGURE.of(RUNS[2:]), tmp_path))
    assert "only with all variants" in short


def test_the_whole_figure_has_4c_and_a_part_of_it_has_not(measured_methods, tmp_path):
    (tmp_path / "config.json").write_text(to_json(Config()))
    seal_of(tmp_path, "a")
    runs = [Run(variant, 0, tmp_path, {"step": 9}, []) for variant in figure_4.FIGURE.variants]
    assert all(bool(run.details) == (run.variant == "standard") for run in figure_4.measure(runs))
    assert not any(run.details for run in figure_4.measure(runs[:3]))
