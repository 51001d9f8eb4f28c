"""Rows of `datapipe/kernels/redact/identifiers.py`: the texts with numbers on lines of their own."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels.redact import identifiers as kernels
from tests.oracles import identifiers as oracle
from tests.support.kernel_table import Case, Row

_LINES = (
    b"card 4111 1111 1111 1111, or 378282246310005",
    b"IBAN GB82 WEST 1234 5698 7654 32.",
    b"ITIN 912-70-1234, 912-70-1234 +1-555-555-0142 415-555-2671",
    b"SSN 123456789, 123-45-6789 and 666-12-3456",
    b"call (415) 555-2671 x12 or +41 44 668 18 00",
    b"0171 2345678 1.5 2024-01-02 4000 4500 5000 5500 6000",
    b"DE89370400440532013000 30569309025904",
)


def _arguments(case: Case) -> list[Any]:
    drawn = case.generator.integers(0, len(_LINES), (len(case.texts), 2))
    texts = [_LINES[a] + b"\n" + text + b"\n" + _LINES[b] for text, (a, b) in zip(case.texts, drawn)]
    data = np.frombuffer(b"4111" + b"".join(texts) + b"11", np.uint8)
    offsets = np.cumsum([4, *map(len, texts)], dtype=np.int64)
    wanted = 63 if case.seed % 3 else int(case.generator.integers(0, 64))
    return [offsets, data, wanted, *(np.empty(len(data), dtype) for dtype in (np.int64, np.int64, np.uint8))]


def _expected(offsets: np.ndarray, data: np.ndarray, wanted: int) -> tuple[int, list[Any]]:
    spans = []
    for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist()):
        spans += [(begin + a, begin + b, kind) for a, b, kind in oracle.find(data[begin:end].tobytes(), wanted)]
    return len(spans), [[span[part] for span in spans] for part in range(3)]


ROWS = [Row(kernel=kernels.find_identifiers, arguments=_arguments, oracle=_expected, num_outputs=3)]
