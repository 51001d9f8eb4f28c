"""Rows of `datapipe/kernels/dedup/components.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels.dedup import components as kernels
from tests.oracles import components as oracle
from tests.support.kernel_table import Case, Row


def _row(num_nodes: int) -> Row:
    """The number of nodes is the length of the output, which an oracle does not see."""

    def arguments(case: Case) -> list[Any]:
        a, b = case.generator.integers(0, num_nodes, (2, num_nodes * 2 // 3))
        return [a, b, np.empty(num_nodes, np.int64)]

    def expected(a: np.ndarray, b: np.ndarray) -> tuple[None, list[Any]]:
        return None, [oracle.labels(num_nodes, list(zip(a.tolist(), b.tolist())))]

    return Row(kernel=kernels.join, arguments=arguments, oracle=expected, variant=f"of {num_nodes} nodes")


ROWS = [_row(num_nodes) for num_nodes in (1, 2, 300)]
