"""The kind of content of a text, by Python's Unicode database."""

from __future__ import annotations

from tests.oracles.case_folding import category, visible


def content(text: bytes) -> int:
    kinds = {category(character) for character in visible(text)}
    return 2 if "L" in kinds else int("N" in kinds)
