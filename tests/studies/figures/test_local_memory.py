"""The study of local bounded memory: its measures on known answers, its page."""

import dataclasses
import json
import pathlib

import jax
import numpy as np
import pytest
from conftest import read_lines, tiny_config
from measured import settings_of

from memsinks_jax.config import with_fields
from memsinks_jax.data.embedded import facts
from memsinks_jax.data.tokenizer import JsonTokenizer
from memsinks_jax.editing import boundary, patching
from memsinks_jax.editing.memory import DISTANCES, memory_of
from memsinks_jax.editing.probe import Probe
from memsinks_jax.editing.prompts import encode
from memsinks_jax.reporting import report
from memsinks_jax.studies.figures import local_memory, local_memory_capacity, local_memory_measures
from memsinks_jax.studies.figures.runs import Run
from memsinks_jax.training.step import init_state

pytestmark = pytest.mark.slow

WORLD = facts.world(0)


@pytest.fixture(scope="module")
def probe():
    fields = {"sinks.kind": "none", "data.row_length": 48, "data.vocabulary_size": 1024}
    config = with_fields(tiny_config(), fields)
    params = jax.jit(lambda: init_state(config, 1).params)()
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    pairs = zip(leaves, keys, strict=True)
    leaves = [leaf + 0.3 * jax.random.normal(key, leaf.shape) for leaf, key in pairs]
    params = jax.tree.unflatten(tree, leaves)
    return Probe(config, params)


@pytest.fixture(scope="module")
def tokenizer():
    return JsonTokenizer(facts.tokenizer_json(WORLD))


@pytest.fixture(scope="module")
def case(tokenizer):
    return local_memory_measures.case_of(facts.edits(WORLD, "strong", 1, 0)[0], tokenizer, 48)


@pytest.fixture(scope="module")
def text(probe, tokenizer):
    prompts = encode(tokenizer, facts.held_out_sentences(WORLD, 0, 8), 48, multiple=8)
    return local_memory_measures.text_of(probe, prompts)


@pytest.fixture(scope="module")
def found(probe, case):
    """A memory of layer 1, whether or not it succeeds on this random model."""
    trace = probe.trace(case.prompt, case.target, "mlp")
    mapped = patching.patch_map(probe, case.prompt, case.target, "mlp", trace, 30.0)
    memory = patching.remember(trace, case.prompt, "mlp", 1, 30.0, 0.3)
    rough = boundary.sweep(probe, memory, case.target, case.prompts, case.positives)
    return local_memory_measures.SiteEdit(case, mapped, memory, rough, rough)


def test_a_case_holds_all_prompts_in_order(case, tokenizer):
    edit = case.edit
    negatives = [prompt for group in edit.negatives.values() for prompt in group]
    texts = [edit.prompt, *edit.positives, *edit.paraphrases, *negatives]
    rows = zip(case.prompts.tokens, case.prompts.last, strict=True)
    read = [tokenizer.decode(row[1 : last + 1]) for row, last in rows]
    assert read == texts
    assert read[case.paraphrases] == list(edit.paraphrases)
    assert len(case.classes) == len(texts) - case.positives
    first = case.positives + list(case.classes).index("negated")
    assert read[first] == edit.negatives["negated"][0]
    assert tokenizer.decode(case.spelling) == edit.target
    assert case.spelling[0] == case.target
    assert len(case.spelling) == 3


def test_rates_are_counted(case):
    """Only prompts that no bound was chosen on are evaluated: every other one."""
    before = np.full(len(case.prompts.last), 5)
    after = before.copy()
    after[: case.positives] = case.target
    first = case.positives + np.flatnonzero(case.classes == "neighbour")
    after[first] = case.target
    whole = np.arange(len(after)) % 2 == 0
    rates = local_memory_measures._rates(case, before, after, whole)
    for name in ("efficacy", "efficacy_whole", "on_target", "paraphrase"):
        assert rates[name] == 1
    assert rates["completed"] == pytest.approx(whole[: case.positives].mean())
    assert rates["unchanged_neighbour"] == 0
    assert rates["target_neighbour"] == 1
    assert rates["unchanged_negated"] == 1
    evaluated = case.classes[1::2]
    assert rates["off_target"] == pytest.approx((evaluated != "neighbour").mean())
    assert rates["unchanged"] == pytest.approx(rates["off_target"])
    after[case.positives :] = 6  # another wrong token
    rates = local_memory_measures._rates(case, before, after, whole)
    assert (rates["off_target"], rates["unchanged"]) == (1, 0)


def test_nearness_is_ranked():
    auc = local_memory_measures._auc
    assert auc(np.array([0.1, 0.2]), np.array([0.3, 0.4])) == 1
    assert auc(np.array([0.3, 0.4]), np.array([0.1, 0.2])) == 0
    assert auc(np.array([0.1, 0.3]), np.array([0.2, 0.3])) == pytest.approx((1 + 1 + 0 + 0.5) / 4)


