"""Records of files: each is read once for any split of the file, and errors are reported."""

import codecs
import datetime
import decimal
import gzip
import io
import json
import logging
import math
import os
import random

import pyarrow
import pyarrow.parquet
import pytest
from conftest import expect_input_error

from memsinks_jax.data import reading
from memsinks_jax.data.documents import read_documents
from memsinks_jax.data.files import Segment
from memsinks_jax.data.reading import SEPARATOR, Fields, Record, read_segment, take
from memsinks_jax.preparing import inputs
from memsinks_jax.preparing.inputs import make_plan, records

FIELDS = Fields("text", "", 1 << 20)
SETTINGS = {"on_error": "stop", "group_field": "", "shard_mib": 0}


def records_of(path, fields=FIELDS):
    plan = make_plan([str(path)], SETTINGS)
    return [
        r
        for piece in plan.pieces
        for s in piece
        for r in records(plan.sources[s.source], s, fields)
    ]


def zstd(content):
    return pyarrow.compress(content, codec="zstd", asbytes=True)


def test_however_a_file_is_cut_its_documents_are_those_of_the_whole(tmp_path):
    draw = random.Random(0)
    for trial in range(60):
        texts = [
            "".join(draw.choices("ab \n\u00e9\u6f22", k=draw.randint(0, 12))) + "x"
            for _ in range(draw.randint(1, 9))
        ]
        end = draw.choice(["\n", "\r\n"])
        text = f"{end}{SEPARATOR}{end}".join(
            text.replace("\n", end) for text in texts
        ) + draw.choice(["", end])
        for name, body in (
            ("a.txt", text),
            ("a.jsonl", end.join(json.dumps({"text": t}) for t in texts)),
        ):
            path = tmp_path / f"{trial}{name}"
            path.write_bytes(body.encode())
            size = path.stat().st_size
            source = make_plan([str(path)], SETTINGS).sources[0]
            cuts = sorted({0, size, *(draw.randrange(size) for _ in range(draw.randint(0, 6)))})
            found = [
                record
                for start, stop in zip(cuts, cuts[1:], strict=False)
                for record in read_segment(source, Segment(0, start, stop), FIELDS)
            ]
            assert [record.text for record in found] == [
                d.text for d in read_documents(str(path))
            ], (cuts, body)
            for record in found:  # the place is the document's own
                place = path.read_bytes()[record.start : record.stop].decode()
                assert (
                    json.loads(place)["text"] if name == "a.jsonl" else place.replace("\r\n", "\n")
                ).strip() == record.text


def test_places_of_problems_are_lines_of_the_whole_file(tmp_path):
    lines = [
        json.dumps({"text": f"number {n}"}) if n % 7 else '{"text": null}' for n in range(1, 60)
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines))
    source = make_plan([str(path)], SETTINGS).sources[0]
    for cut in range(1, source.bytes, 13):
        both = [
            *read_segment(source, Segment(0, 0, cut), FIELDS),
            *read_segment(source, Segment(0, cut, 2**62), FIELDS),
        ]
        assert [r.place for r in both if r.problem] == [f"{path}:{n}" for n in range(7, 60, 7)]


def test_lines_are_counted_for_a_place_that_is_reported(tmp_path, monkeypatch):
    """From the beginning of the file: whoever passes over a problem in the middle of a large one
    does not wait for it.
    """
    (tmp_path / "a.jsonl").write_text('{"text": null}\n' * 9)
    counted, count = [], reading._line_breaks
    monkeypatch.setattr(reading, "_line_breaks", lambda *a: counted.append(a) or count(*a))
    source = make_plan([str(tmp_path / "a.jsonl")], SETTINGS).sources[0]
    records = list(read_segment(source, Segment(0, 60, 2**62), FIELDS))
    assert len(records) == 5 and not counted
    assert records[2].place == f"{source.path}:7" and len(counted) == 1


GOOD = json.dumps({"text": "good"}).encode()
TABLE = pyarrow.table({"text": ["one", None, " "]})


def parquet(table):
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink)
    return sink.getvalue().to_pybytes()


def not_utf8():
    array = pyarrow.Array.from_buffers(
        pyarrow.string(), 1, [None, *pyarrow.array([b"caf\xe9"]).buffers()[1:]]
    )
    return parquet(pyarrow.table({"text": array}))


NOISE = json.dumps({"text": random.Random(0).randbytes(200_000).hex()}).encode()
LONG, DEEP, DIGITS = b"x" * (2 << 20), b"[" * 100_000, b'{"text": "x", "n": ' + b"9" * 5000 + b"}"
PARTS = b"one\n<|endoftext|>\n \n<|endoftext|>\ncaf\xe9\n"
CUT = "the file is cut or damaged"


