"""Cutting long texts where every byte-level pattern cuts anyway, so that no document has to be tokenized in one breath.

    … the lazy dog …      a letter, one space, a letter: the space begins a new word of the pattern
             ^ cut

A pre-token of the GPT-2, cl100k, o200k and Llama 3 patterns never holds a letter followed by a space, and never begins
later than a space that a letter follows. So the ids of the pieces, joined, are the ids of the whole. A text without such a
place (one without ASCII words: Chinese, base64) stays whole from the last one on.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from datapipe import columns

_WINDOW_BYTES = 64 << 10


def cut_long_texts(texts: pa.Array, limit_bytes: int) -> tuple[pa.Array, np.ndarray]:
    """The texts, those above `limit_bytes` in pieces: each ends at the first such place `limit_bytes` after its start.

    Returns:
        pieces: (num_pieces,) large_string over the same bytes, in order.
        first_piece: (num_docs + 1,) int64; document i is the pieces `first_piece[i]` to `first_piece[i + 1]`.
    """
    offsets, data = columns.text_buffers(texts)
    long_documents = np.flatnonzero(np.diff(offsets) > limit_bytes)
    cuts = [_places_to_cut(data, int(offsets[i]), int(offsets[i + 1]), limit_bytes) for i in long_documents]
    extra_pieces = np.zeros(len(offsets), np.int64)
    extra_pieces[long_documents + 1] = [len(found) for found in cuts]
    first_piece = np.arange(len(offsets)) + np.cumsum(extra_pieces)
    inserted_before = np.repeat(long_documents + 1, [len(found) for found in cuts])
    piece_offsets = np.insert(offsets, inserted_before, np.concatenate([*cuts, np.zeros(0, np.int64)]))
    return columns.texts_from(piece_offsets, data), first_piece


def _places_to_cut(data: np.ndarray, start: int, stop: int, limit_bytes: int) -> np.ndarray:
    """Where the text `data[start:stop]` is cut: (num_cuts,) int64, ascending positions in `data`."""
    found: list[int] = []
    while stop - start > limit_bytes:
        place = _next_place(data, start + limit_bytes, stop)
        if place is None:
            break
        found.append(place)
        start = place
    return np.array(found, np.int64)


def _next_place(data: np.ndarray, first: int, stop: int) -> int | None:
    """The first space at or after `first` with an ASCII letter on each side, both before `stop`."""
    for window in range(first, stop - 1, _WINDOW_BYTES):
        view = data[window - 1 : min(window + _WINDOW_BYTES, stop - 1) + 1]
        letter = ((view | 0x20) - np.uint8(ord("a"))) < 26  # wraps below "a", and so stays above 26
        places = np.flatnonzero(letter[:-2] & (view[1:-1] == ord(" ")) & letter[2:])
        if len(places):
            return window + int(places[0])
    return None
