"""The content of an input file as blocks of whole lines.

A line of a plain file belongs to the range that contains its first byte. A range of members cannot know whether a line ends
where it begins. So it reads the lines behind its first newline, and goes on behind its end to the next newline:

    range 0       range 1       range 2             a, b … lines; the range 1 begins within c, the range 2 with f
    aaabbbcccccccc cddddeeeeeee fffffffffggg
    ──────────────▶             ─┤ skipped          range 0 reads a b c
                   ┤────────────────────▶           range 1 reads d e f
                                        ───▶        range 2 reads g

A range of the content of a compressed file is one of a plain file, but for what is before it, which is decompressed as well.
It raises `UnsplittableInputError` where it meets damage.

A file of UTF-16 or UTF-32, and one of JSON that is not written as lines, is read whole, and
positions are those in its UTF-8 text. The range at its beginning raises `UnsplittableInputError`.
After a damaged member, reading resumes behind the first newline of the next one. Memory is bounded
by a block or by the longest line. A line beyond the limit is skipped without being held.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np

from datapipe.dataclass import dataclass, replace
from datapipe.errors import UnsplittableInputError
from datapipe.kernels.read.json_values import FlatValues
from datapipe.stage.decoding.content import as_utf8, decoded, head_of, is_wide, placed
from datapipe.stage.decoding.decompressors import MOST_WINDOW_BYTES
from datapipe.stage.decoding.formats import HEAD_BYTES, BrokenStreamError, check_format, is_text
from datapipe.stage.decoding.members import HAVE_MEMBERS, Members, opened_members
from datapipe.stage.decoding.stored import BLOCK_BYTES, StoredBytes
from datapipe.stage.reader import OFFSET_BITS, InputFile, OpenInput, Rejected, Split

EXCERPT_BYTES = 4096
BOM = b"\xef\xbb\xbf"
_MOST_CONTENT_RANGES = 4
_BLOCK_MEMBERS = 1 << 16  # the most members in which lines of a block begin


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Whole lines of a file from a position on. `members`: (offset in the content, position) of the
    first byte of each member that begins behind it."""

    byte_offset: int
    content: bytes
    members: tuple[tuple[int, int], ...] = ()

    def positions(self, offsets: np.ndarray) -> np.ndarray:
        """Positions of bytes of the content, (num_bytes,) uint64."""
        if not self.members:
            return offsets.astype(np.uint64) + np.uint64(self.byte_offset)
        begins = np.array([0, *(begin for begin, _ in self.members)], np.int64)
        of_begins = np.array([self.byte_offset, *(position for _, position in self.members)], np.uint64)
        member = np.searchsorted(begins, offsets, "right") - 1
        return of_begins[member] + (offsets - begins[member]).astype(np.uint64)

    def position(self, offset: int) -> int:
        return int(self.positions(np.array([offset]))[0])


def line_blocks(
    split: Split, open_input: OpenInput, max_line_bytes: int, max_window_bytes: int = MOST_WINDOW_BYTES
) -> Iterator[Block | Rejected]:
    """The lines of a split in the order of the file, in blocks of about `BLOCK_BYTES`. `Rejected`
    stands for a line that is too long to hold, and for damage, with the rest of the line before it.
    A byte-order mark at the start of a file belongs to no line. A block may contain a line longer
    than `max_line_bytes` if it was read at once; the reader checks the length again.

    Raises UnsplittableInputError where a compressed file cannot be cut at the end of the split."""
    lines, compression = _Lines(), split.file.compression
    try:
        if compression in HAVE_MEMBERS and not split.is_of_content:
            with open_input(split.file.url) as stream:
                members = opened_members(stream, compression, split.start, split.stop, max_window_bytes=max_window_bytes)
                head = b"" if split.start else head_of(members)
                if not _is_one_text(head):
                    yield from _lines_of_members(split, members, lines, max_line_bytes, len(BOM) * head.startswith(BOM))
                    return
        for offset, chunk in as_json_lines(chunks(split, open_input, max_window_bytes), split):
            yield from lines.add(offset, chunk, max_line_bytes)
        yield from lines.take(last=True)
    except BrokenStreamError as error:
        if split.start == 0:  # the other ranges of the file need not report it again
            yield from lines.take()
            yield replace(lines.give_up(str(error)), is_file_damage=True)


def _lines_of_members(
    split: Split, members: Members, lines: _Lines, max_line_bytes: int, skipped_bytes: int
) -> Iterator[Block | Rejected]:
    """The lines of a split. The first bytes of the file, its byte-order mark, may be left out."""
    is_line_of_others = split.start > 0
    for member in members.of_range(split.start, split.stop):
        if member.is_behind and is_line_of_others:
            return
        position = member.position
        for content in member.chunks:
            begin = content.find(b"\n") + 1 if is_line_of_others else min(skipped_bytes, len(content))
            skipped_bytes -= 0 if is_line_of_others else begin
            is_line_of_others = is_line_of_others and not begin
            end = content.find(b"\n") + 1 if member.is_behind else 0
            if not is_line_of_others:
                yield from lines.add(position + begin, content[begin : end or None], max_line_bytes)
            if end:
                yield from lines.take()
                return
            position += len(content)
        if member.damage:
            if not is_line_of_others:
                yield from lines.take()
                yield replace(lines.give_up(member.loss), is_file_damage=True)
            if member.is_behind:
                return
            is_line_of_others = False
            lines.skip(None if member.next_offset is None else member.next_offset << OFFSET_BITS)
    yield from lines.take(last=True)


