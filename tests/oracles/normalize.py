"""Line ends and controls rewritten one character at a time."""

from __future__ import annotations

from itertools import takewhile

from datapipe.kernels.text.unicode_classes import CLASS_SHIFT, JOINED, JOINS, MAY_CHANGE
from tests.oracles.words import characters

KEPT_CONTROLS = "\t\n"
LINE_ENDS = "\r\x0b\x0c"
SEPARATORS = "\x1c\x1d\x1e\x1f"


def is_control(character: str) -> bool:
    return (character < " " or character == "\x7f") and character not in KEPT_CONTROLS


def rewritten(text: bytes, fix_newlines: bool, strip_control: bool) -> bytes:
    out = b""
    seen = list(characters(text))
    for number, (index, character, size) in enumerate(seen):
        is_line_end = character in LINE_ENDS + "\u2028\u2029"
        before_newline = character == "\r" and number + 1 < len(seen) and seen[number + 1][1] == "\n"
        if before_newline and (fix_newlines or strip_control):
            continue
        if fix_newlines and is_line_end:
            out += b"\n"
        elif strip_control and character in LINE_ENDS + SEPARATORS:
            out += b" "
        elif not (strip_control and (is_control(character) or (character == "\ufeff" and not out))):
            out += text[index : index + size]
    return out


def may_change(kinds: list[int], num_chars: int) -> bool:
    """Whether the first characters of those with these entries of the composition table may not be in NFC behind any others.

    The marks behind them and the character after these may join them."""
    behind = list(takewhile(lambda kind: kind >> CLASS_SHIFT, kinds[num_chars:]))
    kinds = kinds[: num_chars + len(behind) + 1]
    joined = [True, *(bool(kind & JOINED) for kind in kinds)]
    classes = [255, *(kind >> CLASS_SHIFT for kind in kinds)]
    pairs = zip(classes, classes[1:])
    return (
        any(kind & MAY_CHANGE for kind in kinds)
        or any(kind & JOINS and before for kind, before in zip(kinds, joined))
        or any(0 < own < before for before, own in pairs)
    )


def is_touched(text: bytes, fix_newlines: bool, strip_control: bool) -> bool:
    """Whether a text has a character that may change."""
    touched: set[str] = set()
    if fix_newlines:
        touched |= set(LINE_ENDS + "\u2028\u2029")
    if strip_control:
        touched |= {chr(code) for code in range(0x20)} - set(KEPT_CONTROLS) | {"\x7f", "\ufeff"}
    return any(character in touched for _, character, _ in characters(text))
