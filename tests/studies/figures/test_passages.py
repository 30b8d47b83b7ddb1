"""Study passages: its corpora, its measures, the arithmetic of its claims, and all of it on tiny models."""

import dataclasses
import json
import types

import numpy as np
import pytest
from conftest import tiny_config

from memsinks_jax import reproduce, sinks
from memsinks_jax.config import InputError, with_fields
from memsinks_jax.data.prepared import Prepared
from memsinks_jax.preparing import stages
from memsinks_jax.studies.figures import passages
from memsinks_jax.studies.figures import passages_corpus as corpus
from memsinks_jax.studies.figures.runs import Run, make_jobs
from memsinks_jax.training.loop import train_and_evaluate
from memsinks_jax.training.metrics import read_metrics
from memsinks_jax.variants import CONFIGS

PLANTED = {2: 2, 16: 2}


def in_this_process(stage, steps, tasks, work, where):
    """`stages.run_stage` without datatrove's executor, which starts a process for each stage."""
    for rank in range(tasks):
        data = None
        for step in steps:
            data = step.run(data, rank, tasks)
        for _ in data or ():
            pass


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(the study's folder, texts, flags of its runs) on a few stories, for one epoch of tiny rows."""
    folder = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"PLANTED": PLANTED, "STORIES": 60, "HELD_OUT": 8, "NEVER": 4}.items():
            patch.setattr(corpus, name, value)
        patch.setattr(stages, "run_stage", in_this_process)
        texts = corpus.planted()
        flags = passages.prepare(folder, types.SimpleNamespace(preset="laptop,five", passages=None))
    return folder, texts, flags


def text_of(prepared: Prepared) -> list[str]:
    return [prepared.document(record, prepared.tokenizer()).text for record in range(len(prepared))]


def test_planted_passages_stand_in_as_many_stories_as_they_should(made):
    _, texts, _ = made
    assert [sum(passage in text for text in texts.train) for passage in texts.often] == [16, 16]
    assert not any(passage in text for passage in texts.never for text in texts.train)
    assert not set(texts.held_out) & set(texts.train) and len(set(texts.train)) == 60


def test_corpora_have_passages_everywhere_once_or_nowhere(made):
    folder, texts, _ = made
    read = {name: text_of(Prepared(folder / "corpus" / name)) for name in ("all", "once", "without")}
    assert read["all"] == texts.train
    said = [" ".join(passage.split()[5:45]) for passage in texts.often]  # what is around may belong to it, or not
    counts = {name: [sum(words in text for text in of) for words in said] for name, of in read.items()}
    assert counts == {"all": [16, 16], "once": [1, 1], "without": [0, 0]}
    assert sum(map(len, read["without"])) < sum(map(len, read["once"])) < sum(map(len, read["all"]))
    tokenizers = {Prepared(folder / "corpus" / name).tokenizer().model for name in read}
    assert len(tokenizers) == 1


def test_passages_that_are_asked_for_are_the_first_tokens_where_they_are_longest(made):
    folder, texts, _ = made
    prepared = Prepared(folder / "corpus" / "all")
    found = corpus.passages_of(prepared)
    assert [each.places for each in found][:2] == [16, 16]
    assert [each.rung for each in found] == sorted((each.rung for each in found), reverse=True)
    for each in found:
        text = prepared.tokenizer().decode(each.tokens)
        there = [record for record in range(len(prepared)) if text in texts.train[record]]
        assert corpus.LENGTH <= len(each.tokens) <= corpus.SHOWN and there
        number = int(each.identity[0]) << 32 | int(each.identity[1])
        assert number in prepared.passages_of(there[0])["id"].tolist()


def test_known_text_is_what_an_ngram_of_training_covers(made):
    folder, texts, _ = made
    prepared = Prepared(folder / "corpus" / "all")
    encode = prepared.tokenizer().encode
    read, other = prepared.read(3), encode("zq 7 xk 8 vj 9 " * 5)
    mixed = np.concatenate([other, read[5 : 5 + corpus.KNOWN], other])
    known, short, all_of_it = corpus.known(prepared, [mixed, read[: corpus.KNOWN - 1], read])
    np.testing.assert_array_equal(np.flatnonzero(known), len(other) + np.arange(corpus.KNOWN))
    assert len(short) == corpus.KNOWN - 1 and not short.any() and all_of_it.all() and len(all_of_it) == len(read)


