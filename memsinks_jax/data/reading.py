"""Yields the records of a piece of a file. An unusable one is yielded as a record with a problem.

We do not use datatrove's readers: they skip damaged lines, null texts and truncated files silently,
and lose the place in the file.
"""

import codecs
import collections.abc
import dataclasses
import decimal
import functools
import io
import json
import math
import typing

import pyarrow
import pyarrow.csv
import pyarrow.parquet

from memsinks_jax.config import InputError
from memsinks_jax.data.files import Segment, Source
from memsinks_jax.data.tokenizer import half_character

SEPARATOR = "<|endoftext|>"
EMPTY = (
    "the document is empty; remove it",
    "the file is empty; remove it or fill it",
)  # problems of records without text
EMPTY_ANSWER = "an answer is empty; remove the record"

_ARGUMENTS = "tools", "documents"  # of a conversation, for its template
_BLOCK = 1 << 20
_ROWS = 256  # rows of a table at a time
_ARRAY = 1 << 30  # bytes of a .json file, which is read whole
_TEXTS = pyarrow.types.is_string, pyarrow.types.is_large_string, pyarrow.types.is_string_view


@dataclasses.dataclass(slots=True)
class Record:
    """One document, or an unusable record: then `problem` is the reason.

    `start` and `stop` are bytes of the (decompressed) text, or the number of a table's row;
    `consumed` is the number of bytes of the segment on disk read so far. `where` is the file and
    the line or row. With `Fields.prompt` the text is the answer to the prompt; with
    `Fields.messages` there are messages instead, and the `arguments` with them, as
    `chat.Template.parts` takes them.
    """

    start: int
    stop: int
    consumed: int
    text: str = ""
    group: str | None = None
    problem: str = ""
    where: str | collections.abc.Callable[[], str] = ""
    prompt: str = ""
    messages: collections.abc.Sequence[dict] = ()
    arguments: dict = dataclasses.field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of its texts, of a conversation as JSON."""
        talk = _as_json([*self.messages, self.arguments]) if self.messages else b""
        return len(self.prompt.encode()) + len(self.text.encode()) + len(talk)

    @property
    def place(self) -> str:
        """Where the record is. In the middle of a text file this counts the lines before it: call
        it only for messages.
        """
        return self.where() if callable(self.where) else self.where


class Fields(typing.NamedTuple):
    text: str  # name of the field with the text; a.b is field b of field a
    group: str  # name of the field with the group; empty: none
    longest: int  # upper limit of a document, in bytes
    prompt: str = ""  # name of the field that the text answers; empty: none
    # name of the field with a conversation, instead of text and prompt; empty: none
    messages: str = ""

    @property
    def named(self) -> list[tuple[str, str]]:
        """(field of a record, what it is: the option of `prepare` that names it) of those that are
        read.
        """
        kinds = (
            [(self.messages, "messages")]
            if self.messages
            else [(self.text, "text"), (self.prompt, "prompt")]
        )
        return [(name, kind) for name, kind in [*kinds, (self.group, "group")] if name]

    @property
    def columns(self) -> list[str]:
        """Those to read of a table: the named ones, and what may come with messages. A table may
        lack the latter.
        """
        around = self.messages[: self.messages.rfind(".") + 1]
        return [name for name, _ in self.named] + [
            around + name for name in _ARGUMENTS if self.messages
        ]


def read_segment(
    source: Source, segment: Segment, fields: Fields
) -> collections.abc.Iterator[Record]:
    """Yields all records that begin in a segment. A truncated or damaged file ends with one record
    with that problem.
    """
    reader = {
        "txt": _texts,
        "jsonl": _json_lines,
        "json": _json_array,
        "csv": _csv,
        "parquet": _parquet,
        "arrow": _arrow,
    }[source.kind]
    last = None
    try:
        if not source.bytes:
            raise _Unusable(EMPTY[1])
        for last in reader(source, segment, fields):
            yield last
    except _Unusable as error:
        yield Record(0, 0, 0, problem=str(error), where=source.path)
    except (OSError, EOFError, pyarrow.ArrowException) as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())
        after = (
            ""
            if last is None
            else f", after byte {last.stop}"
            if source.is_text
            else f", after row {last.start}"
        )
        at, consumed = (segment.start, 0) if last is None else (last.stop, last.consumed)
        problem = f"the file is cut or damaged from here on ({reason}); replace it"
        yield Record(at, at, consumed, problem=problem, where=source.path + after)


class _Unusable(Exception):
    """A file without any record that can be used, and why."""


class _Lines:
    """Lines of a text file from a byte on: iterates over (first byte, line without its end or None
    if it is too long).

    A line belongs to the segment in which it begins, so segments share none and lose none.
    `position` is the first byte not yet read, in the (decompressed) text, `number` counts the lines
    that are read.
    """

    def __init__(self, source: Source, start: int, longest: int):
        self._source, self._start, self._longest = source, start, longest
        # as long as the lines last
        self._raw = open(source.path, "rb", buffering=0)  # noqa: SIM115
        stream = self._raw
        if source.compression:
            stream = pyarrow.CompressedInputStream(
                pyarrow.PythonFile(self._raw, mode="r"), source.compression
            )
        self._file = io.BufferedReader(stream, _BLOCK if not source.compression else 1 << 16)
        self.position, self.number, self._before = start, 0, None
        if start:
            self._file.seek(start - 1)
            self.position -= 1
            self._rest_of_line()

    def __iter__(self) -> collections.abc.Iterator[tuple[int, bytes | None]]:
        while line := self._file.readline(self._longest + 2):
            first, self.number = self.position, self.number + 1
            self.position += len(line)
            if not line.endswith(b"\n") and len(line) > self._longest:
                self._rest_of_line()
                line = None
            if line and not first:
                line = line.removeprefix(codecs.BOM_UTF8)
            yield first, line and line.removesuffix(b"\n")

    def consumed(self) -> int:
        return self._raw.tell() if self._source.compression else self.position - self._start

    def place(self, line: int) -> str:
        """FILE:LINE of the line with this number among those read."""
        if self._before is None:
            self._before = _line_breaks(self._source.path, self._start)
        return f"{self._source.path}:{self._before + line}"

    def close(self) -> None:
        self._raw.close()

    def _rest_of_line(self) -> None:
        while line := self._file.readline(_BLOCK):
            self.position += len(line)
            if line.endswith(b"\n"):
                return


def _line_breaks(path: str, until: int) -> int:
    """Line breaks that end in the first bytes; counted only to locate a problem in the middle of a
    file.
    """
    count = 0
    with open(path, "rb") as file:
        while block := file.read(min(_BLOCK, until - file.tell())):
            count += block.count(b"\n")
            last = block[-1:]
    # A segment begins with the first line that begins in it; an earlier one belongs to the segment
    # before.
    return count + (until > 0 and last != b"\n")


def _texts(source: Source, segment: Segment, fields: Fields) -> collections.abc.Iterator[Record]:
    """Documents between lines that read SEPARATOR. One belongs to the segment in which the
    separator before it begins.
    """
    lines = _Lines(source, segment.start, fields.longest)
    within = segment.start == 0  # else: after the first separator that begins here
    parts, first, size, number = [], 0, 0, 1
    try:
        for begin, line in lines:
            if line is None or line.strip() != SEPARATOR.encode():
                if within:
                    size += lines.position - begin
                    if size <= fields.longest and line is not None:
                        parts.append(line)
                    else:
                        parts, size = [], fields.longest + 1
                elif begin >= segment.stop:
                    return
                continue
            if within:
                yield _text(parts, first, begin, size, number, lines, fields)
            if begin >= segment.stop:
                return
            within, parts, first, size, number = True, [], lines.position, 0, lines.number + 1
        # not after a last separator
        if within and (any(part.strip() for part in parts) or size > fields.longest):
            yield _text(parts, first, lines.position, size, number, lines, fields)
        elif within and not first:
            raise _Unusable(EMPTY[1])
    finally:
        lines.close()


def _text(parts, first, stop, size, number, lines, fields) -> Record:
    record = Record(first, stop, lines.consumed(), where=functools.partial(lines.place, number))
    if size > fields.longest:
        record.problem = (
            _too_long(fields) + f", or separate its documents with lines that read {SEPARATOR}"
        )
    else:
        _decode(record, b"\n".join(parts))
    return record


def _json_lines(
    source: Source, segment: Segment, fields: Fields
) -> collections.abc.Iterator[Record]:
    lines = _Lines(source, segment.start, fields.longest)
    try:
        for begin, line in lines:
            if begin >= segment.stop:
                return
            if line is not None and not line.strip():
                continue
            where = functools.partial(lines.place, lines.number)
            record = Record(begin, lines.position, lines.consumed(), where=where)
            if line is None:
                record.problem = _too_long(fields)
            else:
                _parse(record, line, fields)
            yield record
    finally:
        lines.close()


def _parse(record: Record, line: bytes, fields: Fields) -> None:
    try:
        parsed = json.loads(line)
    except UnicodeDecodeError as error:
        record.problem = (
            f"not UTF-8 at byte {record.start + error.start}; convert the file to UTF-8"
        )
    except (ValueError, RecursionError) as error:
        record.problem = f"not JSON ({_why_not_json(error, 'column')}); fix or remove the line"
    else:
        take(record, parsed, fields)


def _why_not_json(error: ValueError | RecursionError, unit: str) -> str:
    """`unit`: "line" or "column", which locates the error."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at {unit} {error.lineno if unit == 'line' else error.colno}"
    return (
        "nested too deep" if isinstance(error, RecursionError) else "a number has too many digits"
    )


