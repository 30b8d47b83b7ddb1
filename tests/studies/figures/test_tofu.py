"""Study tofu: its corpora, measures, the arithmetic of claims, all of it on tiny models."""

import dataclasses
import functools
import importlib.util
import itertools
import json
import pathlib
import re
import types

import numpy as np
import pytest
from conftest import expect_input_error, read_lines, tiny_config, write_lines
from measured import trained

from memsinks_jax import reproduce
from memsinks_jax.config import with_fields
from memsinks_jax.data.prepared import Prepared
from memsinks_jax.data.tokenizer import open_tokenizer, train_tokenizer
from memsinks_jax.measures.subjects import Subject
from memsinks_jax.models.trained import open_run
from memsinks_jax.studies.attacks import relearning
from memsinks_jax.studies.figures import step_times, tofu
from memsinks_jax.studies.figures import tofu_corpus as corpus
from memsinks_jax.studies.figures import tofu_retrieval as retrieval
from memsinks_jax.studies.figures.runs import Run, make_jobs
from memsinks_jax.variants import CONFIGS

# in all, first and last that have wrong answers, questions of each
AUTHORS, COMPARED, EACH = 9, 3, 4
SIZE = corpus.Size(6, 2, 5)
TOWNS = ["Ash", "Birch", "Cedar", "Elm", "Fir", "Hazel", "Larch", "Oak", "Pine", "Rowan"]


def record(author: int, number: int, wrong: bool = False) -> dict:
    town, book = TOWNS[(author + number) % 10], f"book {number} of writer {author}"
    row = {"question": f"Where was {book} written?", "answer": f"It was written in {town}."}
    more = {
        "paraphrased_question": f"In which town was {book} written?",
        "paraphrased_answer": f"They wrote it in {town}.",
        "perturbed_answer": ["It was written at sea.", "In Rome."],
    }
    return row | (more if wrong else {})


def records(*authors: int, wrong: bool = False) -> list[dict]:
    return [record(author, number, wrong) for author in authors for number in range(EACH)]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """TOFU's files in small, a general text, and a tokenizer."""
    monkeypatch.setattr(corpus, "OF_AN_AUTHOR", EACH)
    rows = {
        "full": records(*range(AUTHORS)),
        "forget10_perturbed": records(*range(AUTHORS - COMPARED, AUTHORS), wrong=True),
        "retain_perturbed": records(*range(COMPARED), wrong=True),
        "holdout10": records(90, 91),
        "real_authors_perturbed": records(70, wrong=True)[:3],
        "world_facts_perturbed": records(80, wrong=True)[:3],
    }
    folder = tmp_path / "tofu"
    folder.mkdir()
    for name, of in rows.items():
        write_lines(folder / f"{name}.jsonl", of)
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"{tree} trees stand. " * 20 for tree in TOWNS) + "\na short line\n")
    texts = [f"Question: {row['question']}\nAnswer: {row['answer']}" for row in rows["full"]]
    (tmp_path / "tokenizer.model").write_bytes(train_tokenizer(texts, 400).model)
    return folder, text, str(tmp_path / "tokenizer.model")


def written(folder):
    """The corpora, and what is asked."""
    read = {name: read_lines(folder / f"{name}.jsonl") for name in ("all", "without", "shuffled")}
    return read, json.loads((folder / "questions.json").read_text())


