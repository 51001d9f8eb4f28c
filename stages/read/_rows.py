"""The content of a delimited file as blocks of whole rows, which may hold new lines within quotes.

    chunks ─▶ `Delimited` finds where rows end ─▶ blocks of about `BLOCK_BYTES` ─▶ `Rows`

A chunk is read once, also where a row goes on over many. Memory is a few blocks or the longest
row. A row beyond the limit is skipped without being held.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from datapipe.dataclass import dataclass, replace
from datapipe.kernels.read.delimited import Delimited
from datapipe.stage import Rejected
from datapipe.stage.decoding import BLOCK_BYTES, EXCERPT_BYTES, BrokenStreamError, too_long

_IS_OPEN = (
    "the file ends within a quoted value of this row: it is cut off, or a quote is never closed. For values that are written "
    "without quotes, set `quote: none`"
)
_IS_ESCAPED = (
    'text follows a quote behind a backslash, as in "a \\"word\\" b": quotes seem to be escaped by backslashes. Set '
    "`format: {csv: {escape: '\\'}}`, or `escape: none` where a backslash is text"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Rows `content[starts[i] : stops[i]]`, with `counts[i]` values: (num_rows,) int64 each. `byte_offset`: of the content in
    the decompressed file; `is_unended`: whether the file ends with the last row, and without a line end."""

    byte_offset: int
    content: bytes
    starts: np.ndarray
    stops: np.ndarray
    counts: np.ndarray
    is_unended: bool = False

    def part(self, first: int, last: int) -> Rows:
        """The rows [first, last), with their content alone."""
        last = min(last, len(self.starts))
        if first >= last:
            return replace(self, content=b"", starts=self.starts[:0], stops=self.stops[:0], counts=self.counts[:0])
        begin = int(self.starts[first])
        is_end = last == len(self.starts)
        return Rows(
            byte_offset=self.byte_offset + begin,
            content=self.content[begin : None if is_end else int(self.starts[last])],
            starts=self.starts[first:last] - begin,
            stops=self.stops[first:last] - begin,
            counts=self.counts[first:last],
            is_unended=self.is_unended and is_end,
        )

    def excerpt(self, row: int) -> bytes:
        return self.content[self.starts[row] : min(self.stops[row], self.starts[row] + EXCERPT_BYTES)]


def row_blocks(
    content: Iterable[tuple[int, bytes]], delimited: Delimited, max_row_bytes: int, *, refuses_escapes: bool = False
) -> Iterator[Rows | Rejected]:
    """The rows of chunks with their offsets. `Rejected` stands for a row that is too long, and for
    the rest of a broken file."""
    collected = _OpenRow(delimited, max_row_bytes)
    try:
        for offset, chunk in _joined(content):
            blocks = list(collected.add(offset, chunk))
            if refuses_escapes and delimited.num_ending_no_value:
                yield Rejected(position=offset, error=_IS_ESCAPED, excerpt=chunk[:EXCERPT_BYTES], is_file_damage=True)
                return
            yield from blocks
    except BrokenStreamError as error:
        yield collected.damaged(str(error))
        return
    yield from collected.end()


class _OpenRow:
    """The row that goes on into the next chunk: its bytes so far, or its reject."""

    def __init__(self, delimited: Delimited, max_row_bytes: int) -> None:
        self._delimited, self._max_row_bytes = delimited, max_row_bytes
        self._chunks: list[bytes] = []
        self._num_bytes = 0
        self._byte_offset = 0
        self._skipped: Rejected | None = None

    def add(self, offset: int, chunk: bytes) -> Iterator[Rows | Rejected]:
        starts, stops, counts = self._delimited.rows(chunk)
        if len(starts) and self._skipped is not None:  # its end is that of the first row
            yield self._skipped
            starts, stops, counts = starts[1:], stops[1:], counts[1:]
            self._skipped = None
        open_bytes = min(self._delimited.open_bytes, len(chunk))
        if len(starts):
            content = b"".join([*self._chunks, chunk[: len(chunk) - open_bytes]])
            begin = offset - self._num_bytes
            yield Rows(
                byte_offset=begin,
                content=content,
                starts=starts + self._num_bytes,
                stops=stops + self._num_bytes,
                counts=counts,
            )
        self._go_on(offset, chunk, open_bytes)
        if self._num_bytes > self._max_row_bytes:
            self._skipped = self._rejected(too_long(self._max_row_bytes, "row"))
            self._chunks, self._num_bytes = [], 0

    def _go_on(self, offset: int, chunk: bytes, open_bytes: int) -> None:
        if self._skipped is not None:
            return
        if self._delimited.open_bytes <= len(chunk):
            self._chunks, self._num_bytes, self._byte_offset = [], 0, offset + len(chunk) - open_bytes
        if open_bytes:
            self._chunks.append(chunk[len(chunk) - open_bytes :])
            self._num_bytes += open_bytes

    def damaged(self, error: str) -> Rejected:
        """The reject of a file that is damaged within this row."""
        return replace(self._skipped or self._rejected(error), error=error, is_file_damage=True)

    def _rejected(self, error: str) -> Rejected:
        excerpt = b"".join(chunk[:EXCERPT_BYTES] for chunk in self._chunks)[:EXCERPT_BYTES]
        return Rejected(position=self._byte_offset, error=error, excerpt=excerpt)

    def end(self) -> Iterator[Rows | Rejected]:
        """The last row, where no line end follows it."""
        if self._delimited.is_quoted:
            yield self.damaged(_IS_OPEN)
            return
        if self._skipped is not None:
            yield self._skipped
        if not self._num_bytes:
            return
        starts, stops, counts = self._delimited.last_row()
        content = b"".join(self._chunks)
        starts, stops = starts + self._num_bytes, stops + self._num_bytes
        yield Rows(byte_offset=self._byte_offset, content=content, starts=starts, stops=stops, counts=counts, is_unended=True)


def _joined(small: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Chunks that follow each other, joined up to `BLOCK_BYTES`. What comes before an error comes before it here too."""
    held: list[bytes] = []
    begin = num_bytes = 0
    try:
        for offset, chunk in small:
            begin = begin if held else offset
            held.append(chunk)
            num_bytes += len(chunk)
            if num_bytes >= BLOCK_BYTES:
                joined, held, num_bytes = b"".join(held), [], 0
                yield begin, joined
    except BrokenStreamError:
        if held:
            yield begin, b"".join(held)
        raise
    if held:
        yield begin, b"".join(held)
