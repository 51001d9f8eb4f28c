"""Plain Python for `datapipe/kernels/text/jsonlines.py`."""

from __future__ import annotations

import json

_SPACE = b" \t\r"


def line_kind(line: bytes) -> int:
    """0 blank, 1 framed by braces, 2 other."""
    line = line.strip(_SPACE)
    return 0 if not line else 1 if line[:1] == b"{" and line[-1:] == b"}" else 2


def find_member(line: bytes, offset: int, name: bytes) -> tuple[int, int]:
    """Start and stop of the value of the first key `name` of the object at `offset`, by Python's JSON decoder."""
    text = line.decode("latin-1")  # a character a byte, so that positions are bytes
    if text[offset] != "{":
        return -1, -1
    offset = _past_space(text, offset + 1)
    while text[offset : offset + 1] == '"':
        _, key_stop = json.JSONDecoder().raw_decode(text, offset)
        value = _past_space(text, _past_space(text, key_stop) + 1)
        _, stop = json.JSONDecoder().raw_decode(text, value)
        if json.loads(line[offset:key_stop]).encode() == name:
            return value, stop
        offset = _past_space(text, _past_space(text, stop) + 1)
    return -1, -1


def _past_space(text: str, offset: int) -> int:
    while offset < len(text) and text[offset] in " \t\r\n":
        offset += 1
    return offset


def find_value(line: bytes, path: list[bytes]) -> tuple[int, int]:
    """Start and stop of the value at a path."""
    start, stop = _past_space(line.decode("latin-1"), 0), len(line)
    for name in path:
        start, stop = find_member(line, start, name)
        if start < 0:
            break
    return start, stop


def as_text(value: bytes | None) -> bytes | None:
    """A value in the form of a column; None for null and for an absent value."""
    if value is None or value == b"null":
        return None
    return json.loads(value).encode() if value.startswith(b'"') else value
