"""Sorting more rows than fit into memory, by one 64-bit word each.

    words of all rows  ─▶  a sample  ─▶  bounds of about `BUCKET_ROWS` rows each  ─▶  bucket by bucket: the rows in it, sorted

Every bucket reads all words once, so 10^8 rows are read seven times from the page cache. Rows of equal words stay in their
order. A word that very many rows share is a bucket of its own, which needs no sorting and is written in chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

BUCKET_ROWS = 1 << 24
CHUNK_ROWS = 1 << 20
_SAMPLE_ROWS = 1 << 16

Words = Callable[[int, int], np.ndarray]
"""The words of rows [start, stop): (num_rows,) uint64."""

Ties = Callable[[np.ndarray], np.ndarray]
"""Numbers that order the rows of equal words, of the rows given: (num_rows,)."""


def sorted_rows(words: Words, num_rows: int, ties: Ties | None = None, bucket_rows: int = BUCKET_ROWS) -> Iterator[np.ndarray]:
    """The numbers of rows by ascending word, in parts: (n,) int64 each."""
    bounds = _bounds(words, num_rows, bucket_rows)
    for low, high in zip(bounds, bounds[1:]):
        if high - low == 1:
            yield from (found for _, found in _between(words, num_rows, low, high))
            continue
        parts = list(_between(words, num_rows, low, high))
        if parts:
            chosen, rows = (np.concatenate(column) for column in zip(*parts))
            yield rows[np.argsort(chosen, kind="stable") if ties is None else np.lexsort((ties(rows), chosen))]


def _between(words: Words, num_rows: int, low: int, high: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The words in [low, high), and the numbers of their rows, chunk by chunk."""
    for start in range(0, num_rows, CHUNK_ROWS):
        chunk = words(start, min(start + CHUNK_ROWS, num_rows))
        last = np.uint64(high - 1)
        found = np.flatnonzero((chunk >= np.uint64(low)) & (chunk <= last))
        if len(found):
            yield chunk[found], found + start


def _bounds(words: Words, num_rows: int, bucket_rows: int) -> list[int]:
    """Ascending bounds of buckets, from 0 to 2^64."""
    if num_rows <= bucket_rows:
        return [0, 1 << 64]
    step = max(1, num_rows // _SAMPLE_ROWS)
    chunks = range(0, num_rows, CHUNK_ROWS)
    sample = np.concatenate([words(start, min(start + CHUNK_ROWS, num_rows))[::step] for start in chunks])
    sample.sort()
    picked = sample[:: max(1, len(sample) * bucket_rows // num_rows)]
    values, counts = np.unique(picked, return_counts=True)
    inner = {int(value) for value in values} | {int(value) + 1 for value in values[counts > 1]}
    return sorted({0, 1 << 64, *(bound for bound in inner if 0 < bound < 1 << 64)})
