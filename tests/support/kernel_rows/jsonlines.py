"""Rows of `datapipe/kernels/text/jsonlines.py`."""

from __future__ import annotations

import json
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from datapipe.kernels.text import jsonlines as kernels
from tests.oracles import jsonlines as oracle
from tests.support.kernel_table import Case, Row

_ODD = [
    '{"\\u0069d": 1.50, "meta": {"id": "inner", "näme": [1, {"id": 2}]}}',
    ' {"meta" : { "n\\u00e4me" :\t"\\ud83d\\ude00 \\u0000\\/\\"\\\\\\b\\f\\n\\r\\t" } , "id" : null}\t',
    '{"a": {"id": 3}, "b": ["id", "}", "]"], "id": -1e+30, "id": "again"}',
    '{"meta": 3, "id": true}',
    '{"meta": {}, "idd": 1, "i": 2, "": 3}',
    '{"id": "", "meta": {"näme": {"x": "}{"}}}',
    "{}",
]


def _lines(case: Case) -> list[bytes]:
    """Objects with the texts of the case as keys and values, escaped and not, before and after the fields to find."""
    texts = [text.decode(errors="replace") for text in case.texts]
    rows = []
    for number, text in enumerate(texts):
        row: dict[str, Any] = {"text": text, text + "!": [text, {"id": number}], "id": text if number % 2 else number / 3}
        if number % 3:
            row = {"meta": {text + "?": None, "näme": text if number % 2 else [text]}, **row}
        rows.append(json.dumps(row, ensure_ascii=number % 4 < 2))
    return [line.encode() for line in rows + _ODD]


def _packed(lines: list[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    stops = np.array(list(accumulate(len(line) + 1 for line in lines)), np.int64) - 1
    starts = np.concatenate([np.zeros(1, np.int64), stops[:-1] + 1])
    return np.frombuffer(b"\n".join(lines), np.uint8), starts, stops


def _find_row(*names: str) -> Row:
    def arguments(case: Case) -> list[Any]:
        data, starts, stops = _packed(_lines(case))
        path = kernels.FieldPath(names)
        out = [np.empty_like(starts), np.empty_like(starts)]
        return [data, starts, stops, path.names, path.parts, path.scratch, *out]

    def expected(data: np.ndarray, starts: np.ndarray, stops: np.ndarray, *_: np.ndarray) -> tuple[None, list[Any]]:
        lines = [data[start:stop].tobytes() for start, stop in zip(starts, stops)]
        spans = [oracle.find_value(line, [name.encode() for name in names]) for line in lines]
        within = [
            (line_start + a, line_start + b) if a >= 0 else (-1, -1) for line_start, (a, b) in zip(starts.tolist(), spans)
        ]
        return None, [[a for a, _ in within], [b for _, b in within]]

    return Row(kernel=kernels.find_values, arguments=arguments, oracle=expected, num_outputs=2, variant=".".join(names))


def _copy_arguments(case: Case) -> list[Any]:
    values = [b"null", b'"\\uD83D\\uDE00\\u00e9\\u4e2d\\u000a"', b"12", b"NaN", b'{"a": "b"}', b'""']
    for number, text in enumerate(case.texts):
        values.append(json.dumps(text.decode(errors="replace"), ensure_ascii=bool(number % 2)).encode())
    data, starts, stops = _packed(values)
    starts, stops = np.append(starts, -1), np.append(stops, -1)
    return [data, starts, stops, np.empty(len(starts), np.bool_), np.empty(len(starts) + 1, np.int64), np.empty_like(data)]


def _copy_expected(data: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> tuple[None, list[Any]]:
    spans = zip(starts.tolist(), stops.tolist())
    texts = [oracle.as_text(data[a:b].tobytes() if a >= 0 else None) for a, b in spans]
    there = [text or b"" for text in texts]
    offsets = list(accumulate(map(len, there), initial=0))
    return None, [[text is not None for text in texts], offsets, list(b"".join(there))]


def _classify_expected(data: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> tuple[None, list[Any]]:
    return None, [[oracle.line_kind(data[a:b].tobytes()) for a, b in zip(starts, stops)]]


def _classify_arguments(case: Case) -> list[Any]:
    frames = [(b"", b""), (b"{", b"}"), (b" \t{", b"}\r"), (b"", b" \t\r")]
    lines = [frames[number % 4][0] + text + frames[number % 4][1] for number, text in enumerate([*case.texts, b"", b" \r"])]
    offsets = np.cumsum([0, *map(len, lines)], dtype=np.int64)
    starts, stops = (np.array(column) for column in zip(*pairwise(offsets.tolist())))
    return [np.frombuffer(b"".join(lines), np.uint8), starts, stops, np.empty(len(lines), np.uint8)]


ROWS = [
    Row(kernel=kernels.classify_lines, arguments=_classify_arguments, oracle=_classify_expected),
    _find_row("id"),
    _find_row("meta", "näme"),
    Row(kernel=kernels.copy_values, arguments=_copy_arguments, oracle=_copy_expected, num_outputs=3),
]