def test_a_sweep_in_numbers(found):
    bounds = 10.0 ** np.arange(-2, 3)
    positive = np.array([[1, 0], [1, 1], [1, 1], [1, 1], [1, 1]])
    negative = np.array([[2, 2, 2, 2], [2, 2, 2, 2], [2, 2, 2, 2], [2, 2, 3, 1], [1, 1, 1, 1]])
    swept = boundary.Sweep(bounds, positive, negative, np.full(4, 2), 1)
    numbers = local_memory_measures._of_sweep(dataclasses.replace(found, swept=swept))
    assert (numbers["rises"], numbers["falls"]) == (1, 1)
    assert numbers["window"] == pytest.approx(1.5)  # from .1 to 1, and half way to its neighbours
    assert [numbers[f"best_{name}"] for name in ("on_target", "off_target", "mean")] == [1, 1, 1]
    assert numbers["off_target_when_reached"] == 1
    swept = swept._replace(positive=positive * 0 + 1)
    flat = local_memory_measures._of_sweep(dataclasses.replace(found, swept=swept))
    assert flat["rises"] == 0  # what never changes does not rise


def test_an_outcome(probe, found, text):
    outcome = local_memory_measures.outcome(probe, found, text)
    assert outcome["own_similarity"] == pytest.approx(1, abs=1e-6)
    assert outcome["tiny_bound_change"] <= 1e-5
    assert outcome["bound"] == pytest.approx(0.3)
    assert 0 <= outcome["fired"] <= 1 and outcome["perplexity_ratio"] != 1
    assert outcome["step"] == 30 and outcome["succeeded"] == float(found.map.successes[:, -1].any())
    failed = local_memory_measures.outcome(probe, dataclasses.replace(found, memory=None), text)
    assert "efficacy" not in failed and failed["base_loss"] == outcome["base_loss"]


def test_baselines(probe, found, text):
    rows = local_memory_measures.baselines(probe, found, text, seed=0)
    assert list(rows) == ["no edit", "random value", "no bound", "fine-tuning step", "logit bias"]
    assert rows["no edit"]["efficacy"] == 0 and rows["no edit"]["unchanged"] == 1
    assert rows["no edit"]["perplexity_ratio"] == pytest.approx(1, abs=1e-6)
    assert rows["no edit"]["divergence"] < 1e-9
    assert rows["fine-tuning step"]["efficacy"] == rows["logit bias"]["efficacy"] == 1
    assert rows["no bound"]["divergence"] > rows["no edit"]["divergence"]


def test_distances_have_bounds_of_their_own_scale(probe, found):
    rows = local_memory_measures.ablation(probe, found)
    assert list(rows) == list(DISTANCES)
    assert all({"best_mean", "auc_last"} <= set(row) for row in rows.values())
    keys = 2 * found.memory.keys / np.linalg.norm(found.memory.keys)
    memory = dataclasses.replace(found.memory, distance="l2", keys=keys)
    bounds = local_memory_measures.bounds_of(memory)
    np.testing.assert_allclose(bounds, 2 * boundary.BOUNDS, rtol=1e-6)


def test_unused_memories_change_nothing(probe, case, text):
    """All sizes run in one program, filled up with memories of no layer."""
    random = np.random.default_rng(0).normal(size=(2, 2, probe.width("mlp")))
    memories = [(case, memory_of("mlp", 1, *pair, 0.9)) for pair in random]
    together = local_memory_capacity._together
    one, filled = (together(probe, memories[:1], "nearest", text, room) for room in (1, 3))
    assert one == pytest.approx(filled, rel=1e-5)
    assert together(probe, memories, "sum", text, 3) != pytest.approx(one)


def test_edits_that_fail_are_not_stacked(probe, tokenizer, text):
    """Two edits ask for the second likeliest token, one for one that no step reaches."""
    cases = []
    for place, edit in zip((1, -1, 1), facts.edits(WORLD, "strong", 3, 0), strict=True):
        case = local_memory_measures.case_of(edit, tokenizer, 48)
        order = np.argsort(-probe.answers(case.prompt).logits[0])
        cases.append(dataclasses.replace(case, target=int(order[place])))
    found = local_memory_capacity.capacity(probe, cases, "mlp", 1, [1, 2, 4], text)
    assert (found["usable"], found["sizes"], found["layer"]) == (2, [1, 2], 1)
    assert 0.01 <= found["bound"] <= 100 and np.shape(found["fires"]) == (2, 2)
    assert len(found["sum"]["perplexity_ratio"]) == 2 and found["sum"]["efficacy"][0] in (0, 1)
    none = local_memory_capacity.capacity(probe, cases[1:2], "mlp", 1, [1, 2, 4], text)
    assert (none["usable"], none["sizes"]) == (0, [])


