"""Looking up the verdicts of a global stage for the documents of a batch, and the sizes of clusters for those that stay.

Verdict files are exchange files whose hash is the first half of the document's key, so they are sorted by key. Few verdicts
are held whole; many are fetched by input file, and those of the file last seen are kept, since batches come in file order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from datapipe.columns import KEY_BYTES, key_halves, key_matrix, numbers
from datapipe.executor.exchange import read_range
from datapipe.plan.tasks import HASH_SPACE, OutputRef
from datapipe.storage import Root

RESIDENT_ROWS = 2_000_000
"""Verdicts up to this many are held whole, at 40 bytes each; beyond, one input file's at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Per document: dropped (num_docs,) bool; survivor (num_docs, 16) uint8 and value (num_docs,) float64 where dropped."""

    dropped: np.ndarray
    survivor: np.ndarray
    value: np.ndarray


class _ByKey:
    """Rows of exchange files by the keys of documents."""

    def __init__(self, root: Root, files: Sequence[OutputRef]) -> None:
        self.root, self.files = root, [output for output in files if output.rows]
        self.resident = sum(output.rows for output in self.files) <= RESIDENT_ROWS
        self._range = (0, 0)  # of file hashes, half-open; nothing fetched yet
        self._rows: pa.RecordBatch | None = None

    def hits(self, keys: pa.Array) -> Iterator[tuple[np.ndarray, np.ndarray, pa.RecordBatch]]:
        """Documents that have a row, the places of these rows, and the rows; every document at most once."""
        wanted = _sortable(keys)
        for documents, rows in self._candidates(keys):
            there = _sortable(rows.column("key"))
            at = np.minimum(np.searchsorted(there, wanted[documents]), len(there) - 1)
            hit = there[at] == wanted[documents]
            yield documents[hit], at[hit], rows

    def _candidates(self, keys: pa.Array) -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
        """Documents, and the sorted rows to look for them in."""
        if not self.files:
            return
        if self.resident:
            rows = self._fetch(0, HASH_SPACE)
            if rows is not None:
                yield np.arange(len(keys)), rows
            return
        file_hash, _ = key_halves(keys)
        for one in np.unique(file_hash):
            rows = self._fetch(int(one), int(one) + 1)
            if rows is not None:
                yield np.flatnonzero(file_hash == one), rows

    def _fetch(self, start: int, stop: int) -> pa.RecordBatch | None:
        if self._range != (start, stop):
            rows = read_range(self.root, self.files, start, stop)
            self._rows = rows if rows is not None and rows.num_rows else None
            self._range = (start, stop)
        return self._rows


class VerdictReader:
    """Verdicts by key."""

    def __init__(self, root: Root, files: Sequence[OutputRef]) -> None:
        self._rows = _ByKey(root, files)

    def of(self, keys: pa.Array) -> Found:
        """The verdicts of a batch's keys."""
        found = Found(
            dropped=np.zeros(len(keys), np.bool_),
            survivor=np.zeros((len(keys), KEY_BYTES), np.uint8),
            value=np.full(len(keys), np.nan),
        )
        for documents, at, rows in self._rows.hits(keys):
            found.dropped[documents] = True
            found.survivor[documents] = key_matrix(rows.column("survivor"))[at]
            found.value[documents] = numbers(rows.column("value"))[at]
        return found


class SizeReader:
    """Sizes of clusters by the key of their survivor."""

    def __init__(self, root: Root, files: Sequence[OutputRef]) -> None:
        self._rows = _ByKey(root, files)

    def of(self, keys: pa.Array) -> np.ndarray:
        """How many documents the cluster of each held: (num_docs,) int64, 1 where it was alone."""
        sizes = np.ones(len(keys), np.int64)
        for documents, at, rows in self._rows.hits(keys):
            sizes[documents] = numbers(rows.column("size"))[at]
        return sizes


def _sortable(keys: pa.Array) -> np.ndarray:
    """Keys as (num_docs,) byte strings, which NumPy compares like memory (both sides have the same 16 bytes)."""
    return np.ascontiguousarray(key_matrix(keys)).view(f"S{KEY_BYTES}").reshape(-1)
