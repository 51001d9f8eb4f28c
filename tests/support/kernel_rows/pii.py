"""Rows of `datapipe/kernels/redact/pii.py`: the texts with addresses on lines of their own."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels.redact import pii as kernels
from tests.oracles import pii as oracle
from tests.support.kernel_table import Case, Row

_LINES = (
    "write to jane.doe@example.co.uk, or not",
    "at 8.8.8.8 and 10.0.0.1.",
    "version 1.2.3.4",
    "see 2001:4860:4860::8888.",
    "logo@2x.png a@b.com@c.com",
    "x@y z@1.2.3.4",
    "josé.núñez@correo.es, jane%40host.com, коля@почта.рф and 用户@例子.中国",
    "Git 1.4.2.1 from 1.4.2.1",
    'gem "rack", "2.2.6.4" and numpy==1.2.3.4 or ip == 8.8.4.4',
    "git@host.com:team/project.git jane＠host.com: x",
    "git clone https://bob:hunter2@git.example.net/x.git ftp://a:$PASS@h.com",
    "user-0123abcd@example.com ssh://user-0123abcd:password@h.com redis://:p@[::1]",
)


def _arguments(case: Case) -> list[Any]:
    drawn = case.generator.integers(0, len(_LINES), (len(case.texts), 2))
    texts = (
        [f"{_LINES[a]}\n{text.decode()}\n{_LINES[b]}".encode() for text, (a, b) in zip(case.texts, drawn)] if case.valid else []
    )
    data = np.frombuffer(b"a@" + b"".join(texts) + b".de", np.uint8)
    offsets = np.cumsum([2, *map(len, texts)], dtype=np.int64)
    return [offsets, data, True, True, True, *(np.empty(len(data), dtype) for dtype in (np.int64, np.int64, np.uint8))]


def _expected(offsets: np.ndarray, data: np.ndarray, emails: bool, ips: bool, credentials: bool) -> tuple[int, list[Any]]:
    spans = []
    for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist()):
        text = data[start:stop].tobytes().decode()
        spans += [(start + len(text[:a].encode()), start + len(text[:b].encode()), kind) for a, b, kind in oracle.find(text)]
    return len(spans), [[span[part] for span in spans] for part in range(3)]


ROWS = [Row(kernel=kernels.find_spans, arguments=_arguments, oracle=_expected, num_outputs=3, valid_only=True)]
