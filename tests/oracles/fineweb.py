"""The FineWeb quality measurements of one document, by Python's own splitting."""

from __future__ import annotations

from collections.abc import Container

from tests.oracles.words import characters


def of_text(text: bytes, ends: Container[str], short_chars: int) -> list[int]:
    """Lines that are not blank, those whose last character is in `ends`, those of at most `short_chars` characters."""
    lines = [[character for _, character, _ in characters(line)] for line in text.split(b"\n")]
    lines = [line for line in lines if not all(character.isspace() for character in line)]
    return [len(lines), sum(line[-1] in ends for line in lines), sum(len(line) <= short_chars for line in lines)]
