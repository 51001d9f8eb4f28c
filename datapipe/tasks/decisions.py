"""Looking up the verdicts of a global stage for the documents of a batch: drops, cuts, and sizes of clusters.

Verdict files are exchange files whose hash is the first half of the document's key, and the blocks of all of them are in the
order of keys. So the blocks that may speak of a batch are found in the index; they are read one at a time, and the few last
ones are kept, since batches come in file order. What is held does not grow with the verdicts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from datapipe.columns import KEY_BYTES, key_matrix, numbers
from datapipe.exchange.files import Block, read_block, read_index
from datapipe.plan.work import OutputRef
from datapipe.storage import Root

HELD_BLOCKS = 8
"""Blocks of about a MiB that are kept for the next batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Per document: dropped (num_docs,) bool; survivor (num_docs, 16) uint8 and value (num_docs,) float64 where dropped."""

    dropped: np.ndarray
    survivor: np.ndarray
    value: np.ndarray


@dataclass(frozen=True, kw_only=True, slots=True)
class Cuts:
    """Spans to cut, by (document, start), as they were found: (num_cuts,) each, int64, the rules by number."""

    documents: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    rules: np.ndarray
    names: tuple[str, ...]


class _ByKey:
    """Rows of exchange files by the keys of documents."""

    def __init__(self, root: Root, files: Sequence[OutputRef]) -> None:
        self.root = root
        self._held: OrderedDict[int, pa.RecordBatch] = OrderedDict()
        self._blocks: list[tuple[OutputRef, Block, pa.Schema]] = []
        for output in files:
            with root.open_input(output.path) as stream:
                blocks, schema = read_index(stream, output)
            self._blocks += [(output, block, schema) for block in blocks]
        self._blocks.sort(key=lambda one: one[1].first)
        self._firsts = _as_keys([block.first for _, block, _ in self._blocks])
        self._lasts = _as_keys([block.last for _, block, _ in self._blocks])

    def hits(self, keys: pa.Array) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, pa.RecordBatch]]:
        """Documents that have rows in a block, the range of rows of each (starts and stops), and the block."""
        wanted = _sortable(key_matrix(keys))
        low = np.searchsorted(self._lasts, wanted, "left")  # the first block that does not end before the document
        high = np.searchsorted(self._firsts, wanted, "right")
        asked = np.zeros(len(self._blocks) + 1, np.int64)
        np.add.at(asked, low[low < high], 1)
        np.add.at(asked, high[low < high], -1)
        for number in np.flatnonzero(np.cumsum(asked[:-1])):
            rows = self._block(int(number))
            documents = np.flatnonzero((low <= number) & (number < high))
            there = _sortable(key_matrix(rows.column("key")))
            starts = np.searchsorted(there, wanted[documents], "left")
            stops = np.searchsorted(there, wanted[documents], "right")
            hit = starts < stops
            if hit.any():
                yield documents[hit], starts[hit], stops[hit], rows

    def _block(self, number: int) -> pa.RecordBatch:
        rows = self._held.pop(number, None)
        if rows is None:
            output, block, schema = self._blocks[number]
            with self.root.open_input(output.path) as stream:
                rows = read_block(stream, output, block, schema)
        self._held[number] = rows
        if len(self._held) > HELD_BLOCKS:
            self._held.popitem(last=False)
        return rows


class DecisionReader:
    """Drops by key."""

    def __init__(self, root: Root, files: Sequence[OutputRef]) -> None:
        self._rows = _ByKey(root, files)

    def of(self, keys: pa.Array) -> Found:
        """The drops among a batch's keys."""
        found = Found(
            dropped=np.zeros(len(keys), np.bool_),
            survivor=np.zeros((len(keys), KEY_BYTES), np.uint8),
            value=np.full(len(keys), np.nan),
        )
        for documents, at, _, rows in self._rows.hits(keys):
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
        for documents, at, _, rows in self._rows.hits(keys):
            sizes[documents] += numbers(rows.column("size"))[at]
        return sizes


class CutReader:
    """Spans to cut by key."""

    def __init__(self, root: Root, files: Sequence[OutputRef]) -> None:
        self._rows = _ByKey(root, files)

    def of(self, keys: pa.Array) -> Cuts:
        """The cuts of a batch's documents, by (document, start, the longest first, rule)."""
        parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        rules: list[pa.Array] = []
        for documents, starts, stops, rows in self._rows.hits(keys):
            counts = stops - starts
            at = np.repeat(starts - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
            begins, ends = numbers(rows.column("start"))[at], numbers(rows.column("stop"))[at]
            parts.append((np.repeat(documents, counts), begins, ends))
            rules.append(rows.column("rule").take(pa.array(at)))
        if not parts:
            nothing = np.zeros(0, np.int64)
            return Cuts(documents=nothing, starts=nothing, stops=nothing, rules=nothing, names=())
        documents, begins, ends = (np.concatenate([part[column] for part in parts]).astype(np.int64) for column in range(3))
        encoded = pa.concat_arrays(rules).dictionary_encode()
        found = encoded.dictionary.to_pylist()
        names = sorted(found)
        numbered = np.array([names.index(name) for name in found], np.int64)[numbers(encoded.indices)]
        order = np.lexsort((numbered, -ends, begins, documents))
        return Cuts(
            documents=documents[order],
            starts=begins[order],
            stops=ends[order],
            rules=numbered[order],
            names=tuple(names),
        )


def _as_keys(words: Sequence[tuple[int, ...]]) -> np.ndarray:
    """The keys in the words of rows (hash, first half, second half, …), as they are compared."""
    halves = np.array([one[1:3] for one in words], np.uint64).reshape(-1, 2).astype(">u8")
    return _sortable(halves.view(np.uint8).reshape(-1, KEY_BYTES))


def _sortable(matrix: np.ndarray) -> np.ndarray:
    """Keys as (num_docs,) byte strings, which NumPy compares like memory (both sides have the same 16 bytes)."""
    return np.ascontiguousarray(matrix).view(f"S{KEY_BYTES}").reshape(-1)
