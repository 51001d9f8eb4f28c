"""From the stored bytes of an input file to blocks of whole lines, telling a broken archive from a broken disk.

    file ─▶ raw reads ─▶ gzip or zstd (members and frames in a row are one stream) ─▶ pieces ─▶ blocks that end at a newline

What storage does to us (OSError) is raised as it is, for the task to be tried again. What is wrong with the archive itself ends
it at the same byte every time: all that comes before is yielded, and then `BrokenStreamError`. Memory is a block or the longest
line; a line beyond the limit is passed over without being held.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from datapipe.errors import DatapipeError
from datapipe.stage.base import OpenInput, Rejected, Split

BLOCK_BYTES = 4 << 20
EXCERPT_BYTES = 4096
BOM = b"\xef\xbb\xbf"
_PIECE_BYTES = 256 << 10
_RAW_BYTES = 4 << 20
"""What is asked of storage at once. Arrow's decompressor asks for 64 KiB, which an object store would answer one by one."""


class BrokenStreamError(DatapipeError):
    """An archive that is truncated or damaged."""


# ------------------------------------------------------------------------------------------------ decompression


def decoded(open_input: OpenInput, url: str, compression: str | None) -> Iterator[bytes]:
    """The decompressed content in pieces; empty for an empty plain file.

    Raises:
        OSError: from storage.
        BrokenStreamError: the archive is truncated or damaged; what came before has been yielded.
    """
    with open_input(url) as stream:
        if compression is None:
            while piece := stream.read(BLOCK_BYTES):
                yield piece
            return
        if stream.size() == 0:
            raise BrokenStreamError(f"an empty file is no {compression} archive")
        raw, done = _Raw(stream), 0
        try:
            for piece in _unpacked(raw, compression, _PIECE_BYTES):
                yield piece
                done += len(piece)
        except BrokenStreamError:
            yield _last_words(stream, compression, done, raw.last_read_at)
            raise


class _Raw:
    """The raw file as Arrow's decompressor reads it, remembering what storage raised and where the last read began.

    Args:
        step_from: from here on one byte at a time.
    """

    closed = False

    def __init__(self, stream: pa.NativeFile, step_from: int | None = None) -> None:
        self.stream = stream
        self.step_from = step_from
        self.error: Exception | None = None
        self.last_read_at = self._at = self._buffer_at = 0
        self._buffer = b""

    def read(self, num_bytes: int = -1) -> bytes:
        if self.step_from is not None:
            left = self.step_from - self._at
            num_bytes = min(num_bytes, left) if left > 0 else 1
        start = self._at - self._buffer_at
        if start >= len(self._buffer):
            self._buffer, self._buffer_at, start = self._fetch(), self._at, 0
        piece = self._buffer[start : start + num_bytes]
        self.last_read_at = self._at
        self._at += len(piece)
        return piece

    def _fetch(self) -> bytes:
        try:
            return self.stream.read_at(_RAW_BYTES, self._at) if self._at < self.stream.size() else b""
        except Exception as error:
            self.error = error
            raise

    def close(self) -> None:
        """The stream is closed by who opened it."""


def _unpacked(raw: _Raw, compression: str, piece_bytes: int) -> Iterator[bytes]:
    source: Any = pa.PythonFile(raw, mode="r")
    with pa.CompressedInputStream(source, compression) as unpacked:
        while True:
            try:
                piece = unpacked.read(piece_bytes)
            except (OSError, pa.ArrowInvalid) as error:
                if raw.error is not None:
                    raise raw.error from None
                raise BrokenStreamError(f"the {compression} archive is truncated or damaged: {error}") from error
            if not piece:
                return
            yield piece


def _last_words(stream: pa.NativeFile, compression: str, done: int, step_from: int) -> bytes:
    """What the archive still gives past its first `done` bytes before it breaks.

    The read that met the damage lost what it had decompressed by then (up to 1 MiB), so the archive is read once more: fed byte
    by byte near the damage, and emptied byte by byte past `done`.
    """
    rest: list[bytes] = []
    raw = _Raw(stream, step_from)
    try:
        passed = 0
        source: Any = pa.PythonFile(raw, mode="r")
        with pa.CompressedInputStream(source, compression) as unpacked:
            while passed < done:
                passed += len(unpacked.read(min(_PIECE_BYTES, done - passed)))
            while byte := unpacked.read(1):
                rest.append(byte)
    except (OSError, pa.ArrowInvalid):
        if raw.error is not None:
            raise raw.error from None
    return b"".join(rest)


