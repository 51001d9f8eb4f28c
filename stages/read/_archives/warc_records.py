"""The records of web archives in the WARC format, each with its position.

    members ─▶ regular records, by their bytes ─────────────────────────────┬─▶ records, and what is damaged
             └▶ any other content, and large members: `warc_content.py` ────┘

A member that does not begin with a record goes on with the last record of the one before.

A record's position is (offset of its member) · 2^24 + its number in the member; in a plain file the offset of its first byte.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace

import pyarrow as pa

from datapipe.errors import UnsplittableInputError
from datapipe.stage import Rejected, Split
from stages.read._archives.members import WARC, Member, member_loss, members, members_of_range
from stages.read._archives.record import NUMBER_BITS, Fields, Record
from stages.read._archives.warc_content import KINDS, Ahead, Opened, WarcContent

_BEGINNING, _BEGINNING_BYTES = re.compile(rb"\nWARC/[01]\."), 8
_HEADERS_END = b"\r\n\r\n"
_VERSIONS = (b"WARC/1.0\r\n", b"WARC/1.1\r\n")
_FIELD = re.compile(rb"\n([^\s:]+)[ \t]*:[ \t]*([^\r\n]*)(?=\r\n)")
_SCAN_BYTES = 4 << 20


def warc_records(stream: pa.NativeFile, compression: str | None, max_bytes: int, start: int = 0) -> Iterator[Record | Rejected]:
    """The records of a file in their order, and `Rejected` in place of what cannot be read.

    Args:
        max_bytes: the most bytes of a record; a larger one is rejected without being held.
        start: offset of the member to begin with; in a plain file, of the record.

    Raises BrokenStreamError for a file of another format, OSError where the storage fails.
    """
    if compression is None:
        return _of_plain(stream, max_bytes, start, None)
    return _of_members(members(stream, compression, WARC, start), max_bytes)


def warc_records_of_split(stream: pa.NativeFile, split: Split, max_bytes: int) -> Iterator[Record | Rejected]:
    """The records whose member, or in a plain file whose first byte, is in the byte range of a split; otherwise as
    `warc_records`. Raises UnsplittableInputError where the next range would begin within a record of this one."""
    compression, start, stop = split.file.compression, split.start, split.stop
    if stop is None:
        return warc_records(stream, compression, max_bytes)
    if compression is None:
        return _of_plain_range(stream, max_bytes, start, stop)
    return _of_members(members_of_range(stream, compression, WARC, start, stop), max_bytes)


def _of_members(found: Iterable[Member], max_bytes: int) -> Iterator[Record | Rejected]:
    ahead = Ahead(found)
    damaged: tuple[int, Member] | None = None  # told once it is known where reading goes on
    while (opened := ahead.take()) is not None:
        if damaged is not None:
            yield member_loss(*damaged)
            damaged = None
        position = opened.member.offset << NUMBER_BITS
        regular = regular_records(opened.content, position, max_bytes) if opened.is_whole else None
        if regular is not None:
            yield from regular
            continue
        content = WarcContent(opened, ahead)
        for item in _numbered(content, opened.member.offset, max_bytes):
            yield item
            position = item.position + 1
        damaged = (position, content.member) if content.member.damage else None
    if damaged is not None:
        yield member_loss(*damaged)


# ------------------------------------------------------------------------------------------------ regular records


def regular_records(content: bytes, position: int, max_bytes: int) -> list[Record] | None:
    """The records in the content of a member, where each is written as the standard has it: no header over several lines, none
    twice, a known type, and two line ends behind a body of the length that is declared. None for any other content.

    Args:
        position: of the first record; the others follow.
    """
    found: list[Record] = []
    begin = 0
    while begin < len(content):
        end = content.find(_HEADERS_END, begin)
        if end < 0 or not content.startswith(_VERSIONS, begin):
            return None
        fields = {name.lower(): value for name, value in _FIELD.findall(content, begin, end + 2)}
        kind, length = KINDS.get(fields.get(b"warc-type", b"")), fields.get(b"content-length", b"")
        if len(fields) != content.count(b"\n", begin, end) or kind is None or not length.isdigit() or len(length) > 15:
            return None
        body = end + len(_HEADERS_END)
        stop = body + int(length)
        begin = stop + len(_HEADERS_END)
        if int(length) > max_bytes or content[stop:begin] != _HEADERS_END:
            return None
        found.append(Record(position + len(found), kind, Fields(fields), content[body:stop]))
    return found


# ------------------------------------------------------------------------------------------------ files without compression


def _of_plain_range(stream: pa.NativeFile, max_bytes: int, start: int, stop: int) -> Iterator[Record | Rejected]:
    """The records that begin in [start, stop) of a plain file; the ranges meet as those of members do (`members.py`)."""
    first = _next_record(stream, start - 1, stop) if start else 0
    if first is None:
        return
    end = yield from _of_plain(stream, max_bytes, first, stop)
    inside = _next_record(stream, stop - 1, end)
    if inside is not None:
        raise UnsplittableInputError(f"bytes like the beginning of a record stand at byte {inside:,}, inside of a record")


def _of_plain(
    stream: pa.NativeFile, max_bytes: int, start: int, stop: int | None
) -> Generator[Record | Rejected, None, int | None]:
    """The records of a plain file. Behind damage it goes on at the next record that can be found.

    Returns:
        The offset of the first record at or behind `stop` that a search finds too; None at the end of the file.
    """
    begin: int | None = start
    while begin is not None:
        searched_from, begin_next = begin + 1, None
        for member in members(stream, None, WARC, begin):
            for item in WarcContent(Opened(member, b"")).records(max_bytes):
                position = begin + item.position
                if stop is not None and position >= stop and _is_beginning(stream, position):
                    return position
                yield replace(item, position=position)
                if isinstance(item, Rejected) and item.is_file_damage:
                    begin_next = _next_record(stream, max(searched_from, position))
                    break
                searched_from = position + (len(item.body) if isinstance(item, Record) else 0) + 1
        begin = begin_next
        if stop is not None and begin is not None and begin >= stop:
            return begin
    return None


def _is_beginning(stream: pa.NativeFile, offset: int) -> bool:
    """Whether a search finds a record at an offset behind the first byte of the file."""
    return _BEGINNING.match(stream.read_at(_BEGINNING_BYTES, offset - 1)) is not None


def _next_record(stream: pa.NativeFile, start: int, stop: int | None = None) -> int | None:
    """The offset of the first line from `start` + 1 on, and before `stop`, that begins as a record does."""
    offset, tail = start, b""
    while (stop is None or offset - len(tail) < stop) and (block := stream.read_at(_SCAN_BYTES, offset)):
        window = tail + block
        found = _BEGINNING.search(window)
        if found is not None:
            position = offset - len(tail) + found.start() + 1
            return position if stop is None or position < stop else None
        offset += len(block)
        tail = window[1 - _BEGINNING_BYTES :]
    return None


def _numbered(content: WarcContent, member_offset: int, max_bytes: int) -> Iterator[Record | Rejected]:
    """The records of one member."""
    for number, item in enumerate(content.records(max_bytes)):
        yield replace(item, position=(member_offset << NUMBER_BITS) + number)
