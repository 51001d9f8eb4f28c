"""Lines with the white space around them, by Python's own splitting."""

from __future__ import annotations

from tests.oracles.hashing import MASK, fnv, mix
from tests.oracles.words import characters, hashed, lines

_AHEAD, _BEHIND = 0xD6E8FEB86659FD93, 0xA0761D6478BD642F


def of_text(text: bytes) -> list[tuple[int, int, int]]:
    """Of each line that is not blank: hash, characters, and whether white space follows the last character."""
    rows = []
    for line in lines(text):
        ahead = text[: line.start].rsplit(b"\n", 1)[-1]
        behind = text[line.start + line.length :].split(b"\n", 1)[0]
        inner = hashed(text[line.start : line.start + line.length])
        around = mix(fnv(ahead[::-1]) * _AHEAD & MASK) ^ mix(fnv(behind) * _BEHIND & MASK)
        num_chars = line.chars + len(list(characters(ahead))) + len(list(characters(behind)))
        rows.append((mix(inner ^ around), num_chars, int(bool(behind))))
    return rows
