"""The fields of JSON objects at the start of a block of lines: which of the asked ones occur, the types of
their values, and the names of all.

At most `_MOST_RECORDS` lines and about `_MOST_BYTES` are parsed, and the first line whatever its size.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from datapipe.stage import FieldNames, FieldsSeen
from datapipe.stage.field_types import JsonNumber, json_joined, json_type

_MOST_RECORDS = 1000
_MOST_BYTES = 1 << 20
_MOST_NAMES = 1000


def fields_of_lines(content: bytes, fields: FieldNames) -> FieldsSeen:
    """The fields of the first lines that are JSON objects."""
    missing = {fields.text, *fields.keep}
    found: set[str] = set()
    names: dict[str, None] = {}
    types: dict[str, pa.DataType] = {}
    num_records = 0
    for record in _records(content):
        num_records += 1
        found |= {name for name in missing if _has(record, name)}
        missing -= found
        for name in fields.keep:
            types[name] = json_joined(types.get(name, pa.null()), json_type(_value(record, name)))
        for name in _names(record) if len(names) < _MOST_NAMES else ():
            names[name] = None
    return FieldsSeen(num_records=num_records, found=frozenset(found), names=tuple(names), types=types)


def _records(content: bytes) -> Iterator[Mapping[str, Any]]:
    start = 0
    for _ in range(_MOST_RECORDS):
        if start >= min(len(content), _MOST_BYTES):
            return
        end = content.find(b"\n", start)
        line, start = content[start : end if end >= 0 else None], end + 1 if end >= 0 else len(content)
        try:
            record = json.loads(line, parse_int=JsonNumber, parse_float=JsonNumber, parse_constant=JsonNumber)
        except (ValueError, RecursionError):  # the reader quarantines it
            continue
        if isinstance(record, dict):
            yield record


def _has(record: Mapping[str, Any], name: str) -> bool:
    """Whether an object has a field: one that dots reach in objects, or a key of this name."""
    if name in record:
        return True
    value: Any = record
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            return False
        value = value[part]
    return True


def _value(record: Mapping[str, Any], name: str) -> Any:
    """A field as the reader finds it: what its dots reach, or else a key of this very name."""
    value: Any = record
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return record.get(name) if value is None else value


def _names(record: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """The names of all fields that a mixture can name: a key inside an object is out of reach if it has a dot itself."""
    for name, value in record.items():
        if above and "." in name:
            continue
        yield f"{above}{name}"
        if isinstance(value, dict):
            yield from _names(value, f"{above}{name}.")
