"""Arrow IPC, files and streams: one row, one document, read by record batches. Also Feather version 2, and the folders that
`save_to_disk` of Hugging Face datasets writes.

    heads of messages (`_arrow/messages.py`) ─▶ record batches of this split ─▶ the needed columns, validated ─▶ documents

Arrow trusts the buffers of a record batch. So the sizes that a batch declares are compared with `max_batch_bytes` before Arrow
allocates them, and all offsets are validated before a value is read. Memory is one record batch and its dictionaries.

A damaged record batch loses its rows and nothing else, in splits of any size. A stream whose messages cannot be followed any
further loses all rows behind, one reject.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa
from pydantic import Field

from datapipe.errors import DamagedInputError, DatapipeError, UserError
from datapipe.stage import FieldNames, FieldsSeen, InputFile, OpenInput, ReadBatch, Reader, Split
from datapipe.stage.documents import TARGET_BATCH_BYTES
from stages.read._arrow.messages import Layout, Message, layout_of
from stages.read._damaged_columns import BROKEN, damaged, on_one_line, unreadable
from stages.read._parquet_columns import columns_to_read, documents, field_names, has_field, parts

_BATCH_ROWS = 8192


class Arrow(Reader):
    """Reads Arrow IPC files and streams of one document a row.

    The text must be a string, or binary UTF-8. Ids of any simple type become strings; fields under `keep:` keep their types,
    strings as large strings. Of a folder of `save_to_disk`, name `FOLDER/data-*.arrow`.
    """

    extensions: ClassVar[tuple[str, ...]] = (".arrow", ".feather", ".ipc", ".arrows")
    libraries: ClassVar[tuple[str, ...]] = ("pyarrow",)

    max_batch_bytes: int = Field(
        default=2 << 30,
        ge=1,
        description="Most bytes of a record batch, stored and decompressed; larger ones are quarantined without being held.",
    )

    def probe(self, file: InputFile, open_input: OpenInput) -> InputFile:
        """Rows and stored bytes of each record batch, and the schema. Raises DamagedInputError where no schema can be read,
        which `read` rejects."""
        if file.compression is not None:
            raise UserError(
                f"{file.url}: Arrow IPC inside {file.compression} cannot be read by record batches. "
                "Decompress the file; Arrow itself compresses."
            )
        with open_input(file.url) as stream:
            try:
                opened = _Opened.of(stream)
                return replace(file, row_groups=opened.layout.row_groups, schema=opened.schema.remove_metadata())
            except ValueError as error:
                raise DamagedInputError(unreadable("Arrow file", error, stream)) from error

    def cut(self, file: InputFile, target_bytes: int) -> list[Split]:
        """Runs of record batches of about `target_bytes` as stored."""
        splits: list[Split] = []
        start = size = 0
        for number, (_, num_bytes) in enumerate(file.row_groups):
            size += num_bytes
            if size >= target_bytes and number + 1 < len(file.row_groups):
                splits.append(Split(file=file, start=start, stop=number + 1))
                start, size = number + 1, 0
        return [*splits, Split(file=file, start=start)]

    def read(self, split: Split, fields: FieldNames, open_input: OpenInput) -> Iterator[ReadBatch]:
        planned = split.file.row_groups
        row = sum(num_rows for num_rows, _ in planned[: split.start])
        with open_input(split.file.url) as stream:
            try:
                opened = _Opened.of(stream)
            except ValueError as error:
                yield damaged(row, unreadable("Arrow file", error, stream))
                return
            if opened.layout.row_groups != planned:
                raise DatapipeError(
                    f"{split.file.url}: its record batches differ from those that were planned. Run again to plan anew."
                )
            stop = len(planned) if split.stop is None else split.stop
            batches = _Batches(stream=stream, opened=opened, fields=fields, max_bytes=self.max_batch_bytes)
            for number in range(split.start, stop):
                yield from batches.read(number, row)
                row += planned[number][0]
            if split.stop is None and opened.layout.damage:
                yield damaged(row, f"the Arrow file is damaged from row {row} on: {opened.layout.damage}")

    def fields_seen(self, split: Split, fields: FieldNames, open_input: OpenInput) -> FieldsSeen:
        """The fields of the schema; no row is read. Nothing for a file whose schema cannot be read, which `read` rejects."""
        with open_input(split.file.url) as stream:
            try:
                opened = _Opened.of(stream)
            except ValueError:
                return FieldsSeen()
        found = (name for name in (fields.text, *fields.keep) if has_field(opened.schema, name))
        num_rows = sum(num_rows for num_rows, _ in opened.layout.row_groups)
        return FieldsSeen(num_records=num_rows, found=frozenset(found), names=tuple(field_names(opened.schema)))


@dataclass(frozen=True, slots=True)
class _Opened:
    """A file whose messages are known.

    Attributes:
        schema_content: the message of the schema, as stored.
    """

    layout: Layout
    schema_content: bytes
    schema: pa.Schema

    @classmethod
    def of(cls, stream: pa.NativeFile) -> _Opened:
        """Raises ValueError where nothing can be read, OSError where the storage fails."""
        layout = layout_of(stream)
        content = stream.read_at(layout.schema.num_bytes, layout.schema.offset)
        try:
            schema = pa.ipc.open_stream(pa.BufferReader(content)).schema
            _ = list(field_names(schema))  # decodes the names
        except BROKEN as error:
            raise ValueError(f"its schema: {on_one_line(error)}") from error
        return cls(layout, content, schema)


class _Fed:
    """A file of the messages that were put in, for Arrow's reader of streams."""

    closed = False

    def __init__(self) -> None:
        self._parts: deque[memoryview] = deque()

    def put(self, content: bytes) -> None:
        self._parts.append(memoryview(content))

    def read(self, num_bytes: int = -1) -> Any:
        """The next bytes, of one message at most."""
        while self._parts:
            part = self._parts.popleft()
            if num_bytes < len(part):
                self._parts.appendleft(part[num_bytes:])
            if len(part):
                return part[:num_bytes]
        return b""

    def close(self) -> None:
        """Does nothing: it holds no file."""


