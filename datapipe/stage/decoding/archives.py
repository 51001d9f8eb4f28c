"""The stored bytes of an input file, decompressed.

    file ─▶ raw reads ─▶ gzip, zstd, lz4 (Arrow), bzip2, xz (`streams.py`): members, frames, streams in a row are one ─▶ chunks

A failure of the storage raises OSError unchanged, and the engine retries the task. A damaged archive breaks at the same byte
every time: this module yields all content before the damage and then raises `BrokenStreamError`. It raises the same for a file
that begins like another format than its name tells. Memory is bounded by a chunk.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from datapipe.errors import DatapipeError
from datapipe.stage.decoding.streams import BY_STANDARD_LIBRARY, NO_STREAM, TOO_LARGE, StreamReader
from datapipe.stage.reader import OpenInput

BLOCK_BYTES = 4 << 20
_CHUNK_BYTES = 256 << 10
_RAW_BYTES = 4 << 20
"""The size of a read from storage. Arrow's decompressor reads 64 KiB at a time; on an object store each would be a request."""

COMPRESSION_OF_ENDING = {".gz": "gzip", ".zst": "zstd", ".lz4": "lz4", ".bz2": "bzip2", ".xz": "xz", ".zstd": "zstd"}
"""The compressions that are read, by the endings of files."""

MAGIC = {
    "gzip": b"\x1f\x8b\x08",
    "zstd": b"\x28\xb5\x2f\xfd",
    "xz": b"\xfd7zXZ\x00",
    "lz4": b"\x04\x22\x4d\x18",
    "zip": b"PK\x03\x04",
}
"""The first bytes of archives: RFC 1952, RFC 8878, and the formats' own descriptions. No JSON begins like one of them, and no
text that people write."""

_BEGINNINGS = {name: (magic,) for name, magic in MAGIC.items()} | {
    "bzip2": tuple(b"BZh%d%b" % (level, block) for level in range(1, 10) for block in (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90"))
}
"""Also of bzip2 at its nine levels, followed by its first block, or by the end of an empty stream."""

_HEAD_BYTES = 1024
_NO_HEADER = (
    "Unknown frame descriptor",
    "incorrect header check",
    "unknown compression method",
    "frameType_unknown",
    NO_STREAM,
)
"""What zstd, zlib, LZ4 and `streams.py` say of bytes where a frame, member or stream should begin."""


class BrokenStreamError(DatapipeError):
    """The file is truncated or damaged, or of another format than its name tells."""


# ------------------------------------------------------------------------------------------------ formats by their first bytes


def check_format(beginning: bytes, compression: str | None) -> None:
    """Raises BrokenStreamError where a file begins like another format than `compression`."""
    head = beginning[:_HEAD_BYTES]
    found = next((name for name, beginnings in _BEGINNINGS.items() if head.startswith(beginnings)), None)
    if compression is None and found is not None:
        raise BrokenStreamError(f"the file is a {found} archive, and its name is that of a plain file. {_expected(found)}")
    if compression is not None and found is None and not _may_be(compression, head) and is_text(head):
        raise BrokenStreamError(f"the file is plain text, and its name is that of a {compression} archive. {_expected('')}")
    if None not in (compression, found) and found != compression:
        raise BrokenStreamError(
            f"the file is a {found} archive, and its name is that of a {compression} archive. {_expected(found or '')}"
        )


def _may_be(compression: str, head: bytes) -> bool:
    """Whether an archive of this compression may go on behind `head`."""
    return any(beginning.startswith(head) for beginning in _BEGINNINGS[compression])


def _expected(found: str) -> str:
    """What to do with a file of another format than its name tells."""
    if not found:
        return "Expected a name without an ending of an archive: rename it"
    ending = next((ending for ending, name in COMPRESSION_OF_ENDING.items() if name == found), None)
    if ending is None:
        return f"Expected plain text, {' or '.join(COMPRESSION_OF_ENDING)}: repack it"
    return f"Expected a name ending in {ending}: rename it"


def is_text(head: bytes) -> bool:
    """Whether the first 1,024 bytes of a file are UTF-8 text; a character may be cut off at their end."""
    head = head[:_HEAD_BYTES]
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
            raise BrokenStreamError(damage_of(compression, str(error), has_content=done + len(rest) > 0)) from error


class _Raw:
    """The raw file that a decompressor reads. It records the error of the storage and the offset of the last read.

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


def _opened(raw: _Raw, compression: str) -> Any:
    """The content as a stream, a context manager with a method `read`."""
    if compression in BY_STANDARD_LIBRARY:
        return StreamReader(raw, compression)
    source: Any = pa.PythonFile(raw, mode="r")
    return pa.CompressedInputStream(source, compression)


def _unpacked(raw: _Raw, compression: str, chunk_bytes: int) -> Iterator[bytes]:
    with _opened(raw, compression) as unpacked:
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


def damage_of(compression: str, error: str, *, has_content: bool) -> str:
    """What is wrong with an archive, by the error of its library; `has_content`: whether something was read of it before."""
    if "Truncated" in error:
        return f"the {compression} archive is cut off: the file ends before the archive does"
    if has_content and any(text in error for text in _NO_HEADER):
        return f"bytes that are no {compression} archive follow the end of the archive; expected the end of the file"
    if TOO_LARGE in error:
        return f"the {compression} archive asks for more than 256 MiB of memory; expected what `xz -9` writes: repack it"
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
        with _opened(raw, compression) as unpacked:
            while passed < done:
                passed += len(unpacked.read(min(_CHUNK_BYTES, done - passed)))
            while byte := unpacked.read(1):
                rest.append(byte)
    except (OSError, pa.ArrowInvalid):
        if raw.error is not None:
            raise raw.error from None
    return b"".join(rest)
