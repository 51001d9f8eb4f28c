"""Rows of `datapipe/kernels/dedup/text_hashes.py`."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np

from datapipe.kernels.dedup import text_hashes as kernels
from tests.oracles import buckets as oracle
from tests.support.kernel_table import Case, Row


def _texts(offsets: np.ndarray, data: np.ndarray) -> list[bytes]:
    return [data[start:stop].tobytes() for start, stop in zip(offsets[:-1], offsets[1:])]


def _hash_arguments(case: Case) -> list[Any]:
    return [case.offsets, case.data, np.empty(len(case.texts), np.uint64), np.empty(len(case.texts), np.uint64)]


def _hash_expected(offsets: np.ndarray, data: np.ndarray) -> tuple[None, list[Any]]:
    found = [oracle.text_hash(text) for text in _texts(offsets, data)]
    return None, [[hashed for hashed, _ in found], [digest for _, digest in found]]


def _squeeze_arguments(case: Case) -> list[Any]:
    return [case.offsets, case.data, np.empty(len(case.offsets), np.int64), np.empty(len(case.data), np.uint8)]


def _squeeze_expected(offsets: np.ndarray, data: np.ndarray) -> tuple[None, list[Any]]:
    found = [oracle.squeeze_space(text.decode()).encode() for text in _texts(offsets, data)]
    return None, [list(accumulate(map(len, found), initial=0)), list(b"".join(found))]


ROWS = [
    Row(kernel=kernels.hash_texts, arguments=_hash_arguments, oracle=_hash_expected, num_outputs=2),
    Row(kernel=kernels.squeeze_space, arguments=_squeeze_arguments, oracle=_squeeze_expected, num_outputs=2, valid_only=True),
]