@dataclass(kw_only=True, slots=True)
class _Batches:
    """Reads record batches in ascending order. Behind a damaged one it begins again, with all dictionaries."""

    stream: pa.NativeFile
    opened: _Opened
    fields: FieldNames
    max_bytes: int
    _reader: Any = None
    _fed: _Fed = field(default_factory=_Fed)
    _num_dictionaries: int = 0

    def read(self, number: int, row: int) -> Iterator[ReadBatch]:
        """The documents of a record batch whose first row is `row`, or one reject for all its rows."""
        try:
            batch = self._decoded(number, self._loaded(number))
        except ValueError as error:
            self._reader = None
            damage = f"record batch {number} of the Arrow file is damaged, from row {row} on"
            yield damaged(row, f"{damage}: {on_one_line(error)}")
            return
        rows = max(1, min(_BATCH_ROWS, batch.num_rows * TARGET_BATCH_BYTES // max(1, batch.nbytes)))
        for first in range(0, batch.num_rows, rows):
            for start, part in parts(batch.slice(first, rows)):
                yield documents(part, row + first + start, self.fields)

    def _loaded(self, number: int) -> list[bytes]:
        """The messages that Arrow's reader needs next, the last one the record batch. Raises OSError where the storage fails,
        ValueError for sizes that cannot be."""
        layout = self.opened.layout
        message = layout.batches[number]
        if message is None:
            raise ValueError("its head, or what the footer says of it, is damaged")
        first = 0 if self._reader is None else self._num_dictionaries
        before = [dictionary for batch, dictionary in layout.dictionaries[first:] if batch <= number]
        contents = [self._content(wanted) for wanted in (*before, message)]
        self._num_dictionaries = first + len(before)
        return contents

    def _content(self, message: Message) -> bytes:
        """A message, once its sizes are checked."""
        if message.num_bytes > self.max_bytes:
            raise ValueError(f"{message.num_bytes} bytes, more than max_batch_bytes, {self.max_bytes}")
        content = self.stream.read_at(message.num_bytes, message.offset)
        if len(content) < message.num_bytes:
            raise ValueError(f"{len(content)} bytes, expected {message.num_bytes}")
        num_bytes = _decompressed_bytes(message, content) if message.is_compressed else message.body_bytes
        if num_bytes > self.max_bytes:
            raise ValueError(f"{num_bytes} bytes once decompressed, more than max_batch_bytes, {self.max_bytes}")
        if message.num_rows > 8 * num_bytes + _BATCH_ROWS:
            raise ValueError(f"{message.num_rows} rows in {num_bytes} bytes")
        return content

    def _decoded(self, number: int, contents: list[bytes]) -> pa.RecordBatch:
        """The wanted columns of a record batch, safe to look at. Raises ValueError."""
        try:
            reader = self._reader_of(contents)
            batch = reader.read_next_batch()
            for name, column in zip(batch.schema.names, batch.columns):
                is_whole = name in self.fields.keep and pa.types.is_nested(column.type)
                column.validate()
                (column if is_whole else column.view(_of_bytes(column.type))).validate(full=True)
        except BROKEN as error:
            if isinstance(error, MemoryError):
                raise
            raise ValueError(on_one_line(error)) from error
        return batch

    def _reader_of(self, contents: list[bytes]) -> Any:
        """Arrow's reader, which gets these messages next."""
        if self._reader is None:
            self._fed = _Fed()
            self._fed.put(self.opened.schema_content)
        for content in contents:
            self._fed.put(content)
        if self._reader is None:
            source: Any = pa.PythonFile(self._fed, mode="r")
            asked = columns_to_read(self.opened.schema, self.fields)
            names = {*asked, *(name.split(".")[0] for name in asked)}
            wanted = [index for index, name in enumerate(self.opened.schema.names) if name in names]
            options = pa.ipc.IpcReadOptions(included_fields=wanted, use_threads=False)
            self._reader = pa.ipc.open_stream(source, options=options)
        return self._reader


def _decompressed_bytes(message: Message, content: bytes) -> int:
    """The bytes of a compressed body once decompressed: each buffer begins with its own, -1 where it is stored as it is."""
    body, total = message.num_bytes - message.body_bytes, 0
    for start, size in message.buffers:
        declared = int.from_bytes(content[body + start : body + start + 8], "little", signed=True) if size else 0
        if declared < -1 or 0 < size < 8:
            raise ValueError(f"a buffer of {size} bytes that declares {declared}")
        total += size if declared == -1 else declared
    return total


def _of_bytes(kind: pa.DataType) -> pa.DataType:
    """The type with bytes in place of strings, over the same buffers: a text that is not UTF-8 is no damage of its batch."""
    for is_kind, of_bytes in _BYTES_OF_STRINGS:
        if is_kind(kind):
            return of_bytes
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _of_bytes(kind.value_type), kind.ordered)
    if pa.types.is_struct(kind):
        return pa.struct([member.with_type(_of_bytes(member.type)) for member in kind])
    return kind


_BYTES_OF_STRINGS = (
    (pa.types.is_string, pa.binary()),
    (pa.types.is_large_string, pa.large_binary()),
    (pa.types.is_string_view, pa.binary_view()),
)
