"""The records of web archives in the WARC format, each with its position.

    members ─▶ regular records, by their bytes ──────────────────┬─▶ records, and damage
             └▶ any other content, and large members: one by one ┘

Lines may end with LF alone, as in ClueWeb09; names may have any case, and blanks before the colon; a value may go on in a line
that begins with a blank; a length may be a few bytes short of the next record. Everything else is damage, behind which the next
record is searched. A member that does not begin with a record goes on with the last record of the one before. A record's
position is (offset of its member) · 2^24 + its number in the member; in a plain file the offset of its first byte. Memory is
`WHOLE_BYTES`, or a body that is taken.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator
from itertools import takewhile

from datapipe.dataclass import dataclass, replace
from datapipe.errors import UnsplittableInputError
from datapipe.stage import Rejected
from datapipe.stage.decoding import OFFSET_BITS, Beginning, ByteStream, Member, Members, StoredBytes
from stages.read._archives.http import Fields

WARC = Beginning(lambda content: content.startswith(b"WARC/"), 5)

WHOLE_BYTES = 8 << 20
"""Content up to which a member is held whole. A larger one is parsed as it is decompressed."""

_TYPES = ("warcinfo", "response", "resource", "request", "metadata", "revisit", "conversion", "continuation")
_KINDS = {name.encode(): name for name in _TYPES}

_BEGINNING, _BEGINNING_BYTES = re.compile(rb"\nWARC/[01]\."), 8
_HEADERS_END = b"\r\n\r\n"
_VERSIONS = (b"WARC/1.0\r\n", b"WARC/1.1\r\n")
_REGULAR_FIELD = re.compile(rb"\n([^\s:]+)[ \t]*:[ \t]*([^\r\n]*)(?=\r\n)")

_MOST_HEAD_BYTES = 128 << 10
_READ_BYTES = 64 << 10
_HEAD_END = re.compile(rb"\n\r?\n")
_FOLDED = re.compile(rb"\r?\n[ \t]+")
_FIELD = re.compile(rb"([^\s:]+)[ \t]*:[ \t]*(.*)", re.DOTALL)
_BEHIND = re.compile(rb"(?:\r?\n){2}|[\r\n]*(?:WARC/|\Z)")
_MISSED = re.compile(rb"(?P<missed>[^\r\n].{0,7}?)(?:\r?\n){2,}(?:WARC/|\Z)", re.DOTALL)
"""The end of a body behind a length that is up to 8 bytes short."""
_MISSED_BYTES = 32
_EXPECTED = "expected a record that begins with WARC/1"


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a kind as WARC names it. `has_short_length`: whether its head declares fewer bytes than `body` has."""

    position: int
    kind: str
    headers: Fields
    body: bytes
    has_short_length: bool = False


def warc_records(members: Members, max_bytes: int, start: int = 0, stop: int | None = None) -> Iterator[Record | Rejected]:
    """The records of a file or byte range; `Rejected` for unreadable ones and those of more than
    `max_bytes`. Raises UnsplittableInputError where the next range would begin within a record."""
    if members.compression is not None:
        return _of_members(members.of_range(start, stop), max_bytes)
    if stop is None:
        return _of_plain(members, max_bytes, start, None)
    return _of_plain_range(members, max_bytes, start, stop)


def _of_members(members: Iterable[Member], max_bytes: int) -> Iterator[Record | Rejected]:
    members = takewhile(lambda member: not member.is_behind, members)
    opened = _next_opened(members)
    while opened is not None:
        position, content = opened.member.offset << OFFSET_BITS, opened.content.peek(WHOLE_BYTES + 1)
        is_whole = len(content) <= WHOLE_BYTES and not opened.member.damage
        regular = regular_records(content, position, max_bytes) if is_whole else None
        if regular is None:
            for item in _records_of(opened.content, max_bytes):
                yield replace(item, position=position)
                position += 1
            if opened.member.damage:
                yield Rejected(position=position, error=opened.member.loss, is_file_damage=True)
        else:
            yield from regular
        opened = opened.following()


def _next_opened(members: Iterator[Member]) -> _Opened | None:
    member = next(members, None)
    return None if member is None else _Opened(member, members)


class _Opened:
    """The content of a member, and of those behind it in which its last record goes on. `member` is the last one read."""

    def __init__(self, member: Member, members: Iterator[Member]) -> None:
        self.member, self._found, self._own = member, members, ByteStream(member.chunks)
        self._following: _Opened | None = None
        self.content = ByteStream(self._chunks())

    def _chunks(self) -> Iterator[memoryview]:
        opened: _Opened | None = self
        while opened is not None:
            self.member = opened.member
            yield from opened._own.rest()
            opened = None if self.member.damage else _next_opened(self._found)
            if opened is not None and WARC.fits(opened._own.peek(WARC.num_bytes)):
                self._following, opened = opened, None

    def following(self) -> _Opened | None:
        """The first member whose content was not read; None at the end of the file or range."""
        return self._following or _next_opened(self._found)


