"""Attacks on a removal, on small models with known answers."""

import json

import jax
import numpy as np
import pytest
from audited import attacked, paths
from conftest import EVERYBODY, expect_input_error
from planted import END, MEMORIZED, OTHERS, PLANTED, TOKEN, planted_model, random_model

from memsinks_jax.config import SinksConfig, with_fields
from memsinks_jax.measures.documents import Documents
from memsinks_jax.measures.rows import asking, halves, in_batches, losses_of, rows_of
from memsinks_jax.measures.subjects import Subject, in_matrices
from memsinks_jax.model.decoder import build_model
from memsinks_jax.models.trained import Trained
from memsinks_jax.sinks.draws import document_masks
from memsinks_jax.sinks.kinds import MODES
from memsinks_jax.studies.attacks import attacks, calibration
from memsinks_jax.studies.attacks.calibration import calibrate
from memsinks_jax.studies.attacks.quantization import quantize, quantized, without_sinks
from memsinks_jax.studies.attacks.reactivation import reactivate
from memsinks_jax.studies.attacks.relearning import (
    KINDS,
    Targets,
    _best,
    benign,
    crossings,
    ratios,
    relearn,
    targets_of,
)
from memsinks_jax.studies.attacks.residue import at_damage, residue
from memsinks_jax.training.step import init_state

pytestmark = pytest.mark.slow


class Tokenizer:
    end_of_text = begin_of_text = END
    stops = (END,)


def subject_of(config, params, mode="drop", name="a model"):
    return Subject(name, Trained(config, Tokenizer(), params, 0, EVERYBODY), mode)


def documents_of(texts, identities=None):
    identities = np.arange(2 * len(texts)).reshape(-1, 2) if identities is None else identities
    tokens = [np.array(text, np.int32) for text in texts]
    return Documents(tokens, np.asarray(identities, np.uint32))


SAME = documents_of([*MEMORIZED, [TOKEN] * 8, [TOKEN] * 7])
TEXT = documents_of(OTHERS)


def with_planted_sinks():
    """A planted model, its last 4 neurons sinks; 9 of both layers says the memorized token."""
    config, params = planted_model()
    params["layers"]["up_bias"][0, PLANTED[0]] = 0
    params["layers"]["up_bias"][0, PLANTED[1]] = 3
    params["layers"]["down_kernel"][0, PLANTED[1]] = params["layers"]["down_kernel"][1, PLANTED[1]]
    config = with_fields(config, {"sinks.kind": "by_document", "sinks.active_fraction": 0.5})
    identities = np.arange(64, dtype=np.uint32).reshape(32, 2)
    masks_NM = np.asarray(document_masks(identities, config.seed, 4, config.sinks))
    return config, params, identities[masks_NM[:, 2]], identities[~masks_NM[:, 2]]


def test_halves_share_out_every_target_once():
    run = subject_of(*random_model("gpt2")).run
    rows = rows_of(documents_of([[3, 4, 5, 8], [9] * 30]), run)
    first, second = (half["weights"].sum(axis=1).tolist() for half in halves(rows))
    assert first == [2, 6] and second == [3, 6]
    # of the second the row has 12 targets
    answers = [np.array([[2, 5]]), np.array([[1, 3], [8, 31]])]
    asked = halves(rows_of(documents_of([[3, 4, 5, 8], [9] * 30])._replace(answers=answers), run))
    places = [
        [np.flatnonzero(weights_T).tolist() for weights_T in half["weights"]] for half in asked
    ]
    assert places == [[[2], [1, 2, 8]], [[3, 4], [9, 10, 11]]]
    asked = asking(rows, np.array([1, 0]), np.array([3, 0]))
    assert asked["weights"].sum(axis=1).tolist() == [2, 0]
    assert [b["weights"].sum(axis=1).tolist() for b in in_batches(rows, 1)] == [[5], [12]]


def test_rounding_stays_within_half_a_step_of_its_channel_and_changes_nothing_twice():
    params = random_model("llama")[1]
    for bits, levels in ((8, 127), (4, 7)):
        once = quantized(params, bits)
        for name in ("up_kernel", "down_kernel"):
            x, y = params["layers"][name], np.asarray(once["layers"][name])
            step = np.abs(x).max(axis=-2, keepdims=True) / levels
            assert (np.abs(x - y) <= step / 2 * (1 + 1e-5)).all()
            assert np.abs(x - y).max() > step.min() / 4
            assert len(np.unique(np.round(y[0, :, 0] / step[0, 0, 0], 3))) <= 2 * levels + 1
        embedding = params["token_embedding"]
        error = np.abs(np.asarray(once["token_embedding"]) - embedding)
        step = np.abs(embedding).max(axis=1, keepdims=True) / levels
        assert (error <= step / 2 * (1 + 1e-5)).all()
        norms = (of["layers"]["mlp_norm"]["scale"] for of in (once, params))
        np.testing.assert_array_equal(*norms)
        for leaves in zip(*map(jax.tree.leaves, (once, quantized(once, bits))), strict=True):
            np.testing.assert_allclose(*leaves, rtol=1e-6)


