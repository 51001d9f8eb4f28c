"""Regular expressions of RE2, which rules of gitleaks are written in, as those of Python's `re`.

    RE2  ─▶ translated: `(?i)` in the middle, `\\z`, `[[:alnum:]]`, `\\Q…\\E` ─▶ compiled ─▶ refused if it may take for ever

RE2 never takes exponential time, Python may. Two forms can: a repeat inside a repeat with nothing in between that ends the
inner one, as in `(a+)+` and `(.*,)*`, and a repeat of alternatives that begin alike, as in `(a|aa)*`. Both are refused, and
so are four open repeats of the same characters in a row. What is left is bounded by the windows of `_patterns.py`.
"""

from __future__ import annotations

import re
import warnings
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

_POSIX = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": r"\x00-\x7f",
    "blank": r"\t ",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\t\n\v\f\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
_FLAGS = re.compile(r"\(\?([imsU]*)(?:-([imsU]+))?([:)])")
_ANYTHING = re.compile(r"\(\?:(?:\.\|\\s|\\s\|\.)\)")
r"""`(?:.|\s)`, whose alternatives share the space."""
_REPEAT = re.compile(r"\{(\d+)?(,(\d+)?)?\}")
_MANY = 10
"""Repeats of at most this number are no danger."""
_OPEN = 255
"""Repeats above this number are open ones."""
_REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT)


def compiled(written: str) -> re.Pattern[str]:
    """The pattern of an expression of RE2. Raises ValueError with what is wrong, and what to do."""
    translated = _Translation(written).result()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pattern, tree = re.compile(translated, re.ASCII), _parser.parse(translated, re.ASCII)
    except (re.error, Warning, OverflowError, RecursionError) as error:
        raise ValueError(f"is no regular expression: {error}. Correct it") from error
    if (part := _exponential(tree)) is not None:
        raise ValueError(
            f"may take exponential time, or nearly: {part}. Put a character between the rounds that the inner part cannot be, "
            "or bound the outer repeat by 9, such as {0,9}"
        )
    return pattern


def most_characters(pattern: re.Pattern[str]) -> int:
    """The most characters that a match has."""
    return int(_parser.parse(pattern.pattern, re.ASCII).getwidth()[1])


class _Translation:
    """One pass over an expression. A group's record: the flags outside, and how many groups of flags are open in it."""

    def __init__(self, written: str) -> None:
        self._text, self._at, self._out = written, 0, list[str]()
        self._flags, self._open = "", list[str]()
        self._groups = list[tuple[str, list[str]]]()

    def result(self) -> str:
        while self._at < len(self._text):
            self._step(self._text[self._at])
        return "".join(self._out) + ")" * len(self._open)

    def _take(self, length: int, translated: str) -> None:
        self._at += length
        self._out.append(translated)

    def _step(self, char: str) -> None:
        if char == "\\":
            self._escape()
        elif char == "[":
            self._class()
        elif char == "(":
            self._group()
        elif char == ")":
            closing = ")" * (len(self._open) + 1)
            self._flags, self._open = self._groups.pop() if self._groups else ("", [])
            self._take(1, closing)
        elif char == "|":
            self._take(1, ")" * len(self._open) + "|" + "".join(self._open))
        elif char == "$" and "m" not in self._flags:
            self._take(1, r"\Z")
        elif char == "{" and not ((repeat := _REPEAT.match(self._text, self._at)) and repeat[1]):
            self._take(1, r"\{")
        else:
            self._take(1, char)

    def _escape(self) -> None:
        following = self._text[self._at + 1 : self._at + 2]
        if following == "z":
            self._take(2, r"\Z")
        elif following == "Q":
            stop = self._text.find(r"\E", self._at)
            stop = len(self._text) if stop < 0 else stop
            self._take(stop + 2 - self._at, re.escape(self._text[self._at + 2 : stop]))
        elif match := re.compile(r"\\x\{([0-9A-Fa-f]{1,6})\}").match(self._text, self._at):
            self._take(len(match[0]), rf"\U{int(match[1], 16):08x}")
        elif following in ("p", "P", "C") and following:
            raise ValueError(f"has \\{following}, which Python does not read. Name the characters, such as [A-Za-z]")
        else:
            self._take(2, self._text[self._at : self._at + 2])

    def _class(self) -> None:
        """Characters in brackets: classes of POSIX in it, and signs that Python warns of behind a backslash."""
        head = re.compile(r"\[\^?\]?").match(self._text, self._at)
        assert head is not None
        self._take(len(head[0]), head[0].replace("]", r"\]"))
        while self._at < len(self._text) and self._text[self._at] != "]":
            if match := re.compile(r"\[:(\^?)(\w+):\]").match(self._text, self._at):
                if match[1] or match[2] not in _POSIX:
                    raise ValueError(f"has {match[0]}, which is not known here. Name the characters, such as [A-Za-z]")
                self._take(len(match[0]), _POSIX[match[2]])
            elif self._text[self._at] == "\\":
                self._escape()
            else:
                char = self._text[self._at]
                is_doubled = char in "&|~-" and self._text[self._at : self._at + 2] == 2 * char
                self._take(1, "\\" + char if char == "[" or is_doubled else char)
        self._take(1, "]")

    def _group(self) -> None:
        if match := _ANYTHING.match(self._text, self._at):
            self._take(len(match[0]), r"[\s\S]")
            return
        flags = _FLAGS.match(self._text, self._at)
        if flags is None:
            self._groups.append((self._flags, self._open))
            self._open = []
            is_named = re.compile(r"\(\?<(?![=!])").match(self._text, self._at)
            self._take(3 if is_named else 1, "(?P<" if is_named else "(")
            return
        if "U" in flags[0]:
            raise ValueError("has the flag U, which Python does not have. Write the lazy repeats with ?, such as *?")
        on, off = flags[1], flags[2] or ""
        opening = f"(?{on}{'-' + off if off else ''}:"
        inside = "".join(set(self._flags + on) - set(off))
        if flags[3] == ":":
            self._groups.append((self._flags, self._open))
            self._flags, self._open = inside, []
            self._take(len(flags[0]), opening)
        else:
            self._flags = inside
            self._open = [*self._open, opening]
            self._take(len(flags[0]), opening)


