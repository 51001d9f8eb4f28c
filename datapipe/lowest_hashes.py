"""A sample of documents by keyed hash: those of lowest hash whose texts together fit into a number of bytes.

    tables, in any order  ─▶  LowestHashes.add  ─▶  table(): rows in the order of their hashes

The documents before a dropped one fill the limit, and further documents only add to them. So the result does not depend on the
order in which documents come. Memory: three times the limit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from datapipe.columns import compute as pc
from datapipe.columns import text_lengths

_ABOVE_ALL = 1 << 64


class LowestHashes:
    """The documents of lowest hash whose texts together have at most `limit_bytes`; at least one.

    Args:
        schema: with the columns `hash`, uint64, and `text`, large_string.
        identity: columns of 64-bit numbers, `hash` first; of rows that are equal in all of them the first counts.
    """

    def __init__(self, limit_bytes: int, schema: pa.Schema, identity: Sequence[str] = ("hash",)) -> None:
        self.limit_bytes, self.identity = limit_bytes, identity
        self._below = _ABOVE_ALL
        self._held = [schema.empty_table()]
        self._held_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether documents were left out for the limit."""
        return self._below < _ABOVE_ALL

    def add(self, table: pa.Table) -> None:
        if self.is_full:
            table = table.filter(pc.less(table["hash"], pa.scalar(self._below, pa.uint64())))
        self._held.append(table)
        self._held_bytes += int(pc.sum(pc.binary_length(table["text"])).as_py() or 0)
        if self._held_bytes > 2 * self.limit_bytes:
            self.table()

    def table(self) -> pa.Table:
        """The sample, in the order of the hashes."""
        table = pa.concat_tables(self._held).sort_by([(name, "ascending") for name in self.identity])
        table = table.filter(pa.array(is_first(table, self.identity))).combine_chunks()
        ends = np.cumsum(text_lengths(table["text"].combine_chunks()))
        number = max(int(np.searchsorted(ends, self.limit_bytes, "right")), min(1, len(table)))
        if number < len(table):
            self._below = int(table["hash"][number].as_py())
            number = int(np.searchsorted(table["hash"].to_numpy(), np.uint64(self._below)))
        self._held, self._held_bytes = [table[:number]], int(ends[number - 1]) if number else 0
        return self._held[0]


def is_first(table: pa.Table, names: Sequence[str]) -> np.ndarray:
    """Whether each row of a sorted table differs from the one before in these columns of 64-bit numbers: (num_rows,) bool."""
    rows = np.stack([table[name].to_numpy().view(np.uint64) for name in names])
    return np.append(True, (rows[:, 1:] != rows[:, :-1]).any(axis=0))[: len(table)]
