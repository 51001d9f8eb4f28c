"""The content of an input file as blocks of whole lines.

    file ─▶ `archives.py`, or a byte range of a plain file ─▶ chunks ─▶ blocks that end at a newline

Memory is bounded by a block or by the longest line. A line beyond the limit is skipped without being held.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa

from datapipe.stage.decoding.archives import BLOCK_BYTES, BrokenStreamError, check_format, decoded, is_text
from datapipe.stage.reader import InputFile, OpenInput, Rejected, Split

EXCERPT_BYTES = 4096
BOM = b"\xef\xbb\xbf"
_HEAD_BYTES = 1024


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
        for offset, chunk in chunks(split, open_input):
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


def byte_ranges(file: InputFile, target_bytes: int) -> list[Split]:
    """Byte ranges of a plain file, each of at most `target_bytes`, for a reader of lines."""
    count = max(1, -(-file.num_bytes // target_bytes))
    if count == 1:
        return [Split(file=file)]
    borders = [file.num_bytes * number // count for number in range(count + 1)]
    return [Split(file=file, start=start, stop=stop) for start, stop in zip(borders, borders[1:])]


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


def chunks(split: Split, open_input: OpenInput) -> Iterator[tuple[int, bytes]]:
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
    if is_text(first_chunk):
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
