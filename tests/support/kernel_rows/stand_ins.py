"""Rows of `datapipe/kernels/redact/stand_ins.py`: spans of every kind at random in the texts."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels.redact import stand_ins as kernels
from datapipe.kernels.redact.pii import SECRET
from tests.oracles import stand_ins as oracle
from tests.support.kernel_rows.replace import spans_of
from tests.support.kernel_table import Case, Row


def _arguments(case: Case) -> list[Any]:
    starts, stops = spans_of(case)
    kinds = case.generator.integers(0, SECRET + 1, len(starts)).astype(np.uint8)
    outputs = [np.zeros((len(starts), kernels.REPLACEMENT_BYTES), np.uint8), np.zeros(len(starts), np.int64)]
    return [case.data, starts, stops, kinds, np.uint64(case.seed), *outputs]


def _expected(
    data: np.ndarray, starts: np.ndarray, stops: np.ndarray, kinds: np.ndarray, seed: np.uint64
) -> tuple[None, list[Any]]:
    spans = [data[start:stop].tobytes() for start, stop in zip(starts, stops)]
    stand_ins = [oracle.stand_in(span, kind, int(seed)) for span, kind in zip(spans, kinds.tolist())]
    return None, [[list(stand_in.ljust(kernels.REPLACEMENT_BYTES, b"\0")) for stand_in in stand_ins], list(map(len, stand_ins))]


ROWS = [Row(kernel=kernels.write_stand_ins, arguments=_arguments, oracle=_expected, num_outputs=2)]
