"""Plain Python for `datapipe/kernels/text/jsonlines.py`."""

from __future__ import annotations

import json

_SPACE = b" \t\r"


def line_kind(line: bytes) -> int:
    """0 blank, 1 framed by braces, 2 other."""
    line = line.strip(_SPACE)
    return 0 if not line else 1 if line[:1] == b"{" and line[-1:] == b"}" else 2


def find_member(line: bytes, at: int, name: bytes) -> tuple[int, int]:
    """Start and stop of the value under the first key `name` of the object at `at`, by Python's JSON decoder."""
    text = line.decode("latin-1")  # a character a byte, so that positions are bytes
    if text[at] != "{":
        return -1, -1
    at = _past_space(text, at + 1)
    while text[at : at + 1] == '"':
        _, key_stop = json.JSONDecoder().raw_decode(text, at)
        value = _past_space(text, _past_space(text, key_stop) + 1)
        _, stop = json.JSONDecoder().raw_decode(text, value)
        if json.loads(line[at:key_stop]).encode() == name:
            return value, stop
        at = _past_space(text, _past_space(text, stop) + 1)
    return -1, -1


def _past_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def find_value(line: bytes, path: list[bytes]) -> tuple[int, int]:
    """Start and stop of the value at a path."""
    start, stop = _past_space(line.decode("latin-1"), 0), len(line)
    for name in path:
        start, stop = find_member(line, start, name)
        if start < 0:
            break
    return start, stop


def as_text(value: bytes | None) -> bytes | None:
    """A value as a column holds it; None for null and for none at all."""
    if value is None or value == b"null":
        return None
    return json.loads(value).encode() if value.startswith(b'"') else value