def test_files_of_something_else_are_refused(tmp_path):
    for name in corpus.Texts._fields:
        (tmp_path / f"{name}.jsonl").write_text('{"text": "Some words."}\n{"text": "More."}\n')
    assert corpus.texts_of(tmp_path).never == ["Some words.", "More."]
    (tmp_path / "never.jsonl").write_text("\n")
    with pytest.raises(InputError, match="never.jsonl cannot be read .*as --passages"):
        corpus.texts_of(tmp_path)
    (tmp_path / "never.jsonl").write_text("")
    with pytest.raises(InputError, match="never.jsonl needs"):
        corpus.texts_of(tmp_path)
    with pytest.raises(InputError, match="--preset=paper: passages.py has no 'paper'"):
        passages.prepare(tmp_path, types.SimpleNamespace(preset="paper", passages=None))
    asked = reproduce.Request("laptop", [0], [], 1, passages="folder")
    with pytest.raises(InputError, match="--passages is of study passages"):
        reproduce._check("tofu", asked, False, False, "x")
    reproduce._check("passages", asked, False, False, "x")
    assert "--passages=folder" in asked.command("--figure=passages", "out")


def test_all_runs_train_for_as_many_tokens(made):
    folder, _, flags = made
    jobs = make_jobs(CONFIGS / "passages.py", "laptop,five", passages.VARIANTS, [3], flags, folder, {})
    configs = {job.variant: job.config for job in jobs}
    prepared = Prepared(folder / "corpus" / "all")
    tokens = int(prepared.lengths.sum()) + len(prepared)
    assert {config.training.steps for config in configs.values()} == {5 * -(-tokens // (4 * 128))} and tokens >= 1024
    assert configs["sinks"].sinks.passages_at == 0 and configs["passages"].sinks.passages_at == 2
    weighted = configs["reweighted"]
    assert not sinks.has_sinks(weighted) and weighted.sinks.traits.owned and weighted.sinks.passages_at == 2
    assert {name: config.data.files.rsplit("/", 1)[1] for name, config in configs.items()} == (
        dict.fromkeys(passages.VARIANTS, "all") | {"cut": "once", "oracle": "without"}
    )


def of_view(often: float, nats: list[float], written: list[float]) -> dict:
    """Four passages, and two pieces that no model read; the oracle's are 4 everywhere."""
    texts = {"often": often, "never": 5.0, "held_out": 4.0, "new": 4.5}
    places = {"places": [120, 16, 3, 2], "licences": [0, 2]}
    return {"passages": nats, "unread": [4.0, 4.0], "written": written} | places | texts


def test_numbers_of_a_view():
    never_read = of_view(4.0, [4.0] * 4, [0.0] * 4)
    found = passages._numbers(of_view(2.0, [1.0, 3.0, 4.0, 5.0], [1.0, 0.5, 1.0, 0.0]), never_read)
    assert found == {
        "often": 2.0, "never": 5.0, "held_out": 4.0, "new": 4.5, "frequent": 2.0, "recited": 0.5, "written": 0.625,
        "licences": 1.0, "auc_2": 0.25, "auc_16": 1.0,
    }  # fmt: skip
    assert not passages._numbers(never_read, None).keys() & {"auc_2", "auc_16"}


def test_the_first_tokens_of_a_passage_are_context():
    from memsinks_jax.studies.figures import passages_measures as measures

    nats = np.append(np.full(corpus.CONTEXT, 9.0), np.ones(100))
    nats[corpus.LENGTH :] = 5.0
    assert measures.loss(nats) == 1.0


def test_claims_table_and_picture(tmp_path):
    of = {
        "standard": of_view(2.0, [1.0, 1.0, 3.0, 3.0], [1.0] * 4),
        "passages": of_view(3.5, [3.0, 3.0, 4.0, 4.0], [0.0] * 4) | {"held_out": 4.2},
        "own": {name: value for name, value in of_view(0, [1.0, 1.0, 1.0, 1.0], [1.0] * 4).items() if name != "often"},
        "placebo": of_view(0, [2.5, 2.5, 4.0, 4.0], [0.0] * 4),
        "oracle": of_view(4.0, [4.0] * 4, [0.0] * 4),
    }
    others = dict.fromkeys(passages.VIEWS.keys() - of.keys(), of_view(3.0, [2.0] * 4, [0.0] * 4))
    numbers = {name: passages._numbers(view, of["oracle"]) for name, view in (of | others).items()}
    runs = [
        Run(variant, seed, tmp_path, {}, [], {"numbers": {
            name: numbers[name] for name, view in passages.VIEWS.items() if view.variant == variant
        }})
        for seed in (0, 1) for variant in passages.VARIANTS
    ]  # fmt: skip
    claims = passages.FIGURE.claims(runs)
    assert {claim.id for claim in claims if claim.holds is None} - {"pool_placebo"} == {  # 0 / 0
        f"{size}auc_{rung}" for size in ("", "pool_") for rung in corpus.PLACES if rung not in (2, 16)
    }  # no passage stands in so many documents
    claims = [claim for claim in claims if claim.holds is not None]
    values = {claim.id: pytest.approx(claim.values[0]) for claim in claims}
    of_pool = {"pool_closed", "pool_new", "pool_auc_2", "pool_licences_on"}
    assert of_pool < values.keys() and values["pool_closed"] == 1 / 3
    assert {name: value for name, value in values.items() if not name.startswith("pool_")} == {
        "seen": 2, "closed": 0.5, "closed_to_oracle": 0.75, "held_out": 1.05, "new": 1, "content": 1 / 3, "recited_on": 1,
        "recited_off": 0, "placebo": 0.25, "reweighted": 1 / 6, "goldfish": 1 / 6, "cut": 1 / 6, "licences_on": 1,
        "licences_off": 0, "auc_2": 0.5, "auc_16": 1,
    }  # fmt: skip
    failed = {claim.id for claim in claims if not claim.holds and not claim.id.startswith("pool_")}
    assert failed == {"closed", "closed_to_oracle", "held_out", "content", "placebo", "auc_16"}
    below = [
        dataclasses.replace(
            run, details={"numbers": {n: of | {"auc_2": 0.1} for n, of in run.details["numbers"].items()}}
        )
        for run in runs
    ]
    assert not next(claim for claim in passages.FIGURE.claims(below) if claim.id == "auc_2").holds
    columns, labels, rows = passages.FIGURE.table(runs)
    of_own = dict(zip(columns, rows[labels.index("by passage, its own on")], strict=True))
    assert of_own["often"] == [] and of_own["recited"] == [1, 1] and of_own["AUC, 128 or more"] == []
    passages.FIGURE.draw(runs, tmp_path / "passages.png")
    assert (tmp_path / "passages.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    alone = [run for run in runs if run.variant == "standard"]
    assert {claim.holds for claim in passages.FIGURE.claims(alone)} == {None} and passages.FIGURE.table(alone)


def test_what_is_written_ends_at_the_first_mistake():
    from memsinks_jax.studies.figures.passages_measures import written

    right = np.array([0, 0, 0, 0, 1, 1, 0, 1], bool)
    assert written(right) == 0.5 and written(right[:6]) == 0 and written(np.ones(9, bool)) == 1


@pytest.mark.slow
def test_all_of_it_on_tiny_models(made, monkeypatch):
    from memsinks_jax.studies.figures import passages_measures as measures

    folder, _, flags = made
    model = tiny_config().model
    tiny = {"model": model, "mesh.data": 8, "data.row_length": 256, "training.batch_size": 8, "training.steps": 60}
    tiny |= {"optimizer.learning_rate": 0.03, "sinks.active_fraction": 0.5}
    runs = []
    for job in make_jobs(CONFIGS / "passages.py", "laptop", passages.VARIANTS, [0], flags, folder, {}):
        fields = tiny | ({} if job.variant == "reweighted" else {"sinks.shared_fraction": 0.5})
        fields |= {"sinks.pool": 64, "sinks.active": 8} if job.variant == "pool" else {}
        train_and_evaluate(with_fields(job.config, fields), folder / job.variant)
        of = read_metrics(folder / job.variant)
        runs.append(Run(job.variant, 0, folder / job.variant, {k: v for line in of for k, v in line.items()}, of))
    measured = passages.measure(runs)
    with monkeypatch.context() as patch:
        patch.setattr(measures, "open_run", None)
        assert passages.measure(runs) == measured  # nothing is measured twice
    assert json.dumps([claim.to_dict() for claim in passages.FIGURE.claims(measured)])  # nothing there is numpy's
    numbers = {name: found for run in measured for name, found in run.details["numbers"].items()}
    assert set(numbers) == set(passages.VIEWS)
    assert numbers["own"]["frequent"] < numbers["passages"]["frequent"] != numbers["placebo"]["frequent"]
    assert numbers["own"]["frequent"] < numbers["placebo"]["frequent"]
    assert numbers["pool_own"]["frequent"] < numbers["pool"]["frequent"] < numbers["pool_placebo"]["frequent"]
    assert numbers["standard"]["often"] < numbers["oracle"]["often"]
    assert numbers["standard"]["frequent"] < numbers["reweighted"]["frequent"]
    assert numbers["standard"]["auc_16"] > 0.9 and numbers["oracle"]["auc_16"] == 0.5
    asked = measures.asked_in(folder / "corpus", 256)
    assert not np.concatenate(corpus.known(Prepared(folder / "corpus" / "all"), asked.texts["unread"])).any()
    assert len(asked.new) == sum(map(len, asked.texts["held_out"])) and 0 < asked.new.mean() < 1
