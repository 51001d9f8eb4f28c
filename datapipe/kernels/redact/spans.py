"""Spans that scans find: where each starts and stops, and its kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from datapipe.kernels.types import Int64s, Int64sOut, UInt8s, UInt8sOut, first_rows, room_for


class FoundSpans(NamedTuple):
    """Spans in text order, (num_spans,) each; an input of kernels where `input_record` made it."""

    starts: Int64s
    stops: Int64s
    kinds: UInt8s

    def taken(self, rows: np.ndarray) -> FoundSpans:
        """The spans of these numbers, or where a mask is true."""
        return FoundSpans._make(column[rows] for column in self)

    def outside(self, others: FoundSpans) -> FoundSpans:
        following = np.searchsorted(others.stops, self.starts, side="right")  # the first that ends after the start
        return self.taken(np.append(others.starts, np.iinfo(np.int64).max)[following] >= self.stops)

    def merged(self, others: FoundSpans) -> FoundSpans:
        """These spans and the others, in text order. The others overlap none of these."""
        both = joined([self, others])
        return both.taken(np.argsort(both.starts, kind="stable"))


class SpansOut(NamedTuple):
    starts: Int64sOut
    stops: Int64sOut
    kinds: UInt8sOut


def joined(parts: Sequence[FoundSpans]) -> FoundSpans:
    return FoundSpans._make(map(np.concatenate, zip(room_for(SpansOut, 0), *parts)))


def scanned(limit: int, scan: Callable[[SpansOut], int]) -> FoundSpans:
    """The spans that a scan writes, at most `limit`; it returns their number. The memory of other spans is freed."""
    out = room_for(SpansOut, limit)
    return FoundSpans._make(column.copy() for column in first_rows(out, scan(out)))
