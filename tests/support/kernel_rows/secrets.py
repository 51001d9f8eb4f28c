"""Rows of `datapipe/kernels/redact/secrets.py`: the texts with made-up secrets on lines of their own."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels.redact import secrets as kernels
from tests.oracles import secrets as oracle
from tests.support.kernel_table import Case, Row
from tests.support.synthetic_secrets import drawn_shapes, drawn_tokens


def _arguments(case: Case) -> list[Any]:
    secrets = [before + token for _, before, token in drawn_tokens(case.seed)]
    secrets += [secret for _, secret in drawn_shapes(case.seed)]
    drawn = case.generator.integers(0, len(secrets), (len(case.texts), 2))
    texts = [
        f"token = '{secrets[a]}'\n".encode() + text + f"\nsecret: {secrets[b]} {secrets[b][:-1]}".encode()
        for text, (a, b) in zip(case.texts, drawn)
    ]
    data = np.frombuffer(b"ghp_" + b"".join(texts) + b"AK", np.uint8)
    offsets = np.cumsum([4, *map(len, texts)], dtype=np.int64)
    every = (1 << len(kernels.KINDS)) - 1
    wanted = every if case.seed % 3 else int(case.generator.integers(0, every + 1))
    outputs = [np.empty(len(data), dtype) for dtype in (np.int64, np.int64, np.uint8)]
    return [offsets, data, wanted, 3500, np.zeros(128, np.int64), *outputs]


def _expected(offsets: np.ndarray, data: np.ndarray, wanted: int, millibits: int, counts: np.ndarray) -> tuple[int, list[Any]]:
    spans = []
    for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist()):
        spans += [(begin + a, begin + b, kind) for a, b, kind in oracle.find(data[begin:end].tobytes(), wanted, millibits)]
    return len(spans), [[span[part] for span in spans] for part in range(3)]


ROWS = [Row(kernel=kernels.find_secrets, arguments=_arguments, oracle=_expected, num_outputs=3)]
