"""Rows of `datapipe/kernels/redact/tokens.py`: tokens of every issuer and their halves."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels.redact import tokens as kernels
from datapipe.kernels.redact.keywords import Hits
from stages.redact.secrets import KINDS
from tests.oracles import secrets as oracle
from tests.support.kernel_table import Case, Row
from tests.support.secret_texts import as_outputs, by_document, hits_of, rules, secret_texts, spans_out


def _arguments(case: Case) -> list[Any]:
    offsets, data = secret_texts(case)
    hits, every = hits_of(offsets, data), (1 << len(KINDS)) - 1
    wanted = every if case.seed % 3 else int(case.generator.integers(0, every + 1))
    return [offsets, data, hits, rules().forms, wanted, np.zeros(256, np.int64), spans_out(len(hits.positions))]


def _expected(offsets: np.ndarray, data: np.ndarray, hits: Hits, forms: kernels.Forms, wanted: int, counts: Any) -> Any:
    spans = []
    for begin, text, found in by_document(offsets, data, hits):
        spans += [(begin + start, begin + stop, kind) for start, stop, kind in oracle.tokens(text, found, wanted)]
    return as_outputs(spans)


ROWS = [Row(kernel=kernels.match_forms, arguments=_arguments, oracle=_expected)]