def _exponential(tree: Any) -> str | None:
    """What may take exponential time in a parsed expression; None where nothing does."""
    if _most_adjacent(tree) > 3:
        return "four open repeats of the same characters, one behind the other"
    for operator, value in tree:
        for inner in _subpatterns(operator, value):
            if (found := _exponential(inner)) is not None:
                return found
        if operator in _REPEATS and value[1] >= _MANY:
            body = list(value[2])
            while len(body) == 1 and body[0][0] is _constants.SUBPATTERN:
                body = list(body[0][1][3])
            if len(body) == 1 and body[0][0] is _constants.BRANCH:
                firsts = [_first(branch) for branch in body[0][1][1]]
                if any(one & other for number, one in enumerate(firsts) for other in firsts[:number]):
                    return "a repeat of alternatives that begin alike"
            mandatory = _mandatory(body)
            if any(all(varying & fixed for fixed in mandatory) for varying in _varying(body)):
                return "a repeat inside a repeat, and nothing that ends the inner one in between"
    return None


def _most_adjacent(body: Any) -> int:
    """The most open repeats in a row that share characters, with nothing in between that must be there."""
    most, row, shared = 0, 0, set[int]()
    for operator, value in body:
        if operator in _REPEATS and value[1] > _OPEN:
            members = _all_characters(value[2])
            row, shared = (row + 1, shared & members) if shared & members else (1, members)
            most = max(most, row)
        elif operator is not _constants.AT and not (operator in _REPEATS and value[0] == 0):
            row, shared = 0, set[int]()
    return most


def _subpatterns(operator: Any, value: Any) -> list[Any]:
    """The parts of a part."""
    if operator in _REPEATS:
        return [value[2]]
    if operator is _constants.SUBPATTERN:
        return [value[3]]
    if operator is _constants.BRANCH:
        return list(value[1])
    if operator in (_constants.ASSERT, _constants.ASSERT_NOT):
        return [value[1]]
    return []


def _characters(operator: Any, value: Any) -> set[int]:
    """The bytes below 256 that one character of a part may be; 255 stands for all others."""
    if operator is _constants.LITERAL:
        return {ord(char) for form in {chr(value).lower(), chr(value).upper()} for char in form if ord(char) < 256} or {255}
    every = set(range(256))
    if operator is _constants.NOT_LITERAL:
        return every - {value}
    if operator is _constants.IN:
        members = set[int]()
        for kind, item in value:
            if kind is _constants.RANGE:
                members |= set(range(item[0], min(item[1], 255) + 1))
            elif kind is _constants.LITERAL:
                members |= _characters(kind, item)
            elif kind is _constants.CATEGORY:
                members |= _category(item)
        members |= {ord(chr(byte).swapcase()) for byte in members if chr(byte).isascii() and chr(byte).isalpha()}
        return every - members if value[0][0] is _constants.NEGATE else members
    return every


def _category(item: Any) -> set[int]:
    """The bytes of `\\d`, `\\w`, `\\s` and their opposites."""
    name = str(item).rsplit("_", 1)[-1].lower()
    letter = {"digit": "d", "space": "s", "word": "w"}[name]
    pattern = re.compile("\\" + (letter.upper() if "NOT" in str(item) else letter), re.ASCII)
    return {byte for byte in range(256) if pattern.match(chr(byte))}


def _first(body: Any) -> set[int]:
    """The characters with which a sequence may begin."""
    members = set[int]()
    for operator, value in body:
        if operator is _constants.AT:
            continue
        is_optional = operator in _REPEATS and value[0] == 0
        if operator in _REPEATS:
            members |= _first(value[2])
        elif operator is _constants.SUBPATTERN:
            members |= _first(value[3])
        elif operator is _constants.BRANCH:
            members |= set[int]().union(*map(_first, value[1]))
        else:
            members |= _characters(operator, value)
        if not is_optional:
            break
    return members


def _mandatory(body: Any) -> list[set[int]]:
    """The characters of each part that every round of a sequence has."""
    found = []
    for operator, value in body:
        if operator is _constants.SUBPATTERN:
            found += _mandatory(value[3])
        elif operator in _REPEATS:
            found += _mandatory(value[2]) if value[0] == value[1] and value[0] else []
        elif operator in (_constants.LITERAL, _constants.NOT_LITERAL, _constants.IN, _constants.ANY):
            found.append(_characters(operator, value))
    return found


def _varying(body: Any) -> list[set[int]]:
    """The characters of each part of varying length in a sequence: repeats, and alternatives of which one is empty."""
    found = []
    for operator, value in body:
        if operator in _REPEATS and value[0] != value[1]:
            found.append(_all_characters(value[2]))
        elif operator is _constants.BRANCH and not all(value[1]):
            found.append(_all_characters([(operator, value)]))
        for inner in _subpatterns(operator, value):
            found += _varying(inner)
    return found


def _all_characters(body: Any) -> set[int]:
    """The characters that may be anywhere in a sequence."""
    members = set[int]()
    for operator, value in body:
        inner = _subpatterns(operator, value)
        members |= set[int]().union(*map(_all_characters, inner)) if inner else _characters(operator, value)
    return members
