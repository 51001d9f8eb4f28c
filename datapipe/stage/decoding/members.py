"""The members of a file, from one to the next: gzip members, Zstandard and LZ4 frames, bzip2 and xz streams.

The decompressor of a member finds its end and the next one. A search for magic bytes would find those of an archive
inside an archive, so only damage is followed by one: it finds magic bytes behind which the member can be decompressed and
begins as the reader expects (`Beginning`). All content before damage is there, down to the stored byte.

A file of `HAVE_MEMBERS` is read in ranges by several tasks:

    range 0               range 1               range 2
    |--A----B------C------|-----D--------E------|-----------|
     ───────────────────────────▶                             reads the members from A on, up to the first one behind the range
                                ─────────────────▶            reads the members from D on, which a search finds
                                 a search of [stop, D) finds no member: the ranges are adjacent

A range ends at a member at or behind `stop` that a search would find, so it owns every damaged or odd member before. If a
search finds another one before it, bytes like a member stand inside of a member, and the range raises
`UnsplittableInputError`. If no range raises, the ranges read the members that one reading of the file has, by induction:
whether a search finds a member depends on the stored bytes from its first one on alone. A search never leaves the bytes that
its range reads anyway.

Memory is a block of stored bytes, a chunk of content, and the state of the decompressor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from datapipe.errors import UnsplittableInputError
from datapipe.stage.decoding.decompressors import MOST_WINDOW_BYTES, decompressors, dictionary_of, window_bytes
from datapipe.stage.decoding.formats import HEAD_BYTES, MAGIC, BrokenStreamError, check_format
from datapipe.stage.decoding.stored import BLOCK_BYTES, StoredBytes
from datapipe.stage.reader import OFFSET_BITS, InputFile, OpenInput

HAVE_MEMBERS = frozenset({"gzip", "zstd", "lz4"})
"""The compressions whose members are found by a search."""

_FIRST_FEED_BYTES = 4 << 10
_FEED_BYTES = {"gzip": 64 << 10, "zstd": 4 << 10, "lz4": 64 << 10, "bzip2": 64 << 10, "xz": 64 << 10}
"""Stored bytes that a decompressor gets at a time, fewer at first: it copies those behind the end of the member. The content of
them is in memory: at most 16 MiB of LZ4 and 128 MiB of Zstandard."""

_CONTENT_BYTES = {"gzip": 1 << 20, "bzip2": 1 << 20, "xz": 1 << 20}
"""The most content at a time, where the library has a limit."""

_TRIAL_BYTES = {"gzip": 64 << 10, "zstd": 192 << 10, "lz4": 5 << 20}
"""The most stored bytes from which a search decompresses the beginning of a member. The largest first block of Zstandard has
128 KiB, that of LZ4 4 MiB, and nothing of a block is known before all of it is read."""

_TOO_LARGE = "asks for more than 256 MiB of memory; expected what `xz -9` writes: repack it"
_TRIAL_STEP_BYTES = 1 << 10
_SCAN_BYTES = 1 << 20
_SKIPPABLE_BYTES = 8
_PADDING_BYTES, _XZ_PADDING_BYTES = 512, 4

_PROBED_PART, _PROBED_LEAST_BYTES, _PROBED_MOST_BYTES = 64, 256 << 10, 256 << 20
"""Where a second member is searched: in this part of the stored bytes, within bounds. Members of bgzip have 64 KiB, and of
64 files that were joined into one the second begins there."""


class Beginning(NamedTuple):
    """How a member begins, for a search: whether content of `num_bytes` begins in this way."""

    fits: Callable[[bytes], bool]
    num_bytes: int


ANY_CONTENT = Beginning(bool, 1)


def opened_members(
    stream: pa.NativeFile,
    compression: str | None,
    start: int = 0,
    stop: int | None = None,
    *,
    beginning: Beginning = ANY_CONTENT,
    max_window_bytes: int = MOST_WINDOW_BYTES,
) -> Members:
    """The members in the stored bytes [start, stop) of a file. A file without compression is one
    member. Raises BrokenStreamError."""
    stored = StoredBytes(stream, stop)
    if compression is not None and not stored.num_bytes:
        raise BrokenStreamError(f"the file is empty, expected a {compression} archive")
    check_format(stored.header(0, HEAD_BYTES) if start else stored.all(0, HEAD_BYTES), compression)
    return Members(stored, compression, beginning, max_window_bytes)


def has_members(file: InputFile, open_input: OpenInput) -> bool:
    """Whether a search finds a second member at the beginning of a file. One that begins farther behind is not searched."""
    most_bytes = min(max(file.num_bytes // _PROBED_PART, _PROBED_LEAST_BYTES), _PROBED_MOST_BYTES, file.num_bytes)
    with open_input(file.url) as stream:
        try:
            members = opened_members(stream, file.compression, stop=most_bytes)
        except BrokenStreamError:
            return False
        return members.find(members.first + 1, most_bytes) is not None


class Member:
    """One member.

    Attributes:
        offset: of its first byte in the stored file.
        position: of the first byte of its content: `offset` · 2^24, and 0 for the first member. Positions are unique and rise,
            as a stored byte never makes 2^24 bytes: at most 1,032 of gzip, 255 of LZ4, 2^15 of Zstandard, by blocks of 4
            bytes.
        is_behind: whether it belongs to the next range.
        chunks: the content. It is read once.
        damage: what is wrong behind the content that can be read, once that is read; empty for nothing.
    """

    def __init__(self, members: Members, offset: int, is_behind: bool) -> None:
        self.offset, self.is_behind, self.damage = offset, is_behind, ""
        self.position = 0 if offset == members.first else offset << OFFSET_BITS
        self.chunks = self._chunks()
        self._members, self._stop = members, offset

    @cached_property
    def next_offset(self) -> int | None:
        """Where the next member begins, behind damage the next one that a search finds; None for none."""
        for _ in self.chunks:
            pass
        return self._members.find(self.offset + 1) if self.damage else self._stop

    @property
    def loss(self) -> str:
        """The damage, and where reading goes on."""
        further = "" if self.next_offset is None else f"; reading goes on at byte {self.next_offset:,} of the stored file"
        return self.damage + further

    def _chunks(self) -> Iterator[bytes]:
        members, offset, fed, num_bytes = self._members, self.offset, self.offset, 0
        while members.compression is None and (plain := bytes(members.stored.some(offset, BLOCK_BYTES))):
            yield plain
            offset += len(plain)
        self.damage, self._stop = members.damage_at(offset), offset
        if self.damage or members.compression is None:
            return
        decompressor, feed_bytes = members.make(), _FIRST_FEED_BYTES
        while not decompressor.eof:
            stored = b""
            if members.content_bytes < 0 or decompressor.needs_input:
                stored = members.stored.some(offset, feed_bytes)
                fed, offset, feed_bytes = offset, offset + len(stored), min(2 * feed_bytes, members.feed_bytes)
                if not stored:
                    self.damage = f"the {self._name} is cut off: the file ends before it does"
                    return
            try:
                chunk = members.decompressed(decompressor, stored, members.content_bytes)
            except MemoryError:
                raise
            except Exception as error:  # each library has other errors
                is_too_large = "Memory usage limit exceeded" in str(error)  # a dictionary beyond the limit of xz
                self.damage = f"the {self._name} {_TOO_LARGE if is_too_large else f'is damaged: {error}'}"
                if rest := self._rest(fed, num_bytes):
                    yield rest
                return
            if chunk:
                yield chunk
                num_bytes += len(chunk)
        self._stop = offset - len(decompressor.unused_data or b"")

    def _rest(self, damaged: int, num_bytes: int) -> bytes:
        """The content behind its first `num_bytes`, up to the damage at or behind `damaged`. The libraries lose what they have
        decompressed in the call that reaches damage, so the member is read once more, and byte by byte at last."""
        members, offset, rest = self._members, self.offset, bytearray()
        decompressor = members.make()
        while stored := members.stored.some(offset, min(members.feed_bytes, damaged - offset) if offset < damaged else 1):
            offset += len(stored)
            try:
                chunk = decompressor.decompress(stored)
            except Exception:
                break
            rest += chunk[num_bytes:]
            num_bytes = max(0, num_bytes - len(chunk))
        return bytes(rest)

    @property
    def _name(self) -> str:
        return f"{self._members.compression} member that begins at byte {self.offset:,}"


class Members:
    """The members of a file, of which one is read at a time, from the first frame that has content on."""

    def __init__(self, stored: StoredBytes, compression: str | None, beginning: Beginning, max_window_bytes: int) -> None:
        self.stored, self.compression = stored, compression
        self._beginning, self._max_window_bytes = beginning, max_window_bytes
        self.first = self._behind_skippable(0)
        if compression is not None:
            dictionary = dictionary_of(stored) if compression == "zstd" else b""
            self.make = decompressors(compression, dictionary, max_window_bytes)
            self.feed_bytes, self.content_bytes = _FEED_BYTES[compression], _CONTENT_BYTES.get(compression, -1)

    def of_range(self, start: int = 0, stop: int | None = None) -> Iterator[Member]:
        """The members that begin in [start, stop), and those behind it; nothing if none begins in the range. Raises
        UnsplittableInputError where the next range would begin where no member does."""
        offset = 0 if start == 0 else self.find(max(start, self.first + 1), stop)
        if offset is None:
            return
        is_behind = False
        while offset is not None and (offset := self._behind_padding(offset)) < self.stored.num_bytes:
            if stop is not None and not is_behind and offset >= stop and offset != self.first and self._begins_at(offset):
                self._check_border(stop, offset)
                is_behind = True
            member = Member(self, offset, is_behind)
            yield member
            offset = member.next_offset
        if stop is not None and not is_behind:
            self._check_border(stop, self.stored.num_bytes)

    def decompressed(self, decompressor: Any, stored: bytes | memoryview, most_bytes: int) -> bytes:
        """The content of some stored bytes, at most so many bytes; of Zstandard all of it: 128 KiB for each 4 stored bytes."""
        return decompressor.decompress(stored) if self.compression == "zstd" else decompressor.decompress(stored, most_bytes)

    def find(self, start: int, stop: int | None = None) -> int | None:
        """The offset of the first member in [start, stop) that a search finds."""
        if self.compression not in HAVE_MEMBERS:
            return None
        magic = MAGIC[self.compression]
        candidates = self.stored.matches(re.compile(re.escape(magic)), len(magic), start, stop)
        return next(filter(self._begins_at, candidates), None)

    def damage_at(self, offset: int) -> str:
        """Why the member at an offset cannot be read at all; empty where it may be read."""
        magic = MAGIC.get(self.compression or "", b"")
        if offset > self.first and not magic.startswith(self.stored.header(offset, len(magic))):
            return (
                f"bytes that are no {self.compression} archive follow the end of the archive at byte {offset:,}; expected the "
                "end of the file"
            )
        size = window_bytes(self.stored, offset) if self.compression == "zstd" else 0
        if size > self._max_window_bytes:
            return (
                f"the zstd member that begins at byte {offset:,} asks for a window of {size:,} bytes, and at most "
                f"{self._max_window_bytes:,} are allowed. Set max_window_bytes: {size} among the options of the source's "
                "format: a worker holds as much while it reads the file"
            )
        return ""

    def _check_border(self, stop: int, offset: int) -> None:
        member = self.find(max(stop, self.first + 1), offset)
        if member is not None:
            raise UnsplittableInputError(
                f"bytes like a {self.compression} member begin at byte {member:,} of the stored file, inside of a member that "
                f"ends at byte {offset:,}"
            )

    def _begins_at(self, offset: int) -> bool:
        """Whether a search finds a member at an offset: the beginning of its content follows from its first bytes."""
        decompressor, content, step = self.make(), b"", _TRIAL_STEP_BYTES
        stop = offset + _TRIAL_BYTES[self.compression or ""]
        while len(content) < self._beginning.num_bytes and not decompressor.eof and offset < stop:
            stored = self.stored.all(offset, min(step, stop - offset))
            if not stored:
                break
            try:
                content += self.decompressed(decompressor, stored, self._beginning.num_bytes)
            except Exception:
                break
            offset, step = offset + len(stored), min(2 * step, self.feed_bytes)
        return self._beginning.fits(content)

    def _behind_padding(self, offset: int) -> int:
        """The offset behind frames without content, and behind zeros that are padding: up to a
        whole block of a tape, to the end of the file, and in groups of four behind xz streams (.xz
        file format 1.2.1, section 2.2). Other zeros are a hole."""
        offset = end = self._behind_skippable(offset)
        if not offset or self.compression is None or self.stored.header(offset, 1) != b"\0":
            return offset
        while block := bytes(self.stored.some(end, _SCAN_BYTES)):
            rest = block.lstrip(b"\0")
            end += len(block) - len(rest)
            if rest:
                break
        is_of_xz = self.compression == "xz" and (end - offset) % _XZ_PADDING_BYTES == 0
        is_padding = is_of_xz or end == self.stored.num_bytes or end % _PADDING_BYTES == 0
        return self._behind_padding(end) if is_padding else offset

    def _behind_skippable(self, offset: int) -> int:
        """The offset behind the frames without content that stand at an offset, which Zstandard and
        LZ4 have: 0x184D2A50 to 0x184D2A5F, in little endian, and the size of what follows."""
        while self.compression in ("zstd", "lz4"):
            header = self.stored.header(offset, _SKIPPABLE_BYTES)
            end = offset + _SKIPPABLE_BYTES + int.from_bytes(header[4:], "little")
            if header[1:4] != b"\x2a\x4d\x18" or header[0] >> 4 != 5 or end > self.stored.num_bytes:
                break
            offset = end
        return offset
