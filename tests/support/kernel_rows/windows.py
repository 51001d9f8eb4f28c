"""Rows of `datapipe/kernels/tokens/windows.py`: windows of shuffled tables and of Feistel rounds, whole and in entries.

Their memory is kept for as long as the tests run, since kernels know it by its address alone.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from datapipe.kernels.tokens import windows as kernels
from datapipe.kernels.tokens.permute import NUM_ROUNDS, TABLE_SIZE, permutation
from tests.oracles import windows as oracle
from tests.oracles.permute import round_keys, shuffled
from tests.support.kernel_table import Case, Row

_SIZES = (1, 2, 300, TABLE_SIZE + 1, 1 << 20, (1 << 20) + 1)
_NUM_SOURCES = 5


@cache
def _windows(case: Case) -> tuple[list[oracle.ListWindow], np.ndarray, list[np.ndarray]]:
    """Windows, their lines (num_sources * WINDOWS_PER_SOURCE, WINDOW_WIDTH), and the arrays that the lines point to."""
    generator, windows, kept = case.generator, [], []
    lines = np.zeros((_NUM_SOURCES * kernels.WINDOWS_PER_SOURCE, kernels.WINDOW_WIDTH), np.int64)
    for line in range(len(lines)):
        if generator.integers(4) == 0:
            continue  # nothing is laid out there
        size, key = int(generator.choice(_SIZES)), int(generator.integers(0, 1 << 62))
        first, base = int(generator.integers(0, 1 << 40)), int(generator.integers(0, 1 << 40))
        in_order = bool(generator.integers(4) == 0)
        held, addresses = permutation(key, size), range(base, base + size)
        entries = np.zeros(0, np.int64)
        if size <= 300 and generator.integers(2):
            starts = np.unique([0, *generator.integers(0, size, 3)])
            jumps = generator.integers(0, 1 << 30, len(starts))
            entries = np.concatenate([starts, jumps])
            runs = zip(starts.tolist(), [*starts[1:].tolist(), size], jumps.tolist())
            addresses = [base + jump + position for start, stop, jump in runs for position in range(start, stop)]
        table = range(size) if in_order else shuffled(key, size) if size <= TABLE_SIZE else None
        source = line // kernels.WINDOWS_PER_SOURCE
        windows.append(oracle.ListWindow(source, first, first + size, addresses, table, round_keys(key, NUM_ROUNDS)))
        lines[line] = [first, first + size, 0 if in_order else held.ctypes.data, base, len(entries) // 2, entries.ctypes.data]
        kept += [held, entries]
    return windows, lines, kept


def _arguments(case: Case) -> list[Any]:
    generator, (windows, lines, _) = case.generator, _windows(case)
    sources, ordinals = generator.integers(0, _NUM_SOURCES, 200), generator.integers(0, 1 << 40, 200)
    for sample in range(180 if windows else 0):
        window = windows[generator.integers(len(windows))]
        sources[sample], ordinals[sample] = window.source, generator.integers(window.first, window.stop)
    for sample, ordinal in enumerate(ordinal for window in windows for ordinal in (window.first - 1, window.stop)):
        ordinals[sample] = ordinal
    return [sources, ordinals, lines, np.full(200, -1)]


def _expected(case: Case) -> tuple[int, list[Any]]:
    sources, ordinals, _, _ = _arguments(case)
    found = [oracle.find(source, ordinal, _windows(case)[0]) for source, ordinal in zip(sources.tolist(), ordinals.tolist())]
    return found.count(None), [[-1 if address is None else address for address in found]]


ROWS = [Row(kernel=kernels.find_addresses, arguments=_arguments, oracle=_expected, from_case=True)]
