"""The members of a web archive, each with the offset of its first byte in the stored file.

    file.warc.gz     gzip members, as a rule one for each record; some writers put all records into one
    file.warc.zst    Zstandard frames, the first of which may be a dictionary (iipc warc-specifications, "WARC and Zstandard")
    file.warc.lz4    LZ4 frames
    file.warc        one member, the whole file

A member is found by the end of the one before it, as its decompressor tells it, never by a search for magic bytes, which may
stand in an archive inside an archive. After damage the next member is searched: magic bytes behind which a record begins.
A member is decompressed as it is read, so memory is bounded by what the caller asks for.

A file is read in ranges by several tasks:

    range 0               range 1               range 2
    |--A----B------C------|-----D--------E------|-----------|
     ───────────────────────────▶                             reads the members from A on, up to the first one behind the range
                                ─────────────────▶            reads the members from D on, which a search finds
                                 a search of [stop, D) finds no member: the ranges meet

A member belongs to the range that holds its first byte. A range ends at a member at or behind `stop` that begins with a record,
and so it owns every damaged or odd member before. The next range begins at the first such member that a search finds. If a
search finds another one before it, the range raises `UnsplittableInputError`: magic bytes stand inside of a member, as those of
an archive stored in an archive do, and the next range would begin there. If no range raises, then the ranges read the members
that one reading of the whole file has, by induction over the ranges. A search never leaves the bytes that its range reads
anyway, so a file of one member costs one more pass over its stored bytes, however it is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from datapipe.errors import UnsplittableInputError
from datapipe.stage import Rejected
from datapipe.stage.decoding import MAGIC, BrokenStreamError, check_format, is_padding

_RAW_BYTES = 4 << 20
_RAW_BYTES_BEHIND = 256 << 10
"""The size of a read from storage, within a range and behind it."""

_FEED_BYTES = {"gzip": 16 << 10, "zstd": 4 << 10, "lz4": 16 << 10}
"""Stored bytes that a decompressor gets at a time. It copies those behind the end of the member. The largest content of them,
which is held in memory, is 16 MiB of gzip, 4 MiB of LZ4, and 128 MiB of Zstandard, whose blocks of one byte are 128 KiB."""

_PROBE_BYTES = {"gzip": 4 << 10, "zstd": 192 << 10, "lz4": 5 << 20}
"""The most stored bytes from which the beginning of a record is decompressed. The largest first block of Zstandard has 128 KiB,
that of LZ4 4 MiB, and nothing of a block is known before all of it is read."""

_PROBE_STEP_BYTES = 1 << 10
_HEAD_BYTES = 1 << 10
_MOST_DICTIONARY_BYTES = 16 << 20
_DICTIONARY = b"\x5d\x2a\x4d\x18"


class Beginning(NamedTuple):
    """How the records of a format begin.

    Attributes:
        is_record: whether a record begins with some bytes.
        num_bytes: how many bytes it looks at.
    """

    is_record: Callable[[bytes], bool]
    num_bytes: int


WARC = Beginning(lambda content: content.startswith(b"WARC/"), 5)


class Decompressor(Protocol):
    """What the decompressors of all three formats have: `unused_data` are the bytes behind the end, once `eof` is true."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes | None: ...
    def decompress(self, data: bytes, /) -> bytes: ...


class _Raw:
    """The stored bytes of a file in their order, those of the range up to `stop` in large reads. `seek` goes anywhere."""

    def __init__(self, stream: pa.NativeFile, stop: int | None = None) -> None:
        self._stream, self._stop = stream, stop
        self._block, self._block_offset, self._next = b"", 0, 0

    @property
    def offset(self) -> int:
        return self._block_offset + self._next

    def take(self, num_bytes: int) -> bytes:
        """The next bytes, at most so many; none at the end of the file."""
        if self._next >= len(self._block):
            self._block_offset += len(self._block)
            left = _RAW_BYTES if self._stop is None else max(self._stop - self._block_offset, _RAW_BYTES_BEHIND)
            self._block, self._next = self._stream.read_at(min(_RAW_BYTES, left), self._block_offset), 0
        taken = self._block[self._next : self._next + num_bytes]
        self._next += len(taken)
        return taken

    def seek(self, offset: int) -> None:
        if not self._block_offset <= offset <= self._block_offset + len(self._block):
            self._block, self._block_offset = b"", offset
        self._next = offset - self._block_offset