def regular_records(content: bytes, position: int, max_bytes: int) -> list[Record] | None:
    """The records in the content of a member, the first one at `position`; None where one is not written as the standard has
    it: no header over several lines, none twice, a known type, two line ends behind a body of the declared length."""
    records: list[Record] = []
    begin = 0
    while begin < len(content):
        end = content.find(_HEADERS_END, begin)
        if end < 0 or not content.startswith(_VERSIONS, begin):
            return None
        fields = {name.lower(): value for name, value in _REGULAR_FIELD.findall(content, begin, end + 2)}
        kind, length = _KINDS.get(fields.get(b"warc-type", b"")), fields.get(b"content-length", b"")
        if len(fields) != content.count(b"\n", begin, end) or kind is None or not length.isdigit() or len(length) > 15:
            return None
        body = end + len(_HEADERS_END)
        stop = body + int(length)
        begin = stop + len(_HEADERS_END)
        if int(length) > max_bytes or content[stop:begin] != _HEADERS_END:
            return None
        records.append(Record(position + len(records), kind, Fields(fields), content[body:stop]))
    return records


def _records_of(content: ByteStream, max_bytes: int) -> Iterator[Record | Rejected]:
    """The records, with their offsets as positions; last, what is no record."""
    while _pass_line_ends(content):
        position, head = content.position, None
        if not content.peek(5).startswith(b"WARC/"):
            record: Record | Rejected | str = f"the bytes are no record; {_EXPECTED}"
        else:
            head = _head(content)
            record = head if isinstance(head, str) else _record(content, head, position, max_bytes)
        if isinstance(record, str):
            record = Rejected(position=position, error=record, is_file_damage=True)
        yield record
        if isinstance(record, Rejected) and record.is_file_damage:
            return


def _record(content: ByteStream, fields: dict[bytes, bytes], position: int, max_bytes: int) -> Record | Rejected | str:
    """The record whose head ends here, or why it is none."""
    given = fields.get(b"content-length", b"").strip()
    if not given.isdigit() or len(given) > 18:
        what = f"the Content-Length {given.decode(errors='replace')!r}" if given else "no Content-Length"
        return f"the record has {what}; expected a number of bytes"
    length = int(given)
    if length > max_bytes:
        content.skip(length)
        error = f"a record of {length:,} bytes, the most that this reader takes is {max_bytes:,} (max_record_bytes)"
        return Rejected(position=position, error=error)
    body = content.read(length)
    if len(body) < length:
        return f"the record is cut off: {len(body):,} bytes, and its Content-Length is {length:,}"
    behind = content.peek(_MISSED_BYTES)
    missed = _MISSED.match(behind)
    if missed is not None:
        body += content.read(len(missed["missed"]))
    elif not _BEHIND.match(behind):
        return f"the Content-Length of the record, {length:,}, is wrong: nothing ends there; {_EXPECTED} behind it"
    kind = _KINDS.get(fields.get(b"warc-type", b"").strip().lower(), "unknown")
    return Record(position, kind, Fields(fields), body, has_short_length=missed is not None)


def _head(content: ByteStream) -> dict[bytes, bytes] | str:
    """The fields of the head that begins here, by names in lower case, the first of each; or what is wrong with it."""
    size = _READ_BYTES
    while (end := _HEAD_END.search(head := content.peek(size))) is None:
        if len(head) < size or size > _MOST_HEAD_BYTES:
            return "the headers of the record are cut off" if size <= _MOST_HEAD_BYTES else "the headers do not end"
        size *= 2
    fields: dict[bytes, bytes] = {}
    for line in _FOLDED.sub(b" ", content.read(end.end())).split(b"\n")[1:]:
        field = _FIELD.match(line.rstrip(b"\r"))
        if field is not None:
            fields.setdefault(field[1].lower(), field[2])
    return fields


def _pass_line_ends(content: ByteStream) -> bool:
    while stored := content.peek(_READ_BYTES):
        rest = stored.lstrip(b"\r\n")
        content.skip(len(stored) - len(rest))
        if rest:
            return True
    return False


def _of_plain_range(members: Members, max_bytes: int, start: int, stop: int) -> Iterator[Record | Rejected]:
    """The records that begin in [start, stop) of a plain file; the ranges are adjacent as those of members are (`Members`)."""
    first = _next_record(members.stored, start - 1, stop) if start else 0
    if first is None:
        return
    end = yield from _of_plain(members, max_bytes, first, stop)
    inside = _next_record(members.stored, stop - 1, end)
    if inside is not None:
        raise UnsplittableInputError(f"bytes like the beginning of a record stand at byte {inside:,}, inside of a record")


def _of_plain(members: Members, max_bytes: int, start: int, stop: int | None) -> Generator[Record | Rejected, None, int | None]:
    """The records of a plain file. Reading resumes behind damage at the next record. Returns the offset of the first record at
    or behind `stop` that a search finds too; None at the end of the file."""
    begin: int | None = start
    while begin is not None:
        searched_from, begin_next = begin + 1, None
        content = ByteStream(Member(members, begin, is_behind=False).chunks)
        for item in _records_of(content, max_bytes):
            position = begin + item.position
            before = members.stored.header(position - 1, _BEGINNING_BYTES) if stop is not None and position >= stop else b""
            if _BEGINNING.match(before):
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


def _next_record(stored: StoredBytes, start: int, stop: int | None = None) -> int | None:
    """The offset of the first line from `start` + 1 on, and before `stop`, that begins as a record does."""
    line_end = next(stored.matches(_BEGINNING, _BEGINNING_BYTES, start, None if stop is None else stop - 1), None)
    return None if line_end is None else line_end + 1
