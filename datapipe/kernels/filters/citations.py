"""Citations in lines of Wikipedia and its like: [12], [edit] and [citation needed], in any ASCII case.

Lines, bytes  --find_citations-->  the citations    --cut_citations-->  the lines without them (only where a batch has any)
"""

from typing import Any, NamedTuple

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.arrays import starts_with
from datapipe.kernels.text.words import Lines
from datapipe.kernels.types import Int32s, Int32sOut, Int64s, Int64sOut, UInt8s, UInt8sOut, input_record

_OPEN, _CLOSE = (ord(sign) for sign in "[]")
_EDIT, _NEEDED = (np.frombuffer(phrase, np.uint8) for phrase in (b"[edit]", b"[citation needed]"))


class CleanLines(NamedTuple):
    """The lines of `Lines` without citations, an input of kernels."""

    starts: Int64s  # (num_lines,), in `data`
    lengths: Int32s  # (num_lines,)
    data: UInt8s  # bytes; those of the batch where no line has a citation


def clean_lines(lines: Lines, data: np.ndarray, without_citations: bool) -> CleanLines:
    """The lines without citations: in new bytes where a line has a citation, else in the bytes of the batch."""
    if without_citations and len(lines.starts):
        begin, end = int(lines.starts[0]), int(lines.starts[-1] + lines.lengths[-1])
        brackets = begin + np.flatnonzero(data[begin:end] == _OPEN)
        sizes = np.empty(len(brackets), np.int64)
        if find_citations(lines, data, brackets, sizes):
            clean = np.empty(end - begin - int(sizes.sum()), np.uint8)
            starts, lengths = np.empty(len(lines.starts), np.int64), np.empty(len(lines.starts), np.int32)
            cut_citations(lines, data, brackets, sizes, starts, lengths, clean)
            return input_record(CleanLines, (starts, lengths, clean))
    return input_record(CleanLines, (lines.starts, lines.lengths, data))


@kernel
def find_citations(lines: Lines, data: UInt8s, brackets: Int64s, sizes: Int64sOut) -> int:
    """Fills `sizes` (num_brackets,) with the bytes of the citation that begins at each [, or 0; returns the
    number of citations."""
    starts, lengths = lines.starts, lines.lengths
    count, line = np.int64(0), np.int64(0)
    for number in range(len(brackets)):
        bracket = brackets[number]
        while line < len(starts) and starts[line] + lengths[line] <= bracket:
            line += 1
        sizes[number] = 0
        if line < len(starts) and starts[line] <= bracket:
            sizes[number] = _citation(data, bracket, starts[line] + lengths[line])
        count += np.int64(sizes[number] > 0)
    return int(count)


@kernel
def cut_citations(
    lines: Lines, data: UInt8s, brackets: Int64s, sizes: Int64s, out_starts: Int64sOut, out_lengths: Int32sOut, out: UInt8sOut
) -> None:
    """Copies all bytes from the first line to the last, without the citations, to `out`, which is exactly
    long enough, and the new spans of the lines; at least one line."""
    starts, lengths = lines.starts, lines.lengths
    number, num_written, first = np.int64(0), np.int64(0), starts[0]
    for line in range(len(starts)):
        out_starts[line] = num_written + starts[line] - first
        out_lengths[line] = lengths[line]
        while number < len(brackets) and brackets[number] < starts[line] + lengths[line]:
            bracket, size = brackets[number], sizes[number]
            if size:
                out[num_written : num_written + bracket - first] = data[first:bracket]
                num_written += bracket - first
                first = bracket + size
                out_lengths[line] -= size
            number += 1
    stop = starts[len(starts) - 1] + lengths[len(starts) - 1]
    out[num_written : num_written + stop - first] = data[first:stop]


@inline
def _citation(data, offset, stop) -> Any:
    """Bytes of the citation that begins with the bracket at `offset`; 0 where there is none."""
    end = offset + 1
    while end < stop and 0x30 <= data[end] <= 0x39:
        end += 1
    if end < stop and data[end] == _CLOSE:
        return end + 1 - offset
    if starts_with(data, offset, stop, _EDIT, 0):
        return len(_EDIT)
    return len(_NEEDED) if starts_with(data, offset, stop, _NEEDED, 0) else 0
