"""The stored bytes of an input file as blocks of whole lines.

    file ─▶ raw reads ─▶ gzip, zstd or lz4 (members or frames in a row are one stream) ─▶ chunks ─▶ blocks that end at a newline

A failure of the storage raises OSError unchanged, and the engine retries the task. A damaged archive breaks at the same byte
every time: this module yields all lines before the damage and then raises `BrokenStreamError`. It raises the same for a file
that begins like another format than its name tells. Memory is bounded by a block or by the longest line. A line beyond the
limit is skipped without being held.
"""

from __future__ import annotations

import errno
from codecs import getincrementaldecoder
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from datapipe.errors import DatapipeError
from datapipe.stage.reader import OpenInput, Rejected, Split

BLOCK_BYTES = 4 << 20
EXCERPT_BYTES = 4096
BOM = b"\xef\xbb\xbf"
_CHUNK_BYTES = 256 << 10
_RAW_BYTES = 4 << 20
"""The size of a read from storage. Arrow's decompressor reads 64 KiB at a time; on an object store each would be a request."""


MAGIC = {
    "gzip": b"\x1f\x8b\x08",
    "zstd": b"\x28\xb5\x2f\xfd",
    "xz": b"\xfd7zXZ\x00",
    "bzip2": b"BZh91AY&SY",
    "lz4": b"\x04\x22\x4d\x18",
    "zip": b"PK\x03\x04",
}
"""The first bytes of archives: RFC 1952, RFC 8878, and the formats' own descriptions; of bzip2 at its default level. No JSON
begins like one of them, and no text that people write."""

_HEAD_BYTES = 1024
_NO_HEADER = ("Unknown frame descriptor", "incorrect header check", "unknown compression method", "frameType_unknown")
"""What zstd, zlib and LZ4 say of bytes where a frame or member should begin."""


class BrokenStreamError(DatapipeError):
    """The file is truncated or damaged, or of another format than its name tells."""


# ------------------------------------------------------------------------------------------------ formats by their first bytes


def check_format(beginning: bytes, compression: str | None) -> None:
    """Raises BrokenStreamError where a file begins like another format than `compression`."""
    head = beginning[:_HEAD_BYTES]
    found = next((name for name, magic in MAGIC.items() if head.startswith(magic)), None)
    if compression is None and found is not None:
        raise BrokenStreamError(f"the file is a {found} archive, and its name is that of a plain file. {_expected(found)}")
    if compression is not None and found is None and not MAGIC[compression].startswith(head) and _is_text(head):
        raise BrokenStreamError(f"the file is plain text, and its name is that of a {compression} archive. {_expected('')}")
    if None not in (compression, found) and found != compression:
        raise BrokenStreamError(
            f"the file is a {found} archive, and its name is that of a {compression} archive. {_expected(found or '')}"
        )


def _expected(found: str) -> str:
    """What to do with a file of another format than its name tells."""
    endings = {
        "": "without an ending of an archive",
        "gzip": "ending in .gz",
        "zstd": "ending in .zst",
        "lz4": "ending in .lz4",
    }
    return (
        f"Expected a name {endings[found]}: rename it"
        if found in endings
        else "Expected plain text, .gz, .zst or .lz4: repack it"
    )


def _is_text(head: bytes) -> bool:
    """Whether the first bytes of a file are UTF-8 text; a character may be cut off at their end."""
    try:
        getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return b"\0" not in head


# ------------------------------------------------------------------------------------------------ decompression


def decoded(open_input: OpenInput, url: str, compression: str | None) -> Iterator[bytes]:
    """The decompressed content in chunks; nothing for an empty plain file.

    Raises:
        OSError: the storage failed.
        BrokenStreamError: the archive is truncated or damaged, or the file is of another format. All content before the damage
            has been yielded.
    """
    with open_input(url) as stream:
        if compression is None:
            chunk = stream.read(BLOCK_BYTES)
            check_format(chunk, None)
            while chunk:
                yield chunk
                chunk = stream.read(BLOCK_BYTES)
            return
        if stream.size() == 0:
            raise BrokenStreamError(f"the file is empty, expected a {compression} archive")
        raw, done = _Raw(stream), 0
        check_format(raw.first_read(), compression)
        try:
            for chunk in _unpacked(raw, compression, _CHUNK_BYTES):
                yield chunk
                done += len(chunk)
        except BrokenStreamError as error:
            rest = _rest_before_damage(stream, compression, done, raw.last_read_offset)
            yield rest
            raise BrokenStreamError(_damage(compression, str(error), done + len(rest))) from error


