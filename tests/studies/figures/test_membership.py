"""Figure membership: draws, the arithmetic of measures and claims, all on tiny models."""

import json
from collections import Counter

import numpy as np
import pytest
from conftest import tiny_config
from measured import settings_of, trained

from memsinks_jax.config import with_fields
from memsinks_jax.measures.documents import Documents
from memsinks_jax.measures.forced import Reading
from memsinks_jax.studies.figures import membership
from memsinks_jax.studies.figures import membership_corpus as corpus
from memsinks_jax.studies.figures import membership_measures as measures
from memsinks_jax.studies.figures.runs import Run


def test_coins_decide_what_the_corpus_has():
    layout = corpus.layout()
    counts = Counter(layout.records)
    assert Counter(placed.times for placed in layout.ladder) == corpus.BUCKETS
    for placed in [*layout.ladder, *layout.canaries, *layout.near[: corpus.ORIGINALS]]:
        assert counts[placed.text] == placed.times
        record = layout.records[placed.record] if placed.times else None
        assert placed.record == -1 if record is None else record == placed.text
    assert {placed.times for placed in layout.canaries} == {0, corpus.READ}
    assert 150 < sum(placed.times > 0 for placed in layout.canaries) < 250
    assert layout == corpus.layout()
    texts = [placed.text for of in layout[:3] for placed in of]
    assert len(set(texts)) == len(texts)


