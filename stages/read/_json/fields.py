"""The fields of JSON objects at the start of a block of lines: which of the asked ones occur, and the names of all.

At most `_MOST_RECORDS` lines and about `_MOST_BYTES` are parsed, and the first line whatever its size.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from datapipe.stage import FieldNames, FieldsSeen

_MOST_RECORDS = 1000
_MOST_BYTES = 1 << 20
_MOST_NAMES = 1000


def fields_of_lines(content: bytes, fields: FieldNames) -> FieldsSeen:
    """The fields of the first lines that are JSON objects."""
    missing = {fields.text, *fields.keep}
    found: set[str] = set()
    names: dict[str, None] = {}
    num_records = 0
    for record in _records(content):
        num_records += 1
        found |= {name for name in missing if _has(record, name)}
        missing -= found
        for name in _names(record) if len(names) < _MOST_NAMES else ():
            names[name] = None
    return FieldsSeen(num_records=num_records, found=frozenset(found), names=tuple(names))


def _records(content: bytes) -> Iterator[Mapping[str, Any]]:
    start = 0
    for _ in range(_MOST_RECORDS):
        if start >= min(len(content), _MOST_BYTES):
            return
        end = content.find(b"\n", start)
        line, start = content[start : end if end >= 0 else None], end + 1 if end >= 0 else len(content)
        try:
            record = json.loads(line, parse_int=str, parse_float=str)
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


def _names(record: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """The names of all fields that a mixture can name: a key inside an object is out of reach if it has a dot itself."""
    for name, value in record.items():
        if above and "." in name:
            continue
        yield f"{above}{name}"
        if isinstance(value, dict):
            yield from _names(value, f"{above}{name}.")