class _Raw:
    """The raw file that Arrow's decompressor reads. It records the error of the storage and the offset of the last read.

    Args:
        step_from: the offset from which reads return one byte each.
    """

    closed = False

    def __init__(self, stream: pa.NativeFile, step_from: int | None = None) -> None:
        self.stream = stream
        self.step_from = step_from
        self.error: Exception | None = None
        self.last_read_offset = self._offset = self._buffer_offset = 0
        self._buffer = b""

    def read(self, num_bytes: int = -1) -> bytes:
        if self.step_from is not None:
            left = self.step_from - self._offset
            num_bytes = min(num_bytes, left) if left > 0 else 1
        start = self._offset - self._buffer_offset
        if start >= len(self._buffer):
            self._buffer, self._buffer_offset, start = self._fetch(), self._offset, 0
        chunk = self._buffer[start : start + num_bytes]
        self.last_read_offset = self._offset
        self._offset += len(chunk)
        return chunk

    def first_read(self) -> bytes:
        """The beginning of the file, which `read` then returns without reading it again."""
        self._buffer = self._fetch()
        return self._buffer

    def _fetch(self) -> bytes:
        try:
            return self.stream.read_at(_RAW_BYTES, self._offset) if self._offset < self.stream.size() else b""
        except Exception as error:
            self.error = error
            raise

    def close(self) -> None:
        """Does nothing: the caller who opened the stream closes it."""


def _unpacked(raw: _Raw, compression: str, chunk_bytes: int) -> Iterator[bytes]:
    source: Any = pa.PythonFile(raw, mode="r")
    with pa.CompressedInputStream(source, compression) as unpacked:
        while True:
            try:
                chunk = unpacked.read(chunk_bytes)
            except (OSError, pa.ArrowInvalid) as error:
                if raw.error is not None:
                    raise raw.error from None
                raise BrokenStreamError(str(error)) from error
            if not chunk:
                return
            yield chunk


def _damage(compression: str, error: str, num_bytes: int) -> str:
    """What is wrong with an archive of which some `num_bytes` of content are read, by the error of its library."""
    if "Truncated" in error:
        return f"the {compression} archive is cut off: the file ends before the archive does"
    if num_bytes and any(text in error for text in _NO_HEADER):
        return f"bytes that are no {compression} archive follow the end of the archive; expected the end of the file"
    return f"the {compression} archive is damaged: {error}"


def _rest_before_damage(stream: pa.NativeFile, compression: str, done: int, step_from: int) -> bytes:
    """The content of a damaged archive after its first `done` bytes.

    The read that hits the damage loses up to 1 MiB of content that it has already decompressed. The archive is therefore read
    once more: its input byte by byte near the damage, its output byte by byte after `done`.
    """
    rest: list[bytes] = []
    raw = _Raw(stream, step_from)
    try:
        passed = 0
        source: Any = pa.PythonFile(raw, mode="r")
        with pa.CompressedInputStream(source, compression) as unpacked:
            while passed < done:
                passed += len(unpacked.read(min(_CHUNK_BYTES, done - passed)))
            while byte := unpacked.read(1):
                rest.append(byte)
    except (OSError, pa.ArrowInvalid):
        if raw.error is not None:
            raise raw.error from None
    return b"".join(rest)


