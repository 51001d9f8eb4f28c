"""The first characters of texts in NFC, the form in which language models read their training text.

    texts  ─▶  spans as they are written        where every character keeps its form
           └▶  a longer slice, in NFC, cut      where one may change: jamo of Hangul, accents behind their letters

Of those no more than `_PARTS` times the characters that are read are normalized.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.columns import compute as pc
from datapipe.kernels.text.normalize import find_unstable
from datapipe.kernels.text.unicode_classes import composition_table, plain_sizes, prefix_stops

_PARTS = 4  # the most code points that NFC makes one of (U+1F82 of four), by the data of Unicode
_SURPLUS = 32  # Code points beyond the span, so that the last character of the span is whole


class Spans(NamedTuple):
    """Spans `data[starts[i] : stops[i]]` of the texts `rows`: (num_spans,) int64 each."""

    rows: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    data: np.ndarray


def composed_spans(texts: pa.Array, num_chars: int) -> list[Spans]:
    """The first `num_chars` characters of texts in NFC: of texts that are as they were, and of others if any."""
    offsets, data = columns.text_buffers(texts)
    starts, stops = _cut(offsets, data, num_chars)
    unstable = np.empty(len(texts), np.uint8)
    find_unstable(starts, stops, offsets[1:], data, composition_table(), plain_sizes(), unstable)
    same, other = np.flatnonzero(unstable == 0), np.flatnonzero(unstable)
    if not len(other):
        return [Spans(same, starts, stops, data)]
    longer = _PARTS * num_chars + _SURPLUS
    beginnings = pc.utf8_slice_codeunits(texts.take(pa.array(other)), start=0, stop=longer)
    normalized = pc.utf8_normalize(beginnings, form="NFC")
    new_offsets, new_data = columns.text_buffers(normalized)
    new_starts, new_stops = _cut(new_offsets, new_data, num_chars)
    return [Spans(same, starts[same], stops[same], data), Spans(other, new_starts, new_stops, new_data)]


def _cut(offsets: np.ndarray, data: np.ndarray, num_chars: int) -> tuple[np.ndarray, np.ndarray]:
    stops = np.empty(len(offsets) - 1, np.int64)
    prefix_stops(offsets, data, num_chars, stops)
    return offsets[:-1].copy(), stops
