"""Arrow IPC, files and streams: one row, one document, read by record batches. Also Feather version
2, and the folders that `save_to_disk` of Hugging Face datasets writes.

    heads of messages (`_arrow/messages.py`) ─▶ record batches of this split ─▶ the needed columns, validated ─▶ documents

Arrow trusts the buffers of a record batch. So the sizes that a batch declares are compared with `max_batch_bytes` before Arrow
allocates them, and all offsets are validated before a value is read. Memory is one record batch and its dictionaries. A
damaged record batch loses its rows and nothing else; a stream whose messages cannot be followed loses all later rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow as pa
from pydantic import Field

from datapipe.stage import FieldNames, ReadBatch
from datapipe.stage.documents import TARGET_BATCH_BYTES
from stages.read._arrow.messages import Message, layout_of
from stages.read._column_files import BATCH_ROWS, BROKEN, ColumnReader, OpenedFile, on_one_line
from stages.read._parquet_columns import columns_to_read, field_names, parts, sampled_documents


class Arrow(ColumnReader):
    """Reads Arrow IPC files and streams with one document per row.

    The text must be a string, or binary UTF-8. Ids of any simple type become strings; fields under `keep:` keep their types,
    strings as large strings. For a folder that `save_to_disk` wrote, name `FOLDER/data-*.arrow`.
    """

    extensions: ClassVar[tuple[str, ...]] = (".arrow", ".feather", ".ipc", ".arrows")
    format_name: ClassVar[str] = "Arrow"
    row_group_name: ClassVar[str] = "record batch"

    max_batch_bytes: int = Field(
        default=2 << 30,
        ge=1,
        description="Maximum bytes of a record batch, stored and decompressed. Larger batches are quarantined.",
    )

    def opened(self, stream: pa.NativeFile) -> _Opened:
        return _Opened(stream, self.max_batch_bytes)


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


class _Opened(OpenedFile):
    """A file whose messages are known. Behind a damaged record batch reading begins again, with all dictionaries."""

    def __init__(self, stream: pa.NativeFile, max_bytes: int) -> None:
        self._stream, self._max_bytes, self._layout = stream, max_bytes, layout_of(stream)
        schema = self._layout.schema
        self._schema_content = stream.read_at(schema.num_bytes, schema.offset)
        try:
            self.schema = pa.ipc.open_stream(pa.BufferReader(self._schema_content)).schema
            _ = list(field_names(self.schema))  # decodes the names
        except BROKEN as error:
            raise ValueError(f"its schema: {on_one_line(error)}") from error
        self._reader: Any = None
        self._fed, self._num_dictionaries = _Fed(), 0
        self.row_groups, self.damage = self._layout.row_groups, self._layout.damage

    def read(self, number: int, row: int, fields: FieldNames) -> Iterator[ReadBatch]:
        try:
            batch = self._decoded(self._loaded(number), fields)
        except ValueError:
            self._reader = None
            raise
        rows = max(1, min(BATCH_ROWS, batch.num_rows * TARGET_BATCH_BYTES // max(1, batch.nbytes)))
        for first in range(0, batch.num_rows, rows):
            for start, part in parts(batch.slice(first, rows)):
                yield sampled_documents(part, row + first + start, fields)

    def _loaded(self, number: int) -> list[bytes]:
        message = self._layout.batches[number]
        if message is None:
            raise ValueError("its head, or its entry in the footer, is damaged")
        first = 0 if self._reader is None else self._num_dictionaries
        before = [dictionary for batch, dictionary in self._layout.dictionaries[first:] if batch <= number]
        contents = [self._content(wanted) for wanted in (*before, message)]
        self._num_dictionaries = first + len(before)
        return contents

    def _content(self, message: Message) -> bytes:
        if message.num_bytes > self._max_bytes:
            raise ValueError(f"{message.num_bytes} bytes, more than max_batch_bytes, {self._max_bytes}")
        content = self._stream.read_at(message.num_bytes, message.offset)
        if len(content) < message.num_bytes:
            raise ValueError(f"{len(content)} bytes, expected {message.num_bytes}")
        num_bytes = _decompressed_bytes(message, content) if message.is_compressed else message.body_bytes
        if num_bytes > self._max_bytes:
            raise ValueError(f"{num_bytes} bytes once decompressed, more than max_batch_bytes, {self._max_bytes}")
        if message.num_rows > 8 * num_bytes + BATCH_ROWS:
            raise ValueError(f"{message.num_rows} rows in {num_bytes} bytes")
        return content

    def _decoded(self, contents: list[bytes], fields: FieldNames) -> pa.RecordBatch:
        """The wanted columns of a record batch, safe to read. Raises ValueError."""
        try:
            reader = self._reader_of(contents, fields)
            batch = reader.read_next_batch()
            for name, column in zip(batch.schema.names, batch.columns):
                is_whole = name in fields.keep and pa.types.is_nested(column.type)
                column.validate()
                (column if is_whole else column.view(_of_bytes(column.type))).validate(full=True)
        except BROKEN as error:
            if isinstance(error, MemoryError):
                raise
            raise ValueError(on_one_line(error)) from error
        return batch

    def _reader_of(self, contents: list[bytes], fields: FieldNames) -> Any:
        if self._reader is None:
            self._fed = _Fed()
            self._fed.put(self._schema_content)
        for content in contents:
            self._fed.put(content)
        if self._reader is None:
            source: Any = pa.PythonFile(self._fed, mode="r")
            asked = columns_to_read(self.schema, fields)
            names = {*asked, *(name.split(".")[0] for name in asked)}
            wanted = [index for index, name in enumerate(self.schema.names) if name in names]
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
