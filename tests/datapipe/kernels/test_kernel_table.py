"""Every kernel of the table equals its oracle on every case, and runs alike twice."""

from __future__ import annotations

import numpy as np
import pytest

from datapipe.kernels import all_kernels
from tests.kernel_table import CASES, Row, all_rows

ROWS = all_rows()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_kernel_any_case_equals_its_oracle(row: Row, case: str) -> None:
    if row.valid_only and not CASES[case].valid:
        return
    returned, outputs = row.run(CASES[case])
    expected_return, expected = row.expected(CASES[case])
    assert returned == expected_return
    for output, start in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(output[: len(start)], np.asarray(start, output.dtype).reshape(-1, *output.shape[1:]))


def test_kernel_table_no_row_is_written_twice() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_kernel_table_has_every_kernel() -> None:
    assert {row.kernel.name for row in ROWS} == set(all_kernels())