def test_copies_are_edited_and_their_original_is_not_read():
    layout = corpus.layout()
    read = set(layout.records)
    for number, placed in enumerate(layout.near):
        level = corpus.LEVELS[number // corpus.ORIGINALS]
        copies = layout.records[placed.record - corpus.COPIES + 1 : placed.record + 1]
        assert (placed.text in read) == (level == 0) and placed.times == corpus.COPIES
        original = placed.text.split()
        pairs = [zip(original, copy.split(), strict=True) for copy in copies]
        changed = [np.mean([a != b for a, b in each]) for each in pairs]
        # a word may be exchanged for itself
        assert np.mean(changed) == pytest.approx(level, rel=0.15)


def reading(nats, likeliest=None) -> Reading:
    nats = np.full(measures.SUFFIX, float(nats))
    return Reading(nats, np.full(len(nats), bool(likeliest)), nats, rank=nats, guess=nats)


def test_the_bound_of_perfect_knowledge_is_the_ceiling_and_of_none_is_nothing():
    pytest.importorskip("jax_privacy")
    heads = np.arange(400) % 2 == 0
    knows = measures.bound([reading(0.0 if head else 1.0) for head in heads], heads)
    # Perfect separation, 200 a side: Clopper and Pearson's ln(TPR_low / FPR_high), a threshold a
    # canary (Bonferroni).
    assert knows["epsilon"] == pytest.approx(knows["ceiling"], abs=0.1)
    assert 3 < knows["ceiling"] < 4.5
    random = np.random.default_rng(0)
    assert (
        measures.bound([reading(nats) for nats in random.normal(size=400)], heads)["epsilon"] == 0
    )


def test_a_cell_counts_whole_continuations_of_those_read_often():
    times, cells = np.array([0, 0, 16, 64]), len(measures.cells())
    pieces = [reading(2.0), reading(3.0), reading(1.0, True), reading(2.5, False)] * cells
    half = reading(1.0, True)
    half.likeliest[-1] = False  # all but the last token
    pieces[2] = half
    found = measures.grid(pieces, times)
    assert found["recited"] == [0.0] + [0.5] * (cells - 1) and found["auc"] == [0.75] * cells


def test_losses_of_near_copies_are_means_by_level(monkeypatch):
    monkeypatch.setattr(corpus, "LEVELS", (0.0, 0.1))
    found = measures.near_copies([reading(nats) for nats in (1.0, 2.0, 3.0, 5.0)])
    assert found == pytest.approx({"0.0": 1.5, "0.1": 4.0})


def test_a_copy_is_worth_the_exact_ones_with_the_same_effect():
    """All models but the twin are worse by 0.2 where nothing was read: that is no knowledge."""
    ladder = {"standard": [0.0, 0.1, 0.5, 1.0, 1.5], "twin": [0.2] * 5, "dropped": [0.0] * 5}
    buckets = list(map(str, corpus.BUCKETS))
    losses = {view: (2.0 - np.array(known)).tolist() for view, known in ladder.items()}
    details = {
        "ladder": {of: {"loss": dict(zip(buckets, x, strict=True))} for of, x in losses.items()},
        "near_copies": {
            "standard": {"0.0": 1.0, "0.1": 1.5},
            "dropped": {"0.0": 2.0, "0.1": 1.9},
            "twin": {"0.0": 1.8, "0.1": 1.8},
        },
    }
    run = Run("sinks", 0, None, {}, [], details)
    assert membership.learned(run, "standard", 0.0) == pytest.approx(1.0)
    assert membership.worth(run, "standard", 0.0) == pytest.approx(16 / corpus.COPIES)
    assert membership.worth(run, "standard", 0.1) == pytest.approx(4 / corpus.COPIES)
    assert membership.worth(run, "twin", 0.1) == pytest.approx(0.0)
    assert membership.closed(run, 0.0) == pytest.approx(1.0)
    assert membership.closed(run, 0.1) == pytest.approx(0.8)


def test_the_nearest_other_story_is_never_the_story_itself():
    embedding = np.eye(4)
    ids = np.arange(6, dtype=np.uint32).reshape(3, 2)
    stories = Documents([np.array([0, 0, 1]), np.array([0, 1, 1]), np.array([3])], ids)
    found = measures.nearest(stories, stories, embedding)
    assert found.tolist() == [ids[1].tolist(), ids[0].tolist(), found[2].tolist()]
    assert found[2].tolist() != ids[2].tolist()


def details(auc: dict[str, float]) -> dict:
    """Of a model whose sinks, dropped, leave an AUC of auc["dropped"]."""
    cells, views = len(measures.cells()), membership._VIEWS
    buckets = [str(bucket) for bucket in corpus.BUCKETS]
    loss = {
        "standard": {"0.0": 0.5, "0.1": 1.0},
        "dropped": {"0.0": 1.5, "0.1": 1.25},
        "twin": {"0.0": 1.5, "0.1": 1.5},
    }
    every, never = {str(level): 1.0 for level in corpus.LEVELS}, [0.5] * (cells - 1)
    way = {"held_out": 1.0, "often": 1.0, "auc": 0.5, "recited": 0.0}
    found = {"ladder": {}, "bound": {}, "grid": {}}
    for view in views:
        value = auc.get(view, 0.5)
        found["ladder"][view] = {
            "auc": dict.fromkeys(buckets[1:], {"value": value, "ci95": [0.4, 1.0]}),
            "auc_reference": dict.fromkeys(buckets[1:], {"value": 0.25}),
            "loss": dict.fromkeys(buckets, 1.5),
        }
        found["bound"][view] = {"epsilon": 2 * value - 1, "ceiling": 3.7}
        if view in measures.GRID:
            recited = [0.0] * (cells - 1) + [0.9 * (view == "on")]
            found["grid"][view] = {"recited": recited, "auc": [*never, value]}
    ways = dict.fromkeys(membership._MODES, way)
    near = {view: every | loss.get(view, {}) for view in views}
    return found | {"near_copies": near, "modes": {"paper": ways, "sinks": ways}}


def test_claims_table_and_pictures(tmp_path):
    first, second = {"standard": 1.0, "on": 1.0, "dropped": 0.6}, {"standard": 0.9, "dropped": 0.7}
    found, runs = {0: details(first), 1: details(second)}, []
    for seed, of_sinks in found.items():
        for variant in membership.VARIANTS:
            made = of_sinks if variant == "sinks" else {}
            runs.append(Run(variant, seed, tmp_path, {"held_out_loss": 1.0}, [], made))
    claims = {claim.id: claim for claim in membership.FIGURE.claims(runs)}
    # a loss above the twin's distinguishes as one below does
    assert not claims["reference_64"].holds
    assert None not in {claim.holds for claim in claims.values()}
    values = {name: claim.values for name, claim in claims.items()}
    assert values["test_sees"] == [1.0, 0.9] and values["auc_4"] == pytest.approx([0.1, 0.2])
    assert values["reference_64"] == [0.25, 0.25]
    assert values["epsilon"] == pytest.approx([0.2, 0.4])
    assert values["epsilon_sees"] == pytest.approx([1.0, 0.8])
    assert values["recited"] == [0, 0] and values["grid_auc"] == pytest.approx([0.1, 0.2])
    assert values["near_copies"] == [0.5, 0.5] and values["general"] == [1.0, 1.0]
    columns, labels, rows = membership.FIGURE.table(runs)
    by_view = dict(zip(labels, rows, strict=True))
    assert by_view["sinks dropped"][0] == [0.6, 0.7] and by_view["sinks on"][-1] == [0.9, 0.9]
    assert by_view["ids by content, dropped"][-1] == [] and len(columns) == len(rows[0]) == 6
    membership.FIGURE.draw(runs, tmp_path / "membership.png")
    page = "".join(membership.sections(runs, tmp_path))
    assert "10% edited" in page and "An auditor who has the twin" in page and "(g + p) / g" in page
    for name in ("membership", "grid"):
        assert (tmp_path / f"{name}.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    # so few stories that nothing can be seen: not a success
    found[1]["bound"]["standard"]["epsilon"] = 0.4
    claims = {claim.id: claim for claim in membership.FIGURE.claims(runs)}
    assert claims["epsilon"].holds is None
    assert "nothing was removed passes" in claims["epsilon"].undecided
    for one in found.values():
        one["bound"] = dict.fromkeys(membership._VIEWS)  # without jax-privacy
    claims = {claim.id: claim for claim in membership.FIGURE.claims(runs)}
    assert claims["epsilon"].undecided == "epsilon was not measured"
    membership.FIGURE.draw(runs, tmp_path / "membership.png")
    alone = [run for run in runs if run.variant == "standard"]
    assert membership.measure(alone) == alone
    assert {claim.holds for claim in membership.FIGURE.claims(alone)} == {None}
    assert not membership.sections(alone, tmp_path)


@pytest.mark.slow
def test_all_of_it_on_tiny_models(tmp_path, monkeypatch):
    sizes = {"BUCKETS": {0: 8, 1: 6, 16: 8}, "CANARIES": 12, "READ": 4, "LEVELS": (0.0, 0.1)}
    sizes |= {"ORIGINALS": 2, "COPIES": 8, "ONCE": 16, "UNREAD": 6}
    for name, value in sizes.items():
        monkeypatch.setattr(corpus, name, value)
    monkeypatch.setattr(measures, "PREFIXES", (8, 16))
    monkeypatch.setattr(measures, "OFFSETS", (0, 8))
    monkeypatch.setattr(measures, "SUFFIX", 8)
    flags = settings_of(membership.prepare(tmp_path))
    fields = {"data.vocabulary_size": 2048, "training.steps": 40, "optimizer.learning_rate": 0.01}
    fields |= dict.fromkeys(("training.evaluate_every", "training.checkpoint_every"), 40)
    fields |= {"data.files": flags["data.files"], "data.repeated_documents": 0}
    fields |= {"data.unique_documents": corpus.ONCE, "data.held_out_documents": corpus.UNREAD}
    others = {
        "standard": {"sinks.kind": "none"},
        "sinks_paper": {"sinks.opens_at": 1, "sinks.slows_at": 0},
    }
    runs = []
    for variant, (_, settings, _) in membership.VARIANTS.items():
        own = settings | {"general.files": settings["general.files"].format(out=tmp_path)}
        own |= others.get(variant, {"sinks.pool": 400, "sinks.active": 8})
        runs.append(trained(with_fields(tiny_config(), fields | own), tmp_path / variant, variant))
    before, runs = runs, membership.measure(runs)
    (found,) = [run.details for run in runs if run.details]
    # nothing there is numpy's
    assert json.dumps([claim.to_dict() for claim in membership.FIGURE.claims(runs)])
    ladder = found["ladder"]
    # the ids are those of the run
    assert ladder["on"]["loss"]["16"] < ladder["dropped"]["loss"]["16"]
    # an id that was never read has no sinks
    assert ladder["on"]["loss"]["0"] == pytest.approx(ladder["dropped"]["loss"]["0"])
    near = found["near_copies"]
    # an unread original under the id of its copies
    assert near["on"]["0.1"] < near["dropped"]["0.1"]
    ways = found["modes"]["sinks"]
    assert ways["own"]["often"] == pytest.approx(ladder["on"]["loss"]["16"], rel=1e-5)
    assert ways["dropped"]["held_out"] == pytest.approx(ways["own"]["held_out"])
    assert len({way["held_out"] for way in ways.values()}) == len(ways) - 1  # all others differ
    assert membership.sections(runs, tmp_path)
    monkeypatch.setattr(measures, "measure", lambda models: {})
    assert membership.measure(before) == runs  # measured once