def made_up(seed):
    """A run whose details have the shape of measured ones."""
    draw = np.random.default_rng(seed)
    names = """succeeded contiguous layer bound efficacy efficacy_whole on_target paraphrase off_target unchanged
        perplexity_ratio divergence rises falls completed window best_on_target best_off_target off_target_when_reached
        successes_last successes_elsewhere unchanged_other_relation unchanged_neighbour unchanged_negated
        unchanged_unrelated"""

    def outcome(kind):
        numbers = {name: float(draw.random()) for name in names.split()}
        numbers |= {"step": 10.0 if kind == "strong" else 2.0, "own_similarity": 1.0}
        numbers |= {"tiny_bound_change": 0.0, "steered_off_target": 0.05}
        return numbers | {"successes_elsewhere": 0.0}

    def of_site(kind):
        shares = {
            name: draw.random(21).tolist() for name in ("on_target", "off_target", "unchanged")
        }
        example = {"prompt": "The city of X is in", "target": " Y", "target_token": 3}
        example |= {"step": 2.0, "base_loss": 5.0, "losses": draw.random((4, 6)).tolist()}
        example |= {"tokens": draw.integers(0, 4, (4, 6)).tolist()}
        return {
            "outcomes": [outcome(kind) for _ in range(4)],
            "shares": shares,
            "success_by_layer": [0.0, 0.5, 1.0, 1.0],
            "example": example,
        }

    kinds, reached = {}, {"best_mean": 0.9, "auc_last": 0.8, "auc_nearest": 0.7}
    ways = {"no edit": {"efficacy": 0.0, "unchanged": 1.0}, "logit bias": {"efficacy": 1.0}}
    for kind in facts.KINDS:
        kinds[kind] = {site: of_site(kind) for site in ("attention", "mlp")}
        kinds[kind] |= {"distances": dict.fromkeys(DISTANCES, reached), "baselines": ways}
    classes = ("strong_seen", "strong_unseen", "weak_seen", "negated", "weak_loss")
    sizes = [1, 2, 4, 8, 16, 32, 64]
    falling = [1 - 0.01 * size for size in sizes]
    curves = dict.fromkeys(("efficacy", "paraphrase", "unchanged"), falling)
    curves["perplexity_ratio"] = [1 + 0.001 * size for size in sizes]
    capacity = {"sizes": sizes, "sum": curves, "nearest": curves, "fires": np.eye(4).tolist()}
    details = {"known": dict.fromkeys(classes, 0.5), "kinds": kinds, "capacity": capacity}
    return Run("standard", seed, None, local_memory._means(details), [], details)


def test_claims_table_and_page_of_outcomes(tmp_path):
    runs = [made_up(seed) for seed in range(3)]
    claims = {claim.id: claim for claim in local_memory.FIGURE.claims(runs)}
    assert len(claims) == 16
    assert claims["3_steps"].values == [5.0] * 3 and claims["3_steps"].holds
    assert claims["1_last"].holds and len(claims["5_on"].values) == 12
    assert claims["11_efficacy"].measured == pytest.approx(0.84) and not claims["11_efficacy"].holds
    assert claims["11_perplexity"].measured == pytest.approx(1.016)
    assert len(claims["1_contiguous"].values) == 3 * 4 * 4
    columns, labels, rows = local_memory.FIGURE.table(runs)
    assert len(rows) == len(labels) == 4 and all(len(row) == len(columns) for row in rows)
    first = [o["efficacy"] for o in runs[0].details["kinds"]["weak"]["attention"]["outcomes"]]
    assert rows[0][columns.index("predicts target")][0] == pytest.approx(np.mean(first))
    assert "3 models" in local_memory.note(runs)
    local_memory.FIGURE.draw(runs, tmp_path / "figure.png")
    sections = local_memory.sections(runs, tmp_path)
    assert (tmp_path / "figure.png").stat().st_size > 20_000
    report.write_page(tmp_path / "index.html", "title", sections)
    page = (tmp_path / "index.html").read_text()
    assert "logit bias" in page and "clamped" in page and page.count("data:image/png") == 1
    json.dumps([run.to_dict() for run in runs])


def test_an_edit_without_a_layer_is_counted_as_that():
    run = made_up(0)
    outcomes = run.details["kinds"]["strong"]["attention"]["outcomes"]
    failed = {"succeeded": 0.0, "step": 99.0, "successes_last": 0.0, "successes_elsewhere": 0.0}
    outcomes[0] = failed
    means = local_memory._means(run.details)
    for name, of in (("succeeded", outcomes), ("efficacy", outcomes[1:])):
        mean = np.mean([outcome[name] for outcome in of])
        assert means[f"strong_attention_{name}"] == pytest.approx(mean)


def test_corpus_and_tokenizer_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(local_memory, "DOCUMENTS", 20)
    flags = local_memory.prepare(tmp_path)
    assert list(settings_of(flags)) == ["data.files", "data.tokenizer"]
    files, tokenizer = map(pathlib.Path, settings_of(flags).values())
    texts = [line["text"] for line in read_lines(files)]
    assert texts == facts.documents(WORLD, local_memory.WORLD, 20)
    assert tokenizer.read_bytes() == facts.tokenizer_json(WORLD)