def _is_one_text(head: bytes) -> bool:
    return is_wide(head) or _JSON_TEXT.match(head.removeprefix(BOM)) is not None


def is_one_text(file: InputFile, open_input: OpenInput) -> bool:
    """Whether a file must be read whole: UTF-16, UTF-32, and JSON that is not written as lines. Raises OSError."""
    with open_input(file.url) as stream:
        try:
            return _is_one_text(head_of(opened_members(stream, file.compression, 0, 1)))
        except BrokenStreamError:
            return False


def byte_ranges(file: InputFile, target_bytes: int, *, of_content: bool = False) -> list[Split]:
    """Byte ranges of a file, each of at most `target_bytes`, for a reader of lines. `of_content`: of the content of an archive,
    as estimated, and at most four: each decompresses what is before it, so all of them the file two and a half times, which
    takes a hundredth of the time of filters."""
    num_bytes = file.text_bytes if of_content else file.num_bytes
    count = max(1, -(-num_bytes // target_bytes))
    count = min(count, _MOST_CONTENT_RANGES) if of_content else count
    if count == 1:
        return [Split(file=file)]
    borders = [num_bytes * number // count for number in range(count)]
    ends = [*borders[1:], None if of_content else num_bytes]
    return [Split(file=file, start=start, stop=stop, is_of_content=of_content) for start, stop in zip(borders, ends)]


def too_long(most_bytes: int, what: str = "line") -> str:
    """The error of a line, or a row, that is too long."""
    return f"a {what} of more than {most_bytes} bytes, the most this reader takes (max_{what}_bytes)"


class _Lines:
    """Chunks that are collected into blocks.

    Attributes: byte_offset, next_position: where the next block begins, and behind the last chunk.
        members: (offset from the next block's begin, position) of chunks that begin members and in
        which lines begin. member: the same of the last such chunk, while no line has begun in it.
        whole, tail: chunks of complete lines, and of the incomplete line after them, of
        `whole_bytes` and `tail_bytes`. skipping: whether the current line was rejected and its rest
        is skipped.
    """

    def __init__(self) -> None:
        self.byte_offset = self.next_position = 0
        self.members: list[tuple[int, int]] = []
        self.member: tuple[int, int] | None = None
        self.whole: list[bytes] = []
        self.tail: list[bytes] = []
        self.whole_bytes = self.tail_bytes = 0
        self.skipping = False

    def add(self, position: int, chunk: bytes, max_line_bytes: int) -> Iterator[Block | Rejected]:
        """Adds a chunk. Gives a block where enough lines are complete, and rejects a line that is too long."""
        self._add(position, chunk)
        if self.tail_bytes > max(max_line_bytes, EXCERPT_BYTES):
            yield from self.take()
            yield self.give_up(too_long(max_line_bytes))
        elif self.whole_bytes >= BLOCK_BYTES or len(self.members) >= _BLOCK_MEMBERS:
            yield from self.take()

    def _add(self, position: int, chunk: bytes) -> None:
        begin = 0
        if self.skipping:
            begin = chunk.find(b"\n") + 1
            self.skipping = not begin
        if self.skipping or not (self.whole or self.tail):
            self.byte_offset, self.member = position + (len(chunk) if self.skipping else begin), None
        elif position != self.next_position:
            self.member = (self.whole_bytes + self.tail_bytes, position)
        self.next_position = position + len(chunk)
        if self.skipping:
            return
        end = chunk.rfind(b"\n") + 1
        if self.member is not None and (end or not self.tail):
            self.members.append(self.member)
            self.member = None
        if end > begin:
            self.whole += self.tail
            self.whole.append(chunk[begin:end])
            self.whole_bytes += self.tail_bytes + end - begin
            self.tail, self.tail_bytes, begin = [], 0, end
        if begin < len(chunk):
            self.tail.append(chunk[begin:])
            self.tail_bytes += len(chunk) - begin

    def take(self, last: bool = False) -> Iterator[Block]:
        """A block of the complete lines. The last line of the file needs no newline."""
        chunks = self.whole + self.tail if last else self.whole
        if chunks:
            num_bytes = self.whole_bytes + (self.tail_bytes if last else 0)
            members = tuple(member for member in self.members if member[0] < num_bytes)
            yield Block(byte_offset=self.byte_offset, content=b"".join(chunks), members=members)
        whole = self.whole_bytes
        begin, position = max((member for member in self.members if member[0] <= whole), default=(0, self.byte_offset))
        self.byte_offset = position + whole - begin
        self.members = [(begin - whole, position) for begin, position in self.members if begin > whole]
        self.member = None if self.member is None else (self.member[0] - whole, self.member[1])
        self.whole, self.whole_bytes = [], 0

    def give_up(self, error: str) -> Rejected:
        """Rejects the line that begins with `tail`, and skips its rest."""
        excerpt = b"".join(chunk[:EXCERPT_BYTES] for chunk in self.tail)[:EXCERPT_BYTES]
        rejected = Rejected(position=self.byte_offset, error=error, excerpt=excerpt)
        self.skip(self.next_position if self.tail else None)
        return rejected

    def skip(self, position: int | None) -> None:
        """Skips up to the next newline, from a position on; None for the present one."""
        self.byte_offset = self.byte_offset if position is None else position
        self.tail, self.tail_bytes, self.members, self.member, self.skipping = [], 0, [], None, True


def chunks(split: Split, open_input: OpenInput, max_window_bytes: int = MOST_WINDOW_BYTES) -> Iterator[tuple[int, bytes]]:
    """The bytes of the split's lines as UTF-8, with their offsets. Raises UnsplittableInputError for UTF-16."""
    file = split.file
    if file.compression is None:
        contents = _range(split, open_input)
    elif split.is_of_content:
        contents = _range_of_content(split, placed(open_input, file.url, file.compression, max_window_bytes))
    else:
        contents = _placed(decoded(open_input, file.url, file.compression, max_window_bytes))
    for offset, chunk in contents:
        if offset == 0 and is_wide(chunk):
            if split.stop is not None:
                raise UnsplittableInputError("the file is UTF-16 or UTF-32, whose lines are found from its beginning on alone")
            yield from _placed(as_utf8(chain([chunk], (chunk for _, chunk in contents))))
            return
        skip = len(BOM) if offset == 0 and chunk.startswith(BOM) else 0
        yield offset + skip, chunk[skip:]


def _placed(content: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    offset = 0
    for chunk in content:
        yield offset, chunk
        offset += len(chunk)


def _range(split: Split, open_input: OpenInput) -> Iterator[tuple[int, bytes]]:
    """The bytes of the lines that begin in [start, stop) of a plain file, in chunks with their offsets."""
    with open_input(split.file.url) as stream:
        stored = StoredBytes(stream, split.stop)
        stop = stored.num_bytes if split.stop is None else min(split.stop, stored.num_bytes)
        offset, has_begun = max(0, split.start - 1), False
        while content := bytes(stored.some(offset, BLOCK_BYTES)):
            begin = 0
            if not has_begun:
                begin = content.find(b"\n") + 1 if split.start else 0
                has_begun = begin > 0 or not split.start
                if offset + (begin if has_begun else len(content)) >= stop:
                    return  # no line begins in the range
                if has_begun and _is_archive(content[begin:], offset + begin, stored):
                    return
            if has_begun:
                end = content.find(b"\n", max(begin, stop - 1 - offset)) + 1 if offset + len(content) >= stop else 0
                yield offset + begin, content[begin : end or None]
                if end:
                    return
            offset += len(content)


def _range_of_content(split: Split, contents: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """The bytes of the lines that begin in [start, stop) of all content, in chunks with their positions."""
    stop, offset, has_begun = split.stop or (1 << 62), 0, not split.start
    for position, content in contents:
        begin, behind = 0, offset + len(content)
        if not has_begun:
            begin = content.find(b"\n", max(0, split.start - 1 - offset)) + 1
            has_begun = begin > 0
            if offset + (begin if has_begun else len(content)) >= stop:
                return  # no line begins in the range
        if has_begun:
            end = content.find(b"\n", max(begin, stop - 1 - offset)) + 1 if behind >= stop else 0
            yield position + begin, content[begin : end or None]
            if end:
                return
        offset = behind


def _is_archive(content: bytes, offset: int, stored: StoredBytes) -> bool:
    """Whether a plain file is an archive, which only the range at its beginning reports."""
    if offset and is_text(content):
        return False
    try:
        check_format(stored.header(0, HEAD_BYTES) if offset else content, None)
    except BrokenStreamError:
        if offset == 0:
            raise
        return True
    return False


_JSON_TEXT = re.compile(rb"[ \t\r\n]*(?:\[[ \t\r\n]*(?:[{\]]|\Z)|\{[ \t]*\r?\n[ \t\r\n]*[\"}])")
"""JSON that is no JSON lines: an array that is empty, begins with an object, or is cut off before one; an object with nothing
else on its first line."""


def as_json_lines(content: Iterator[tuple[int, bytes]], split: Split) -> Iterator[tuple[int, bytes]]:
    """The content, in chunks with their offsets, as JSON lines. Raises UnsplittableInputError for the beginning of a file that
    must be read whole, and BrokenStreamError, behind all content, for a file that ends within an array or an object."""
    flat: FlatValues | None = None
    for number, (offset, chunk) in enumerate(content):
        if number == 0 and split.start == 0 and _JSON_TEXT.match(chunk):
            if split.stop is not None:
                raise UnsplittableInputError("the file is one JSON text and not JSON lines, so no line of it can be found")
            flat = FlatValues()
        yield offset, chunk if flat is None else flat.lines(chunk)
    if flat is not None and flat.is_open:
        raise BrokenStreamError(
            "the file ends within a JSON array or object: it is cut off, or one of its values has a bracket or quote too many"
        )
