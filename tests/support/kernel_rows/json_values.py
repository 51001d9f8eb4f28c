"""Rows of `datapipe/kernels/read/json_values.py`."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from datapipe.kernels.read import json_values as kernels
from tests.oracles import json_values as oracle
from tests.support.kernel_table import Case, Row

_ODD = (
    b'[{"a": "[,]\\n"},\n[1, {"b": 2}],\r\n "x,\\\\", null]\n[]\n{\n "c": {\n}\n}\n{"d": 1}\n, ] } 7,8\n'
    b'["raw\nline", "\\"\n", {"e": "'
)


def _arguments(case: Case) -> list[Any]:
    texts = [text.decode(errors="replace") for text in case.texts]
    records = [{"text": text, "more": [number, {text: [text]}]} for number, text in enumerate(texts)]
    parts = [json.dumps(records, indent=1), json.dumps(records), *(json.dumps(record, indent=2) for record in records)]
    data = np.frombuffer("\n".join(parts).encode() + _ODD, np.uint8)
    return [data, np.zeros(3, np.int64), np.zeros_like(data)]


def _expected(data: np.ndarray, *_: Any) -> tuple[None, list[Any]]:
    lines, depth, is_array = oracle.flattened(data.tobytes())
    return None, [[depth, 1, int(is_array)], list(lines)]


ROWS = [Row(kernel=kernels.flatten_values, arguments=_arguments, oracle=_expected, num_outputs=2)]