@pytest.mark.parametrize(
    # name, content, documents that are good, and what is said after the name of each that is not
    "asked",
    [
        ("a.jsonl", GOOD + b"\n{\n" + GOOD, 2, ":2: not JSON (Expecting"),
        ("a.jsonl", GOOD + b'\n{"text": null}', 1, ':2: field "text" is null'),
        ("a.jsonl", b'[1]\n{"body": 1}', 0, *(f':{n}: field "text" is missing' for n in (1, 2))),
        ("a.jsonl", GOOD + b'\n{"text": "\xff"}\n' + GOOD, 2, ":2: not UTF-8 at byte 27"),
        ("a.jsonl", b'{"text": "\\ud800"}', 0, ":1: no text: half a character at 0"),
        ("a.jsonl", b'{"text": " "}', 0, ":1: the document is empty"),
        ("a.jsonl", DEEP, 0, ":1: not JSON (nested too deep)"),
        ("a.jsonl", GOOD + b"\n" + DIGITS, 1, ":2: not JSON (a number has too many digits)"),
        ("A.JSONL", GOOD, 1),
        ("a.Txt.GZ", gzip.compress(b"one", mtime=0), 1),
        ("a.jsonl", b"", 0, ": the file is empty"),
        ("a.jsonl", b'{"text": "' + LONG + b'"}\n' + GOOD, 1, ":1: longer than 1 MiB"),
        ("a.txt", LONG, 0, ":1: longer than 1 MiB; cut it, raise --max_document_mib, or separate"),
        ("a.txt", PARTS, 1, ":3: the document is empty", ":5: not UTF-8 near byte 37"),
        ("a.txt", b" \n", 0, ": the file is empty"),
        (
            "a.jsonl.gz",
            gzip.compress(GOOD + b"\n" + NOISE)[:-20],
            1,
            f", after byte 17: {CUT[:15]}",
        ),
        ("a.jsonl.zst", zstd(GOOD + b"\n" + NOISE)[:-20], 1, f", after byte 17: {CUT}"),
        ("a.jsonl.gz", b"no gzip", 0, f": {CUT}"),
        ("a.parquet", parquet(TABLE[:2]), 1, ', row 1: field "text" is null'),
        ("a.parquet", parquet(TABLE[2:]), 0, ", row 0: the document is empty"),
        ("a.parquet", parquet(TABLE)[:-9], 0, f": {CUT}"),
        ("a.parquet", parquet(pyarrow.table({"body": ["a"]})), 0, ": no column 'text' among body"),
        (
            "a.parquet",
            parquet(pyarrow.table({"text": [1]})),
            0,
            ": column 'text' is of type int64,",
        ),
        ("a.parquet", not_utf8(), 0, ", row 0: not UTF-8"),
        ("a.arrow", b"ARROW1", 0, f": {CUT}"),
        ("a.csv", b"n,text\n1,one\n2,\n3,three\n", 2, ", row 1: the document is empty"),
        ("a.csv", b"n,body\n1,one\n", 0, ": no column 'text' among n, body"),
        ("a.csv", b"n,text\n1,one\n1,2,3\n", 0, f": {CUT} from here on (CSV parse error"),
        ("a.csv", b"text\ncaf\xe9\n", 0, f": {CUT} from here on (In CSV column #0"),
        ("a.json", b"[" + GOOD + b', {"text": 1}]', 1, ', row 1: field "text" is missing'),
        ("a.json", b"[2]", 0, ', row 0: field "text" is missing'),
        (
            "a.json",
            GOOD + b"\n2",
            0,
            ": not JSON (Extra data at line 2); fix it, or name it .jsonl",
        ),
        ("a.json", GOOD, 0, ": no array of records"),
        ("a.json", b'["\xff"]', 0, ": not UTF-8 at byte 2"),
        ("a.json", DEEP, 0, ": not JSON (nested too deep)"),
        ("a.json", b"[" + DIGITS + b"]", 0, ": not JSON (a number has too many digits)"),
    ],
    ids=lambda asked: f"{asked[0]}{asked[3] if asked[3:] else ''}",
)
def test_what_cannot_be_used_is_reported_with_its_place(asked, tmp_path):
    name, content, good, *problems = asked
    (tmp_path / name).write_bytes(content)
    found = records_of(tmp_path / name)
    said = [f"{record.place}: {record.problem}" for record in found if record.problem]
    for one, expected in zip(said, problems, strict=True):
        assert one.startswith(f"{tmp_path}/{name}{expected}") and "\n" not in one
    assert len(found) - len(said) == good
    assert all(record.text for record in found if not record.problem)


def test_a_long_row_of_csv(tmp_path):
    """Longer than a block of pyarrow's own, 1 MiB."""
    (tmp_path / "a.csv").write_text("text\n" + "long " * 700_000 + "\nshort\n")
    assert [
        len(record.text) for record in records_of(tmp_path / "a.csv", Fields("text", "", 4 << 20))
    ] == [3_499_999, 5]
    long, short = records_of(tmp_path / "a.csv", Fields("text", "", 1 << 20))
    assert long.problem.startswith("longer than 1 MiB") and short.text == "short"