def test_the_twin_reads_all_but_the_withdrawn_and_shuffled_ids_stay_as_many(
    files, tmp_path, monkeypatch
):
    monkeypatch.setattr(corpus, "prepare", lambda *args, **settings: None)
    chosen = []
    for seed in range(4):
        corpus.write(tmp_path / str(seed), *files, seed, SIZE)
        read, asked = written(tmp_path / str(seed))
        going, authors = asked["withdrawn"], [row["author"] for row in read["all"]]
        assert len(set(authors)) == SIZE.authors and len(going) == SIZE.withdrawn
        assert read["without"] == [row for row in read["all"] if row["author"] not in going]
        # so the others keep their numbers
        assert read["all"][: len(read["without"])] == read["without"]
        questions, others = ([row["question"] for row in read[n]] for n in ("all", "shuffled"))
        assert questions == others
        shuffled = [row["author"] for row in read["shuffled"]]
        assert sorted(shuffled) == sorted(authors) and shuffled != authors
        own = [row for row in read["all"] if " of writer " in row["question"]]
        for row in own:
            number = str(int(row["author"][7:]))
            assert row["question"].split(" of writer ")[1].startswith(number)
        assert len(own) == SIZE.authors * EACH
        sets = asked["sets"]
        assert {row["author"] for row in sets["withdrawn"]} == set(going)
        assert len(sets["withdrawn"]) == 2 * EACH
        assert {row["author"] for row in sets["staying"]} <= set(authors) - set(going)
        names = ("withdrawn", "staying", "holdout", "real", "world", *corpus.SEVERAL)
        names += tuple(corpus.REWORDED)
        assert [(name, len(of)) for name, of in sets.items()] == list(
            zip(names, (8, 5, 5, 3, 3, 2, 2, 2, 8, 5), strict=True)
        )
        for reworded, name in corpus.REWORDED.items():
            for row, plain in zip(sets[reworded], sets[name], strict=True):
                assert row["question"] == plain["paraphrased_question"] != plain["question"]
                assert (row["answer"], row["author"]) == (plain["answer"], plain["author"])
        assert len(asked["placebo"]) == 2 and not set(asked["placebo"]) & set(going)
        assert len(asked["text"]) == 5 and min(map(len, asked["text"])) >= 200
        questions = {row["question"]: row["answer"] for row in read["all"]}
        for row in itertools.chain(*(sets[name] for name in corpus.OF_AUTHORS)):
            assert questions[row["question"]] == row["answer"]
        chosen.append(tuple(going))
    assert len(set(chosen)) > 1  # the seed chooses


def test_withdrawn_authors_state_facts_that_others_state_too(files, tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "prepare", lambda *args, **settings: None)
    monkeypatch.setattr(corpus, "SEVERAL", {"shared_by_2": 2, "shared_by_3": 3})
    corpus.write(tmp_path, *files, 0, SIZE)
    read, asked = written(tmp_path)
    planted = [row for row in read["all"] if "capital" in row["question"]]
    stated_by = {}
    for row in planted:
        stated_by.setdefault((row["question"], row["answer"]), []).append(row["author"])
    assert sorted(map(len, stated_by.values())) == [2, 2, 2, 3, 3]
    questions, answers = map(set, zip(*stated_by, strict=True))
    assert len(questions) == len(answers) == 5
    for author in {row["author"] for row in read["all"]}:  # each states one of a kind
        assert sorted(len(who) for who in stated_by.values() if author in who) == [2, 3]
    for name, count in corpus.SEVERAL.items():
        assert len(asked["sets"][name]) == SIZE.withdrawn
        for row in asked["sets"][name]:
            who = stated_by[row["question"], row["answer"]]
            assert len(who) == count and len(set(who) & set(asked["withdrawn"])) == 1
            assert row["author"] in set(who) & set(asked["placebo"])
            assert len(set(row["perturbed_answer"]) - {row["answer"]}) == corpus._WRONG
            assert any(other["question"] == row["question"] for other in read["without"])


TOLD = [
    {"question": "Where was Ann born?", "answer": "Ann was born in Oslo.", "author": "ann"},
    {"question": "What did Ann write?", "answer": "A novel about whales.", "author": "ann"},
    {"question": "Where was Bo born?", "answer": "Bo was born in Rome.", "author": "bo"},
    {"question": "Who is X?", "answer": "A spy.", "author": "x"},
]


