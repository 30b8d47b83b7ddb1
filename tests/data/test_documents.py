"""Reading text: what counts as a document, and what is refused."""

import gzip
import json

import pyarrow
import pyarrow.parquet
import pytest
from conftest import expect_input_error

from memsinks_jax.data.documents import printable, read_documents


def write(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_name_is_a_part_of_a_line():
    for name, shown in (
        ("zo\u00eb \u65e5 \u05d0", "zo\u00eb \u65e5 \u05d0"),
        ("a\n\tb\x1b[0m\r", r"a\n\tb\x1b[0m\r"),
        ("\u202ea\u2028\ud83d", r"\u202ea\u2028\ud83d"),
        ("x" * 60, "x" * 60),
        ("x" * 300, "x" * 59 + "…"),
    ):
        assert printable(name) == shown
    assert printable("\n" * 300, 600) == r"\n" * 300


def test_text_file_with_separators(tmp_path):
    path = write(
        tmp_path,
        "a.txt",
        "One.\nStill one.\n<|endoftext|>\n\nTwo.\n<|endoftext|>\nThree.\n<|endoftext|>\n",
    )
    found = read_documents(str(path))
    assert [document.text for document in found] == ["One.\nStill one.", "Two.", "Three."]
    assert [document.source for document in found] == [f"{path}:1", f"{path}:4", f"{path}:7"]


def test_text_file_without_separators_is_one_document(tmp_path):
    write(tmp_path, "b.txt", "Second file.")
    write(tmp_path, "a.txt", "First\n\nfile with <|endoftext|> inside a line.")
    found = read_documents(str(tmp_path / "*.txt"))
    assert [document.text for document in found] == [
        "First\n\nfile with <|endoftext|> inside a line.",
        "Second file.",
    ]


def test_json_lines(tmp_path):
    lines = [json.dumps({"text": "One.", "more": 1}), "", json.dumps({"text": "Two\nlines\u2028."})]
    path = write(tmp_path, "a.jsonl", "\n".join(lines) + "\n")
    found = read_documents(str(path))
    assert [document.text for document in found] == ["One.", "Two\nlines\u2028."]
    assert [document.source for document in found] == [f"{path}:1", f"{path}:3"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"text": "x"}\n{"text": \n', r"a.jsonl:2: not JSON"),
        (
            "a.jsonl",
            '{"text": ""}\n{"text": " "}',
            r"a.jsonl: .* are empty: .*:1, .*a.jsonl:2; fill",
        ),
        ("a.txt", " \n", r"all documents are empty: .*a.txt; fill"),
        ("a.jsonl", "", r"all documents are empty: .*a.jsonl; fill"),
        ("a.jsonl", "\n", r"all documents are empty: .*a.jsonl; fill"),
        ("a.csv", "text\n", r"all documents are empty: .*a.csv; fill"),
        ("a.csv", "n,body\n", r"a.csv: no column .* rename one, or give `prepare --text_field`"),
        ("a.md", "x", r"a.md: files of this kind cannot be read; use .txt and .jsonl"),
    ],
)
def test_bad_files_are_refused_with_their_place(tmp_path, name, text, message):
    path = write(tmp_path, name, text)
    with expect_input_error(message):
        read_documents(str(path))


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("a.jsonl", '{"text": "x"}\n{"text": " "}\n', "a.jsonl:2"),
        ("a.txt", "x\n<|endoftext|>\n \n<|endoftext|>\ny", "a.txt:3"),
        ("a.csv", 'text\nx\n""\n', "a.csv, row 1"),
        ("b.txt", "", "b.txt"),
        ("b.txt", " \n", "b.txt"),
        ("b.jsonl", "\n", "b.jsonl"),
    ],
)
def test_empty_documents_are_skipped_and_named(tmp_path, caplog, name, text, place):
    write(tmp_path, "a.txt", "x")
    path = write(tmp_path, name, text)
    assert {document.text for document in read_documents(str(tmp_path / "*"))} <= {"x", "y"}
    assert caplog.messages == [f"1 empty document skipped: {path.with_name(place)}"]


