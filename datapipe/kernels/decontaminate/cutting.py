"""The pieces of documents that stay when matches are cut out together with the text around them.

matches  ->  each widened by `margin` characters  ->  between them pieces  ->  those of at least `least` characters stay
"""

from typing import Any, NamedTuple

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.text.unicode_classes import ahead, is_continuation
from datapipe.kernels.types import Int64s, Int64sOut, UInt8s

SEPARATOR = b"\n\n"  # what stands between two pieces: a blank line


class Removed(NamedTuple):
    # starts, stops: (num_spans,), bytes in the data
    starts: Int64sOut
    stops: Int64sOut
    lengths: Int64sOut  # (num_spans,), bytes of the separator in place of each: 0 at the ends of a document
    pieces: Int64sOut  # (num_docs,), pieces that stay of a document with matches; others keep their value


def removed_of(
    offsets: np.ndarray, data: np.ndarray, documents: np.ndarray, starts: np.ndarray, stops: np.ndarray, margin: int, least: int
) -> Removed:
    """The spans to remove from documents; parameters as for `cut_around`. A document without matches has one piece."""
    room, pieces = 2 * len(documents), np.ones(len(offsets) - 1, np.int64)
    out = Removed(np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64), pieces)
    count = cut_around(offsets, data, documents, starts, stops, margin, least, out)
    return Removed(out.starts[:count], out.stops[:count], out.lengths[:count], pieces)


@inline
def _back(data, position, begin, num_chars) -> Any:
    """The byte `num_chars` characters before `position`, not before `begin`."""
    while num_chars > 0 and position > begin:
        position -= 1
        while position > begin and is_continuation(data[position]):
            position -= 1
        num_chars -= 1
    return position


@kernel
def cut_around(
    offsets: Int64s, data: UInt8s, documents: Int64s, starts: Int64s, stops: Int64s, margin: int, least: int, out: Removed
) -> int:
    """Writes the spans to remove around (num_matches,) matches, by document and start; returns their number. `margin`
    characters are removed on either side; a piece that stays has at least `least`."""
    removed_starts, removed_stops, lengths, pieces = out
    count, match = np.int64(0), np.int64(0)
    while match < len(documents):
        document = documents[match]
        begin, end = offsets[document], offsets[document + 1]
        removed, kept_from, num_pieces = begin, begin, np.int64(0)
        while True:
            more = match < len(documents) and documents[match] == document
            piece_stop = _back(data, starts[match], begin, margin) if more else end
            if piece_stop > kept_from and ahead(data, kept_from, piece_stop, least - 1) < piece_stop:
                if removed < kept_from:
                    removed_starts[count], removed_stops[count] = removed, kept_from
                    lengths[count] = 2 if num_pieces else 0
                    count += 1
                removed, num_pieces = piece_stop, num_pieces + 1
            if not more:
                break
            kept_from = max(kept_from, ahead(data, stops[match], end, margin))
            match += 1
        if removed < end:
            removed_starts[count], removed_stops[count], lengths[count] = removed, end, 0
            count += 1
        pieces[document] = num_pieces
    return int(count)
