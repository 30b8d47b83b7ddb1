"""Figure 6: its claims from made-up runs, the corpus that it writes, its plot."""

import pytest
from absl import flags
from conftest import read_lines

from memsinks_jax import reproduce
from memsinks_jax.config import Config, to_json
from memsinks_jax.studies.figures import figure_6
from memsinks_jax.studies.figures.runs import Run

# (held-out, repeated); of the second seed twice as high
LOSSES = {"standard_1x": (2.0, 2.0), "sinks_paper_1x": (2.1, 2.0), "standard_5x": (1.6, 1.2)}
LOSSES |= {"sinks_paper_5x": (1.6, 1.4), "standard_20x": (1.5, 0.5), "sinks_paper_20x": (1.8, 1.5)}
LOSSES |= {"standard_20x_across": (1.5, 0.5), "sinks_paper_20x_across": (1.5, 0.7)}


@pytest.fixture
def runs(tmp_path):
    (tmp_path / "config.json").write_text(to_json(Config()))
    found = []
    for seed in (0, 1):
        for variant, (held_out, repeated) in LOSSES.items():
            held_out, repeated = held_out * (1 + seed), repeated * (1 + seed)
            metrics = {"held_out_loss": held_out, "repeated_loss": repeated, "step": 9}
            metrics |= {"repeated_loss_own": 0.1} if variant.startswith("sinks") else {}
            found.append(Run(variant, seed, tmp_path, metrics, [metrics | {"step": 1}, metrics]))
    return found


def test_claims_are_paired_by_seed_and_each_variant_has_its_own_standard(runs):
    found = {claim.id: claim.values for claim in figure_6.FIGURE.claims(runs)}
    expected = {"repeats_help": (0.8, 0.75), "beats_deduplicated": (0.8, 0.9)}
    expected |= {"equals_standard": (1.0, 1.2), "memorizes": (4 / 3, 3.0), "gap_closed": (0.5, 0.7)}
    for name, (of_5, of_20) in expected.items():
        assert found.pop(f"{name}_5x") == pytest.approx([of_5, of_5]), name
        assert found.pop(f"{name}_20x") == pytest.approx([of_20, of_20]), name
    assert found.pop("gap_closed_across") == pytest.approx([0.2, 0.2])
    assert found.pop("larger_effect") == pytest.approx([0.8, 1.6])
    assert not found
    assert {claim.holds for claim in figure_6.FIGURE.claims(runs[:1])} == {None}
    columns, labels, rows = figure_6.FIGURE.table(runs)
    closed = dict(zip(labels, (row[columns.index("gap closed")] for row in rows), strict=True))
    assert closed["sinks, 20x, attention across documents"] == pytest.approx([0.2, 0.2])
    assert closed["standard, 1x (deduplicated)"] == []


def test_variants_are_those_that_claims_are_about_and_are_drawn(runs, tmp_path):
    ours = {name.replace("sinks_paper", "sinks") for name in LOSSES}
    assert set(figure_6.FIGURE.variants) == set(LOSSES) | ours
    for name, shown in (("all", runs), ("one", runs[3:4])):
        figure_6.FIGURE.draw(shown, tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_it_writes_a_general_corpus_unless_another_is_given(tmp_path, monkeypatch):
    monkeypatch.setattr(figure_6, "GENERAL_DOCUMENTS", 20)
    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["test"])
    jobs = reproduce.jobs_of("6", reproduce.FigureOptions("laptop", [0], [], 1), tmp_path, {})
    written = tmp_path / "general" / "facts.jsonl"
    assert {job.config.general.files for job in jobs} == {str(written)}
    assert len({line["text"] for line in read_lines(written)}) == 20
    assert len({job.workdir for job in jobs}) == len(figure_6.FIGURE.variants)
    mine = reproduce.FigureOptions("paper,1.7b", [0], ["--config.general.files=mine.txt"], 1)
    jobs = reproduce.jobs_of("6", mine, tmp_path, {})
    assert {job.config.general.files for job in jobs} == {"mine.txt"}
    model, optimizer = jobs[0].config.model, jobs[0].config.optimizer
    assert (model.d_model, model.hidden) == (2048, 8192)
    assert (optimizer.learning_rate, optimizer.weight_decay) == (5e-5, 0.1)
    assert {job.config.data.across_documents for job in jobs} == {False, True}