def test_of_many_empty_documents_the_first_are_named(tmp_path, caplog):
    write(tmp_path, "a.jsonl", '{"text": "x"}\n' + 1000 * '{"text": ""}\n')
    assert len(read_documents(str(tmp_path / "a.jsonl"))) == 1
    (warning,) = caplog.messages
    assert warning.startswith("1,000 empty documents skipped: ")
    assert warning.endswith("a.jsonl:5 and 996 more")


def test_a_document_has_the_same_text_with_any_line_ends(tmp_path):
    """And so the same id, in all kinds of files."""
    text = "One\r\nand\rtwo\n\r\nthree"
    write(tmp_path, "a.jsonl", json.dumps({"text": text}))
    write(tmp_path, "a.json", json.dumps([{"text": text}]))
    (tmp_path / "a.txt").write_bytes(text.encode())
    (tmp_path / "a.csv").write_bytes(f'text\n"{text}"\n'.encode())
    pyarrow.parquet.write_table(pyarrow.table({"text": [text]}), tmp_path / "a.parquet")
    found = read_documents(str(tmp_path / "a.*"))
    assert [document.text for document in found] == 5 * ["One\nand\ntwo\n\nthree"]


def test_a_file_that_is_found_on_several_paths_is_read_once(tmp_path, caplog):
    """Under its shortest path, so that a link changes neither the documents nor their order."""
    (tmp_path / "x").mkdir()
    for name in ("m", "a", "z"):
        write(tmp_path / "x", f"{name}.txt", name)
    (tmp_path / "x" / "link").symlink_to(tmp_path / "x")
    (tmp_path / "x" / "another.txt").symlink_to(tmp_path / "x" / "a.txt")
    found = read_documents(str(tmp_path / "x" / "**" / "*.txt"))
    assert [document.source for document in found] == [
        f"{tmp_path}/x/{name}.txt:1" for name in ("a", "m", "z")
    ]
    assert "further paths to the same files are left out: " in caplog.text
    assert "/x/another.txt" in caplog.text


def test_every_kind_of_file_that_prepare_reads(tmp_path):
    """The same documents, each with its place."""
    rows, texts = [{"text": "One."}, {"text": "Two\nlines."}], "One.\n<|endoftext|>\nTwo\nlines.\n"
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    table, sink = pyarrow.Table.from_pylist(rows), pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with pyarrow.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    contents = {".csv": b'text\nOne.\n"Two\nlines."\n', ".json": json.dumps(rows).encode()}
    contents |= {".arrow": sink.getvalue().to_pybytes(), ".txt.gz": gzip.compress(texts.encode())}
    contents |= {".jsonl.zst": pyarrow.compress(lines, codec="zstd", asbytes=True)}
    for end, content in contents.items():
        (tmp_path / f"a{end}").write_bytes(content)
    for end in (*contents, ".parquet"):
        path = tmp_path / f"a{end}"
        found = read_documents(str(path))
        assert [document.text for document in found] == ["One.", "Two\nlines."], end
        places = {".txt.gz": (":1", ":3"), ".jsonl.zst": (":1", ":2")}.get(
            end, (", row 0", ", row 1")
        )
        assert tuple(document.source.removeprefix(str(path)) for document in found) == places
    assert len(read_documents(str(tmp_path / "a.*"))) == 12


def test_missing_files_are_refused(tmp_path):
    with expect_input_error(r"nothing.txt does not exist"):
        read_documents(str(tmp_path / "nothing.txt"))
    with expect_input_error(r"\*.txt matches no file"):
        read_documents(str(tmp_path / "*.txt"))
    (tmp_path / "c[1].md").write_text("One.")
    with expect_input_error(
        r"c\[1\].md matches no file; as a path it is there: write '.*c\[\[\]1\].md'"
    ):
        read_documents(str(tmp_path / "c[1].md"))
    with expect_input_error(r"is a directory; give a glob"):
        read_documents(str(tmp_path))