# ------------------------------------------------------------------------------------------------ blocks of whole lines


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Whole lines of a file. The first begins at `byte_offset` of the decompressed file."""

    byte_offset: int
    content: bytes


def line_blocks(split: Split, open_input: OpenInput, max_line_bytes: int) -> Iterator[Block | Rejected]:
    """The lines of a split in the order of the file, in blocks of about `BLOCK_BYTES`. `Rejected` stands for a line that is too
    long to hold, and for the rest of a broken archive after its last newline.

    A line belongs to the split that contains its first byte. A byte-order mark at the start of a file belongs to no line. A
    block may contain a line longer than `max_line_bytes` if it was read at once; the reader checks the length again.
    """
    lines = _Lines()
    try:
        for offset, chunk in _chunks(split, open_input):
            lines.add(offset, chunk)
            if lines.tail_bytes > max_line_bytes:
                yield from lines.take()
                yield lines.give_up(too_long(max_line_bytes))
            elif lines.whole_bytes >= BLOCK_BYTES:
                yield from lines.take()
    except BrokenStreamError as error:
        yield from lines.take()
        yield replace(lines.give_up(str(error)), is_file_damage=True)
        return
    yield from lines.take(last=True)


def too_long(max_line_bytes: int) -> str:
    """The error of a line that is too long."""
    return f"a line of more than {max_line_bytes} bytes, the most this reader takes (max_line_bytes)"


@dataclass(kw_only=True, slots=True)
class _Lines:
    """Chunks that are collected into blocks.

    Attributes:
        byte_offset: offset in the decompressed file at which the next block begins.
        whole: chunks of complete lines.
        tail: chunks of the incomplete line after them.
        whole_bytes, tail_bytes: their sizes.
        skipping: whether the current line was rejected and its rest is skipped.
    """

    byte_offset: int = 0
    whole: list[bytes] = field(default_factory=list)
    tail: list[bytes] = field(default_factory=list)
    whole_bytes: int = 0
    tail_bytes: int = 0
    skipping: bool = False

    def add(self, offset: int, chunk: bytes) -> None:
        begin = 0
        if self.skipping:
            begin = chunk.find(b"\n") + 1
            self.skipping = not begin
        if self.skipping or not (self.whole or self.tail):
            self.byte_offset = offset + (len(chunk) if self.skipping else begin)
        if self.skipping:
            return
        end = chunk.rfind(b"\n") + 1
        if end > begin:
            self.whole += [*self.tail, chunk[begin:end]]
            self.whole_bytes += self.tail_bytes + end - begin
            self.tail, self.tail_bytes, begin = [], 0, end
        if begin < len(chunk):
            self.tail.append(chunk[begin:])
            self.tail_bytes += len(chunk) - begin

    def take(self, last: bool = False) -> Iterator[Block]:
        """A block of the complete lines. The last line of the file needs no newline."""
        chunks = self.whole + self.tail if last else self.whole
        if chunks:
            yield Block(byte_offset=self.byte_offset, content=b"".join(chunks))
        self.byte_offset += self.whole_bytes
        self.whole, self.whole_bytes = [], 0

    def give_up(self, error: str) -> Rejected:
        """Rejects the line that begins with `tail`, and skips its rest."""
        rejected = Rejected(position=self.byte_offset, error=error, excerpt=b"".join(self.tail[:2])[:EXCERPT_BYTES])
        self.byte_offset += self.tail_bytes
        self.tail, self.tail_bytes, self.skipping = [], 0, True
        return rejected


def _chunks(split: Split, open_input: OpenInput) -> Iterator[tuple[int, bytes]]:
    """The bytes of the split's lines, in chunks with their offsets."""
    if split.file.compression is None:
        yield from _range(split, open_input)
        return
    offset = 0
    for chunk in decoded(open_input, split.file.url, split.file.compression):
        skip = len(BOM) if offset == 0 and chunk.startswith(BOM) else 0
        yield offset + skip, chunk[skip:]
        offset += len(chunk)


def _range(split: Split, open_input: OpenInput) -> Iterator[tuple[int, bytes]]:
    """The bytes of the lines that begin in [start, stop) of a plain file, in chunks with their offsets."""
    with open_input(split.file.url) as stream:
        size = stream.size()
        stop = size if split.stop is None else min(split.stop, size)
        first = offset = _first_line(stream, split.start, stop)
        if offset >= stop:
            return  # no line begins in the range
        while offset < size:
            chunk = _read_there(stream, min(BLOCK_BYTES, size - offset), offset)
            if offset == first and _is_archive(chunk, offset, stream):
                return
            if offset == 0 and chunk.startswith(BOM):
                offset, chunk = len(BOM), chunk[len(BOM) :]
            newline = chunk.find(b"\n", max(0, stop - 1 - offset)) if offset + len(chunk) >= stop else -1
            if newline >= 0:
                yield offset, chunk[: newline + 1]
                return
            yield offset, chunk
            offset += len(chunk)


def _is_archive(first_chunk: bytes, offset: int, stream: pa.NativeFile) -> bool:
    """Whether a file with the name of a plain one is an archive. The range at its beginning raises BrokenStreamError, so that
    it is told once. For another range the beginning is read only if the range does not begin with text."""
    if offset == 0:
        check_format(first_chunk, None)
        return False
    if _is_text(first_chunk[:_HEAD_BYTES]):
        return False
    try:
        check_format(stream.read_at(_HEAD_BYTES, 0), None)
    except BrokenStreamError:
        return True
    return False


def _first_line(stream: pa.NativeFile, start: int, stop: int) -> int:
    """The offset of the first line that begins in [start, stop); `stop` if there is none."""
    if start == 0:
        return 0
    offset = start - 1
    while offset < stop - 1:
        chunk = _read_there(stream, min(BLOCK_BYTES, stop - 1 - offset), offset)
        end = chunk.find(b"\n")
        if end >= 0:
            return offset + end + 1
        offset += len(chunk)
    return stop


def _read_there(stream: pa.NativeFile, num_bytes: int, offset: int) -> bytes:
    """Bytes at an offset before the end of the file. Raises OSError where the file ends there after all: it was cut short."""
    chunk = stream.read_at(num_bytes, offset)
    if not chunk:
        raise OSError(errno.EIO, f"the file ends at byte {offset}, expected {stream.size()} bytes")
    return chunk
