"""The content of an input file: its stored bytes, decompressed; and content as UTF-8 text.

    file ─▶ raw reads ─▶ gzip, zstd, lz4 (`members.py`), bzip2, xz (`streams.py`) ─▶ chunks; members in a row are one content
    chunks that begin with a byte-order mark of UTF-16 or UTF-32 ─▶ UTF-8

A failure of the storage raises OSError unchanged, and the engine retries the task. A damaged archive breaks at the same byte
every time: this module yields all content before the damage and then raises `BrokenStreamError`. It raises the same for a file
that begins like another format than its name tells. Memory is bounded by a chunk, and what the decompressor takes.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator

import pyarrow as pa

from datapipe.stage.decoding.archives import HEAD_BYTES, BrokenStreamError, check_format, damage_of
from datapipe.stage.decoding.members import HAVE_MEMBERS, Content, Damage, member_events
from datapipe.stage.decoding.stored import StoredBytes
from datapipe.stage.decoding.streams import StreamReader
from datapipe.stage.decoding.windows import MOST_WINDOW_BYTES
from datapipe.stage.reader import OpenInput

BLOCK_BYTES = 4 << 20
_CHUNK_BYTES = 256 << 10
_RAW_BYTES = 4 << 20
"""The size of a read from storage."""

_WIDE = (
    (codecs.BOM_UTF32_LE, "UTF-32", "utf-32-le"),
    (codecs.BOM_UTF32_BE, "UTF-32", "utf-32-be"),
    (codecs.BOM_UTF16_LE, "UTF-16", "utf-16-le"),
    (codecs.BOM_UTF16_BE, "UTF-16", "utf-16-be"),
)
"""Byte-order marks of Unicode's wide encodings. Those of UTF-32 come first: one of them begins with one of UTF-16."""

_LOOKED_AT_BYTES, _LEAST_BYTES = 1024, 16
_MOST_FULL = 0.6
"""Share of the high bytes of UTF-16 that are not zero, above which text is taken as it is. In Latin letters it is about 0."""


# ------------------------------------------------------------------------------------------------ text


def is_wide(beginning: bytes) -> bool:
    """Whether content begins with the byte-order mark of UTF-16 or UTF-32, or looks like UTF-16 without one."""
    return any(beginning.startswith(mark) for mark, _, _ in _WIDE) or bool(unmarked_utf16(beginning))


def unmarked_utf16(beginning: bytes) -> str:
    """ "UTF-16LE" or "UTF-16BE" for content that looks like it, by the zeros at every second byte; else ""."""
    head = beginning[:_LOOKED_AT_BYTES]
    even, odd = head[::2], head[1::2]
    for name, high, low in (("UTF-16LE", odd, even), ("UTF-16BE", even, odd)):
        full = len(high) - high.count(0)
        if len(head) >= _LEAST_BYTES and 0 not in low and full <= _MOST_FULL * len(high):
            return name
    return ""


def beginning(open_input: OpenInput, url: str, compression: str | None) -> bytes:
    """The first `HEAD_BYTES` of the content or more, fewer of a shorter or damaged file. Raises OSError."""
    with open_input(url) as stream:
        if compression is None:
            return stream.read(min(HEAD_BYTES, stream.size()))
        if compression in HAVE_MEMBERS:
            content = _of_members(StoredBytes(stream, 1), compression, MOST_WINDOW_BYTES)
        else:
            content = _of_streams(stream, compression)
        try:
            return next(_with_whole_head(content), b"")
        except BrokenStreamError:
            return b""


def as_utf8(content: Iterator[bytes]) -> Iterator[bytes]:
    """Chunks of UTF-16 or UTF-32 with a byte-order mark as UTF-8 without one. Any other content as it is. The first chunk holds
    the whole mark, as `decoded` gives it.

    Raises BrokenStreamError for what is wrong UTF-16 or UTF-32, behind all text before it, and for UTF-16 without a mark.
    """
    first = next(content, b"")
    mark, name, codec = next((wide for wide in _WIDE if first.startswith(wide[0])), (b"", "", ""))
    if not mark:
        if name := unmarked_utf16(first):
            raise BrokenStreamError(
                f"the file looks like {name} without a byte-order mark; expected UTF-8, which `iconv -f {name} -t UTF-8` writes"
            )
        if first:
            yield first
        yield from content
        return
    decoder = codecs.getincrementaldecoder(codec)()
    try:
        yield decoder.decode(first[len(mark) :]).encode()
        for chunk in content:
            yield decoder.decode(chunk).encode()
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        yield error.object[: error.start].decode(codec).encode()
        raise BrokenStreamError(f"the file is {name}, and is damaged or cut off: {error.reason}") from None


# ------------------------------------------------------------------------------------------------ decompression


def decoded(
    open_input: OpenInput, url: str, compression: str | None, max_window_bytes: int = MOST_WINDOW_BYTES
) -> Iterator[bytes]:
    """The decompressed content in chunks, the first of at least `HEAD_BYTES` or all; nothing for an empty plain file.

    Args:
        max_window_bytes: the largest window of a Zstandard frame, which is held in memory.

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
        elif stream.size() == 0:
            raise BrokenStreamError(f"the file is empty, expected a {compression} archive")
        elif compression in HAVE_MEMBERS:
            yield from _with_whole_head(_of_members(StoredBytes(stream), compression, max_window_bytes))
        else:
            yield from _with_whole_head(_of_streams(stream, compression))


def _with_whole_head(content: Iterator[bytes]) -> Iterator[bytes]:
    """The chunks, the first ones joined up to `HEAD_BYTES`: members may hold a byte each."""
    head = b""
    try:
        while len(head) < HEAD_BYTES and (chunk := next(content, None)) is not None:
            head += chunk
    except BrokenStreamError:
        yield head
        raise
    if head:
        yield head
    yield from content


def _of_members(stored: StoredBytes, compression: str, max_window_bytes: int) -> Iterator[bytes]:
    check_format(stored.all(0, HEAD_BYTES), compression)
    for event in member_events(stored, compression, max_window_bytes=max_window_bytes):
        if isinstance(event, Damage):
            raise BrokenStreamError(event.error)
        if isinstance(event, Content):
            yield event.content


def _of_streams(stream: pa.NativeFile, compression: str) -> Iterator[bytes]:
    raw, done = _Raw(stream), 0
    check_format(raw.first_read(), compression)
    try:
        for chunk in _unpacked(raw, compression):
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


def _unpacked(raw: _Raw, compression: str) -> Iterator[bytes]:
    unpacked = StreamReader(raw, compression)
    while True:
        try:
            chunk = unpacked.read(_CHUNK_BYTES)
        except OSError as error:
            if raw.error is not None:
                raise raw.error from None
            raise BrokenStreamError(str(error)) from error
        if not chunk:
            return
        yield chunk


def _rest_before_damage(stream: pa.NativeFile, compression: str, done: int, step_from: int) -> bytes:
    """The content of a damaged archive after its first `done` bytes.

    The read that hits the damage loses up to 1 MiB of content that it has already decompressed. The archive is therefore read
    once more: its input byte by byte near the damage, its output byte by byte after `done`.
    """
    rest: list[bytes] = []
    raw = _Raw(stream, step_from)
    try:
        passed, unpacked = 0, StreamReader(raw, compression)
        while passed < done:
            passed += len(unpacked.read(min(_CHUNK_BYTES, done - passed)))
        while byte := unpacked.read(1):
            rest.append(byte)
    except OSError:
        if raw.error is not None:
            raise raw.error from None
    return b"".join(rest)
