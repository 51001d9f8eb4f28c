"""The decisions of a global stage on the documents of a batch: drops, cuts, and sizes of clusters.

Decision files are exchange files whose hash is the first half of the document's key, and their blocks together are in the
order of keys. So the index tells which blocks may hold rows about a batch. They are read one at a time, and the last few are
kept, since batches come in file order. Memory does not grow with the number of decisions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa

from datapipe.columns import KEY_BYTES, key_matrix, numbers
from datapipe.exchange.files import Block, open_rows, read_block, read_index
from datapipe.plan.outputs import ExchangeFile
from datapipe.storage import Root

HELD_BLOCKS = 8
"""Blocks of about a MiB that are kept for the next batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Drops:
    """Per document: dropped (num_docs,) bool; survivor (num_docs, 16) uint8 and value (num_docs,) float64 where dropped."""

    dropped: np.ndarray
    survivor: np.ndarray
    value: np.ndarray


@dataclass(frozen=True, kw_only=True, slots=True)
class Cuts:
    """Spans to cut, by (document, start): (num_cuts,) int64 each; `rules` are numbers of `names`."""

    documents: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    rules: np.ndarray
    names: tuple[str, ...]


_FileBlock = tuple[ExchangeFile, Block, pa.Schema]


class KeyedRows:
    """Rows of exchange files, looked up by document key.

    Args:
        blocks: of all files, in the order of their first rows.
    """

    def __init__(self, root: Root, blocks: Sequence[_FileBlock]) -> None:
        self.root, self._blocks = root, blocks
        self._held: OrderedDict[int, pa.RecordBatch] = OrderedDict()
        self._firsts = _as_keys([block.first for _, block, _ in blocks])
        self._lasts = _as_keys([block.last for _, block, _ in blocks])

    @classmethod
    def open(cls, root: Root, files: Sequence[ExchangeFile]) -> Self:
        """Reads the index of every file."""
        blocks: list[_FileBlock] = []
        for file in files:
            with open_rows(root, file) as stream:
                of_file, schema = read_index(stream, file)
            blocks += [(file, block, schema) for block in of_file]
        return cls(root, sorted(blocks, key=lambda entry: entry[1].first))

    def matches(self, keys: pa.Array) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, pa.RecordBatch]]:
        """Block by block: documents with rows in it, start and stop of the rows of each, and the block."""
        wanted = _sortable(key_matrix(keys))
        low = np.searchsorted(self._lasts, wanted, "left")  # the first block that does not end before the document
        high = np.searchsorted(self._firsts, wanted, "right")
        changes = np.zeros(len(self._blocks) + 1, np.int64)
        np.add.at(changes, low[low < high], 1)
        np.add.at(changes, high[low < high], -1)
        for number in np.flatnonzero(np.cumsum(changes[:-1])):
            rows = self._block(int(number))
            documents = np.flatnonzero((low <= number) & (number < high))
            row_keys = _sortable(key_matrix(rows.column("key")))
            starts = np.searchsorted(row_keys, wanted[documents], "left")
            stops = np.searchsorted(row_keys, wanted[documents], "right")
            has_rows = starts < stops
            if has_rows.any():
                yield documents[has_rows], starts[has_rows], stops[has_rows], rows

    def _block(self, number: int) -> pa.RecordBatch:
        rows = self._held.pop(number, None)
        if rows is None:
            file, block, schema = self._blocks[number]
            with open_rows(self.root, file) as stream:
                rows = read_block(stream, file, block, schema)
        self._held[number] = rows
        if len(self._held) > HELD_BLOCKS:
            self._held.popitem(last=False)
        return rows


def drops_of(drops: KeyedRows, keys: pa.Array) -> Drops:
    """The drops among the documents of a batch."""
    result = Drops(
        dropped=np.zeros(len(keys), np.bool_),
        survivor=np.zeros((len(keys), KEY_BYTES), np.uint8),
        value=np.full(len(keys), np.nan),
    )
    for documents, starts, _, rows in drops.matches(keys):
        result.dropped[documents] = True
        result.survivor[documents] = key_matrix(rows.column("survivor"))[starts]
        result.value[documents] = numbers(rows.column("value"))[starts]
    return result


def cluster_sizes(sizes: KeyedRows, keys: pa.Array) -> np.ndarray:
    """Documents in the cluster of each survivor: (num_docs,) int64, 1 where it was alone."""
    counts = np.ones(len(keys), np.int64)
    for documents, starts, _, rows in sizes.matches(keys):
        counts[documents] += numbers(rows.column("size"))[starts]
    return counts


def cuts_of(cuts: KeyedRows, keys: pa.Array) -> Cuts:
    """The cuts of a batch's documents, by (document, start, the longest first, rule)."""
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    rules: list[pa.Array] = []
    for documents, starts, stops, rows in cuts.matches(keys):
        counts = stops - starts
        # taken: (num_cuts,) the rows starts[0], …, stops[0] - 1, starts[1], …
        taken = np.repeat(starts - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        parts.append((np.repeat(documents, counts), numbers(rows.column("start"))[taken], numbers(rows.column("stop"))[taken]))
        rules.append(rows.column("rule").take(pa.array(taken)))
    if not parts:
        nothing = np.zeros(0, np.int64)
        return Cuts(documents=nothing, starts=nothing, stops=nothing, rules=nothing, names=())
    documents, starts, stops = (np.concatenate([part[column] for part in parts]).astype(np.int64) for column in range(3))
    encoded = pa.concat_arrays(rules).dictionary_encode()
    known = encoded.dictionary.to_pylist()
    names = sorted(known)
    numbered = np.array([names.index(name) for name in known], np.int64)[numbers(encoded.indices)]
    order = np.lexsort((numbered, -stops, starts, documents))
    return Cuts(documents=documents[order], starts=starts[order], stops=stops[order], rules=numbered[order], names=tuple(names))


def _as_keys(words: Sequence[tuple[int, ...]]) -> np.ndarray:
    """The keys in the words of rows (hash, first half, second half, …), as byte strings that compare like keys."""
    halves = np.array([row[1:3] for row in words], np.uint64).reshape(-1, 2).astype(">u8")
    return _sortable(halves.view(np.uint8).reshape(-1, KEY_BYTES))


def _sortable(matrix: np.ndarray) -> np.ndarray:
    """Keys as (num_docs,) byte strings, which NumPy compares like memory; all have 16 bytes."""
    return np.ascontiguousarray(matrix).view(f"S{KEY_BYTES}").reshape(-1)
