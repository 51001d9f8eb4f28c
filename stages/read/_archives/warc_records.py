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

from datapipe.errors import UnsplittableInputError
from datapipe.stage import Rejected
from datapipe.stage.decoding import BLOCK_BYTES, OFFSET_BITS, Member, Members, StoredBytes
from stages.read._archives.record import Fields, Record
from stages.read._archives.warc_content import KINDS, Ahead, WarcContent

_BEGINNING, _BEGINNING_BYTES = re.compile(rb"\nWARC/[01]\."), 8
_HEADERS_END = b"\r\n\r\n"
_VERSIONS = (b"WARC/1.0\r\n", b"WARC/1.1\r\n")
_FIELD = re.compile(rb"\n([^\s:]+)[ \t]*:[ \t]*([^\r\n]*)(?=\r\n)")


def warc_records(members: Members, max_bytes: int, start: int = 0, stop: int | None = None) -> Iterator[Record | Rejected]:
    """The records of a file in their order, and `Rejected` in place of what cannot be read.

    Args:
        max_bytes: the most bytes of a record; a larger one is rejected without being held.
        start, stop: the records of this byte range, whose member, or in a plain file whose first byte, is in it.

    Raises UnsplittableInputError where the next range would begin within a record of this one.
    """
    if members.compression is not None:
        return _of_members(members.of_range(start, stop), max_bytes)
    if stop is None:
        return _of_plain(members, max_bytes, start, None)
    return _of_plain_range(members, max_bytes, start, stop)


def _of_members(found: Iterable[Member], max_bytes: int) -> Iterator[Record | Rejected]:
    ahead = Ahead(found)
    while (opened := ahead.take()) is not None:
        position = opened.member.offset << OFFSET_BITS
        regular = regular_records(opened.content, position, max_bytes) if opened.is_whole else None
        if regular is not None:
            yield from regular
            continue
        content = WarcContent(opened, ahead)
        for item in content.records(max_bytes):
            yield replace(item, position=position)
            position += 1
        if content.member.damage:
            yield Rejected(position=position, error=content.member.loss, is_file_damage=True)


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


def _of_plain_range(members: Members, max_bytes: int, start: int, stop: int) -> Iterator[Record | Rejected]:
    """The records that begin in [start, stop) of a plain file; the ranges meet as those of members do (`Members`)."""
    first = _next_record(members.stored, start - 1, stop) if start else 0
    if first is None:
        return
    end = yield from _of_plain(members, max_bytes, first, stop)
    inside = _next_record(members.stored, stop - 1, end)
    if inside is not None:
        raise UnsplittableInputError(f"bytes like the beginning of a record stand at byte {inside:,}, inside of a record")


def _of_plain(members: Members, max_bytes: int, start: int, stop: int | None) -> Generator[Record | Rejected, None, int | None]:
    """The records of a plain file. Behind damage it goes on at the next record that can be found.

    Returns:
        The offset of the first record at or behind `stop` that a search finds too; None at the end of the file.
    """
    begin: int | None = start
    while begin is not None:
        searched_from, begin_next = begin + 1, None
        for item in WarcContent.of_plain(members, begin).records(max_bytes):
            position = begin + item.position
            if stop is not None and position >= stop and _is_beginning(members.stored, position):
                return position
            yield replace(item, position=position)
            if isinstance(item, Rejected) and item.is_file_damage:
                begin_next = _next_record(members.stored, max(searched_from, position))
                break
            searched_from = position + (len(item.body) if isinstance(item, Record) else 0) + 1
        begin = begin_next
        if stop is not None and begin is not None and begin >= stop:
            return begin
    return None


def _is_beginning(stored: StoredBytes, offset: int) -> bool:
    """Whether a search finds a record at an offset behind the first byte of the file."""
    return _BEGINNING.match(stored.header(offset - 1, _BEGINNING_BYTES)) is not None


def _next_record(stored: StoredBytes, start: int, stop: int | None = None) -> int | None:
    """The offset of the first line from `start` + 1 on, and before `stop`, that begins as a record does."""
    offset, tail = start, b""
    while (stop is None or offset - len(tail) < stop) and (block := stored.some(offset, BLOCK_BYTES)):
        window = tail + bytes(block)
        found = _BEGINNING.search(window)
        if found is not None:
            position = offset - len(tail) + found.start() + 1
            return position if stop is None or position < stop else None
        offset += len(block)
        tail = window[1 - _BEGINNING_BYTES :]
    return None
