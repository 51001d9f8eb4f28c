"""Delimited text, JSON values and JSON lines by regular expressions and Python's JSON decoder."""

from __future__ import annotations

import json
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


_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|.', re.DOTALL)


def flattened(data: bytes) -> tuple[bytes, int, bool]:
    """The lines, how many values are open at the end, and whether an array is the outermost one."""
    lines: list[bytes] = []
    open_signs: list[bytes] = []
    is_array = False
    for token in _TOKEN.findall(data):
        is_outermost = not open_signs
        if token[:1] == b'"':
            lines.append(token.replace(b"\n", b"\1"))
            continue
        if token in b"[{":
            open_signs.append(token)
            is_array = token == b"[" if is_outermost else is_array
        elif token in b"]}" and open_signs:
            open_signs.pop()
        is_end = token in b"]}" and not open_signs
        if token == b"[" and is_outermost:
            lines.append(b" ")
        elif is_array and (is_end or (token == b"," and len(open_signs) == 1)):
            lines.append(b"\n")
            is_array = not is_end
        else:
            lines.append(b" " if token == b"\n" and open_signs else token)
    return b"".join(lines), len(open_signs), is_array


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


_BLANKS = rb"[ \t\r\n]*"
_PLAIN_STRING = rb'"((?:[^"\\\x00-\x1f\xee\xef]|\xef(?![\x80-\x9f])|\\["\\/bfnrt]|\\u[0-9a-cA-C][0-9a-fA-F]{3})*)"'
_PLAIN_MEMBER = re.compile(rb"%(s)b%(t)b%(s)b:%(s)b(?:%(t)b|null)%(s)b" % {b"s": _BLANKS, b"t": _PLAIN_STRING})
_PLAIN_OBJECT = re.compile(rb"%(s)b\{(%(m)b(?:,%(m)b)*)\}%(s)b" % {b"s": _BLANKS, b"m": _PLAIN_MEMBER.pattern})


def plain_messages(line: bytes, head: bytes, kinds: dict[bytes, int], roles: dict[bytes, int]) -> list[tuple[int, int, int]]:
    """The kind of the role, and the span of the content, of each message of a plain conversation without calls and tools; none
    of another one. `kinds` of members: 1 must be null, 2 has the role, 3 the content."""
    whole = rb"%b%b\[(%b(?:,%b)*)\]%b\}" % (re.escape(head), _BLANKS, _PLAIN_OBJECT.pattern, _PLAIN_OBJECT.pattern, _BLANKS)
    match, found = re.fullmatch(whole, line), []
    for message in _PLAIN_OBJECT.finditer(line, match.start(1), match.end(1)) if match else ():
        members = list(_PLAIN_MEMBER.finditer(line, message.start(1), message.end(1)))
        own = {kind: [each for each in members if kinds.get(each[1]) == kind] for kind in (1, 2, 3)}
        has_text = all(len(own[kind]) == 1 and own[kind][0][2] is not None for kind in (2, 3))
        is_plain = has_text and all(each[2] is None for each in own[1]) and all(b"\\" not in each[1] for each in members)
        role = roles.get(own[2][0][2], 0) if is_plain else 0
        if not role or (found and role == found[-1][0] == roles[b"user"]):
            return []
        found.append((role, *own[3][0].span(2)))
    return found
