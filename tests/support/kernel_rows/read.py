"""Rows of `datapipe/kernels/read`."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from datapipe.kernels.read import delimited, json_values
from datapipe.kernels.read.delimited import Signs
from tests.oracles import delimited as oracle
from tests.oracles import json_values as values_oracle
from tests.support.kernel_table import Case, Steps, joined, offsets_of, room, row

_DIALECTS = {
    "csv": Signs(44, 34),
    "tsv": Signs(9, 39),
    "no quotes": Signs(44),
    "backslashes": Signs(44, 34, 92),
    "backslashes, no quotes": Signs(9, escape=92),
}


def _table(case: Case, signs: Signs) -> tuple[np.ndarray, list[oracle.Row]]:
    """Rows of the texts of the case: some quoted as a writer does, some as they are, whatever stands in them."""
    sign, between = bytes([max(signs.quote, 34)]), bytes([signs.delimiter])
    values = [text if number % 3 else sign + text.replace(sign, sign * 2) + sign for number, text in enumerate(case.texts)]
    rows = [between.join(values[number : number + 1 + number % 4]) for number in range(len(values))]
    odd = [b"'a'b',c", b",,", b"''", b"''''''x", b"a','", b"'say \\'hi\\',\\n\\\\',a\\,b\\"]
    odd = [value.translate(bytes.maketrans(b"',", sign + between)) for value in odd]
    ends = [b"\n", b"\r\n", b"\r", b"\n\n"]
    table = b"".join(own + ends[number % 4] for number, own in enumerate([*odd, *rows]))
    return np.frombuffer(table, np.uint8), [found for found in oracle.rows(table, *signs) if found.has_end]


def find_rows(case: Case, signs: Signs) -> Steps:
    data, found = _table(case, signs)
    size = np.count_nonzero(data == 10) + np.count_nonzero(data == 13)
    yield [data, signs], [np.zeros(6, np.int64), *room(size, *[np.int64] * 3)]
    yield len(found), [[], *([*map(get, found)] for get in (_start, _stop, lambda own: len(own.values)))]


def _start(found: oracle.Row) -> int:
    return found.start


def _stop(found: oracle.Row) -> int:
    return found.stop


def find_values(case: Case, signs: Signs) -> Steps:
    data, rows = _table(case, signs)
    rows = [found for found in rows if len(found.values) >= 2]
    starts, stops = np.array([*map(_start, rows)], np.int64), np.array([*map(_stop, rows)], np.int64)
    yield [data, starts, stops, signs, np.arange(2)], room((2, len(rows)), np.int64, np.int64)
    yield None, [[[found.values[column][side] for found in rows] for column in (0, 1)] for side in (0, 1)]


def copy_values(case: Case, signs: Signs) -> Steps:
    data, rows = _table(case, signs)
    spans = [span for found in rows for span in found.values]
    starts, stops = (np.array([span[side] for span in spans], np.int64) for side in (0, 1))
    outputs = [*room(len(spans) + 1, np.int64), *room(int((stops - starts).sum()), np.uint8)]
    yield [data, starts, stops, signs], outputs
    values = [oracle.unquoted(data[start:stop].tobytes(), *signs) for start, stop in spans]
    yield None, [offsets_of(values), joined(values)]


for _name, _signs in _DIALECTS.items():
    row(delimited.find_rows, _signs, variant=_name)(find_rows)
    row(delimited.find_values, _signs, variant=_name)(find_values)
    row(delimited.copy_values, _signs, variant=_name)(copy_values)


_ODD = (
    b'[{"a": "[,]\\n"},\n[1, {"b": 2}],\r\n "x,\\\\", null]\n[]\n{\n "c": {\n}\n}\n{"d": 1}\n, ] } 7,8\n'
    b'["raw\nline", "\\"\n", {"e": "'
)


@row(json_values.flatten_values)
def flatten_values(case: Case) -> Steps:
    texts = [text.decode(errors="replace") for text in case.texts]
    records: list[Any] = [{"text": text, "more": [number, {text: [text]}]} for number, text in enumerate(texts)]
    parts = [json.dumps(records, indent=1), json.dumps(records), *(json.dumps(record, indent=2) for record in records)]
    data = np.frombuffer("\n".join(parts).encode() + _ODD, np.uint8)
    yield [data], [np.zeros(3, np.int64), np.zeros_like(data)]
    lines, depth, is_array = values_oracle.flattened(data.tobytes())
    yield None, [[depth, 1, int(is_array)], list(lines)]
