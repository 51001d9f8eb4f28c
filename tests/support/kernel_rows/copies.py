"""Rows of `datapipe/kernels/redact/copies.py`: texts that are repeated, and spans of any words in them."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels.hashing import num_slots_for
from datapipe.kernels.redact import copies as kernels
from datapipe.kernels.types import input_record
from tests.oracles import secrets as oracle
from tests.support.kernel_table import Case, Row
from tests.support.secret_texts import as_outputs, secret_texts, spans_out


def _arguments(case: Case) -> list[Any]:
    offsets, data = secret_texts(case)
    texts = [data[begin:end].tobytes() for begin, end in zip(offsets[:-1], offsets[1:])]
    texts = [(text + text[len(text) // 3 :] + text[::2])[:1500] for text in texts]
    data = np.frombuffer(b"ghp_" + b"".join(texts) + b"AK", np.uint8)
    offsets = np.cumsum([4, *map(len, texts)], dtype=np.int64)
    spans = list[tuple[int, int, int]]()
    for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist()):
        start = begin
        while start + 10 < end and case.generator.random() < 0.9:
            stop = min(end, start + int(case.generator.integers(9, 40)))
            spans.append((start, stop, len(spans) % 32))
            start = stop + (end - begin) // 5
    arrays = np.array(spans, np.int64).reshape(-1, 3).T
    found = input_record(kernels.Spans, (arrays[0].copy(), arrays[1].copy(), arrays[2].astype(np.uint8)))
    slots = np.empty(num_slots_for(max(len(spans), 1)), np.int32)
    return [offsets, data, found, slots, spans_out(len(data) // 12 + 1)]


def _expected(offsets: np.ndarray, data: np.ndarray, spans: kernels.Spans, slots: np.ndarray) -> Any:
    found = []
    for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist()):
        inside = [(a - begin, b - begin, k) for a, b, k in zip(*(array.tolist() for array in spans)) if begin <= a < end]
        text = data[begin:end].tobytes()
        found += [(begin + start, begin + stop, kind) for start, stop, kind in oracle.copies(text, inside)]
    return as_outputs(found)


ROWS = [Row(kernel=kernels.find_copies, arguments=_arguments, oracle=_expected)]
