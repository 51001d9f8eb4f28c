"""The records of web archives in the WARC format, each with its position, parsed by fastwarc.

    members ─▶ regular records, by their bytes ────────────────┬─▶ records, and what is damaged
             └▶ any other content, and large members: fastwarc ┘

A member that does not begin with a record goes on with the last record of the one before.

A record's position is (offset of its member) · 2^24 + its number in the member; in a plain file the offset of its first byte.
fastwarc returns the body of a record that is cut off without an error, so bodies are compared with Content-Length here.
"""

from __future__ import annotations

import io
import re
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, cast

import pyarrow as pa

from datapipe.errors import UnsplittableInputError
from datapipe.stage import Rejected, Split
from stages.read._archives.members import WARC, Member, member_loss, members, members_of_range
from stages.read._archives.record import NUMBER_BITS, Fields, Record

_WHOLE_BYTES = 8 << 20
"""Content up to which a member is held whole. A larger one is parsed as it is decompressed."""

_BEGINNING, _HEADERS_END = b"\nWARC/1.", b"\r\n\r\n"
_VERSIONS = (b"WARC/1.0\r\n", b"WARC/1.1\r\n")
_FIELD = re.compile(rb"\n([^\s:]+)[ \t]*:[ \t]*([^\r\n]*)(?=\r\n)")
_TYPES = ("warcinfo", "response", "resource", "request", "metadata", "revisit", "conversion", "continuation")
_KINDS = {name.encode(): name for name in _TYPES}
_RECENT_BYTES = 128 << 10
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
    ahead = _Ahead(found)
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
        content = _Content(opened, ahead)
        for item in _numbered(content, opened.member.offset, max_bytes):
            yield item
            position = item.position + 1
        damaged = (position, content.member) if content.member.damage else None
    if damaged is not None:
        yield member_loss(*damaged)


class _Opened(NamedTuple):
    """A member, and its first `_WHOLE_BYTES` + 1 bytes of content or all of it."""

    member: Member
    content: bytes

    @property
    def is_whole(self) -> bool:
        return len(self.content) <= _WHOLE_BYTES and not self.member.damage


class _Ahead:
    """The members in their order, of which one may be looked at before it is taken."""

    def __init__(self, found: Iterable[Member]) -> None:
        self._found = iter(found)
        self._seen: _Opened | None = None

    def take(self) -> _Opened | None:
        """The next member; None at the end."""
        seen, self._seen = self._seen, None
        member = next(self._found, None) if seen is None else seen.member
        return seen or (None if member is None else _Opened(member, member.read(_WHOLE_BYTES + 1)))

    def take_continuation(self) -> _Opened | None:
        """The next member, if it does not begin with a record: some writers cut files into members at any byte."""
        self._seen = self.take()
        return None if self._seen is None or WARC.is_record(self._seen.content) else self.take()


# ------------------------------------------------------------------------------------------------ regular records