def _parquet(source: Source, segment: Segment, fields: Fields) -> collections.abc.Iterator[Record]:
    """Rows of the row groups [start, stop) of a file."""
    with pyarrow.parquet.ParquetFile(source.path, pre_buffer=False) as file:
        _check_fields(file.schema_arrow, fields)
        metadata = file.metadata
        groups = range(segment.start, min(segment.stop, metadata.num_row_groups))
        row = sum(metadata.row_group(group).num_rows for group in range(segment.start))
        batches = file.iter_batches(_ROWS, row_groups=list(groups), columns=fields.columns)
        yield from _rows(source, batches, row, fields, source.bytes / max(metadata.num_rows, 1))


def _arrow(source: Source, segment: Segment, fields: Fields) -> collections.abc.Iterator[Record]:
    """Rows of an Arrow IPC file or stream (`datasets` writes the latter)."""
    with pyarrow.memory_map(source.path) as mapped:
        is_file = mapped.read(6) == b"ARROW1"
        mapped.seek(0)
        opened = pyarrow.ipc.open_file(mapped) if is_file else pyarrow.ipc.open_stream(mapped)
        _check_fields(opened.schema, fields)
        whole = (
            (opened.get_batch(i) for i in range(opened.num_record_batches)) if is_file else opened
        )
        slices = (
            batch.slice(at, _ROWS) for batch in whole for at in range(0, batch.num_rows, _ROWS)
        )
        row = 0
        for batch in slices:
            yield from _rows(source, [batch], row, fields, 0)
            row += batch.num_rows


