"""Rows of `datapipe/kernels/dedup/case_folding.py`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np

from datapipe.kernels.dedup import case_folding as kernels
from tests.oracles import case_folding as oracle
from tests.support.kernel_table import Case, Row


def _arguments(folding: Callable[[], kernels.Folding]) -> Callable[[Case], list[Any]]:
    def make(case: Case) -> list[Any]:
        num_bytes = int(case.offsets[-1] - case.offsets[0])
        out = np.empty(kernels.GROWTH * num_bytes + len(case.texts), np.uint8)
        return [case.offsets, case.data, folding(), np.empty(len(case.offsets), np.int64), out]

    return make


def _expected(case: Case) -> tuple[None, list[Any]]:
    found = [oracle.folded(text) for text in case.texts]
    return None, [list(accumulate(map(len, found), initial=0)), list(b"".join(found))]


ROWS = [
    Row(
        kernel=kernels.fold_case,
        arguments=_arguments(kernels.text_folding),
        oracle=_expected,
        num_outputs=2,
        from_case=True,
    ),
]
