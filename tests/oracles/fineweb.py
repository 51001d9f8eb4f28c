"""The FineWeb quality measurements of one document, by Python's own splitting."""

from __future__ import annotations

from collections.abc import Container

from tests.oracles.words import text_of


def of_text(text: bytes, ends: Container[str], short_chars: int) -> list[int]:
    """Lines that are not blank, those whose last character is in `ends`, those of at most `short_chars` characters."""
    lines = [line for line in map(text_of, text.split(b"\n")) if line.strip()]
    return [len(lines), sum(line[-1] in ends for line in lines), sum(len(line) <= short_chars for line in lines)]
