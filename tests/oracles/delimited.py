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


def rows(data: bytes, delimiter: int, quote: int, escape: int) -> list[Row]:
    """All rows that have a byte; `quote` and `escape` are -1 for none."""
    pair = _pair(escape)
    plain = rb"(?:%b|[^%b\r\n%b])*" % (pair, re.escape(bytes([delimiter])), _sign(escape))
    if quote >= 0:
        sign = _sign(quote)
        signs = {b"s": sign, b"p": pair, b"e": _sign(escape), b"plain": plain}
        quoted = rb"%(s)b((?:%(p)b|[^%(s)b%(e)b]|%(s)b%(s)b)*)(%(s)b(?!%(s)b)%(plain)b|(?:%(e)b)?\Z)" % signs
        value = re.compile(rb"%b|%b" % (quoted, plain), re.DOTALL)
    else:
        value = re.compile(rb"(\0\Z\0)?()%b" % plain, re.DOTALL)
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


def unquoted(value: bytes, delimiter: int, quote: int, escape: int) -> bytes:
    """A value without the quotes around it, and without the escapes of signs."""
    sign, pair = _sign(quote), _pair(escape)
    if quote < 0 or not value.startswith(bytes([quote])):
        return _unescaped(value, delimiter, quote, escape)
    body, rest = re.fullmatch(
        rb"%b((?:%b|[^%b%b]|%b%b)*)(?:%b(?!%b))?(.*)" % (sign, pair, sign, _sign(escape), sign, sign, sign, sign),
        value,
        re.DOTALL,
    ).groups()  # type: ignore[union-attr]
    tokens = re.findall(rb"%b|%b%b|." % (pair, sign, sign), body, re.DOTALL)
    once = b"".join(token[:1] if token == bytes([quote]) * 2 else token for token in tokens)
    return _unescaped(once, delimiter, quote, escape) + _unescaped(rest, delimiter, quote, escape)


def _sign(byte: int) -> bytes:
    return re.escape(bytes([byte])) if byte >= 0 else b""


def _pair(escape: int) -> bytes:
    """An escape character and the byte behind it, as an expression; one that matches nothing where there is none."""
    return rb"%b." % _sign(escape) if escape >= 0 else rb"(?!)"


def _unescaped(value: bytes, delimiter: int, quote: int, escape: int) -> bytes:
    signs = {bytes([sign]) for sign in (delimiter, quote, escape) if sign >= 0} | {b"\n", b"\r"}
    return re.sub(_pair(escape), lambda pair: pair[0][1:] if pair[0][1:] in signs else pair[0], value, flags=re.DOTALL)