def test_rows_of_csv_and_of_a_json_array(tmp_path):
    """Numbers stay text, quoted values keep commas and line breaks, a byte order mark is no part of
    a name.
    """
    fields = Fields("text", "kind", 2**20)
    (tmp_path / "a.csv").write_text('\ufefftext,n,kind\n"one, two\nthree",1,x\n007,2,3\n')
    (tmp_path / "a.json").write_text(
        '\ufeff[{"text": "one, two\\nthree", "kind": "x"}, {"text": "007", "kind": 3}]'
    )
    for name in ("a.csv", "a.json"):
        found = records_of(tmp_path / name, fields)
        assert [(r.text, r.group, r.start, r.problem) for r in found] == [
            ("one, two\nthree", "x", 0, ""),
            ("007", "3", 1, ""),
        ]
    assert [source.path for source in make_plan([str(tmp_path)], SETTINGS).sources] == [
        str(tmp_path / "a.csv")
    ]


NAN, DATE = float("nan"), datetime.date(2024, 2, 29)


@pytest.mark.parametrize(
    "value, name, problem",
    [
        ("1", "1", ""),
        (1, "1", ""),
        (1.0, "1", ""),
        (1.5, "1.5", ""),
        (-0.0, "0", ""),
        (2**60, str(2**60), ""),
        (1e300, "1e+300", ""),
        (True, "true", ""),
        ("true", "true", ""),
        (False, "false", ""),
        (DATE, "2024-02-29", ""),
        (decimal.Decimal("7.00"), "7", ""),
        (" a", " a", ""),
        ("zoë\n\u202e", "zoë\n\u202e", ""),
        ("nan", "nan", ""),
        (NAN, None, "is nan, which is no name"),
        (math.inf, None, "is inf, which is no name"),
        (-math.inf, None, "is -inf, which is no name"),
        (None, None, "is missing or no single value"),
        (["a"], None, "is missing or no single value"),
        ({"a": 1}, None, "is missing or no single value"),
        (b"a", None, "is missing or no single value"),
        ("", None, "is empty, so nothing could name the group"),
        (" \t\n", None, "is empty, so nothing could name the group"),
        ("ab\ud83d", None, "is no text: half a character at 2"),
    ],
    ids=repr,
)
def test_a_group_has_a_name(value, name, problem):
    record = Record(0, 1, 0)
    take(record, {"text": "good", "by": value}, Fields("text", "by", 100))
    said = f'field "by" {problem}; fix the record or --group_field' if problem else ""
    assert (record.group, record.problem, record.text) == (name, said, "" if problem else "good")


def test_a_group_has_one_name_in_all_kinds_of_files(tmp_path):
    """A gap makes floats of a column of whole numbers."""
    fields = Fields("text", "by", 2**20)
    (tmp_path / "a.jsonl").write_text(
        '{"text": "a", "by": 7}\n{"text": "a", "by": 7.0}\n{"text": "a", "by": NaN}\n'
    )
    (tmp_path / "b.csv").write_text("text,by\na,7\na,7\na,\n")
    table = pyarrow.Table.from_pydict({"text": ["a"] * 3, "by": [7.0, 7.0, NAN]})
    (tmp_path / "c.parquet").write_bytes(parquet(table))
    for path in sorted(tmp_path.iterdir()):
        records = records_of(path, fields)
        assert [record.group for record in records] == ["7", "7", None], path
        assert records[2].problem.startswith('field "by" is ')


def test_members_of_a_compressed_file_are_read_one_after_the_other(tmp_path):
    for name, pack in (("a.jsonl.gz", gzip.compress), ("a.jsonl.zst", zstd)):
        (tmp_path / name).write_bytes(pack(GOOD + b"\n") + pack(GOOD))
        assert [record.text for record in records_of(tmp_path / name)] == ["good", "good"]


@pytest.mark.parametrize(("name", "content"), [("a.txt", b"good"), ("a.jsonl", GOOD)])
def test_a_byte_order_mark_is_no_text(name, content, tmp_path):
    (tmp_path / name).write_bytes(codecs.BOM_UTF8 + content)
    assert [record.text for record in records_of(tmp_path / name)] == ["good"]


def test_fields_within_fields(tmp_path):
    rows = [{"body": {"text": "one"}, "meta": {"licence": "by"}}]
    (tmp_path / "a.jsonl").write_text(json.dumps(rows[0]))
    (tmp_path / "b.parquet").write_bytes(parquet(pyarrow.Table.from_pylist(rows)))
    for path in sorted(tmp_path.iterdir()):
        (record,) = records_of(path, Fields("body.text", "meta.licence", 100))
        assert (record.text, record.group, record.problem) == ("one", "by", "")


