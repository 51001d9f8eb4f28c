"""The members of a web archive, each with the offset of its first byte in the stored file.

    file.warc.gz     gzip members, as a rule one for each record; some writers put all records into one
    file.warc.zst    Zstandard frames, the first of which may be a dictionary (iipc warc-specifications, "WARC and Zstandard")
    file.warc.lz4    LZ4 frames
    file.warc        one member, the whole file

A member is found by the end of the one before it, as its decompressor tells it, never by a search for magic bytes, which may
stand in an archive inside an archive. After damage the next member is searched: magic bytes behind which `WARC/` is stored.
A member is decompressed as it is read, so memory is bounded by what the caller asks for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import pyarrow as pa

from datapipe.stage.decoding import MAGIC, check_format

_RAW_BYTES = 4 << 20
_FEED_BYTES = {"gzip": 16 << 10, "zstd": 4 << 10, "lz4": 16 << 10}
"""Stored bytes that a decompressor gets at a time. It copies those behind the end of the member. The largest content of them,
which is held in memory, is 16 MiB of gzip, 4 MiB of LZ4, and 128 MiB of Zstandard, whose blocks of one byte are 128 KiB."""

_DICTIONARY = b"\x5d\x2a\x4d\x18"
_FIRST_BYTES = b"WARC/"
_PROBE_BYTES = 1 << 10


class Decompressor(Protocol):
    """What the decompressors of all three formats have: `unused_data` are the bytes behind the end, once `eof` is true."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes | None: ...
    def decompress(self, data: bytes, /) -> bytes: ...


class _Raw:
    """The stored bytes of a file in their order. `seek` goes anywhere."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream, self._block, self._block_offset, self._next = stream, b"", 0, 0

    @property
    def offset(self) -> int:
        return self._block_offset + self._next

    def take(self, num_bytes: int) -> bytes:
        """The next bytes, at most so many; none at the end of the file."""
        if self._next >= len(self._block):
            self._block_offset += len(self._block)
            self._block, self._next = self._stream.read_at(_RAW_BYTES, self._block_offset), 0
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
    """

    def __init__(self, raw: _Raw, formats: _Format) -> None:
        self.offset, self.damage = raw.offset, ""
        self._raw, self._formats, self._decompressor = raw, formats, formats.decompressor()
        self._ready, self._is_at_end = bytearray(), False

    def read(self, num_bytes: int) -> bytes:
        """The next bytes of the content; none at its end, which may be that of what can be read."""
        while len(self._ready) < num_bytes and not self._is_at_end:
            self._feed()
        content = bytes(self._ready[:num_bytes])
        del self._ready[:num_bytes]
        return content

    def pass_over(self) -> None:
        """Goes to the end of the member, where the next one begins."""
        while not self._is_at_end:
            self._ready.clear()
            self._feed()

    def _feed(self) -> None:
        stored = self._raw.take(self._formats.feed_bytes)
        if self._decompressor is None:
            self._ready += stored
            self._is_at_end = not stored
            return
        if not stored:
            self._end(f"the file ends in the {self._formats.name} member that begins at byte {self.offset:,}")
            return
        try:
            self._ready += self._decompressor.decompress(stored)
        except Exception as error:  # each library has errors of its own
            self._end(f"the {self._formats.name} member that begins at byte {self.offset:,} is damaged: {error}")
            return
        if self._decompressor.eof:
            self._end("")
            self._raw.seek(self._raw.offset - len(self._decompressor.unused_data or b""))

    def _end(self, damage: str) -> None:
        self._is_at_end, self.damage = True, damage


def members(stream: pa.NativeFile, compression: str | None, start: int = 0) -> Iterator[Member]:
    """The members of an archive in their order, from the one on that begins at `start`.

    After a damaged member, the next one that begins with a WARC record follows.

    Args:
        compression: "gzip", "zstd", "lz4"; None for a plain file, which is one member.

    Raises BrokenStreamError for a file of another format.
    """
    raw = _Raw(stream)
    check_format(raw.take(_PROBE_BYTES), compression)
    raw.seek(0)
    formats = _Format(compression, raw)
    raw.seek(start or raw.offset)
    while _has_more(raw):
        member = Member(raw, formats)
        yield member
        member.pass_over()
        if member.damage and not _find_next(raw, formats, member.offset + 1):
            return


def _has_more(raw: _Raw) -> bool:
    offset = raw.offset
    has_more = bool(raw.take(1))
    raw.seek(offset)
    return has_more


def _find_next(raw: _Raw, formats: _Format, start: int) -> bool:
    """Goes to the first member from `start` on that begins with a WARC record; false where there is none."""
    magic, offset, tail = MAGIC[formats.name], start, b""
    raw.seek(start)
    while stored := raw.take(_RAW_BYTES):
        window = tail + stored
        found = window.find(magic)
        while found >= 0:
            if _begins_with_record(raw, formats, offset - len(tail) + found):
                return True
            found = window.find(magic, found + 1)
        offset += len(stored)
        tail = window[-(len(magic) - 1) :]
        raw.seek(offset)
    return False


def _begins_with_record(raw: _Raw, formats: _Format, offset: int) -> bool:
    """Whether a member with a WARC record begins at an offset; goes there."""
    raw.seek(offset)
    stored, decompressor = raw.take(_PROBE_BYTES), formats.decompressor()
    raw.seek(offset)
    try:
        return decompressor is not None and decompressor.decompress(stored).startswith(_FIRST_BYTES)
    except Exception:  # these bytes begin no member
        return False


class _Format:
    """Makes the decompressors of a file's format.

    Attributes:
        name: "gzip", "zstd", "lz4", "plain".
    """

    def __init__(self, compression: str | None, raw: _Raw) -> None:
        self.name = compression or "plain"
        self.feed_bytes = _FEED_BYTES.get(self.name, _RAW_BYTES)
        self._make: Any = {None: lambda: None, "gzip": _gzip, "zstd": _zstd, "lz4": _lz4}[compression]
        if compression == "zstd" and (dictionary := _dictionary(raw)):
            self._make = lambda: _zstd(dictionary)

    def decompressor(self) -> Decompressor | None:
        return self._make()


def _gzip() -> Decompressor:
    from isal import isal_zlib

    return isal_zlib.decompressobj(31)


def _zstd(dictionary: bytes = b"") -> Decompressor:
    import zstandard

    trained = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
    return zstandard.ZstdDecompressor(dict_data=trained).decompressobj()


def _lz4() -> Any:
    from lz4.frame import LZ4FrameDecompressor

    return LZ4FrameDecompressor()


def _dictionary(raw: _Raw) -> bytes:
    """The dictionary in the first frame of a Zstandard file, which `raw` passes over; none where there is no such frame."""
    if raw.take(4) != _DICTIONARY:
        raw.seek(0)
        return b""
    num_bytes, content = int.from_bytes(raw.take(4), "little"), b""
    while len(content) < num_bytes and (more := raw.take(num_bytes - len(content))):
        content += more
    return _zstd().decompress(content) if content.startswith(MAGIC["zstd"]) else content
