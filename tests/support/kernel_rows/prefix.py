"""Rows of `datapipe/kernels/filters/prefix.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels.filters import prefix as kernels
from tests.support.kernel_table import Case, Row


def _row(num_chars: int) -> Row:
    def arguments(case: Case) -> list[Any]:
        return [case.offsets, case.data, num_chars, np.empty(len(case.texts), np.int64)]

    return Row(
        kernel=kernels.prefix_stops, arguments=arguments, oracle=_expected, variant=f"{num_chars} characters", valid_only=True
    )


def _expected(offsets: np.ndarray, data: np.ndarray, num_chars: int) -> tuple[None, list[Any]]:
    texts = [data[start:stop].tobytes().decode() for start, stop in zip(offsets[:-1], offsets[1:])]
    return None, [[start + len(text[:num_chars].encode()) for start, text in zip(offsets.tolist(), texts)]]


def _suffix_row(num_chars: int) -> Row:
    def arguments(case: Case) -> list[Any]:
        return [case.offsets, case.data, num_chars, np.empty(len(case.texts), np.int64)]

    return Row(
        kernel=kernels.suffix_starts,
        arguments=arguments,
        oracle=_expected_starts,
        variant=f"{num_chars} characters",
        valid_only=True,
    )


def _expected_starts(offsets: np.ndarray, data: np.ndarray, num_chars: int) -> tuple[None, list[Any]]:
    texts = [data[start:stop].tobytes().decode() for start, stop in zip(offsets[:-1], offsets[1:])]
    ends = [text[max(len(text) - num_chars, 0) :] for text in texts]
    return None, [[stop - len(end.encode()) for stop, end in zip(offsets[1:].tolist(), ends)]]


ROWS = [row(num_chars) for row in (_row, _suffix_row) for num_chars in (0, 1, 7, 400)]