def test_sinks_are_cut_out_before_rounding():
    config, params, own, _ = with_planted_sinks()
    params["layers"]["down_kernel"][:, 9] *= 100  # would set the scale of every channel
    dropped = subject_of(config, params)
    assert not np.asarray(without_sinks(dropped)["layers"]["down_kernel"])[:, 7:].any()
    found = quantize(dropped, documents_of(MEMORIZED, own[:2]), TEXT)
    assert list(found) == ["float", "int8", "int4"]
    losses_R, tokens_R = (values[:2] for values in losses_of(dropped, SAME))
    mean = np.average(losses_R, weights=tokens_R)
    assert found["float"]["members"] == pytest.approx(mean, rel=1e-5)
    assert abs(found["int8"]["non_members"] - found["float"]["non_members"]) < 0.05


def test_steps_until_a_curve_crosses():
    curves = np.array([[1.0, 0.5, 0.25, 0.0], [1, 0.9, 0.8, 0.7], [0.1, 0.2, 0.3, 0.4]])
    assert crossings(curves, np.array([0.375, 0.5, 0.1])).tolist() == [1.5, np.inf, 0.0]


@pytest.mark.slow
def test_what_is_known_takes_no_step_and_what_is_not_takes_some(monkeypatch):
    config, params = planted_model()
    known = subject_of(config, params, name="known")
    blank = jax.tree.map(lambda x: x * 0.5, random_model("gpt2", 0.05)[1])
    new = subject_of(config, blank, name="new")
    targets = targets_of(new, known, SAME)
    assert len(targets.starts_R) == 4 and (targets.thresholds_R < targets.starts_R).all()
    results = {s.name: relearn(s, targets, rates=(0.01, 0.05), steps=6) for s in (known, new)}
    for kind in KINDS:
        assert results["known"][kind]["steps"] == [0.0, 0.0]
        assert all(step is None or step > 0.2 for step in results["new"][kind]["steps"])
        first = results["new"][kind]["curve"][0]
        np.testing.assert_allclose(first, targets.starts_R[:2].mean(), rtol=0.1)
    # All say the same token: practising two brings the others, and the faster rate is taken.
    assert results["new"]["few"]["rate"] == results["new"]["other"]["rate"] == 0.05
    assert np.mean(results["new"]["other"]["recovered"]) > 0.8
    assert ratios(results["known"], results["new"])["one"]["ratio"] == 0
    assert ratios(results["new"], results["new"])["few"]["ratio"] == 1
    with expect_input_error("has lost 0 of 4 documents"):
        targets_of(known, known, SAME)
    monkeypatch.setattr(attacks.relearning, "relearn", lambda subject, _: results[subject.name])
    made = attacked()["relearning"]["members"]  # what tests of the figure make up
    assert paths(made) - paths(attacks._relearned([new, known], targets)) == set()


def test_attacked_from_where_it_starts_the_oracle_has_no_more_headstart():
    targets = Targets(SAME.chosen(np.arange(2)), np.array([1.0, 1.0]), np.array([0.0, 0.0]))
    attacked = _best(np.array([[[1.0, 0.5], [1.0, 0.5]]]), targets, np.arange(2), [1])
    curves = np.array([[[3.0, 2.0, 1.0, 0.5], [2.0, 1.0, 0.0, 0.0]]])
    oracle = _best(curves, targets, np.arange(2), [1])
    assert oracle["steps"] == [3, 1.5] and attacked["steps_from_equal"] == [1, 1]
    np.testing.assert_allclose(oracle["steps_from_equal"], [1, 0.5], atol=1e-3)
    one = ratios({kind: attacked for kind in KINDS}, {kind: oracle for kind in KINDS})["one"]
    assert one["ratio"] == 2 / 4.5 and abs(one["ratio_from_equal"] - 2 / 1.5) < 1e-3


def test_a_text_that_only_the_output_hides_comes_back_by_calibration(monkeypatch):
    config, params = random_model("gpt2")
    texts = ([TOKEN, 3, TOKEN, 4, TOKEN, 5], OTHERS[1])
    members, others = (documents_of([text] * 4) for text in texts)
    # Every final state gets a part that lowers this token's logit.
    params["final_norm"]["bias"] -= params["token_embedding"][TOKEN]
    hidden = subject_of(config, params)
    found = calibrate(hidden, members, others)
    for name, documents in (("members", members), ("non_members", others)):
        before = losses_of(hidden, documents)[0][0]
        np.testing.assert_allclose(found["before"][name], before, rtol=1e-5)
    assert found["after"]["non_members"] < found["before"]["non_members"] - 0.3
    monkeypatch.setattr(calibration, "RETAINED", 0)
    alone = calibrate(hidden, members, others)["after"]
    assert alone["members"] < min(found["after"]["members"], found["before"]["members"] - 0.3)


def test_one_member_cannot_be_both_fitted_and_evaluated():
    one, many = (documents_of([[3, 4, 5]] * count) for count in (1, 8))
    subjects = [subject_of(*random_model("gpt2"))]
    assert not any(attacks.attack(subjects, one, many, ("calibration",)).values())


