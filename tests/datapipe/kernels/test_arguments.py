"""What kernels promise of their arguments: few of them, and inputs that may be read-only and may be writable."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.support.kernel_table import CASES, PARAMETER, Row, kernel_names, rows_by_kernel

pytestmark = pytest.mark.medium

_MOST_PARAMETERS = 8


def test_kernels_have_at_most_eight_parameters() -> None:
    from datapipe.kernels import all_kernels

    counts = {name: len(inspect.signature(kernel.function).parameters) for name, kernel in all_kernels().items()}
    assert {name: count for name, count in counts.items() if count > _MOST_PARAMETERS} == {}


@pytest.mark.parametrize(PARAMETER, kernel_names())
def test_kernel_takes_read_only_and_writable_inputs(kernel_name: str) -> None:
    from datapipe.kernels.types import read_only

    for row in rows_by_kernel()[kernel_name]:
        _assert_equals_oracle(row, read_only)
        _assert_equals_oracle(row, np.ndarray.copy)


def test_kernel_refuses_a_read_only_output() -> None:
    from datapipe.kernels.filters.prefix import prefix_stops
    from datapipe.kernels.types import read_only

    with pytest.raises((TypeError, ValueError)):
        prefix_stops(np.array([0, 1]), np.zeros(1, np.uint8), 1, read_only(np.zeros(1, np.int64)))


def _assert_equals_oracle(row: Row, change: Callable[[np.ndarray], np.ndarray]) -> None:
    case = CASES["lines"]
    given = row.kernel.signature.args
    arguments = [change(value) if _is_input(kind) else value for value, kind in zip(row.arguments(case), given, strict=True)]
    returned = row.kernel(*arguments)
    expected_return, expected = row.expected(case)
    assert returned == expected_return
    for output, start in zip(_arrays(arguments[len(arguments) - row.num_outputs :]), expected, strict=True):
        np.testing.assert_array_equal(output[: len(start)], np.asarray(start, output.dtype).reshape(-1, *output.shape[1:]))


def _is_input(kind: Any) -> bool:
    from numba import types

    return isinstance(kind, types.Array) and not kind.mutable


def _arrays(outputs: Sequence[Any]) -> list[np.ndarray]:
    return [array for output in outputs for array in (output if isinstance(output, tuple) else (output,))]
