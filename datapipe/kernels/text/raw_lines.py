"""Raw lines: the lines of a batch with the white space around them, from the trimmed lines of `words.find_lines`.

    Lines (trimmed)  ->  RawLines: characters and hash including the white space, whether white space follows the last character
    bytes            ->  Totals: characters and newlines of every document

FineWeb's and datatrove's filters count raw lines. Only the white space around a line is read again.
"""

from typing import NamedTuple

import numpy as np

from datapipe.kernels import kernel
from datapipe.kernels.arrays import BLOCK_BYTES, sum_of_flags
from datapipe.kernels.hashing import FNV_BASIS, fnv_step, mix64
from datapipe.kernels.text.unicode_classes import is_continuation
from datapipe.kernels.text.words import Lines
from datapipe.kernels.types import (
    Int32s,
    Int32sOut,
    Int64Matrix,
    Int64MatrixOut,
    Int64s,
    UInt8s,
    UInt8sOut,
    UInt64s,
    UInt64sOut,
    input_record,
)

_AHEAD, _BEHIND = np.uint64(0xD6E8FEB86659FD93), np.uint64(0xA0761D6478BD642F)
_NEWLINE = 0x0A
_SHORT_BYTES = 64  # of texts that blocks would slow down

CHARS, NEWLINES, OPENS_BLANK, ENDS_BLANK = range(4)
"""Columns of `RawLines.totals`. OPENS_BLANK, ENDS_BLANK: 1 where the text begins or ends with a newline."""


class RawLines(NamedTuple):
    """The lines of `Lines`, in the same order, with the white space around them: an input of kernels."""

    hashes: UInt64s  # (num_lines,), equal for lines that are equal including white space
    chars: Int32s  # (num_lines,), code points
    trails: UInt8s  # (num_lines,), 1 where white space stands between the last character and the newline
    # (num_docs, 4): code points, newlines, whether the text opens and ends with a newline
    totals: Int64Matrix


def find_raw_lines(offsets: np.ndarray, data: np.ndarray, lines: Lines) -> RawLines:
    """The raw lines of a batch of texts, (num_docs + 1,) int64 and (num_bytes,) uint8, and of its `Lines`."""
    num_lines = len(lines.starts)
    hashes, chars, trails = np.empty(num_lines, np.uint64), np.empty(num_lines, np.int32), np.empty(num_lines, np.uint8)
    totals = np.empty((len(offsets) - 1, 4), np.int64)
    widen_lines(offsets, data, lines, hashes, chars, trails)
    count_totals(offsets, data, totals)
    return input_record(RawLines, (hashes, chars, trails, totals))


@kernel
def widen_lines(
    offsets: Int64s, data: UInt8s, lines: Lines, out_hashes: UInt64sOut, out_chars: Int32sOut, trails: UInt8sOut
) -> None:
    """Fills the arrays of `RawLines`, (num_lines,) each."""
    doc_offsets, starts, lengths, hashes, chars, _ = lines
    for doc in range(len(offsets) - 1):
        for line in range(doc_offsets[doc], doc_offsets[doc + 1]):
            start, stop = starts[line], starts[line] + lengths[line]
            ahead, behind, num_chars = FNV_BASIS, FNV_BASIS, np.int64(chars[line])
            while start > offsets[doc] and data[start - 1] != _NEWLINE:
                start -= 1
                ahead = fnv_step(ahead, data[start])
                num_chars += np.int64(not is_continuation(data[start]))
            while stop < offsets[doc + 1] and data[stop] != _NEWLINE:
                behind = fnv_step(behind, data[stop])
                num_chars += np.int64(not is_continuation(data[stop]))
                stop += 1
            out_hashes[line] = mix64(hashes[line] ^ mix64(ahead * _AHEAD) ^ mix64(behind * _BEHIND))
            out_chars[line] = min(num_chars, 0x7FFFFFFF)
            trails[line] = behind != FNV_BASIS


@kernel
def count_totals(offsets: Int64s, data: UInt8s, totals: Int64MatrixOut) -> None:
    """Fills `totals` (num_docs, 4) of `RawLines`. Continuation bytes count as no character."""
    starts_char, is_newline = np.zeros(BLOCK_BYTES, np.uint8), np.zeros(BLOCK_BYTES, np.uint8)
    for doc in range(len(offsets) - 1):
        start, stop = offsets[doc], offsets[doc + 1]
        num_chars, num_newlines = np.int64(0), np.int64(0)
        if stop - start < _SHORT_BYTES:
            for offset in range(start, stop):
                num_chars += np.int64(not is_continuation(data[offset]))
                num_newlines += np.int64(data[offset] == _NEWLINE)
        else:
            for first in range(start, stop, BLOCK_BYTES):
                size = min(BLOCK_BYTES, stop - first)
                block = data[first : first + size]
                for i in range(size):
                    starts_char[i], is_newline[i] = not is_continuation(block[i]), block[i] == _NEWLINE
                num_chars += sum_of_flags(starts_char, size)
                num_newlines += sum_of_flags(is_newline, size)
        totals[doc, CHARS] = num_chars
        totals[doc, NEWLINES] = num_newlines
        totals[doc, OPENS_BLANK] = start < stop and data[start] == _NEWLINE
        totals[doc, ENDS_BLANK] = start < stop and data[stop - 1] == _NEWLINE