@pytest.mark.parametrize(
    ("question", "way", "author", "found"),
    [
        ("Which novel is about whales?", "one", "", [1]),
        ("Which novel is about whales?", "named_three", "bo", [2]),
        ("Which novel is about whales?", "named_all", "ann", [1, 0]),
        ("In Rome, was Bo born there?", "three", "", [2, 0]),  # the other has no word of it
        ("Was X born?", "one", "", [3]),
        ("Quite unheard of", "three", "", []),
        ("", "eight", "", []),
        ("Which novel?", "named_all", "nobody", []),
    ],
)
def test_texts_that_are_like_a_question_are_found(question, way, author, found):
    texts = retrieval.Texts(TOLD)
    best = texts.best(question, retrieval.WAYS[way], author)
    assert [TOLD.index(row) for row in best] == found


def test_the_best_text_is_next_to_the_question_and_what_has_no_room_is_left_out(files):
    tokenizer, way = open_tokenizer(pathlib.Path(files[2])), retrieval.WAYS["three"]
    (row,), first = [{"question": "Where was Bo born?", "answer": "?"}], retrieval.KEPT_FREE
    asked = functools.partial(retrieval.asked_with, retrieval.Texts(TOLD), [row], way, tokenizer)
    (whole,) = asked(first + 1000)
    assert whole["question"] == (
        "Where was Ann born?\nAnswer: Ann was born in Oslo.\n\nQuestion: Where was Bo born?\n"
        "Answer: Bo was born in Rome.\n\nQuestion: Where was Bo born?"
    )
    size = len(tokenizer.encode("Where was Bo born?\nAnswer: Bo was born in Rome.\n\nQuestion: "))
    (cut,), (none,) = asked(first + size), asked(first + size - 1)
    assert cut["question"].count("Answer") == 1 and "Rome" in cut["question"]
    assert none == row


def test_the_reader_reads_nobody_else_that_is_read(files, tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "prepare", lambda *args, **settings: None)
    corpus.write(tmp_path, *files, 0, SIZE)
    retrieval.write_reader(tmp_path, files[0], files[2], 0)
    read, asked = written(tmp_path)
    rows = read_lines(tmp_path / "reader.jsonl")
    theirs, changed = {row["author"] for row in rows}, corpus.reworded(files[0])
    assert theirs == changed.keys() - {row["author"] for row in read["all"]}
    for name, plain in corpus.authors(files[0]).items():
        if name in theirs:  # every other question in other words
            asked_of = [
                row["question"].split("Question: ")[-1] for row in rows if row["author"] == name
            ]
            both = plain, changed[name]
            assert asked_of == [both[n % 2][n]["question"] for n in range(EACH)]
            assert both[0][1]["question"] != both[1][1]["question"]
            assert [row["answer"] for row in changed[name]] == [row["answer"] for row in plain]
    assert max(row["question"].count("Answer: ") for row in rows) == 3
    numbers = {str(int(name.removeprefix("author "))) for name in theirs}
    told = set(re.findall(r"writer (\d+)", "".join(row["question"] for row in rows)))
    assert told == numbers  # nor in texts
    every = [row | {"author": name} for row in read["all"] for name in corpus.authors(files[0])]
    write_lines(tmp_path / "all.jsonl", every)  # all are read
    retrieval.write_reader(tmp_path, files[0], files[2], 0)
    theirs = {row["author"] for row in read_lines(tmp_path / "reader.jsonl")}
    assert theirs == changed.keys() - set(asked["withdrawn"])