class Member:
    """One member.

    Attributes:
        offset: of its first byte in the stored file.
        damage: what is wrong behind the content that can be read, as far as it is read; empty for nothing.
        next_offset: of a damaged member, once the next one is asked for: where that begins; None for none.
    """

    def __init__(self, raw: _Raw, formats: _Format) -> None:
        self.offset, self.damage = raw.offset, ""
        self.next_offset: int | None = None
        self._raw, self._formats, self._decompressor = raw, formats, formats.decompressor()
        self._ready, self._next, self._is_at_end = b"", 0, False

    def read(self, num_bytes: int) -> bytes:
        """The next bytes of the content; none at its end, which may be that of what can be read."""
        content = self._take(num_bytes)
        if len(content) == num_bytes or self._is_at_end:
            return content
        parts, missing = [content], num_bytes - len(content)
        while missing and not self._is_at_end:
            self._feed()
            parts.append(self._take(missing))
            missing -= len(parts[-1])
        return b"".join(parts) if len(parts) > 2 or content else parts[1]

    def beginning(self, num_bytes: int) -> bytes:
        """The first bytes of the content, as far as they follow from the first `_PROBE_BYTES` that are stored."""
        left, step, content = _PROBE_BYTES[self._formats.name], _PROBE_STEP_BYTES, b""
        while len(content) < num_bytes and not self._is_at_end and left > 0:
            self._feed(step)
            content += self._take(num_bytes - len(content))
            left, step = left - step, min(2 * step, self._formats.feed_bytes)
        return content

    def pass_over(self) -> None:
        """Goes to the end of the member, where the next one begins."""
        while not self._is_at_end:
            self._feed()

    def _take(self, num_bytes: int) -> bytes:
        """What is decompressed and not read yet, at most so many bytes."""
        content = self._ready[self._next : self._next + num_bytes]
        self._next += len(content)
        return content

    def _feed(self, num_bytes: int = 0) -> None:
        """Decompresses more. What was decompressed before must be read, or is lost."""
        self._ready, self._next = b"", 0
        stored = self._raw.take(num_bytes or self._formats.feed_bytes)
        if self._decompressor is None:
            self._ready, self._is_at_end = stored, not stored
            return
        if not stored:
            self._end(f"the file ends in the {self._formats.name} member that begins at byte {self.offset:,}")
            return
        try:
            self._ready = self._decompressor.decompress(stored)
        except Exception as error:  # each library has errors of its own
            self._end(f"the {self._formats.name} member that begins at byte {self.offset:,} is damaged: {error}")
            return
        if self._decompressor.eof:
            self._end("")
            self._raw.seek(self._raw.offset - len(self._decompressor.unused_data or b""))

    def _end(self, damage: str) -> None:
        self._is_at_end, self.damage = True, damage


def member_loss(position: int, member: Member) -> Rejected:
    """A damaged member, once the next one is asked for: what is wrong, and where reading goes on."""
    further = "" if member.next_offset is None else f"; reading goes on at byte {member.next_offset:,}"
    return Rejected(position=position, error=member.damage + further, is_file_damage=True)


def members(stream: pa.NativeFile, compression: str | None, beginning: Beginning, start: int = 0) -> Iterator[Member]:
    """The members of an archive in their order, from the one on that begins at `start`.

    After a damaged member, the next one that begins with a record follows.

    Args:
        compression: "gzip", "zstd", "lz4"; None for a plain file, which is one member.

    Raises BrokenStreamError for a file of another format, an empty one, and one that ends within its dictionary.
    """
    raw, formats = _opened(stream, compression, beginning)
    raw.seek(start or formats.start)
    yield from _members(raw, formats, None)


def members_of_range(stream: pa.NativeFile, compression: str, beginning: Beginning, start: int, stop: int) -> Iterator[Member]:
    """The members of a compressed archive that begin in the range [start, stop) of its stored bytes, as `members` has them.

    Raises:
        BrokenStreamError: as for `members`.
        UnsplittableInputError: behind the last member, the next range would begin where no member does.
    """
    raw, formats = _opened(stream, compression, beginning, stop)
    raw.seek(start or formats.start)
    if start and not _find_next(raw, formats, start, stop):
        return
    yield from _members(raw, formats, stop)
    end = raw.offset
    if _find_next(raw, formats, stop, end):
        raise UnsplittableInputError(
            f"a record begins at byte {raw.offset:,} of the stored file, inside of a member that ends at byte {end:,}"
        )


def _opened(
    stream: pa.NativeFile, compression: str | None, beginning: Beginning, stop: int | None = None
) -> tuple[_Raw, _Format]:
    head = stream.read_at(_HEAD_BYTES, 0)
    if compression is not None and not head:
        raise BrokenStreamError(f"the file is empty, expected a {compression} archive")
    check_format(head, compression)
    dictionary, start = _dictionary(stream) if compression == "zstd" and head.startswith(_DICTIONARY) else (b"", 0)
    return _Raw(stream, stop), _Format(compression, beginning, dictionary, start)


