"""Rivals: places, interpolation, claims, table and plot of made-up runs; its configs."""

import dataclasses

import pytest
from conftest import seal_of, tiny_config
from measured import details

from memsinks_jax import reproduce
from memsinks_jax.config import Config, to_json, with_fields
from memsinks_jax.data.corpus import load_corpus
from memsinks_jax.loop import train_and_evaluate
from memsinks_jax.studies.baselines import rescaling
from memsinks_jax.studies.figures import post_hoc, rivals, rivals_measures
from memsinks_jax.studies.figures.rivals import Place
from memsinks_jax.studies.figures.runs import Run
from memsinks_jax.training.metrics import read_metrics

CURVES = {method: [(0.5, 0.1), (0.9, 0.4)] for method in post_hoc.METHODS}
# (held-out, repeated, repeated with own sinks on) where they are not those of standard.
LOSSES = {"sinks": (0.98, 0.88, 0.01), "sinks_slows_0": (0.98, 0.78, 0.01)}
LOSSES |= {"sinks_paper": (1.0, 0.7, 0.01), "cap_steps_8": (0.96, 0.76, None)}
LOSSES |= {"cap_steps_1": (0.95, 0.93, None), "cap_epochs_1": (1.2, 1.03, None)}
LOSSES |= {"goldfish_8": (1.02, 0.3, None), "goldfish_2": (1.2, 0.9, None)}
LOSSES |= {"sgtm_0": (1.1, 1.05, 0.05), "sgtm_20": (1.1, 0.9, 0.05), "sgtm_40": (1.1, 0.8, 0.05)}


@pytest.fixture
def runs(tmp_path):
    (tmp_path / "config.json").write_text(to_json(Config()))
    made = []
    for variant in (*rivals.VARIANTS, *rivals.RESCALED):
        held_out, repeated, own = LOSSES.get(variant, (1.0, 0.0, None))
        metrics = {"held_out_loss": held_out, "repeated_loss": repeated, "step": 9}
        metrics |= {} if own is None else {"repeated_loss_own": own}
        found = details(CURVES, (0.0, 1.0)) if variant == "standard" else {}
        found |= {"step_ms": [10.0 + 2 * (variant == "sinks")]} if variant in rivals.TIMED else {}
        leaks = {"auc_loss": 0.75, "exact_50": 0.125, "relearned": 0.625}
        found |= {"leaks": leaks} if variant in rivals.ASKED else {}
        made += [Run(variant, seed, tmp_path, metrics, [metrics], dict(found)) for seed in (0, 1)]
    # in the other seed none did anything
    for run, points in zip(made, ([(0.45, 0.05)], []), strict=False):
        # of half of the documents, whose losses are others
        run.details.update(details({"kfac": points}, (0.1, 1.0)))
        run.details["kfac"]["found"] = [{"layers": [1], "share": 0.9}] * len(points)
    return made


def test_every_variant_is_a_point_of_one_method():
    named = [name for method in rivals.METHODS.values() for name in method.points]
    assert len(set(named)) == len(named)
    assert sorted(["standard", *named]) == sorted([*rivals.VARIANTS, *rivals.RESCALED])
    assert {*rivals.TIMED, *rivals.ASKED} < set(rivals.VARIANTS)
    assert set(rivals._DASHED) == set(post_hoc.METHODS) | set(post_hoc.EDITS)


def test_a_curve_is_read_where_the_held_out_loss_is_no_higher():
    curve = [Place(0.9, 0.2), Place(1.1, 0.8)]
    assert rivals.closed_at(curve, 1.0) == pytest.approx(0.5)
    assert rivals.closed_at(curve, 1.3) == pytest.approx(0.8)
    assert rivals.closed_at([Place(1.2, 0.9)], 1.1) == pytest.approx(0.45)  # half-way from standard
    assert rivals.known_at([Place(1, 0.5), Place(1, 1.0)], [0.2, 0.6], 0.75) == pytest.approx(0.4)


def test_curves_are_compared_at_the_same_held_out_loss():
    ours = [Place(0.98, 0.9), Place(1.04, 0.95)]

    def lead(*theirs, whole=False):
        return pytest.approx(rivals.lead(ours, theirs, 0.98, whole))

    assert lead(Place(0.96, 0.8), Place(0.99, 0.99)) == 0.9 - (0.8 + 0.19 * 2 / 3)
    assert lead(Place(1.1, 0.97)) == 0.95 - 0.97  # at 1.1, where theirs is lowest
    assert lead(Place(1.1, 0.97), whole=True) == 0.9 + 0.05 / 3  # at 1, that of standard training
    assert lead(Place(1.1, 1.2)) == 0.95 - 0.8  # closes more than there is


