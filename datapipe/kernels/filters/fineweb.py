"""Measurements of `filter.fineweb_quality`, from the lines of a batch.

Lines, RawLines, bytes  ->  measure_ends  ->  (num_docs, 3)   lines, those that end a sentence, those that are short
"""

import sys
from functools import lru_cache

import numpy as np

from datapipe.kernels import kernel
from datapipe.kernels.text.raw_lines import RawLines
from datapipe.kernels.text.unicode_classes import codes_of, decode_before
from datapipe.kernels.text.words import Lines
from datapipe.kernels.types import Int64MatrixOut, UInt8s

NUM_LINES, ENDED, SHORT = range(3)  # columns of `line_ends`
_SENTENCE_ENDS = (
    "21 2E 3F 589 61D-61F 6D4 700-702 7F9 837 839 83D-83E 964-965 104A-104B 1362 1367-1368 166E 1735-1736 17D4-17D6 17D9-17DA "
    "1803 1809 1944-1945 1AA8-1AAB 1B5A-1B5B 1B5E-1B5F 1B7D-1B7E 1C3B-1C3C 1C7E-1C7F 203C-203D 2047-2049 2E2E 2E3C 2E53-2E54 "
    "3002 A4FF A60E-A60F A6F3 A6F7 A876-A877 A8CE-A8CF A92F A9C8-A9C9 AA5D-AA5F AAF0-AAF1 ABEB FE52 FE56-FE57 FF01 FF0E FF1F "
    "FF61 10A56-10A57 10F55-10F59 10F86-10F89 11047-11048 110BE-110C1 11141-11143 111C5-111C6 111CD 111DE-111DF 11238-11239 "
    "1123B-1123C 112A9 1144B-1144C 115C2-115C3 115C9-115D7 11641-11642 1173C-1173E 11944 11946 11A42-11A43 11A9B-11A9C "
    "11C41-11C42 11EF7-11EF8 11F43-11F44 16A6E-16A6F 16AF5 16B37-16B38 16B44 16E98 1BC9F 1DA88"
)
"""Unicode's Sentence_Terminal with the full stops that FineWeb adds; without quotes and brackets."""


@lru_cache(maxsize=8)
def ends_table(also: str | None = None) -> np.ndarray:
    """The code points that end a sentence: (0x110000,) uint8, 1 where so. `also` replaces the whole set where it is given."""
    table = np.zeros(sys.maxunicode + 1, np.uint8)
    table[codes_of(_SENTENCE_ENDS) if also is None else [ord(sign) for sign in also]] = 1
    return table


def line_ends(lines: Lines, raw: RawLines, data: np.ndarray, ends: np.ndarray, short_chars: int) -> np.ndarray:
    """(num_docs, 3) int64: lines that are not blank, those that end a sentence, those of at most `short_chars` characters."""
    out = np.empty((len(lines.doc_offsets) - 1, 3), np.int64)
    measure_ends(lines, raw, data, ends, short_chars, out)
    return out


@kernel
def measure_ends(lines: Lines, raw: RawLines, data: UInt8s, ends: UInt8s, short_chars: int, out: Int64MatrixOut) -> None:
    """Fills `out` (num_docs, 3); see `line_ends`."""
    doc_offsets, starts, lengths, _, _, _ = lines
    _, chars, trails, _ = raw
    for doc in range(len(doc_offsets) - 1):
        num_ended, num_short = np.int64(0), np.int64(0)
        for line in range(doc_offsets[doc], doc_offsets[doc + 1]):
            num_short += np.int64(chars[line] <= short_chars)
            if trails[line]:
                continue
            stop = starts[line] + lengths[line]
            code = np.int64(data[stop - 1])
            if code >= 0x80:
                code = decode_before(data, stop, starts[line])[0]
            num_ended += np.int64(ends[code])
        out[doc, NUM_LINES] = doc_offsets[doc + 1] - doc_offsets[doc]
        out[doc, ENDED] = num_ended
        out[doc, SHORT] = num_short
