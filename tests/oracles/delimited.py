"""Rows and values of delimited text by regular expressions: one for a value, applied from the begin of the file to its end."""

from __future__ import annotations

import re
from typing import NamedTuple


class Row(NamedTuple):
    """A row of a file: its first byte, the first byte behind it, and the spans of its values. `is_open`: the file ends in it,
    within quotes; `has_end`: a line end follows it."""

    start: int
    stop: int
    values: list[tuple[int, int]]
    is_open: bool
    has_end: bool


def rows(data: bytes, delimiter: int, quote: int) -> list[Row]:
    """All rows that have a byte; `quote` is -1 for none."""
    plain = rb"[^%b\r\n]*" % re.escape(bytes([delimiter]))
    if quote >= 0:
        sign = re.escape(bytes([quote]))
        value = re.compile(rb"%b((?:[^%b]|%b%b)*)(%b(?!%b)%b|\Z)|%b" % (sign, sign, sign, sign, sign, sign, plain, plain))
    else:
        value = re.compile(rb"(\0\Z\0)?()%b" % plain)
    found, place = [], 0
    while place < len(data):
        start, spans, is_open = place, [], False
        while True:
            match = value.match(data, place)
            assert match is not None
            spans.append(match.span())
            place = match.end()
            is_open = match[1] is not None and match[2] == b""
            if data[place : place + 1] != bytes([delimiter]):
                break
            place += 1
        if place > start:
            found.append(Row(start, place, spans, is_open, place < len(data)))
        place += 1
    return found


def unquoted(value: bytes, quote: int) -> bytes:
    """A value without the quotes around it."""
    sign = bytes([quote]) if quote >= 0 else b""
    if not sign or not value.startswith(sign):
        return value
    body, rest = re.fullmatch(
        rb"%b((?:[^%b]|%b%b)*)(?:%b(?!%b))?(.*)" % tuple([re.escape(sign)] * 6), value, re.DOTALL
    ).groups()  # type: ignore[union-attr]
    return body.replace(sign * 2, sign) + rest
