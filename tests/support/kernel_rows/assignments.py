"""Rows of `datapipe/kernels/redact/assignments.py`: values of every alphabet in every place."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels.redact import assignments as kernels
from datapipe.kernels.redact.keywords import Hits
from stages.redact.secrets import KINDS
from tests.oracles import secrets as oracle
from tests.support.kernel_table import Case, Row
from tests.support.secret_texts import as_outputs, by_document, hits_of, rules, secret_texts, spans_out


def _arguments(case: Case) -> list[Any]:
    offsets, data = secret_texts(case)
    hits, every = hits_of(offsets, data), (1 << len(KINDS)) - 1
    millibits = 3500 if case.seed % 2 else 2000
    return [offsets, data, hits, rules().names, every, millibits, np.zeros(256, np.int64), spans_out(len(hits.positions))]


def _expected(
    offsets: np.ndarray, data: np.ndarray, hits: Hits, names: kernels.Names, wanted: int, millibits: int, counts: Any
) -> Any:
    spans = []
    for begin, text, found in by_document(offsets, data, hits):
        spans += [(begin + start, begin + stop, kind) for start, stop, kind in oracle.values(text, found, wanted, millibits)]
    return as_outputs(spans)


ROWS = [Row(kernel=kernels.match_names, arguments=_arguments, oracle=_expected)]
