"""Rows of `datapipe/kernels/tokens/context.py`: runs of any length, also none, padded to a multiple of the number of parts."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels.tokens import context as kernels
from tests.oracles import context as oracle
from tests.support.kernel_table import Case, Row


def _runs(case: Case) -> tuple[np.ndarray, np.ndarray, int, list[int]]:
    """Lengths, padded lengths, the number of parts of each run, and those of one rank."""
    generator = case.generator
    num_parts = int(generator.integers(1, 9))
    lengths = generator.integers(0, 40, len(case.texts))
    padded = (-(-lengths // num_parts) + generator.integers(0, 2, len(lengths))) * num_parts
    chosen = generator.choice(num_parts, min(num_parts, 2), replace=False)
    return lengths, padded, num_parts, chosen.tolist()


def _arguments(case: Case) -> list[Any]:
    lengths, padded, num_parts, parts = _runs(case)
    offsets = np.cumsum([0, *(padded // num_parts * len(parts))], dtype=np.int64)
    starts = np.cumsum([0, *lengths], dtype=np.int64)[:-1]
    places, positions = np.empty((2, offsets[-1]), np.int64)
    return [starts, lengths, offsets, np.array(parts, np.int64), places, positions]


def _expected(case: Case) -> tuple[None, list[Any]]:
    lengths, padded, num_parts, parts = _runs(case)
    tokens, start = [], 0
    for length, size in zip(lengths.tolist(), padded.tolist()):
        tokens += oracle.split_run(start, length, size, num_parts, parts)
        start += length
    return None, [[place for place, _ in tokens], [position for _, position in tokens]]


ROWS = [Row(kernel=kernels.split_runs, arguments=_arguments, oracle=_expected, num_outputs=2, from_case=True)]