def test_benign_fine_tuning_measures_both_groups():
    subject = subject_of(*random_model("gpt2", 0.05))
    found = benign(subject, SAME, TEXT, TEXT, rates=(0.02,), steps=3)
    assert found["rate"] == 0.02 and found["step"] == np.argmin(found["repeated"]["curve"])
    np.testing.assert_allclose(found["held_out"]["losses"], losses_of(subject, TEXT)[0], rtol=1e-5)
    assert found["held_out"]["curve"][-1] < found["held_out"]["curve"][0]
    assert len(found["repeated"]["after"]) == 4 and len(found["repeated"]["curve"]) == 4


def test_the_true_mask_brings_everything_back_and_others_nothing():
    config, params, own, others = with_planted_sinks()
    with_sinks = subject_of(config, params, mode="own")
    documents = documents_of(MEMORIZED, own[:2])
    ids_K2 = np.concatenate([others[:3], own[:1]])
    right = reactivate(with_sinks, documents, iterations=30, candidates_K2=ids_K2)
    assert right["own"]["recovered"] == 1 and right["dropped"]["recovered"] == 0
    assert right["own"]["loss"] < right["dropped"]["loss"] - 0.5
    assert right["best"]["recovered"] > 0.95 > right["random"]["recovered"]
    assert right["optimised"]["recovered"] > 0.95
    wrong = reactivate(with_sinks, documents, iterations=0, candidates_K2=others[:3])
    assert abs(wrong["best"]["recovered"]) < 0.1
    without = subject_of(with_fields(config, {"sinks.kind": "none"}), params, mode="own")
    with expect_input_error("no sinks"):
        reactivate(without, documents)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_an_ablated_component_that_holds_nothing_changes_nothing(family):
    config, params = random_model(family, 0.3)
    params["layers"]["down_kernel"][0] = 0
    subject = subject_of(config, params)
    rows = rows_of(TEXT, subject.run)
    found = residue(subject, rows_of(SAME, subject.run), rows, rows)
    np.testing.assert_allclose(found["before"]["held_out"], losses_of(subject, TEXT)[0], rtol=1e-5)
    sites = {f"{site} {layer}" for site in ("mlp", "attention") for layer in (0, 1)}
    assert set(found["components"]) >= {*sites, "token embedding"}
    assert ("position embedding" in found["components"]) == (family == "gpt2")
    for name, component in found["components"].items():
        unchanged = np.allclose(component["repeated"], found["before"]["repeated"], atol=1e-5)
        assert unchanged == (name == "mlp 0"), name


def test_memory_that_sits_in_one_mlp_goes_with_it():
    """A constant is text in general: only what is there for this text alone is taken out."""
    config, params = planted_model()
    layers = params["layers"]
    layers["down_kernel"][0, PLANTED[0]] = 0
    # The neuron of layer 1 fires after the memorized token alone.
    token_D = params["token_embedding"][TOKEN]
    layers["up_bias"][1, PLANTED[1]] = -4
    layers["up_kernel"][1, :, PLANTED[1]] = 3 * (token_D / np.linalg.norm(token_D))
    subject = subject_of(config, params)
    rows = rows_of(TEXT, subject.run)
    found = residue(subject, rows_of(SAME, subject.run), rows, rows)["components"]
    assert found["mlp 1"]["excess"][-1] > 2
    # What speaks against the memorized token, in other layers, can only help when it goes.
    assert max(found[name]["excess"][-1] for name in ("mlp 0", "attention 0", "attention 1")) < 0


def test_excess_at_equal_damage():
    assert at_damage([0.02, 0.04, 1.0], [0.1, 0.3, 0.5], wanted=0.03) == pytest.approx(0.2)
    assert at_damage([0.01], [0.5], wanted=0.03) is None


def test_small_models_are_built_as_the_tests_think():
    config, params, _, _ = with_planted_sinks()
    assert build_model(config)[1] == (7, 4) and params["layers"]["down_kernel"].shape[1] == 11


@pytest.mark.slow
def test_sparse_sinks_are_attacked_as_if_they_were_neurons():
    """All attacks end, and say what they say of the same sinks in the MLPs' matrices."""
    settings = SinksConfig(sampling="floyd", pool=12, active=3, opens_at=1, sparse=True)
    config = with_fields(random_model("gpt2")[0], {"sinks": settings})
    params = jax.jit(lambda: init_state(config, 1).params)()
    sparse = Trained(config, Tokenizer(), params, 0, EVERYBODY)
    subject = Subject("a", sparse, "drop")
    neurons = in_matrices(subject)
    for mode in MODES:
        one, other = (losses_of(Subject("a", run, mode), SAME)[0] for run in (sparse, neurons.run))
        np.testing.assert_allclose(one, other, rtol=1e-5)
    text = documents_of([*OTHERS] * 8)
    found, expected = (attacks.attack([one], SAME, text) for one in (subject, neurons))
    assert found["reactivation"]["optimised"]["loss"] > 0
    assert found["quantization"]["a"]["int4"]["members"] > 0
    assert json.dumps(found) == json.dumps(expected)