def _csv(source: Source, segment: Segment, fields: Fields) -> collections.abc.Iterator[Record]:
    """Rows of a file whose first line names the columns; a quoted value may hold line breaks."""
    # A row must fit into a block, whose size is 32 bits. One more byte, so that the longest allowed
    # row fits.
    read = pyarrow.csv.ReadOptions(block_size=min(source.bytes, fields.longest + _BLOCK, 2**31 - 1))
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
    convert = pyarrow.csv.ConvertOptions(
        column_types=dict.fromkeys((name for name, _ in fields.named), pyarrow.string())
    )
    with pyarrow.csv.open_csv(
        source.path, read_options=read, parse_options=parse, convert_options=convert
    ) as batches:
        _check_fields(batches.schema, fields)
        row = 0
        for batch in batches:
            yield from _rows(source, [batch], row, fields, 0)
            row += batch.num_rows


def _json_array(
    source: Source, segment: Segment, fields: Fields
) -> collections.abc.Iterator[Record]:
    """Objects of one array."""
    if source.bytes > _ARRAY:
        whole = f"a .json file is read whole, and this one is over {_ARRAY >> 30} GiB"
        raise _Unusable(f"{whole}; write a line a record, as .jsonl")
    try:
        with open(source.path, encoding="utf-8-sig") as file:
            rows = json.load(file)
    except UnicodeDecodeError as error:
        raise _Unusable(f"not UTF-8 at byte {error.start}; convert the file to UTF-8") from None
    except (ValueError, RecursionError) as error:
        why = _why_not_json(error, "line")
        raise _Unusable(
            f"not JSON ({why}); fix it, or name it .jsonl if every line is a record"
        ) from None
    if not isinstance(rows, list):
        raise _Unusable(
            "no array of records; put them between [ and ], or name it .jsonl if every line is a "
            "record"
        )
    for row, values in enumerate(rows):
        where = f"{source.path}, row {row}"
        record = Record(row, row + 1, source.bytes * (row + 1) // len(rows), where=where)
        take(record, values, fields)
        if record.size > fields.longest:
            record.problem = _too_long(fields)
        yield record


def _check_fields(schema: pyarrow.Schema, fields: Fields) -> None:
    columns = schema.names
    for name, kind in fields.named:
        if name not in columns and name.split(".")[0] not in columns:
            raise _Unusable(
                f"no column {name!r} among {', '.join(columns)}; rename one, or give `prepare "
                f"--{kind}_field`"
            )
    for name, kind in fields.named:
        of = schema.field(name).type if name in columns and kind in ("text", "prompt") else None
        of = of.value_type if of is not None and pyarrow.types.is_dictionary(of) else of
        if of is not None and not any(test(of) for test in _TEXTS):
            raise _Unusable(
                f"column {name!r} is of type {of}, not text; give `prepare --{kind}_field`"
            )


def _rows(source, batches, row, fields, bytes_a_row) -> collections.abc.Iterator[Record]:
    first = row
    for batch in batches:
        names = set(batch.schema.names)
        top = {name.split(".")[0] if name not in names else name for name in fields.columns}
        columns = {name: _values(batch.column(name)) for name in top & names}
        for place in range(batch.num_rows):
            where = f"{source.path}, row {row}"
            record = Record(row, row + 1, int((row - first + 1) * bytes_a_row), where=where)
            values = {name: column[place] for name, column in columns.items()}
            broken = [value for value in values.values() if isinstance(value, UnicodeDecodeError)]
            if broken:
                record.problem = f"not UTF-8 ({broken[0].reason}); fix or remove the row"
            else:
                take(record, values, fields)
            if record.size > fields.longest:
                record.problem = _too_long(fields)
            row += 1
            yield record


def _values(column: pyarrow.Array) -> list:
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        return [_value(scalar) for scalar in column]


def _value(scalar: pyarrow.Scalar):
    try:
        return scalar.as_py()
    except UnicodeDecodeError as error:
        return error


def take(record: Record, values, fields: Fields) -> None:
    """Takes a JSON object's or a row's text, with the prompt that it answers, or its messages; and
    its group.
    """
    found = {kind: _field(values, name) for name, kind in fields.named}
    for name, kind in fields.named:
        value = found[kind]
        if kind in ("text", "prompt") and not isinstance(value, str):
            what = (
                "is null"
                if isinstance(values, dict) and name in values and value is None
                else "is missing or no string"
            )
            record.problem = (
                f'field "{name}" {what}; fix or remove the record, or give `prepare --{kind}_field`'
            )
            return
    if fields.group:
        try:
            record.group = group_name(found["group"])
        except InputError as error:
            record.problem = f'field "{fields.group}" {error}; fix the record or --group_field'
            return
    if fields.messages:
        _take_messages(record, found["messages"], values, fields.messages)
        return
    record.prompt = _cleaned(record, found.get("prompt", ""))
    if not record.problem:
        _finish(record, found["text"], EMPTY_ANSWER if fields.prompt else EMPTY[0])


def group_name(value) -> str:
    """The name of a group: a text, or a number, a date or a truth value in words.

    Equal values have one name, whatever kind of file they are in: 1.0 is 1, and true is as in JSON.

    Raises:
      InputError: what is wrong with it.
    """
    if value is None or isinstance(value, (dict, list, bytes)):
        raise InputError("is missing or no single value")
    if isinstance(value, (float, decimal.Decimal)):
        if not math.isfinite(value):
            raise InputError(f"is {value}, which is no name")
        # A column of numbers with gaps holds floats; beyond 2^53 these are no longer single
        # numbers.
        value = int(value) if value % 1 == 0 and abs(value) < 2**53 else value
    name = str(value).lower() if isinstance(value, bool) else str(value)
    if not name.strip():
        raise InputError("is empty, so nothing could name the group")
    if (at := half_character(name)) is not None:
        raise InputError(f"is no text: half a character at {at}")
    return name


def _take_messages(record: Record, messages, values, name: str) -> None:
    """Takes a conversation as it is, with what comes with it: its template decides."""
    from memsinks_jax.data.chat import ANSWERS  # loads jinja, which other records do not need

    if not isinstance(messages, list) or not all(
        isinstance(message, dict) and isinstance(message.get("role"), str) for message in messages
    ):
        record.problem = (
            f'field "{name}" is missing or no list of messages, each with a role and a content; '
            "fix or remove the record, "
            "or give `prepare --messages_field`"
        )
        return
    # A table has all fields in all messages, as null where there is none.
    messages = [
        {key: value for key, value in message.items() if value is not None} for message in messages
    ]
    of = values if name in values else _field(values, name.rpartition(".")[0])
    arguments = {key: of[key] for key in _ARGUMENTS if of.get(key)}
    for number, message in enumerate(messages, start=1):
        if problem := _problem(message, answers=message["role"] == ANSWERS):
            record.problem = f"message {number} {problem}"
            return
    for key, listed in arguments.items():
        if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
            record.problem = f'field "{key}" is no list of objects; fix or remove the record'
            return
    weights = [message.get("weight", 1) for message in messages if message["role"] == ANSWERS]
    if not any(weights):
        lacks = (
            f"no message has the role {ANSWERS}"
            if not weights
            else f"all messages of the {ANSWERS} have weight 0"
        )
        record.problem = f"{lacks}, so nothing is answered; remove the record"
        return
    try:
        _as_json([messages, arguments])
    except UnicodeEncodeError:  # JSON may spell half of a character
        record.problem = "no text: half a character in a message; fix or remove the record"
    except (TypeError, ValueError, RecursionError) as error:
        record.problem = f"a message holds what JSON has not ({error}); fix or remove the record"
    else:
        record.messages, record.arguments = messages, arguments


def _problem(message: dict, answers: bool) -> str:
    """What is wrong with a message, without "null"; empty: nothing that can be said without its
    template.
    """
    content = message.get("content", "")
    for part in content if isinstance(content, list) else ():
        if (
            not isinstance(part, dict)
            or part.get("type") != "text"
            or not isinstance(part.get("text"), str)
        ):
            kind = part.get("type") if isinstance(part, dict) else part
            return f"has a part of type {kind!r}, not text; remove the part or the record"
        if more := [
            key for key, value in part.items() if key not in ("type", "text") and value is not None
        ]:
            return f'has a part with the field "{more[0]}"; remove the field'
    if isinstance(content, list):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str) or ("content" not in message and not message.get("tool_calls")):
        return "has no content, a text or a list of parts; fix or remove the record"
    weight = message.get("weight", 1)
    if isinstance(weight, bool) or weight not in (0, 1):
        return f'has the weight {weight!r}; "weight" is 1, or 0 to leave an answer out of the loss'
    if not answers and message.get("weight"):
        return (
            f'has "weight": {weight}, and the role {message["role"]}; only answers are learned: '
            "remove the field"
        )
    empty = answers and not content.strip() and not message.get("tool_calls")
    return "is an empty answer; remove the record" if empty else ""


def _field(values, name: str):
    if not isinstance(values, dict) or name in values or "." not in name:
        return values.get(name) if isinstance(values, dict) else None
    head, rest = name.split(".", 1)
    return _field(values.get(head), rest)


def _decode(record: Record, content: bytes) -> None:
    try:
        _finish(record, content.decode("utf-8"))
    except UnicodeDecodeError as error:
        record.problem = (
            f"not UTF-8 near byte {record.start + error.start}; convert the file to UTF-8"
        )


def _finish(record: Record, text: str, empty: str = EMPTY[0]) -> None:
    """Takes a text; `empty` is the problem if nothing is in it."""
    record.text = _cleaned(record, text)
    if not record.text and not record.problem:
        record.problem = empty


def _as_json(value) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _cleaned(record: Record, text: str) -> str:
    """Without white space at both ends, with line ends "\n": however they are written, it is one
    document.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n").strip()
    if (at := half_character(text)) is not None:
        record.problem = f"no text: half a character at {at}; fix or remove the record"
        text = ""
    return text


def _too_long(fields: Fields) -> str:
    return f"longer than {fields.longest / 2**20:g} MiB; cut it, raise --max_document_mib"