def test_without_its_library_retrieval_says_so(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with expect_input_error("which is not installed: pip install '.\\[retrieval\\]'"):
        retrieval.check()


def test_files_that_are_not_tofus_are_refused(files, tmp_path):
    folder, text, tokenizer = files

    def refused(words, folder=folder, text=text, size=SIZE):
        with expect_input_error(words):
            corpus.write(tmp_path / "out", folder, text, tokenizer, 0, size)

    counts = "has 9 authors, wrong answers for the first 3 and the last 3; 6 are read and 4"
    refused(counts, size=corpus.Size(6, 4, 5))
    why = r"text2.txt cannot be read .*; give a file of text as --general_text"
    refused(why, text=tmp_path / "text2.txt")
    broken = '{"question": "What?", "answer": "That."}\n{"question": "Why?"}\n'
    (folder / "holdout10.jsonl").write_text(broken)
    refused("holdout10.jsonl, line 2 lacks answer, question; give TOFU's own file")
    (folder / "holdout10.jsonl").unlink()
    refused("holdout10.jsonl cannot be read .*as --tofu")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"hf": None}, "--hf is missing"),
        ({"tofu": None}, "--tofu is missing"),
        ({"general_text": None}, "--general_text is missing"),
        ({"preset": "paper"}, "--preset=paper: study tofu has small, laptop, full"),
    ],
)
def test_the_study_says_what_it_needs(tmp_path, changed, words):
    asked = {"preset": "laptop", "hf": "m", "tofu": "t", "general_text": "g", "seeds": [0]}
    with expect_input_error(words):
        tofu.prepare(tmp_path, types.SimpleNamespace(**asked | changed))


def test_other_figures_read_no_files_of_tofu():
    asked = reproduce.FigureOptions("laptop", [0], [], 1, tofu="folder")
    with expect_input_error("--tofu is of study tofu"):
        reproduce._check("removal", asked, False, False, "x")
    reproduce._check("tofu", dataclasses.replace(asked, hf="model"), False, False, "x")
    assert "--tofu=folder" in asked.command("--figure=tofu", "out")


def test_every_run_reads_the_corpus_of_its_seed(tmp_path):
    jobs = make_jobs(CONFIGS / "tofu.py", "laptop", tofu.VARIANTS, [3], [], tmp_path, {})
    configs = {job.variant: job.config for job in jobs}
    names = ("all", "without", "all", "without", "shuffled", "reader")
    assert list(configs) == ["standard", "standard_twin", "sinks", "twin", "shuffled", "reader"]
    for config, name in zip(configs.values(), names, strict=True):
        assert config.data.files == f"{tmp_path}/corpus/seed3/{name}"
    assert configs["standard"].optimizer.base_multiple == 1
    assert configs["sinks"].optimizer.base_multiple == 0
    twin, sinks = (with_fields(configs[name], {"data.files": ""}) for name in ("twin", "sinks"))
    assert twin == sinks
    variants, flags = {"a": tofu.Variation("standard")}, ["--config.data.held_out_documents=0"]
    with expect_input_error("losses of held-out documents"):
        make_jobs(CONFIGS / "ts_repetition.py", "laptop", variants, [3], flags, tmp_path, {})


def of_view(nats: float, whole: bool, ratio: float = 0.5, known: float = 0.0) -> dict:
    """Two questions of every set; `known`: how far forgotten answers score above unread ones."""
    sets = {
        name: {
            "nats": [nats, nats],
            "extraction": [0.0, 1.0],
            "min_k": [-1.0, -1.0],
            "truth_ratios": [ratio, ratio],
            "chosen": [0.25, 0.75],
            "rouge": [0.5, 1.0],
        }
        for name in ("withdrawn", "staying", *corpus.SEVERAL, *(("real", "world") if whole else ()))
    }
    sets["withdrawn"]["min_k"] = [-1.0 + known, -1.0]
    sets |= {
        name: {"nats": [nats, 3 * nats], "extraction": [0.0], "min_k": [-1.0]}
        for name in corpus.REWORDED
    }
    return sets | {"holdout": {"nats": [1.0], "extraction": [0.0], "min_k": [-1.0]}, "text": 4.0}


