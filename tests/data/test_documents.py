"""Reading text: what is a document, and what is refused."""

import codecs
import json

import pytest

from memsinks_jax.config import InputError
from memsinks_jax.data.documents import read_documents


def write(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_text_file_with_separators(tmp_path):
    path = write(tmp_path, "a.txt", "One.\nStill one.\n<|endoftext|>\n\nTwo.\n<|endoftext|>\nThree.\n<|endoftext|>\n")
    found = read_documents(str(path))
    assert [document.text for document in found] == ["One.\nStill one.", "Two.", "Three."]
    assert [document.source for document in found] == [f"{path}:1", f"{path}:4", f"{path}:7"]


def test_text_file_without_separators_is_one_document(tmp_path):
    write(tmp_path, "b.txt", "Second file.")
    write(tmp_path, "a.txt", "First\n\nfile with <|endoftext|> inside a line.")
    found = read_documents(str(tmp_path / "*.txt"))
    assert [document.text for document in found] == ["First\n\nfile with <|endoftext|> inside a line.", "Second file."]


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
        ("a.jsonl", '{"text": "x"}\n{"body": "y"}\n', r'a.jsonl:2: no string field "text"'),
        ("a.jsonl", '["x"]\n', r'a.jsonl:1: no string field "text"'),
        ("a.jsonl", '{"text": ' + 100_000 * "[", r"a.jsonl:1: not JSON \(nested too deep\)"),
        ("a.jsonl", '{"text": "ab\\ud800"}\n', r"a.jsonl:1: no text: half a character at 2"),
        ("a.jsonl", '{"text": "x"}\n{"text": " "}\n', r"a.jsonl:2: the document is empty"),
        ("a.txt", "x\n<|endoftext|>\n \n<|endoftext|>\ny", r"a.txt:3: the document is empty"),
        ("a.txt", " \n", r"a.txt: the file is empty"),
        ("a.jsonl", "", r"a.jsonl: the file is empty"),
        ("a.csv", "x", r"'.csv' cannot be read; use .txt or .jsonl"),
    ],
)
def test_bad_files_are_refused_with_their_place(tmp_path, name, text, message):
    path = write(tmp_path, name, text)
    with pytest.raises(InputError, match=message):
        read_documents(str(path))


def test_missing_files_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"nothing.txt does not exist"):
        read_documents(str(tmp_path / "nothing.txt"))
    with pytest.raises(InputError, match=r"\*.txt matches no file"):
        read_documents(str(tmp_path / "*.txt"))
    with pytest.raises(InputError, match=r"is a directory; give a glob"):
        read_documents(str(tmp_path))


def test_other_encodings_are_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes("caf\u00e9".encode("latin-1"))
    with pytest.raises(InputError, match=r"a.txt: not UTF-8 at byte 3"):
        read_documents(str(tmp_path / "a.txt"))


@pytest.mark.parametrize(("name", "text"), [("a.txt", "One."), ("a.jsonl", '{"text": "One."}')])
def test_a_byte_order_mark_is_no_text(name, text, tmp_path):
    (tmp_path / name).write_bytes(codecs.BOM_UTF8 + text.encode())
    assert read_documents(str(tmp_path / name))[0].text == "One."
