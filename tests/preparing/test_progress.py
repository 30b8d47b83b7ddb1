"""Progress of preparing a corpus: the share of all stages, documents per second, and the time
left.
"""

import io
import json
import logging
import re
import sys
import types

import pytest

from memsinks_jax.data.embedded import stories
from memsinks_jax.data.tokenizer import train_tokenizer
from memsinks_jax.preparing import stages
from memsinks_jax.preparing.prepare import prepare

STORIES = [stories.story(1, index).text for index in range(60)]
STAGES = [
    "tokenising",
    "near-duplicates",
    "clusters",
    "n-grams of repeated text",
    "repeated text",
    "contexts",
    "contexts with sinks",
    "putting together",
]


@pytest.fixture
def arguments(tmp_path):
    rows = [json.dumps({"text": f"{number} {STORIES[number % 60]}"}) for number in range(4000)]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    (tmp_path / "tokenizer.model").write_bytes(train_tokenizer(STORIES, 400).model)
    return [str(tmp_path / "a.jsonl")], str(tmp_path / "tokenizer.model"), tmp_path / "out"


def test_lines_report_all_stages(arguments, caplog, monkeypatch):
    monkeypatch.setattr(stages, "_SECONDS_BETWEEN_LINES", 0.01)
    caplog.set_level(logging.INFO)
    prepare(*arguments, shard_mib=1)
    lines = [
        re.fullmatch(
            r"prepare: *(\d+)%, ([\w -]+)(, [\d,]+ documents?(?:, [\d,]+ documents/s)?)?(, .* "
            r"left)?",
            line,
        )
        for line in caplog.messages
    ]
    assert all(lines)
    assert [what for what in STAGES if what in {line[2] for line in lines}][:3] == STAGES[:3]
    percent = [int(line[1]) for line in lines]
    assert percent == sorted(percent) and percent[-1] <= 100
    assert [STAGES.index(line[2]) for line in lines] == sorted(
        STAGES.index(line[2]) for line in lines
    )
    for what in STAGES[:2]:
        assert any(line[3] and line[4] for line in lines if line[2] == what)


def test_a_terminal_has_one_bar_that_ends_at_the_end(arguments, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(stages, "_SECONDS_BETWEEN_DRAWINGS", 0.01)
    prepare(*arguments, shard_mib=1)
    drawn = terminal.getvalue()
    assert drawn.count("\n") == 1 and drawn.endswith("\n")
    assert "documents/s" in drawn and "near-duplicates" in drawn
    assert re.search(r"prepare: 100%[^\r]*4,000 documents[^\r]*$", drawn)


def test_what_an_earlier_command_did_is_no_pace_of_this_one(tmp_path, monkeypatch):
    """Pieces of 100 and 300 bytes; the first, half of the other, which is begun again, and two of
    four tasks of the next stage are there already.
    """
    clock = [0.0]
    monkeypatch.setattr(
        stages, "time", types.SimpleNamespace(monotonic=lambda: clock[0], sleep=None)
    )
    monkeypatch.setattr(
        stages,
        "_STAGES",
        {"tokens": ("tokenising", 1.0), "pairs": ("pairs", 0.5), "corpus": ("end", 0.1)},
    )
    (tmp_path / "00000.progress").write_text("-1 10")
    (tmp_path / "00001.progress").write_text("150 45")
    (tmp_path / "pairs" / "completions").mkdir(parents=True)
    for task in range(2):
        (tmp_path / "pairs" / "completions" / f"{task:05d}").touch()
    with stages.Watch(tmp_path, [100, 300], {"tokens": 2, "pairs": 4, "corpus": 2}) as watch:
        watch.begin("tokens")
        assert watch.progress() == (pytest.approx(0.25 / 1.6), "tokenising, 10 documents")
        clock[0] = 10.0
        (tmp_path / "00001.progress").write_text("100 20")
        # 1.1 of 1.6 is left; 0.25 took ten seconds.
        assert watch.progress() == (
            pytest.approx(0.5 / 1.6),
            "tokenising, 30 documents, 2 documents/s, 00:44 left",
        )
        clock[0] = 20.0
        (tmp_path / "00001.progress").write_text("-1 90")
        watch.begin("pairs")
        assert watch.progress() == (pytest.approx(1.25 / 1.6), "pairs, 50 documents, 00:09 left")
        clock[0] = 30.0
        (tmp_path / "pairs" / "completions" / "00002").touch()
        # 0.225 is left; 0.75 and 0.125 took thirty seconds.
        assert watch.progress() == (
            pytest.approx(1.375 / 1.6),
            "pairs, 75 documents, 2 documents/s, 00:07 left",
        )
        watch.begin("corpus")
        watch.advance(1)
        clock[0] = 32.0
        assert watch.progress() == (
            pytest.approx(1.55 / 1.6),
            "end, 50 documents, 25 documents/s, 00:01 left",
        )


def test_the_time_left_is_shown_once_a_hundredth_is_done(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(
        stages, "time", types.SimpleNamespace(monotonic=lambda: clock[0], sleep=None)
    )
    with stages.Watch(tmp_path, [1000], {"tokens": 1}) as watch:
        watch.begin("tokens")
        clock[0] = 10.0
        (tmp_path / "00000.progress").write_text("5 1")
        assert watch.progress()[1] == "tokenising, 1 document"
        (tmp_path / "00000.progress").write_text("10 1")
        assert watch.progress()[1].endswith("16:30 left")


def test_pieces_of_unknown_size_count_alike(tmp_path):
    """Those of the hub: what is done of them is known by pieces."""
    with stages.Watch(tmp_path, [1, 1, 1, 1], {"tokens": 4, "corpus": 4}) as watch:
        watch.begin("tokens")
        (tmp_path / "00002.progress").write_text("-1 5")
        (tmp_path / "00003.progress").write_text("0 3")
        assert watch.progress()[0] == pytest.approx(0.25 / 1.02)
