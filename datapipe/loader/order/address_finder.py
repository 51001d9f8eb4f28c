"""The address of any sample of any source, by one kernel call for the samples of all sources.

    source, ordinal ──▶ find_addresses (kernel) ──▶ addresses
                          └── windows not laid out ──▶ SourceOrder.window_at ──▶ new tables ──▶ called again

The tables hold the two windows that each source used last. They are replaced, never changed: a call works with the tables that
it took, so threads need no lock, and the memory that a kernel reads lives until it returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from datapipe.kernels.tokens import windows as kernels
from datapipe.loader.order.grown_order import GrownOrder
from datapipe.loader.order.source_order import Window

MOST_BYTES = 64 << 20
"""Of the windows in the tables; past it, the tables start over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tables:
    """Windows as kernels read them.

    Attributes:
        windows: (num_sources * WINDOWS_PER_SOURCE, WINDOW_WIDTH) int64.
        kept: by line of `windows`, the window that owns the memory.
        num_bytes: of `kept`.
    """

    windows: np.ndarray
    kept: Mapping[int, Window]
    num_bytes: int


class AddressFinder:
    """Addresses of the samples of each source. Several threads may call `find` at once."""

    def __init__(self, orders: Sequence[GrownOrder], source_starts: np.ndarray) -> None:
        self._orders, self._source_starts = tuple(orders), source_starts
        self._tables = self._empty()

    def __reduce__(self) -> tuple[type[AddressFinder], tuple[tuple[GrownOrder, ...], np.ndarray]]:
        """A copy begins with empty tables: those of the original hold addresses of its memory."""
        return AddressFinder, (self._orders, self._source_starts)

    def find(self, sources: np.ndarray, ordinals: np.ndarray, attempt: int = 0) -> np.ndarray:
        """The address of each sample: (n,) int64.

        Args:
            sources, ordinals: (n,) int64; ordinals count over all epochs of the source.
            attempt: 0 for the regular address; k for the k-th replacement, from the same source and epoch.
        """
        if attempt:
            ordinals = self._replaced(sources, ordinals, attempt)
        addresses = np.full(len(sources), -1, np.int64)
        tables = self._tables
        while kernels.find_addresses(sources, ordinals, tables.windows, addresses):
            tables = self._with_windows(tables, sources, ordinals, np.flatnonzero(addresses < 0))
            if not attempt:  # replacements lie anywhere in their epoch: their windows would push out those in use
                self._tables = tables
        return addresses

    def _replaced(self, sources: np.ndarray, ordinals: np.ndarray, attempt: int) -> np.ndarray:
        out = np.empty_like(ordinals)
        for source in np.unique(sources).tolist():
            here = sources == source
            out[here] = self._orders[source].replaced(ordinals[here], attempt)
        return out

    def _with_windows(self, tables: _Tables, sources: np.ndarray, ordinals: np.ndarray, missing: np.ndarray) -> _Tables:
        """`tables` with the window of the first missing sample of each source instead of the older of its windows."""
        of_missing, first_of = np.unique(sources[missing], return_index=True)
        new = [
            (source, self._orders[source].window_at(ordinal))
            for source, ordinal in zip(of_missing.tolist(), ordinals[missing[first_of]].tolist())
        ]
        num_bytes = sum(window.num_bytes for _, window in new)
        if tables.num_bytes + num_bytes > MOST_BYTES:
            tables = self._empty()
        windows, kept = tables.windows.copy(), dict(tables.kept)
        for source, window in new:
            older, newer = source * kernels.WINDOWS_PER_SOURCE, source * kernels.WINDOWS_PER_SOURCE + 1
            if newer in kept:
                windows[older], kept[older] = windows[newer], kept[newer]
            windows[newer], kept[newer] = _line(window, int(self._source_starts[source])), window
        return _Tables(windows=windows, kept=kept, num_bytes=sum(window.num_bytes for window in kept.values()))

    def _empty(self) -> _Tables:
        num_lines = len(self._orders) * kernels.WINDOWS_PER_SOURCE
        return _Tables(windows=np.zeros((num_lines, kernels.WINDOW_WIDTH), np.int64), kept={}, num_bytes=0)


def _line(window: Window, source_start: int) -> list[int]:
    permutation = window.permutation.ctypes.data if len(window.permutation) else 0
    entries = window.entries.ctypes.data
    return [window.first, window.stop, permutation, source_start + window.base, len(window.entries) // 2, entries]
