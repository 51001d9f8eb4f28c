"""Content of WARC records, as writers of all kinds have made them, read from its beginning to its end.

    WARC/1.0↵                   lines end with CRLF, or with LF alone, as in ClueWeb09
    CONTENT-LENGTH : 12↵        names in any case, blanks before the colon
    WARC-Target-URI: http://↵
     e.org/↵                    a value that goes on in a line that begins with a blank
    ↵
    12 bytes ↵ ↵                a length that is a few bytes short is the distance to the next record

Everything else is damage, behind which the caller searches for the next record. Memory is a head, or a body that is taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from datapipe.stage import Rejected
from datapipe.stage.decoding import Beginning, ByteStream, Member, Members
from stages.read._archives.record import Fields, Record

WARC = Beginning(lambda content: content.startswith(b"WARC/"), 5)

WHOLE_BYTES = 8 << 20
"""Content up to which a member is held whole. A larger one is parsed as it is decompressed."""

_TYPES = ("warcinfo", "response", "resource", "request", "metadata", "revisit", "conversion", "continuation")
KINDS = {name.encode(): name for name in _TYPES}

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


class Opened(NamedTuple):
    """A member, its first `WHOLE_BYTES` + 1 bytes of content or all of it, and the content behind them."""

    member: Member
    content: bytes
    rest: ByteStream

    @property
    def is_whole(self) -> bool:
        return len(self.content) <= WHOLE_BYTES and not self.member.damage


class Ahead:
    """The members in their order, of which one may be looked at before it is taken."""

    def __init__(self, found: Iterable[Member]) -> None:
        self._found = iter(found)
        self._seen: Opened | None = None

    def take(self) -> Opened | None:
        """The next member; None at the end of the file or range."""
        seen, self._seen = self._seen, None
        if seen is not None or (member := next(self._found, None)) is None or member.is_behind:
            return seen
        rest = ByteStream(member.chunks)
        return Opened(member, rest.read(WHOLE_BYTES + 1), rest)

    def take_continuation(self) -> Opened | None:
        """The next member, if it does not begin with a record: some writers cut files into members at any byte."""
        self._seen = self.take()
        return None if self._seen is None or WARC.fits(self._seen.content) else self.take()


class WarcContent:
    """A member, and those behind it in which its last record goes on; or a plain file.

    Attributes:
        member: the one that was read last.
    """

    def __init__(self, opened: Opened, ahead: Ahead | None = None) -> None:
        self.member, self._rest, self._ahead = opened.member, opened.rest, ahead
        self._buffer, self._next = opened.content, 0
        self._offset = 0  # of the next byte

    @classmethod
    def of_plain(cls, members: Members, offset: int) -> WarcContent:
        """A plain file from an offset on."""
        member = Member(members, offset, is_behind=False)
        return cls(Opened(member, b"", ByteStream(member.chunks)))

    def records(self, max_bytes: int) -> Iterator[Record | Rejected]:
        """The records, with their offsets as positions; last, what is no record."""
        while self._pass_line_ends():
            position = self._offset
            if not self._peek(5).startswith(b"WARC/"):
                yield Rejected(position=position, error=f"the bytes are no record; {_EXPECTED}", is_file_damage=True)
                return
            head = self._head()
            if isinstance(head, str):
                yield Rejected(position=position, error=head, is_file_damage=True)
                return
            record = self._record(Fields(head), head, position, max_bytes)
            yield record
            if isinstance(record, Rejected) and record.is_file_damage:
                return

    def _record(self, headers: Fields, fields: dict[bytes, bytes], position: int, max_bytes: int) -> Record | Rejected:
        given = fields.get(b"content-length", b"").strip()
        if not given.isdigit() or len(given) > 18:
            what = f"the Content-Length {given.decode(errors='replace')!r}" if given else "no Content-Length"
            return Rejected(position=position, error=f"the record has {what}; expected a number of bytes", is_file_damage=True)
        length = int(given)
        if length > max_bytes:
            self._skip(length)
            error = f"a record of {length:,} bytes, the most that this reader takes is {max_bytes:,} (max_record_bytes)"
            return Rejected(position=position, error=error)
        body = self._take(length)
        if len(body) < length:
            error = f"the record is cut off: {len(body):,} bytes, and its Content-Length is {length:,}"
            return Rejected(position=position, error=error, is_file_damage=True)
        behind = self._peek(_MISSED_BYTES)
        missed = _MISSED.match(behind)
        if missed is not None:
            body += self._take(len(missed["missed"]))
        elif not _BEHIND.match(behind):
            error = f"the Content-Length of the record, {length:,}, is wrong: nothing ends there; {_EXPECTED} behind it"
            return Rejected(position=position, error=error, is_file_damage=True)
        kind = KINDS.get(fields.get(b"warc-type", b"").strip().lower(), "unknown")
        return Record(position, kind, headers, body, has_short_length=missed is not None)

    def _head(self) -> dict[bytes, bytes] | str:
        """The fields of the head that begins here, by names in lower case, the first of each; or what is wrong with it."""
        size = _READ_BYTES
        while (end := _HEAD_END.search(self._peek(size))) is None:
            if len(self._peek(size)) < size or size > _MOST_HEAD_BYTES:
                return "the headers of the record are cut off" if size <= _MOST_HEAD_BYTES else "the headers do not end"
            size *= 2
        lines = _FOLDED.sub(b" ", self._take(end.end())).split(b"\n")[1:]
        fields: dict[bytes, bytes] = {}
        for line in lines:
            field = _FIELD.match(line.rstrip(b"\r"))
            if field is not None:
                fields.setdefault(field[1].lower(), field[2])
        return fields

    # -------------------------------------------------------------------------------------------- bytes

    def _pass_line_ends(self) -> bool:
        """Goes behind CR and LF; whether anything follows."""
        while stored := self._peek(_READ_BYTES):
            rest = stored.lstrip(b"\r\n")
            self._move(len(stored) - len(rest))
            if rest:
                return True
        return False

    def _peek(self, num_bytes: int) -> bytes:
        """The next bytes, fewer at the end alone."""
        while (missing := num_bytes - len(self._buffer) + self._next) > 0 and (more := self._more(max(missing, _READ_BYTES))):
            self._buffer, self._next = self._buffer[self._next :] + more, 0
        return self._buffer[self._next : self._next + num_bytes]

    def _take(self, num_bytes: int) -> bytes:
        taken = self._peek(num_bytes)
        self._move(len(taken))
        return taken

    def _skip(self, num_bytes: int) -> None:
        while num_bytes > 0 and (taken := self._take(min(num_bytes, WHOLE_BYTES))):
            num_bytes -= len(taken)

    def _move(self, num_bytes: int) -> None:
        self._next += num_bytes
        self._offset += num_bytes

    def _more(self, num_bytes: int) -> bytes:
        """More content than is in the buffer; none at its end."""
        while not (content := self._rest.read(num_bytes)):
            if self._ahead is None or self.member.damage:
                return b""
            continuation = self._ahead.take_continuation()
            if continuation is None:
                return b""
            self.member, self._rest = continuation.member, continuation.rest
            if continuation.content:
                return continuation.content
        return content
