"""ARC: the pages of crawls before 2009, versions 1 and 2 of the format that came before WARC.

    http://e.org/ 192.0.2.7 20080509190241 text/html 6508                        the header line of version 1
    http://e.org/ 192.0.2.7 20080509190241 text/html 200 - - 1234 a.arc.gz 6508  of version 2
    HTTP/1.1 200 OK …                                                            so many bytes, and a line end

The fields of a header line are counted from the right, because addresses may contain spaces. After damage, reading resumes at
the next header line.
"""

import re
from collections.abc import Iterator
from itertools import takewhile
from typing import ClassVar

from datapipe.dataclass import replace
from datapipe.stage import InputFile, Rejected, Split
from datapipe.stage.decoding import OFFSET_BITS, Beginning, ByteStream, Members
from stages.read._archives.archive import PageReader
from stages.read._archives.http import Fields
from stages.read._archives.warc_records import Record

_MOST_LINE_BYTES = 16 << 10
_HEADER = re.compile(
    rb"(?P<url>[A-Za-z][A-Za-z0-9+.-]*:[^\n]*) (?P<ip>[0-9A-Za-z.:-]+) (?P<date>\d{8,18}) (?P<type>[^\n]*?)"
    rb"(?: (?:\d{3}|-) [^\n ]+ [^\n ]+ [^\n ]+ [^\n ]+)? (?P<length>-?\w+)\r?\n"
)
_HEADERS_OF_WARC = {"url": b"warc-target-uri", "ip": b"warc-ip-address", "type": b"content-type", "length": b"content-length"}
_ARC = Beginning(lambda content: _HEADER.match(content) is not None, _MOST_LINE_BYTES)


class Arc(PageReader):
    """Reads the HTML pages of an ARC file, without transfer and content encodings.

    `keep: [url, date, mime, status, charset]` are as those of WARC files, with dates written as there; WARC-IP-Address is the
    address of the server, and any other name is a header of the response. Records have no id. Records that are not
    read are counted in the report: the file's own description, other media types and status codes.
    """

    extensions: ClassVar[tuple[str, ...]] = (".arc",)
    beginning: ClassVar[Beginning] = _ARC

    def cut(self, file: InputFile, target_bytes: int) -> list[Split]:
        """Ranges of stored bytes of a compressed file; any other is one split."""
        return [Split(file=file)] if file.compression is None else super().cut(file, target_bytes)

    def records(self, members: Members, start: int = 0, stop: int | None = None) -> Iterator[Record | Rejected]:
        is_plain = members.compression is None
        for member in takewhile(lambda member: not member.is_behind, members.of_range(start, stop)):
            position = member.offset << OFFSET_BITS
            for item in _records_of(ByteStream(member.chunks), self.max_record_bytes):
                yield item if is_plain else replace(item, position=position)
                position += 1
            if member.damage:
                yield Rejected(position=position, error=member.loss, is_file_damage=True)


def _records_of(content: ByteStream, max_bytes: int) -> Iterator[Record | Rejected]:
    """The records and the damage between them, with their offsets as positions. Damage behind damage is reported once."""
    is_reported = False
    while True:
        first_skipped, num_skipped, header = _next_header(content)
        if num_skipped and not is_reported:
            error = f"{num_skipped:,} bytes are no record; expected a line of address, IP, date, type and length"
            yield Rejected(position=first_skipped, error=error, is_file_damage=True)
        if header is None:
            return
        item = _record(content, header, max_bytes)
        yield item
        is_reported = isinstance(item, Rejected) and item.is_file_damage


def _next_header(content: ByteStream) -> tuple[int, int, re.Match[bytes] | None]:
    """The next header line, None at the end; before it the begin and number of bytes that belong to no record."""
    first = num_bytes = 0
    while ahead := content.peek(_MOST_LINE_BYTES):
        line = content.read(ahead.find(b"\n") + 1 or len(ahead))
        if (header := _HEADER.fullmatch(line)) is not None:
            return first, num_bytes, header
        if line.strip(b"\r\n"):
            first = first if num_bytes else content.position - len(line)
            num_bytes += len(line)
    return first, num_bytes, None


def _record(content: ByteStream, header: re.Match[bytes], max_bytes: int) -> Record | Rejected:
    position = content.position - len(header[0])
    if not header["length"].isdigit():
        error = f"the record has the length {header['length'].decode()!r}; expected a number of bytes"
        return Rejected(position=position, error=error, excerpt=header[0], is_file_damage=True)
    length = int(header["length"])
    if length > max_bytes:
        content.skip(length)
        error = f"a record of {length:,} bytes, the most that this reader takes is {max_bytes:,} (max_record_bytes)"
        return Rejected(position=position, error=error)
    body = content.read(length)
    if len(body) < length:
        error = f"the record is cut off: {len(body):,} bytes, and its header line has {length:,}"
        return Rejected(position=position, error=error, is_file_damage=True)
    fields = {name: header[group] for group, name in _HEADERS_OF_WARC.items()} | {b"warc-date": _date(header["date"])}
    kind = "filedesc" if header[0].startswith(b"filedesc://") else "response"
    return Record(position, kind, Fields(fields), body)


def _date(digits: bytes) -> bytes:
    """20080509190241 as 2008-05-09T19:02:41Z, as in WARC; other dates as they are."""
    return re.sub(rb"(....)(..)(..)(..)(..)(..)", rb"\1-\2-\3T\4:\5:\6Z", digits) if len(digits) == 14 else digits