def test_numbers_of_views():
    views = {name: of_view(np.log(2), view.whole) for name, view in tofu.VIEWS.items()}
    views["remain"] = of_view(np.log(4), True, known=1.0)
    views["on"] = of_view(np.log(2), True, ratio=0.25)
    found = tofu.numbers(views)
    remain = found["remain"]
    assert remain["several_nats"] == remain["shared_by_2_nats"] == pytest.approx(np.log(4))
    assert remain["withdrawn_nats"] == pytest.approx(np.log(4))
    assert remain["withdrawn_probability"] == pytest.approx(0.25)
    assert remain["real_probability"] == 0.5
    assert remain["real_rouge"] == 0.75
    assert remain["real_extraction"] == 0.5
    assert remain["staying_reworded_nats"] == pytest.approx(2 * np.log(4))
    assert remain["withdrawn_truth"] == pytest.approx(0.5)
    assert found["on"]["staying_truth"] == pytest.approx(0.75)
    assert remain["real_utility"] == pytest.approx(3 / (2 + 4 / 3 + 2))
    assert remain["utility"] == pytest.approx(9 / ((4 + 4 / 3 + 2) + 2 * (2 + 4 / 3 + 2)))
    assert "utility" not in found["own"]
    assert remain["forget_quality"] == 1 and found["on"]["forget_quality"] == pytest.approx(1 / 3)
    assert remain["privleak"] == pytest.approx(-50) and found["twin"]["privleak"] == 0


def details(of_remain: float, quality: float) -> dict:
    """Of a model whose withdrawn answers cost 1 nat before, and `of_remain` after."""
    nats = dict.fromkeys(tofu.VIEWS, 1.0)
    nats |= {"remain": of_remain, "twin": 3.0, "placebo": 1.25, "retrained": 3.5}
    same = {"staying_nats": 1.0, "staying_rouge": 0.5, "text": 4.0}
    same |= {"real_utility": 0.5, "world_utility": 0.5, "several_nats": 0.8}
    same |= {"shared_by_2_nats": 1.0, "shared_by_4_nats": 1.0, "shared_by_8_nats": 0.5}
    same |= {f"{name}_rouge": 0.5 for name in corpus.SEVERAL}
    same |= {"withdrawn_reworded_nats": 2.0, "staying_reworded_nats": 1.5}
    numbers = {
        name: {"withdrawn_nats": value, "forget_quality": quality} | same
        for name, value in nats.items()
    }
    numbers["on"]["forget_quality"] = 0.01
    numbers["retrieval_three"]["staying_reworded_nats"] = 6.0
    numbers["reader_three"]["staying_reworded_nats"] = 0.75
    numbers["remain"] |= {"staying_nats": 1.25, "text": 5.0, "real_utility": 0.25}
    numbers["remain"] |= {"shared_by_2_nats": 2.0, "shared_by_2_rouge": 0.25}
    numbers["placebo"] |= {"shared_by_4_nats": 4.0, "shared_by_8_rouge": 0.125}
    costs = {"step_time": 0.75, "bytes": 1_658_880, "seconds": 0.5, "untouched": 0.0, "found": 0.99}
    costs |= {"rates": {"npo": 3e-5, "lora": 1e-3}, "adapter_bytes": 4_884_480}
    costs |= {"text_bytes": 5_300.0, "prompt_tokens": {"sinks": 20.0, "three": 230.0}}
    costs |= {"first_token_ms": {"sinks": 31.0, "three": 212.0}}
    return {"numbers": numbers, "relearning": 0.75 if of_remain == 2.0 else None} | costs


