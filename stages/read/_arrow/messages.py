"""Where the messages of an Arrow IPC file or stream are: schema, dictionaries and record batches, found by their heads alone.

    file     "ARROW1", two zero bytes, then a stream, then a footer with the place of each message, its length, "ARROW1"
    stream   schema ─▶ dictionaries and record batches ─▶ end marker
    message  [FF FF FF FF] [length of head] [head, a FlatBuffer] [body]; before version 0.15 without the four FF

One read of a few kilobytes finds a message. See "Serialization and Interprocess Communication
(IPC)" of the specification of Arrow's columnar format, and Message.fbs, File.fbs beside it.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from datapipe.dataclass import dataclass, field, replace

MAGIC = b"ARROW1"
_FEATHER_1 = b"FEA1"
_CONTINUED = b"\xff\xff\xff\xff"
_FIRST_MESSAGE = 8  # Where the stream of a file begins
_HEAD_READ_BYTES = 4096
_MOST_HEAD_BYTES = 64 << 20
_MOST_ROWS = 1 << 40
_SCHEMA, _DICTIONARY, _RECORD_BATCH = 1, 2, 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    kind: int
    offset: int
    num_bytes: int
    body_bytes: int
    num_rows: int = 0  # of a record batch
    # (offset in the body, bytes) of each buffer of a record batch or dictionary
    buffers: tuple[tuple[int, ...], ...] = ()
    is_compressed: bool = False  # whether each buffer begins with its size once decompressed


@dataclass(kw_only=True, slots=True)
class Layout:
    """The messages of a file: record batches in order, None for one whose head is damaged; dictionary batches in order, with
    the number of the record batch that each stands before. `damage`: why there may be more record batches; empty for none."""

    schema: Message
    batches: list[Message | None] = field(default_factory=list)
    dictionaries: list[tuple[int, Message]] = field(default_factory=list)
    damage: str = ""

    @property
    def row_groups(self) -> tuple[tuple[int, int], ...]:
        """(rows, stored bytes) of each record batch."""
        return tuple((0, 0) if batch is None else (batch.num_rows, batch.num_bytes) for batch in self.batches)


def layout_of(stream: pa.NativeFile) -> Layout:
    """The messages of a file. Raises ValueError where nothing can be read, OSError where the storage fails."""
    num_bytes = stream.size()
    beginning = stream.read_at(_FIRST_MESSAGE, 0) if num_bytes else b""
    if beginning.startswith(_FEATHER_1):
        raise ValueError("a file of Feather version 1, expected Arrow IPC: write it again with pyarrow.feather.write_feather")
    if not beginning.startswith(MAGIC):
        return _of_stream(stream, num_bytes)
    return _of_footer(stream, num_bytes)


def _of_footer(stream: pa.NativeFile, num_bytes: int) -> Layout:
    tail_bytes = len(MAGIC) + 4
    tail = stream.read_at(tail_bytes, max(_FIRST_MESSAGE, num_bytes - tail_bytes))
    if len(tail) < tail_bytes or not tail.endswith(MAGIC):
        raise ValueError("its footer is damaged or cut off: the file does not end with ARROW1")
    footer_bytes, stop = int.from_bytes(tail[:4], "little"), num_bytes - tail_bytes
    if not 0 < footer_bytes <= stop - _FIRST_MESSAGE:
        raise ValueError(f"a footer of {footer_bytes} bytes in a file of {num_bytes}")
    footer = FlatTable.root(stream.read_at(footer_bytes, stop - footer_bytes))
    schema = _schema_at(stream, _FIRST_MESSAGE, stop)
    blocks = {field: footer.structs(field, "qi4xq") for field in (2, 3)}
    dictionaries = [_message_of(stream, block, stop, _DICTIONARY) for block in blocks[2]]
    if None in dictionaries:
        raise ValueError("it names a dictionary that is none")
    return Layout(
        schema=schema,
        batches=[_message_of(stream, block, stop, _RECORD_BATCH) for block in blocks[3]],
        dictionaries=[(0, message) for message in dictionaries if message is not None],
    )


def _message_of(stream: pa.NativeFile, block: tuple[int, ...], stop: int, kind: int) -> Message | None:
    offset, head_bytes, body_bytes = block
    try:
        message = _message_at(stream, offset, stop)
    except ValueError:
        return None
    if message is None or (message.kind, message.body_bytes) != (kind, body_bytes):
        return None
    return message if message.num_bytes == head_bytes + body_bytes else None


def _of_stream(stream: pa.NativeFile, stop: int) -> Layout:
    layout = Layout(schema=_schema_at(stream, 0, stop))
    offset = layout.schema.num_bytes
    while not layout.damage and offset < stop:
        try:
            message = _message_at(stream, offset, stop)
        except ValueError as error:
            layout.damage = f"byte {offset}: {error}"
            break
        if message is None:
            end = offset + (8 if stream.read_at(4, offset) == _CONTINUED else 4)
            if end < stop:
                layout.damage = f"{stop - end} bytes follow the end of the stream; expected the end of the file"
            break
        if message.kind == _RECORD_BATCH:
            layout.batches.append(message)
        elif message.kind == _DICTIONARY:
            layout.dictionaries.append((len(layout.batches), message))
        else:
            layout.damage = f"byte {offset}: a message of kind {message.kind}; expected a record batch or dictionary"
        offset += message.num_bytes
    else:
        layout.damage = layout.damage or "the stream has no end marker, so it may be cut off"
    return layout


def _schema_at(stream: pa.NativeFile, offset: int, stop: int) -> Message:
    """The schema, which is the first message. Raises ValueError for anything else."""
    message = _message_at(stream, offset, stop)
    if message is None or message.kind != _SCHEMA:
        kind = "an end marker" if message is None else f"a message of kind {message.kind}"
        raise ValueError(f"byte {offset}: {kind}; expected a schema")
    return message


def _message_at(stream: pa.NativeFile, offset: int, stop: int) -> Message | None:
    """The message at a byte; None for an end marker. Raises ValueError for anything else."""
    if not 0 <= offset <= stop - 4:
        raise ValueError(f"a message at byte {offset} of {stop}, so the file is damaged or cut off")
    content = stream.read_at(min(_HEAD_READ_BYTES, stop - offset), offset)
    prefix_bytes = 8 if content.startswith(_CONTINUED) else 4
    head_bytes = int.from_bytes(content[prefix_bytes - 4 : prefix_bytes], "little")
    if len(content) >= prefix_bytes and head_bytes == 0:
        return None
    if not 8 <= head_bytes <= min(_MOST_HEAD_BYTES, stop - offset - prefix_bytes):
        raise ValueError(f"a head of {head_bytes} bytes with {stop - offset} left, so the file is damaged or cut off")
    if len(content) < prefix_bytes + head_bytes:
        content += stream.read_at(prefix_bytes + head_bytes - len(content), offset + len(content))
    message = _parsed(content[prefix_bytes : prefix_bytes + head_bytes], offset, prefix_bytes + head_bytes)
    if message.num_bytes > stop - offset:
        raise ValueError(f"a message of {message.num_bytes} bytes with {stop - offset} left, so the file is damaged or cut off")
    return message


def _parsed(head: bytes, offset: int, body_offset: int) -> Message:
    table = FlatTable.root(head)
    kind, body_bytes, content = table.integer(1, "B"), table.integer(3, "q"), table.table(2)
    if content is None or body_bytes < 0:
        raise ValueError("a message without content; expected a schema, a dictionary or a record batch")
    message = Message(kind=kind, offset=offset, num_bytes=body_offset + body_bytes, body_bytes=body_bytes)
    batch = content.table(1) if kind == _DICTIONARY else content
    if kind not in (_DICTIONARY, _RECORD_BATCH) or batch is None:
        return message
    num_rows, buffers = batch.integer(0, "q"), tuple(batch.structs(2, "qq"))
    if not 0 <= num_rows <= _MOST_ROWS or any(start < 0 or size < 0 or start + size > body_bytes for start, size in buffers):
        raise ValueError(f"a batch of {num_rows} rows whose buffers are not all within its {body_bytes} bytes")
    return replace(message, num_rows=num_rows, buffers=buffers, is_compressed=batch.table(3) is not None)


@dataclass(frozen=True, slots=True)
class FlatTable:
    """A table at `offset` of `content`. Every method raises ValueError for an offset outside the bytes."""

    content: bytes
    offset: int

    @classmethod
    def root(cls, content: bytes) -> FlatTable:
        return cls(content, _number(content, "<I", 0))

    def integer(self, field: int, kind: str, default: int = 0) -> int:
        """A number; `kind` as `struct` names it."""
        position = self._at(field)
        return default if position is None else _number(self.content, f"<{kind}", position)

    def table(self, field: int) -> FlatTable | None:
        position = self._at(field)
        return None if position is None else FlatTable(self.content, position + _number(self.content, "<I", position))

    def structs(self, field: int, kind: str) -> list[tuple[int, ...]]:
        """A vector of structs of numbers; `kind` as `struct` names them."""
        position = self._at(field)
        if position is None:
            return []
        start = position + _number(self.content, "<I", position)
        count, size = _number(self.content, "<I", start), struct.calcsize(f"<{kind}")
        if start + 4 + count * size > len(self.content):
            raise ValueError(f"a vector of {count} elements in {len(self.content)} bytes")
        return list(struct.iter_unpack(f"<{kind}", self.content[start + 4 : start + 4 + count * size]))

    def _at(self, field: int) -> int | None:
        """Where a field begins; None where the table has none."""
        fields = self.offset - _number(self.content, "<i", self.offset)
        entry = 4 + 2 * field
        if entry + 2 > _number(self.content, "<H", fields):
            return None
        distance = _number(self.content, "<H", fields + entry)
        return self.offset + distance if distance else None


def _number(content: bytes, kind: str, offset: int) -> int:
    if not 0 <= offset <= len(content) - struct.calcsize(kind):
        raise ValueError(f"an offset of {offset} in {len(content)} bytes")
    return struct.unpack_from(kind, content, offset)[0]
