"""Rows of `datapipe/kernels/filters/fineweb.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from datapipe.kernels.filters import fineweb
from datapipe.kernels.text.raw_lines import find_raw_lines
from datapipe.kernels.text.words import find_lines
from tests.oracles import fineweb as oracle
from tests.support.kernel_table import Case, Row

_ENDS = ".!?…ж中\U0001da88"
_SHORT_CHARS = 6


def _arguments(case: Case) -> Sequence[Any]:
    with np.errstate(over="ignore"):
        lines = find_lines(case.offsets, case.data)
        raw = find_raw_lines(case.offsets, case.data, lines)
    return [lines, raw, case.data, fineweb.ends_table(_ENDS), _SHORT_CHARS, np.zeros((len(case.texts), 3), np.int64)]


def _expected(case: Case) -> tuple[Any, Sequence[Any]]:
    return None, [[oracle.of_text(text, _ENDS, _SHORT_CHARS) for text in case.texts]]


ROWS = [Row(kernel=fineweb.measure_ends, arguments=_arguments, oracle=_expected, from_case=True)]