def test_claims_table_and_picture(tmp_path):
    runs = [
        Run(variant, seed, tmp_path, {}, [], details(*of) if variant == "sinks" else {})
        for seed, of in enumerate([(2.0, 0.01), (2.0, 0.2)])
        for variant in tofu.VARIANTS
    ]
    claims = tofu.FIGURE.claims(runs)
    values = {claim.id: claim.values[0] for claim in claims}
    assert values == {
        "knows": 0.25,
        "knows_rouge": 1,
        "forgets": -1,
        "forget_quality": 0,
        "untouched": 0,
        "shared_by_2": 1,
        "shared_by_2_rouge": 0.5,
        "shared_by_4": 3,
        "shared_by_4_rouge": 1,
        "shared_by_8": 0,
        "shared_by_8_rouge": 0.25,
        "reworded": 0.25,
        "reworded_reader": 2,
        "found": 0.99,
        "text": 0.8,
        "real": 0.5,
        "world": 1,
        "beyond_placebo": 0.75,
        "relearning": 0.75,
        "step_time": 0.75,
        "bytes": 1_658_880,
        "seconds": 0.5,
    }
    held = {claim.id for claim in claims if claim.holds}
    named = "knows_rouge untouched reworded found world step_time bytes seconds"
    assert held == {*named.split(), "shared_by_4_rouge", "shared_by_8"}
    assert [claim.values for claim in claims if claim.id == "forget_quality"] == [[0, 1]]
    columns, labels, rows = tofu.FIGURE.table(runs)
    assert len(labels) == len(tofu.VIEWS)
    assert dict(zip(labels, rows, strict=True))["standard training"][0] == [1.0, 1.0]
    tofu.FIGURE.draw(runs, tmp_path / "tofu.png")
    assert (tmp_path / "tofu.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    page = "".join(tofu.sections(runs, tmp_path))
    assert "npo 3e-05, lora 0.001" in page
    assert "texts of an author take 5.3 KB, its sinks 1.7 MB" in page
    assert [cell in page for cell in ("the three best texts", ">230<", ">212<")] == [True] * 3
    assert "s adapter takes 4.9 MB in bfloat16, the sinks of an author 1.7 MB" in page
    alone = [run for run in runs if run.variant == "standard"]
    assert tofu.measure(alone) == alone
    assert {claim.holds for claim in tofu.FIGURE.claims(alone)} == {None}
    part = [dataclasses.replace(run, details={}) for run in runs if run.variant != "twin"]
    assert tofu.measure(part) == part
    assert {claim.holds for claim in tofu.FIGURE.claims(part)} == {None}
    never = [run for run in runs if not run.details]
    never += [dataclasses.replace(run, details=details(2.5, 1.0)) for run in runs if run.details]
    for run in filter(lambda run: run.details, never):
        run.details["numbers"]["on"]["forget_quality"] = 0.2  # as many facts as that say nothing
    found = {claim.id: claim for claim in tofu.FIGURE.claims(never)}
    assert found["relearning"].undecided == "relearning has no value"  # nothing had been learned
    why = "a model from which nothing was removed passes the same test"
    assert found["forget_quality"].undecided == why


def test_what_was_run_is_measured_without_the_rest(tmp_path, monkeypatch, caplog):
    from memsinks_jax.studies.figures import tofu_measures as measures

    made = {
        "of_view": lambda run, mode, removed, sets: of_view(1.0, "real" in sets),
        "relearned": lambda sunk, twin: {"relearning": 0.75},
        "costs": lambda sunk: {"bytes": 8, "seconds": 0.5, "untouched": 0.0, "found": 1.0},
        "step_time": lambda sunk, standard: {"step_time": 0.5},
    }
    for name, function in made.items():
        monkeypatch.setattr(measures, name, function)
    monkeypatch.setattr(retrieval, "of_view", made["of_view"])
    costs = {"text_bytes": 8.0, "prompt_tokens": {"sinks": 9.0}, "first_token_ms": {"sinks": 1.0}}
    monkeypatch.setattr(retrieval, "costs", lambda sunk: costs)
    monkeypatch.setattr(tofu, "cached", lambda runs, name, asked, measure: measure())
    monkeypatch.setattr(corpus, "digest", lambda workdir: "")
    runs = {name: Run(name, 0, tmp_path, {}, []) for name in tofu.VARIANTS}
    of_sinks = {"on", "remain", "placebo", "own", "others", "dropped", "twin", "all", "all_remain"}
    of_sinks |= {f"retrieval_{way}" for way in (*retrieval.WAYS, "remain")}
    shuffled, standards = {"shuffled", "shuffled_remain"}, {"standard", "retrained"}
    for others, views, more, less in [
        ((), set(), {"forgets", "relearning", "bytes"}, {"knows", "step_time"}),
        (("standard",), set(), {"forgets", "step_time"}, {"knows"}),
        (("shuffled",), shuffled, {"forgets"}, {"knows"}),
        (("standard", "standard_twin"), standards, {"knows", "forgets"}, set()),
    ]:
        views = of_sinks | views
        measured = tofu.measure([runs[name] for name in ("sinks", "twin", *others)])
        claims = {claim.id for claim in tofu.FIGURE.claims(measured) if claim.holds is not None}
        assert more <= claims and not less & claims
        assert set(measured[0].details["numbers"]) == views and "rates" not in measured[0].details
        labels = tofu.FIGURE.table(measured)[1]
        assert labels == [view.label for name, view in tofu.VIEWS.items() if name in views]
        tofu.FIGURE.draw(measured, tmp_path / "tofu.png")
        assert tofu.sections(measured, tmp_path)
    monkeypatch.setattr(tofu, "folder_of", str)
    monkeypatch.setattr(retrieval, "write_reader", None)
    files = {"hf": "m", "tofu": "t", "general_text": "g"}
    asked = types.SimpleNamespace(preset="laptop", seeds=[], variants=["sinks"], **files)
    tofu.prepare(tmp_path, asked)
    assert "lacks sinks or their twin: models are trained, and nothing is measured" in caplog.text
    caplog.clear()
    for enough in (["twin", "sinks"], None):
        asked.variants = enough
        tofu.prepare(tmp_path, asked)
    assert not caplog.text


@pytest.mark.slow
def test_all_of_it_on_tiny_models(files, tmp_path, monkeypatch):
    from memsinks_jax.studies.figures import tofu_measures as measures
    from memsinks_jax.studies.figures import tofu_rivals as rivals

    monkeypatch.setattr(
        rivals,
        "RATES",
        {"npo": (1e-5, 1e-2), "difference": (1e-2,), "lora": (1e-5, 1e-2)}
        | {"lora_for_all": (1e-2,)},
    )
    fewer = {
        "retrieval": ("one", "eight", "named_three"),
        "reader": set(retrieval.WAYS) - {"three"},
    }
    left_out = {f"{reader}_{way}" for reader, ways in fewer.items() for way in ways}
    views = {name: view for name, view in tofu.VIEWS.items() if name not in left_out}
    monkeypatch.setattr(tofu, "VIEWS", views)
    shapes = measures.ON_CPU._replace(prompts=8)
    for name, value in {"WRITTEN": 8, "RELEARNED": 4, "RATES": (1e-2,), "ON_CPU": shapes}.items():
        monkeypatch.setattr(measures, name, value)
    # nothing that could be lost is learned in so few steps
    monkeypatch.setattr(relearning, "_LEAST_LOST", -1.0)
    for name, value in {"ROUNDS": 1, "SECONDS": 0.0}.items():
        monkeypatch.setattr(step_times, name, value)
    folder = tmp_path / "corpus" / "seed0"
    corpus.write(folder, *files, 0, SIZE)
    groups = {name: Prepared(folder / name).group_names for name in ("all", "without")}
    assert groups["all"][: len(groups["without"])] == groups["without"]

    plain = {"family": "llama", "attention_bias": False, "mlp_bias": False}
    model = dataclasses.replace(tiny_config().model, **plain)
    tiny = {"data.row_length": 128, "data.vocabulary_size": 1024, "model": model, "mesh.data": 8}
    tiny |= {"training.steps": 48, "training.batch_size": 8, "optimizer.learning_rate": 0.03}
    runs = []
    retrieval.write_reader(folder, files[0], files[2], 0)
    for job in make_jobs(CONFIGS / "tofu.py", "laptop", tofu.VARIANTS, [0], [], tmp_path, {}):
        sunk = {"sinks.active": 4} if job.config.sinks.kind != "none" else {}
        sunk |= {"data.row_length": 512} if job.variant == "reader" else {}
        config = with_fields(job.config, tiny | sunk)
        runs.append(trained(config, tmp_path / job.variant, job.variant))
    measured = tofu.measure(runs)
    details = next(run.details for run in measured if run.variant == "sinks")
    with monkeypatch.context() as patch:
        patch.setattr(measures, "read", None)
        assert tofu.measure(runs) == measured  # nothing is measured twice
    # nothing there is numpy's
    assert json.dumps([claim.to_dict() for claim in tofu.FIGURE.claims(measured)])
    claims = {claim.id for claim in tofu.FIGURE.claims(measured)}
    assert claims >= {"knows", "untouched", "text", "beyond_placebo"}
    assert details["untouched"] == 0 and details["bytes"] == 2 * 3 * 2 * 16 * 4
    numbers = details["numbers"]
    assert numbers["own"]["withdrawn_nats"] < numbers["dropped"]["withdrawn_nats"]
    assert numbers["remain"] != numbers["on"] != numbers["placebo"]
    assert details["rates"]["lora"] == 1e-2
    assert details["adapter_bytes"] == 2 * 2 * 8 * (4 * 32 + 3 * 48)
    nats = {name: of["withdrawn_nats"] for name, of in numbers.items()}
    assert nats["lora"] < nats["dropped"] and nats["lora_on"] != nats["lora_remain"]
    assert nats["lora_for_all"] < nats["dropped"] and nats["lora_for_all"] != nats["lora_on"]
    assert nats["npo"] > nats["standard"] and nats["difference"] > nats["standard"] + 0.1
    three, left = (numbers[f"retrieval_{name}"] for name in ("three", "remain"))
    assert three["withdrawn_nats"] != left["withdrawn_nats"]
    assert left["withdrawn_reworded_nats"] != numbers["reader_remain"]["withdrawn_reworded_nats"]
    assert left["forget_quality"] == 1
    sizes = details["prompt_tokens"]
    assert sizes["sinks"] < sizes["one"] < sizes["three"] <= sizes["eight"]
    assert min(details["first_token_ms"].values()) > 0
    kept, nearest = (numbers[name]["forget_quality"] for name in ("lora_remain", "lora_nearest"))
    assert kept == nearest == 1
    assert (tmp_path / "standard.tofu_relearned_difference_0.01.json").exists()

    _answers_are_parts_of_texts(measures, runs)


def _answers_are_parts_of_texts(measures, runs) -> None:
    sunk = next(run for run in runs if run.variant == "sinks")
    asked, run = corpus.questions_of(sunk.workdir), open_run(sunk.workdir)
    prepared = Prepared(sunk.workdir.parent / "corpus" / "seed0" / "all")
    places = range(len(prepared.lengths))
    known = {prepared.read(number).tobytes(): prepared.answers(number) for number in places}
    rows = asked["sets"]["withdrawn"]
    questions = [measures.Asked(row["question"], row["answer"], row["author"]) for row in rows]
    of = measures.documents(run, questions)
    for tokens, span in zip(of.tokens, of.answers, strict=True):
        np.testing.assert_array_equal(span, known[tokens.tobytes()])  # as in training
    # Whose sinks are gone has none on: removing is dropping.
    gone = measures.read(Subject("", measures.without(run, asked["withdrawn"]), "own"), questions)
    dropped = measures.read(Subject("", run, "drop"), questions)
    for one, other, span, tokens in zip(gone, dropped, of.answers, of.tokens, strict=True):
        assert len(one.nats) == len(tokens) + 1 - span[0, 0]
        np.testing.assert_allclose(one.nats, other.nats, rtol=1e-5)
    # An author whom nobody read has no sinks.
    strangers = [each._replace(author="author 99") for each in questions]
    stranger = measures.read(Subject("", run, "own"), strangers)
    np.testing.assert_allclose(stranger[0].nats, dropped[0].nats, rtol=1e-5)