@pytest.mark.parametrize("name", ["messages", "talk.messages"])
def test_a_conversation_and_what_comes_with_it_in_every_kind_of_file(name, tmp_path):
    """A table has every field in every message, null where there is none. So has JSON, if it says
    so.
    """
    talk = [
        {"role": "user", "content": " q\r\n"},
        {"role": "assistant", "content": "a", "weight": 1, "name": "b"},
    ]
    row = {"messages": talk, "tools": [{"type": "function"}], "documents": None, "more": "left out"}
    rows = [{"talk": row} if "." in name else row]
    table, stream = pyarrow.Table.from_pylist(rows), io.BytesIO()
    with pyarrow.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    nulls = json.dumps(table.to_pylist())
    contents = {"a.parquet": parquet(table), "a.arrow": stream.getvalue(), "a.json": nulls.encode()}
    for file, content in (contents | {"a.jsonl": json.dumps(rows[0]).encode()}).items():
        (tmp_path / file).write_bytes(content)
        (record,) = records_of(tmp_path / file, Fields("text", "", 1 << 20, messages=name))
        found = file, record.problem, record.messages, record.arguments
        assert found == (file, "", talk, {"tools": [{"type": "function"}]})
        assert record.size > len(json.dumps(talk)) and "weight" not in record.messages[0]


def test_input_is_found_or_refused(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    for name in ("a.jsonl", "sub/b.txt.zst", "notes.md", "c.parquet.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    found = make_plan([str(tmp_path)], SETTINGS)
    assert [(s.path.removeprefix(str(tmp_path)), s.kind, s.compression) for s in found.sources] == [
        ("/a.jsonl", "jsonl", ""),
        ("/sub/b.txt.zst", "txt", "zstd"),
    ]
    for patterns, message in (
        ([str(tmp_path / "*.md")], "notes.md: files of this kind cannot be read"),
        ([str(tmp_path / "none*")], r"none\* matches no file"),
        ([str(tmp_path / "none")], "none does not exist"),
        ([os.devnull], "is no file"),
        ([str(tmp_path), str(tmp_path / "a.jsonl")], "a.jsonl is named twice"),
    ):
        with expect_input_error(message):
            make_plan(patterns, SETTINGS)
    os.symlink(tmp_path / "a.jsonl", tmp_path / "z.jsonl")
    caplog.clear()
    passed = make_plan([str(tmp_path)], SETTINGS)
    assert [source.path for source in passed.sources] == [source.path for source in found.sources]
    assert not passed.copies  # nothing is skipped: the file is read
    assert "1 further paths to the same files are left out: " in caplog.text
    assert "files are of other kinds, and not read: " in caplog.text
    with expect_input_error("a .txt file has no field 'domain'"):
        make_plan([str(tmp_path / "sub")], SETTINGS | {"group_field": "domain"})


def test_pieces_hold_all_of_the_input_once(tmp_path, monkeypatch):
    for number in range(5):
        (tmp_path / f"{number}.jsonl").write_bytes(b"x" * (number * 700_000))
    found = make_plan([str(tmp_path)], SETTINGS | {"shard_mib": 1})
    parts = [segment for piece in found.pieces for segment in piece]
    for number, source in enumerate(found.sources):
        own = [(part.start, part.stop) for part in parts if part.source == number]
        assert own[0][0] == 0 and own[-1][1] == source.bytes
        assert all(one[1] == other[0] for one, other in zip(own, own[1:], strict=False))
    assert max(found.bytes_of_pieces()) <= 1 << 20
    assert inputs.Plan.from_json(found.to_json()) == found


@pytest.mark.slow
def test_the_hub_is_read_by_datasets(tmp_path, monkeypatch):
    """From a folder of this machine: the loading is the same, only the commit is the hub's to
    say.
    """
    pytest.importorskip("datasets", reason="the extra `hub` is not installed")
    for part in range(3):
        lines = [
            json.dumps({"text": f"{part} {row}" if row else None, "domain": "d"})
            for row in range(4)
        ]
        (tmp_path / f"{part}.jsonl").write_text("\n".join(lines))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(inputs.hub, "revision", lambda path: None)
    found = records_of(f"hf://{tmp_path}:train", Fields("text", "domain", 100))
    assert [record.text for record in found if not record.problem] == [
        f"{p} {r}" for p in range(3) for r in (1, 2, 3)
    ]
    assert [record.place for record in found if record.problem][
        1
    ] == f"hf://{tmp_path}:train, part 1 of 3, row 0"
    assert {record.group for record in found if record.text} == {"d"}
    with expect_input_error("the hub cannot be read .*check the name and the network"):
        records_of("hf://nobody/nothing")