def test_claims(runs):
    claims = rivals.FIGURE.claims(runs)
    found = {claim.id: claim.values for claim in claims if claim.holds is not None}
    ours = 1 - 0.1
    assert found["beats_paper"] == pytest.approx([ours - 0.7] * 2)
    assert found["beats_cap_steps"] == pytest.approx([ours - (0.8 + 0.18 * 1)] * 2)
    # nothing at 0.98; at standard's loss it is standard
    assert found["beats_goldfish"] == pytest.approx([ours] * 2)
    assert found["beats_sgtm"] == pytest.approx([ours - 0.95] * 2)
    assert found["beats_kfac"] == pytest.approx([ours] * 2)
    # on the way to one encounter
    assert found["known_cap_steps"] == pytest.approx([ours / 0.98 * 0.93 - 0.01] * 2)
    # no cap closes as much as sinks do
    assert found["known_cap_epochs"] == pytest.approx([1.03 - 0.01] * 2)
    every = {f"beats_{name}" for name in (*rivals.METHODS, *post_hoc.METHODS)}
    assert every - set(found) == {"beats_on_return", "beats_pool"}
    without = rivals.FIGURE.claims([run for run in runs if run.variant != "standard"])
    assert {claim.undecided for claim in without} == {"standard was not measured"}


def test_an_edit_is_compared_with_the_model_on_the_same_documents(runs):
    (after,) = rivals.places_after(runs[0], "kfac")
    assert after == pytest.approx(Place(1.05, 1 - 0.5 / 0.9))