def regular_records(content: bytes, position: int, max_bytes: int) -> list[Record] | None:
    """The records in the content of a member, where each is written as the standard has it: no header over several lines, none
    twice, a known type, and two line ends behind a body of the length that is declared. None for any other content, which
    fastwarc parses, and of which it finds the same if it is regular.

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
        kind, length = _KINDS.get(fields.get(b"warc-type", b"")), fields.get(b"content-length", b"")
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
            for item in _parsed(_Content(_Opened(member, b"")), max_bytes):
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
    return stream.read_at(len(_BEGINNING), offset - 1) == _BEGINNING


def _next_record(stream: pa.NativeFile, start: int, stop: int | None = None) -> int | None:
    """The offset of the first line from `start` + 1 on, and before `stop`, that begins as a record does."""
    offset, tail = start, b""
    while (stop is None or offset - len(tail) < stop) and (block := stream.read_at(_SCAN_BYTES, offset)):
        window = tail + block
        found = window.find(_BEGINNING)
        if found >= 0:
            position = offset - len(tail) + found + 1
            return position if stop is None or position < stop else None
        offset += len(block)
        tail = window[1 - len(_BEGINNING) :]
    return None


# ------------------------------------------------------------------------------------------------ parsing


def _numbered(content: _Content, member_offset: int, max_bytes: int) -> Iterator[Record | Rejected]:
    """The records of one member."""
    for number, item in enumerate(_parsed(content, max_bytes)):
        yield replace(item, position=(member_offset << NUMBER_BITS) + number)


class _Content:
    """What fastwarc reads: a member, and those behind it in which its last record goes on; or a plain file.

    Attributes:
        member: the one that was read last.
        failure: the error of the storage, or of a cut, which fastwarc would make an error of its own.
    """

    def __init__(self, opened: _Opened, ahead: _Ahead | None = None) -> None:
        self.member, self._ahead = opened.member, ahead
        self._beginning, self._offset = io.BytesIO(opened.content), 0
        self._recent = b""  # what was read last: at least the headers of the record at hand
        self.failure: Exception | None = None

    def read(self, num_bytes: int) -> bytes:
        try:
            content = self._read(num_bytes)
        except Exception as error:
            self.failure = error
            raise
        self._offset += len(content)
        self._recent = self._recent[-_RECENT_BYTES:] + content
        return content

    def _read(self, num_bytes: int) -> bytes:
        while True:
            content = self._beginning.read(num_bytes) or self.member.read(num_bytes)
            if content or self._ahead is None or self.member.damage:
                return content
            continuation = self._ahead.take_continuation()
            if continuation is None:
                return b""
            self.member, self._beginning = continuation.member, io.BytesIO(continuation.content)

    def tell(self) -> int:
        return self._offset

    def body_offset(self, record_offset: int) -> int | None:
        """Where the body of a record begins that fastwarc has just found; None where its headers do not end."""
        first = self._offset - len(self._recent)
        found = self._recent.find(_HEADERS_END, max(0, record_offset - first))
        return None if found < 0 else first + found + len(_HEADERS_END)

    def has_more(self, offset: int) -> bool:
        """Whether anything but line ends lies between an offset and the end of what was read."""
        return bool(self._recent[max(0, offset - self._offset + len(self._recent)) :].strip(b"\r\n"))


def _parsed(content: _Content, max_bytes: int) -> Iterator[Record | Rejected]:
    """The records in some content, with their offsets in it as positions; last, what is no record."""
    from fastwarc.warc import ArchiveIterator

    position = stop = 0
    try:
        for record in ArchiveIterator(cast(Any, content), parse_http=False, stream_detect=False):
            position = record.stream_pos
            body_offset = content.body_offset(position)
            if body_offset is None or record.headers.get("Content-Length") is None:
                what = "the headers of the record are cut off" if body_offset is None else "the record has no Content-Length"
                yield Rejected(position=position, error=what, is_file_damage=True)
                return
            stop = body_offset + record.content_length
            yield _read(record, position, max_bytes)
    except Exception as error:
        if content.failure is not None:
            raise content.failure from None
        if not isinstance(error, OSError):
            raise
        yield Rejected(position=position + 1, error=f"{error}; expected a record that begins with WARC/1", is_file_damage=True)
        return
    if content.tell() > stop and content.has_more(stop):  # fastwarc ends at headers that are cut off
        error = f"{content.tell() - stop:,} bytes are no record; expected a record that begins with WARC/1"
        yield Rejected(position=position + 1, error=error, is_file_damage=True)


def _read(record: Any, position: int, max_bytes: int) -> Record | Rejected:
    if record.content_length > max_bytes:
        error = (
            f"a record of {record.content_length:,} bytes, the most that this reader takes is {max_bytes:,} (max_record_bytes)"
        )
        return Rejected(position=position, error=error)
    body = record.reader.read()
    if len(body) < record.content_length:
        error = f"the record is cut off: {len(body):,} bytes, and its Content-Length is {record.content_length:,}"
        return Rejected(position=position, error=error, is_file_damage=True)
    return Record(position, _kinds().get(int(record.record_type), "unknown"), record.headers, body)


@lru_cache(maxsize=1)
def _kinds() -> dict[int, str]:
    """The names of fastwarc's types of records, which cannot be hashed but are numbers."""
    from fastwarc.warc import WarcRecordType as Kind

    types = Kind.warcinfo, Kind.response, Kind.resource, Kind.request, Kind.metadata, Kind.revisit, Kind.conversion
    return dict(zip(map(int, (*types, Kind.continuation)), _TYPES, strict=True))