def _members(raw: _Raw, formats: _Format, stop: int | None) -> Iterator[Member]:
    """The members from the present one on, up to the first one at or behind `stop` that begins with a record."""
    while _has_more(raw, formats) and not (
        stop is not None and raw.offset >= stop and _begins_with_record(raw, formats, raw.offset)
    ):
        member = Member(raw, formats)
        yield member
        member.pass_over()
        if member.damage and _find_next(raw, formats, member.offset + 1):
            member.next_offset = raw.offset


def _has_more(raw: _Raw, formats: _Format) -> bool:
    """Whether another member follows. Goes behind the zeros that are padding."""
    offset = end = raw.offset
    while taken := raw.take(_RAW_BYTES):
        rest = taken.lstrip(b"\0") if formats.name != "plain" else taken
        end += len(taken) - len(rest)
        if rest:
            break
    has_more = bool(taken)
    raw.seek(end if is_padding(end, -1 if has_more else end) else offset)
    return has_more


def _find_next(raw: _Raw, formats: _Format, start: int, stop: int | None = None) -> bool:
    """Goes to the first member in [start, stop) that begins with a record, else to the end of the file or range; whether there
    is such a member."""
    magic, offset, tail = MAGIC[formats.name], start, b""
    raw.seek(start)
    while (stop is None or offset - len(tail) < stop) and (stored := raw.take(_RAW_BYTES)):
        window = tail + stored
        found = window.find(magic)
        while found >= 0:
            candidate = offset - len(tail) + found
            if stop is not None and candidate >= stop:
                return False
            if _begins_with_record(raw, formats, candidate):
                return True
            found = window.find(magic, found + 1)
        offset += len(stored)
        tail = window[-(len(magic) - 1) :]
        raw.seek(offset)
    return False


def _begins_with_record(raw: _Raw, formats: _Format, offset: int) -> bool:
    """Whether a member with a record begins at an offset; goes there."""
    raw.seek(offset)
    content = Member(raw, formats).beginning(formats.beginning.num_bytes)
    raw.seek(offset)
    return formats.beginning.is_record(content)


class _Format:
    """Makes the decompressors of a file's format.

    Attributes:
        name: "gzip", "zstd", "lz4", "plain".
        beginning: how records begin.
        start: offset of the first member, behind the dictionary.
    """

    def __init__(self, compression: str | None, beginning: Beginning, dictionary: bytes, start: int) -> None:
        self.name, self.beginning, self.start = compression or "plain", beginning, start
        self.feed_bytes = _FEED_BYTES.get(self.name, _RAW_BYTES)
        if compression == "gzip":
            from isal import isal_zlib

            self._make: Callable[[], Any] = lambda: isal_zlib.decompressobj(31)
        elif compression == "zstd":
            self._make = _zstd(dictionary).decompressobj
        elif compression == "lz4":
            from lz4.frame import LZ4FrameDecompressor

            self._make = LZ4FrameDecompressor
        else:
            self._make = lambda: None

    def decompressor(self) -> Decompressor | None:
        return self._make()


def _zstd(dictionary: bytes) -> Any:
    import zstandard

    return zstandard.ZstdDecompressor(dict_data=zstandard.ZstdCompressionDict(dictionary) if dictionary else None)


def _dictionary(stream: pa.NativeFile) -> tuple[bytes, int]:
    """The dictionary in the first frame of a Zstandard file, and where the frame ends."""
    start = len(_DICTIONARY) + 4
    size = stream.read_at(4, len(_DICTIONARY))
    num_bytes = int.from_bytes(size, "little")
    content = stream.read_at(min(num_bytes, _MOST_DICTIONARY_BYTES + 1), start)
    if len(size) < 4 or len(content) < min(num_bytes, _MOST_DICTIONARY_BYTES + 1):
        raise BrokenStreamError("the zstd archive is cut off: the file ends within the dictionary at its beginning")
    if content.startswith(MAGIC["zstd"]) and len(content) <= _MOST_DICTIONARY_BYTES:
        content = _unpacked_dictionary(content)
    if len(content) > _MOST_DICTIONARY_BYTES:
        raise BrokenStreamError(f"the file begins with a dictionary of more than {_MOST_DICTIONARY_BYTES:,} bytes")
    return content, start + num_bytes


def _unpacked_dictionary(content: bytes) -> bytes:
    try:
        with _zstd(b"").stream_reader(content) as unpacked:
            return unpacked.read(_MOST_DICTIONARY_BYTES + 1)
    except Exception as error:
        raise BrokenStreamError(f"the dictionary at the beginning of the zstd archive is damaged: {error}") from None
