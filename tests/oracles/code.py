"""The measurements of source files, by Python's strings and the published regular expressions."""

from __future__ import annotations

import re

from tests.oracles.words import characters, kind

LETTER, NUMBER = 1, 4
_WORD = rb"[0-9A-Za-z_\x80-\xff]"
_BOUNDARY = rb"(?:(?<=W)(?!W)|(?<!W)(?=W))".replace(b"W", _WORD)
PATTERNS = (
    rb"[a-zA-Z0-9+/\n=]{64,}",
    rb"(?:\b(?:0x|\\x)?[0-9a-fA-F]{2}(?:,|\b\s*)){8,}".replace(rb"\b", _BOUNDARY),
    rb"(?:\\u[0-9a-fA-F]{4}){8,}",
)


def measures(text: bytes) -> list[float]:
    signs = [character for _, character, _ in characters(text)]
    lines = "".join(signs).split("\n")
    if not lines[-1]:
        del lines[-1]
    lengths = list(map(len, lines))
    letters = sum(kind(sign) == LETTER for sign in signs)
    numbers = sum(kind(sign) == NUMBER for sign in signs)
    number = max(len(signs), 1)
    mean = sum(lengths) / max(len(lines), 1)
    return [len(lines), mean, max(lengths, default=0), (letters + numbers) / number, letters / number, len(signs)]


def encoded(text: bytes) -> list[int]:
    spans = [match.span() for pattern in PATTERNS for match in re.finditer(pattern, text)]
    covered = {index for start, stop in spans for index in range(start, stop)}
    return [max((stop - start for start, stop in spans), default=0), len(covered)]


def beginning(text: bytes, num_lines: int) -> bytes:
    return b"".join(re.findall(rb"[^\n]*\n|[^\n]+", text)[:num_lines])
