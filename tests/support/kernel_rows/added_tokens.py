"""Rows of `datapipe/kernels/tokens/added_tokens.py`: runs of spaces, overlapping marks and marks that are read as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from datapipe.kernels.tokens import added_tokens
from tests.oracles import bpe as oracle
from tests.support.kernel_table import Case, Row

_TOKENS = {
    b"  ": 300,
    b"    ": 301,
    b"the": 302,
    b"the word": 303,
    b"<|end|>": added_tokens.PASSED_OVER,
    b"<|": 304,
    b"d|>": 305,
}


def _texts(case: Case) -> list[bytes]:
    return [text + b"\n     the wor<|end|>the word<|en d|>the" for text in case.texts]


def _fixed(case: Case) -> np.ndarray:
    return np.where(case.generator.random(len(case.texts)) < 0.3, 7, -1).astype(np.int32)


def _arguments(case: Case) -> Sequence[Any]:
    texts = _texts(case)
    offsets = np.cumsum([2, *map(len, texts)], dtype=np.int64)
    data = np.frombuffer(b"<|" + b"".join(texts) + b"  ", np.uint8)
    room = len(data) + len(texts)
    outputs = [np.zeros(len(offsets), np.int64), np.zeros(room, np.int64), np.zeros(room, np.int32)]
    return [offsets, data, _fixed(case), *added_tokens.token_trie(_TOKENS), *outputs]


def _expected(case: Case) -> tuple[Any, Sequence[Any]]:
    parts = [
        [(text, fixed)] if fixed >= 0 else oracle.cut_at_tokens(text, _TOKENS)
        for text, fixed in zip(_texts(case), _fixed(case).tolist())
    ]
    flat = [part for text in parts for part in text]
    ends = np.cumsum([2, *(len(part) for part, _ in flat)])[1:]
    return len(flat), [np.cumsum([0, *map(len, parts)]), ends, [number for _, number in flat]]


ROWS = [Row(kernel=added_tokens.cut_at_tokens, arguments=_arguments, oracle=_expected, num_outputs=3, from_case=True)]
