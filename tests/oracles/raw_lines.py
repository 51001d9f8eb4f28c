"""Lines with the white space around them, by Python's own splitting."""

from __future__ import annotations

from tests.oracles.words import characters, hashed, lines, mixed

_BASIS, _PRIME, _ALL_BITS = 0xCBF29CE484222325, 0x100000001B3, 2**64 - 1
_AHEAD, _BEHIND = 0xD6E8FEB86659FD93, 0xA0761D6478BD642F


def of_text(text: bytes) -> list[tuple[int, int, int]]:
    """Of each line that is not blank: hash, characters, and whether white space follows the last character."""
    rows = []
    for line in lines(text):
        ahead = text[: line.start].rsplit(b"\n", 1)[-1]
        behind = text[line.start + line.length :].split(b"\n", 1)[0]
        inner = hashed(text[line.start : line.start + line.length])
        around = mixed(folded(ahead[::-1]) * _AHEAD & _ALL_BITS) ^ mixed(folded(behind) * _BEHIND & _ALL_BITS)
        num_chars = line.chars + len(list(characters(ahead))) + len(list(characters(behind)))
        rows.append((mixed(inner ^ around), num_chars, int(bool(behind))))
    return rows


def folded(white_space: bytes) -> int:
    value = _BASIS
    for byte in white_space:
        value = (value ^ byte) * _PRIME & _ALL_BITS
    return value


def totals(text: bytes) -> list[int]:
    """Bytes that begin a character, newlines, whether the text begins and ends with a newline."""
    begun = sum(byte & 0xC0 != 0x80 for byte in text)
    return [begun, text.count(b"\n"), int(text.startswith(b"\n")), int(text.endswith(b"\n"))]
