"""The marks of characters compared with `str`, and the ends of texts."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest

from datapipe.kernels.text.marks import ALNUM, CAPITAL, DIGIT, END, END_CHARS, LARGE, SMALL, WHITE, mark_table

CHARACTERS = [chr(code) for code in range(sys.maxunicode + 1)]


@pytest.mark.parametrize(
    ("mark", "method"), [(WHITE, str.isspace), (CAPITAL, str.isupper), (DIGIT, str.isdigit), (ALNUM, str.isalnum)]
)
def test_mark_table_agrees_with_str_for_every_character(mark: int, method: Callable[[str], bool]) -> None:
    expected = np.array(list(map(method, CHARACTERS)))
    assert np.flatnonzero(((mark_table() & mark) != 0) != expected).tolist() == []


def test_mark_table_letters_are_small_and_large_as_spacy_lists_them() -> None:
    marks = {character: int(mark_table()[ord(character)]) & (SMALL | LARGE) for character in "éÉжЖ中ǅგ5."}
    assert marks == {
        "é": SMALL,
        "ж": SMALL,
        "É": LARGE,
        "Ж": LARGE,
        "中": SMALL | LARGE,
        "ǅ": 0,
        "გ": 0,
        "5": 0,
        ".": 0,
    }


def test_mark_table_ends_are_those_listed() -> None:
    assert np.flatnonzero(mark_table() & END).tolist() == sorted(map(ord, END_CHARS))
