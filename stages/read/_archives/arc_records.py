"""The records of archives in the ARC format, which crawlers wrote before WARC, each with its position.

    http://e.org/ 192.0.2.7 20080509190241 text/html 6508                        the header line of version 1
    http://e.org/ 192.0.2.7 20080509190241 text/html 200 - - 1234 a.arc.gz 6508  of version 2
    HTTP/1.1 200 OK …                                                            so many bytes, and a line end

The format has no magic bytes: a line is a header line when it has the address, the date and the length in their places, counted
from the right, since addresses may hold spaces. Behind damage the next such line is searched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from datapipe.stage import Rejected
from datapipe.stage.decoding import OFFSET_BITS, Beginning, ByteStream, Member, Members
from stages.read._archives.record import Record

_MOST_LINE_BYTES = 16 << 10
_BUFFER_BYTES = 256 << 10
_HEADER = re.compile(
    rb"(?P<url>[A-Za-z][A-Za-z0-9+.-]*:[^\n]*) (?P<ip>[0-9A-Za-z.:-]+) (?P<date>\d{8,18}) (?P<type>[^\n]*?)"
    rb"(?: (?:\d{3}|-) [^\n ]+ [^\n ]+ [^\n ]+ [^\n ]+)? (?P<length>-?\w+)\r?\n"
)
_DESCRIPTION = b"filedesc://"
_PLACES = (4, 6, 8, 10, 12)
ARC = Beginning(lambda content: _HEADER.match(content) is not None, _MOST_LINE_BYTES)


def arc_records(members: Members, max_bytes: int, start: int = 0, stop: int | None = None) -> Iterator[Record | Rejected]:
    """The records of a file in their order, and `Rejected` in place of what cannot be read; see `warc_records`. A file without
    compression has one range."""
    is_plain = members.compression is None
    for member in members.of_range(start, stop):
        if member.is_behind:
            return
        content, number, is_told = _Content(member), 0, False
        while True:
            header = content.header_line()
            if content.passed_over and not is_told:
                yield Rejected(
                    position=_position(member, content.passed_over_from, number, is_plain),
                    error=f"{content.passed_over:,} bytes are no record; expected a line of address, IP, date, type and length",
                    is_file_damage=True,
                )
                number += 1
            if header is None:
                break
            item = _read(content, header, _position(member, content.header_offset, number, is_plain), max_bytes)
            yield item
            number, is_told = number + 1, isinstance(item, Rejected) and item.is_file_damage
        if member.damage:
            position = _position(member, content.offset, number, is_plain)
            yield Rejected(position=position, error=member.loss, is_file_damage=True)


def _position(member: Member, offset: int, number: int, is_plain: bool) -> int:
    return member.offset + offset if is_plain else (member.offset << OFFSET_BITS) + number


def _read(content: _Content, header: re.Match[bytes], position: int, max_bytes: int) -> Record | Rejected:
    if not header["length"].isdigit():
        error = f"the record has the length {header['length'].decode()!r}; expected a number of bytes"
        return Rejected(position=position, error=error, excerpt=header[0], is_file_damage=True)
    length = int(header["length"])
    if length > max_bytes:
        content.skip(length)
        error = f"a record of {length:,} bytes, the most that this reader takes is {max_bytes:,} (max_record_bytes)"
        return Rejected(position=position, error=error)
    body = content.take(length)
    if len(body) < length:
        error = f"the record is cut off: {len(body):,} bytes, and its header line says {length:,}"
        return Rejected(position=position, error=error, is_file_damage=True)
    kind = "filedesc" if header[0].startswith(_DESCRIPTION) else "response"
    return Record(position, kind, _ArcHeaders(header), body)


class _ArcHeaders:
    """The fields of a header line by the names that WARC has for them."""

    def __init__(self, header: re.Match[bytes]) -> None:
        self._fields: Mapping[str, str] = {
            "warc-target-uri": header["url"].decode("utf-8", "replace"),
            "warc-ip-address": header["ip"].decode(),
            "warc-date": _date(header["date"].decode()),
            "content-type": header["type"].decode("utf-8", "replace"),
            "content-length": header["length"].decode(),
        }

    def get(self, name: str, /) -> str | None:
        return self._fields.get(name.lower())


def _date(digits: str) -> str:
    """20080509190241 as 2008-05-09T19:02:41Z, as WARC has dates; other numbers of digits as they are."""
    if len(digits) != 14:
        return digits
    year, (month, day, hour, minute, second) = digits[:4], (digits[at : at + 2] for at in _PLACES)
    return f"{year}-{month}-{day}T{hour}:{minute}:{second}Z"


class _Content:
    """The content of a member as header lines and bodies.

    Attributes:
        offset: of the next byte.
        header_offset: of the header line that was found last.
        passed_over, passed_over_from: bytes before it that belong to no record, line ends apart, and where they begin.
    """

    def __init__(self, member: Member) -> None:
        self._content, self._buffer, self._next, self.offset = ByteStream(member.chunks), b"", 0, 0
        self.header_offset = self.passed_over = self.passed_over_from = 0

    def header_line(self) -> re.Match[bytes] | None:
        """The next line that is one; None at the end of the content."""
        self.passed_over = 0
        while line := self._line():
            header = _HEADER.fullmatch(line)
            if header is not None:
                self.header_offset = self.offset - len(line)
                return header
            if line.strip(b"\r\n"):
                self.passed_over_from = self.passed_over_from if self.passed_over else self.offset - len(line)
                self.passed_over += len(line)
        return None

    def take(self, num_bytes: int) -> bytes:
        """So many bytes; fewer at the end."""
        taken = self._buffer[self._next : self._next + num_bytes]
        self._next += len(taken)
        if len(taken) < num_bytes:
            taken += self._content.read(num_bytes - len(taken))
        self.offset += len(taken)
        return taken

    def skip(self, num_bytes: int) -> None:
        while num_bytes > 0 and (taken := self.take(min(num_bytes, _BUFFER_BYTES))):
            num_bytes -= len(taken)

    def _line(self) -> bytes:
        """The next line with its end, of a longer one the first `_MOST_LINE_BYTES`."""
        end = self._buffer.find(b"\n", self._next, self._next + _MOST_LINE_BYTES)
        if end < 0 and len(self._buffer) - self._next < _MOST_LINE_BYTES:
            self._buffer, self._next = self._buffer[self._next :] + self._content.read(_BUFFER_BYTES), 0
            end = self._buffer.find(b"\n", 0, _MOST_LINE_BYTES)
        line = self._buffer[self._next : self._next + _MOST_LINE_BYTES if end < 0 else end + 1]
        self._next += len(line)
        self.offset += len(line)
        return line