# ------------------------------------------------------------------------------------------------ blocks of whole lines


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Whole lines of a file, the first of which begins at `place` in its decompressed bytes."""

    place: int
    content: bytes


def line_blocks(split: Split, open_input: OpenInput, max_line_bytes: int) -> Iterator[Block | Rejected]:
    """The lines of a split in file order, in blocks of about `BLOCK_BYTES`, and what is no line: one that is too long to
    hold, or the rest of a broken archive from its last newline on.

    A line belongs to the range that its first byte is in. A byte-order mark at the start of a file belongs to no line. A line
    longer than `max_line_bytes` may still come in a block, where its end was at hand: who reads the block judges it.
    """
    lines = _Lines()
    try:
        for at, piece in _pieces(split, open_input):
            lines.add(at, piece)
            if lines.tail_bytes > max_line_bytes:
                yield from lines.take()
                yield lines.give_up(too_long(max_line_bytes))
            elif lines.whole_bytes >= BLOCK_BYTES:
                yield from lines.take()
    except BrokenStreamError as error:
        yield from lines.take()
        yield lines.give_up(str(error))
        return
    yield from lines.take(last=True)


def too_long(max_line_bytes: int) -> str:
    """Why a line is rejected for its length."""
    return f"a line of more than {max_line_bytes} bytes, the most this reader takes (max_line_bytes)"


@dataclass(kw_only=True, slots=True)
class _Lines:
    """Pieces on their way to become blocks.

    Attributes:
        place: where `whole` begins, or would.
        whole: pieces of complete lines;  tail: pieces of the line after them.
        skipping: within a line that was given up.
    """

    place: int = 0
    whole: list[bytes] = field(default_factory=list)
    tail: list[bytes] = field(default_factory=list)
    whole_bytes: int = 0
    tail_bytes: int = 0
    skipping: bool = False

    def add(self, at: int, piece: bytes) -> None:
        begin = 0
        if self.skipping:
            begin = piece.find(b"\n") + 1
            self.skipping = not begin
        if self.skipping or not (self.whole or self.tail):
            self.place = at + (len(piece) if self.skipping else begin)
        if self.skipping:
            return
        end = piece.rfind(b"\n") + 1
        if end > begin:
            self.whole += [*self.tail, piece[begin:end]]
            self.whole_bytes += self.tail_bytes + end - begin
            self.tail, self.tail_bytes, begin = [], 0, end
        if begin < len(piece):
            self.tail.append(piece[begin:])
            self.tail_bytes += len(piece) - begin

    def take(self, last: bool = False) -> Iterator[Block]:
        """The complete lines; at the end of the file the last line needs no newline."""
        pieces = self.whole + self.tail if last else self.whole
        if pieces:
            yield Block(place=self.place, content=b"".join(pieces))
        self.place += self.whole_bytes
        self.whole, self.whole_bytes = [], 0

    def give_up(self, error: str) -> Rejected:
        """The line that `tail` is of, as far as it was held."""
        rejected = Rejected(place=self.place, error=error, excerpt=b"".join(self.tail[:2])[:EXCERPT_BYTES])
        self.place += self.tail_bytes
        self.tail, self.tail_bytes, self.skipping = [], 0, True
        return rejected


def _pieces(split: Split, open_input: OpenInput) -> Iterator[tuple[int, bytes]]:
    """The bytes of the split's lines with their offsets."""
    if split.file.compression is None:
        yield from _range(split, open_input)
        return
    at = 0
    for piece in decoded(open_input, split.file.url, split.file.compression):
        skip = len(BOM) if at == 0 and piece.startswith(BOM) else 0
        yield at + skip, piece[skip:]
        at += len(piece)


def _range(split: Split, open_input: OpenInput) -> Iterator[tuple[int, bytes]]:
    """The bytes of the lines whose first byte is in [start, stop) of a plain file."""
    with open_input(split.file.url) as stream:
        size = stream.size()
        stop = size if split.stop is None else min(split.stop, size)
        at = _first_line(stream, split.start, stop)
        if at >= stop:
            return  # the range is empty, or lies within one line
        if at == 0 and stream.read_at(len(BOM), 0) == BOM:
            at = len(BOM)
        while at < size:
            piece = stream.read_at(min(BLOCK_BYTES, size - at), at)
            newline = piece.find(b"\n", max(0, stop - 1 - at)) if at + len(piece) >= stop else -1
            if newline >= 0:
                yield at, piece[: newline + 1]
                return
            yield at, piece
            at += len(piece)


def _first_line(stream: pa.NativeFile, start: int, stop: int) -> int:
    """Where the first line that begins at or after `start` begins; `stop` where none begins before that."""
    if start == 0:
        return 0
    at = start - 1
    while at < stop - 1:
        piece = stream.read_at(min(BLOCK_BYTES, stop - 1 - at), at)
        end = piece.find(b"\n")
        if end >= 0:
            return at + end + 1
        at += len(piece)
    return stop
