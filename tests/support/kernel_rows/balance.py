"""Rows of `datapipe/kernels/tokens/balance.py`: costs of any size, ranks with different room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from datapipe.kernels.tokens import balance
from tests.oracles import balance as oracle
from tests.support.kernel_table import Case, Row


def _arguments(case: Case) -> Sequence[Any]:
    generator = case.generator
    num_rows, num_ranks = int(generator.integers(0, 40)), int(generator.integers(1, 9))
    costs = generator.integers(0, 2 ** int(generator.integers(1, 40)), num_rows)
    room = np.bincount(generator.integers(0, num_ranks, num_rows), minlength=num_ranks)
    out = np.zeros(num_rows, np.int64)
    return [costs, np.argsort(-costs, kind="stable"), room.astype(np.int64), np.zeros(num_ranks, np.int64), out]


def _expected(case: Case) -> tuple[Any, Sequence[Any]]:
    costs, order, room, _, _ = _arguments(case)
    return None, oracle.deal_rows(costs.tolist(), order.tolist(), room.tolist())


ROWS = [Row(kernel=balance.deal_rows, arguments=_arguments, oracle=_expected, num_outputs=3, from_case=True)]