def test_table_page_and_picture(runs, tmp_path):
    _, labels, rows = rivals.FIGURE.table(runs)
    assert len(labels) == len(rows) == len(rivals.VARIANTS) + len(rivals.RESCALED)
    rivals.FIGURE.draw(runs, tmp_path / "rivals.png")
    rivals.FIGURE.draw([run for run in runs if run.variant == "sinks"], tmp_path / "one.png")
    assert (tmp_path / "rivals.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    not_measured = [dataclasses.replace(run, details={}) for run in runs]
    page, short = (" ".join(rivals.sections(of, tmp_path)) for of in (runs, not_measured))
    named = ("SGTM", "1.20", "0.750 ± 0.000", "0.625 ± 0.000", "all copies")
    for words in (*named, "K-FAC weight editing", "layers [1], share 0.9"):
        assert words in page
    assert "K-FAC weight editing" not in short


def test_slow_measurements_are_cached_in_the_run(runs, tmp_path, monkeypatch):
    timed, asked = [], []
    config = (tmp_path / "config.json").read_text()
    runs = [run for run in runs if run.variant in rivals.VARIANTS]
    for number, run in enumerate(runs):  # each in a folder of its own
        workdir = tmp_path / f"{run.variant}-seed{run.seed}"
        runs[number] = dataclasses.replace(run, workdir=workdir, details={})
        runs[number].workdir.mkdir()
        (runs[number].workdir / "config.json").write_text(config)
        seal_of(runs[number].workdir, run.variant)

    def take(runs):
        timed.append([run.variant for run in runs])
        return [dataclasses.replace(run, details={"step_ms": [1.0]}) for run in runs]

    def ask(workdir, oracle, **_):
        asked.append((workdir.name, oracle.name))
        return {"subjects": {"model": {"all": {"auc_loss": {"value": 0.5}}}, "oracle": {}}}

    def attack(workdir, standard, oracle, kinds):
        has_lost = not workdir.name.startswith("standard")
        assert ("relearning" in kinds) == (standard is not None) == has_lost
        relearned = {"members": {"few": {"ratio": 0.5}}, "never_seen": {"few": {"ratio": 0.8}}}
        before, after = ({"members": loss, "non_members": 1.5} for loss in (1.0, 0.75))
        calibrated = {"model": {"before": before, "after": after}, "oracle": {}}
        return {"relearning": standard and relearned, "calibration": calibrated}

    def rename(run, name):
        return dataclasses.replace(run, variant=name)

    monkeypatch.setattr(rivals.step_times, "measure", take)
    monkeypatch.setattr(rivals_measures, "audit", ask)
    monkeypatch.setattr(rivals_measures, "attack_run", attack)
    monkeypatch.setattr(rivals.post_hoc, "measured", lambda runs, wanted, methods: runs)
    monkeypatch.setattr(rivals_measures, "rescaled", rename)
    again = [rivals.measure(runs) for _ in range(2)]
    assert len(timed) == 1 and set(timed[0]) == set(rivals.TIMED)
    assert len(asked) == len(set(asked)) == 2 * len(rivals.ASKED)
    assert ("sgtm_0-seed1", "no_repeat-seed1") in asked
    assert again[0] == again[1]
    details_of = {(run.variant, run.seed): run.details for run in again[0]}
    leaks = {"auc_loss": 0.5, "gap_before": 0.5, "gap_after": 0.75, "relearned": 0.625}
    assert details_of["sinks", 0] == {"leaks": leaks, "step_ms": [1.0]}
    assert details_of["sinks", 1] == {"leaks": leaks} and details_of["no_repeat", 0] == {}
    assert "relearned" not in details_of["standard", 1]["leaks"]
    assert rivals.measure(runs[2:]) == runs[2:] and len(timed) == 1
    monkeypatch.setattr(rivals_measures, "GIVEN", 8)
    rivals.measure(runs)
    assert len(timed) == 1 and len(asked) == 4 * len(rivals.ASKED)


@pytest.mark.slow
def test_a_model_is_evaluated_with_its_shared_neurons_scaled_up(tmp_path, monkeypatch):
    workdir = tmp_path / "sinks_paper-seed0"
    train_and_evaluate(tiny_config(), workdir)
    run = Run("sinks_paper", 0, workdir, read_metrics(workdir)[-1], [])
    found = rivals_measures.rescaled(run, "rescaled_0.3")
    assert found.variant == "rescaled_0.3" and rivals.known(found) == rivals.known(run)
    assert all(
        found.metrics[loss] != run.metrics[loss] for loss in ("held_out_loss", "repeated_loss")
    )
    monkeypatch.setattr(rescaling, "factors", lambda config: {"published": 1.0})
    # measured once
    assert rivals_measures.rescaled(run, "") == dataclasses.replace(found, variant="")
    found.workdir.with_name("sinks_paper-seed0.rescaled.json").unlink()
    assert rivals_measures.rescaled(run, "").metrics == pytest.approx(run.metrics)


@pytest.mark.slow
def test_edits_of_a_tiny_run(tmp_path, monkeypatch):
    """They are tuned and evaluated, and what was chosen stands on the page."""
    grid = {"SHARES": (0.6, 0.9), "MOST_LAYERS": 1, "RATIOS": (0.03,), "WEIGHTS": (0.5,)}
    for name, values in (grid | {"ORDINARY": 8}).items():
        monkeypatch.setattr(post_hoc, name, values)
    config = with_fields(tiny_config(), {"sinks.kind": "none", "training.steps": 20})
    train_and_evaluate(config, tmp_path / "standard-seed0")
    run = Run("standard", 0, tmp_path / "standard-seed0", {"step": 20}, [])
    found = post_hoc.removals(run, post_hoc.EDITS)
    assert set(found) == set(post_hoc.EDITS) and post_hoc.removals(run, post_hoc.EDITS) == found
    for of in found.values():
        assert len(of["found"]) == len(of["repeated"])
        assert [p["ratio"] for p in of["repeated"]] == sorted(p["ratio"] for p in of["repeated"])
    measured = dataclasses.replace(run, details=found)
    assert all(isinstance(p, Place) for name in found for p in rivals.places_after(measured, name))
    assert "BalancedSubnet" in post_hoc.how_edits([measured])


def test_caps_have_the_steps_that_they_say(tmp_path):
    names = ["standard", "cap_steps_8", "cap_epochs_8", "cap_steps_1", "no_repeat_steps", "sgtm_20"]
    few = ["--config.data.unique_documents=80", "--config.data.repeated_documents=4"]
    asked = reproduce.FigureOptions("laptop", [0], few, 1, names)
    configs = {job.variant: job.config for job in reproduce.jobs_of("rivals", asked, tmp_path, {})}
    steps = {name: load_corpus(configs[name]).rows().steps for name in names[:-1]}
    assert steps == dict.fromkeys(names[:-1], 74) | {"cap_epochs_8": 14}
    assert configs["sgtm_20"].training.method.endswith(":Selective,undiscovered=0.2")
