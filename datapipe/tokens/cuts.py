"""Cuts long texts where every byte-level pattern cuts, so that no document has to be tokenized as a whole.

    … the lazy dog …      a letter, one space, a letter: the space begins a new word of the pattern
             ^ cut

A pre-token of the GPT-2, cl100k, o200k and Llama 3 patterns never holds a letter followed by a space. It also never begins
after a space that a letter follows. The ids of the chunks, joined, are therefore the ids of the whole text. Text without such a
space (without ASCII words: Chinese, base64) is not cut.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from datapipe import columns

_WINDOW_BYTES = 64 << 10


def cut_long_texts(texts: pa.Array, limit_bytes: int) -> tuple[pa.Array, np.ndarray]:
    """The texts, with those above `limit_bytes` cut into chunks: a chunk ends at the first cut after `limit_bytes`.

    Returns:
        chunks: (num_chunks,) large_string over the same bytes, in order.
        first_chunk: (num_docs + 1,) int64; document i consists of the chunks `first_chunk[i]` to `first_chunk[i + 1]`.
    """
    offsets, data = columns.text_buffers(texts)
    long_documents = np.flatnonzero(np.diff(offsets) > limit_bytes)
    cuts = [_cut_offsets(data, int(offsets[i]), int(offsets[i + 1]), limit_bytes) for i in long_documents]
    extra_chunks = np.zeros(len(offsets), np.int64)
    num_cuts = [len(document_cuts) for document_cuts in cuts]
    extra_chunks[long_documents + 1] = num_cuts
    first_chunk = np.arange(len(offsets)) + np.cumsum(extra_chunks)
    inserted_before = np.repeat(long_documents + 1, num_cuts)
    chunk_offsets = np.insert(offsets, inserted_before, np.concatenate([*cuts, np.zeros(0, np.int64)]))
    return columns.texts_from(chunk_offsets, data), first_chunk


def _cut_offsets(data: np.ndarray, start: int, stop: int, limit_bytes: int) -> np.ndarray:
    """The cuts of the text `data[start:stop]`: (num_cuts,) int64, ascending offsets in `data`."""
    cuts: list[int] = []
    while stop - start > limit_bytes:
        cut = _next_cut(data, start + limit_bytes, stop)
        if cut is None:
            break
        cuts.append(cut)
        start = cut
    return np.array(cuts, np.int64)


def _next_cut(data: np.ndarray, first: int, stop: int) -> int | None:
    """The first space at or after `first` with an ASCII letter on each side, both before `stop`."""
    for window in range(first, stop - 1, _WINDOW_BYTES):
        view = data[window - 1 : min(window + _WINDOW_BYTES, stop - 1) + 1]
        letter = ((view | 0x20) - np.uint8(ord("a"))) < 26  # bytes below "a" wrap around to values above 26
        spaces = np.flatnonzero(letter[:-2] & (view[1:-1] == ord(" ")) & letter[2:])
        if len(spaces):
            return window + int(spaces[0])
    return None
