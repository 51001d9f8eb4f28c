"""The characters of words, compared with the Unicode database."""

from __future__ import annotations

import sys
import unicodedata

import numpy as np
import pytest

from datapipe.kernels.dedup.word_characters import (
    ALONE,
    IGNORED,
    LETTER,
    MARK,
    NUMBER,
    UNASSIGNED,
    known_classes,
    word_table,
)

_CLASSES = {"L": LETTER, "N": NUMBER, "M": MARK}


def test_known_classes_are_those_of_the_unicode_database() -> None:
    """A later database knows more characters, and the same of those that were known."""
    categories = [unicodedata.category(chr(code)) for code in range(sys.maxunicode + 1)]
    expected = np.array([UNASSIGNED if name == "Cn" else _CLASSES.get(name[0], 0) for name in categories], np.uint8)
    known = known_classes() != UNASSIGNED
    assert np.array_equal(known_classes()[known], expected[known])
    assert known.sum() == 284_278
    if unicodedata.unidata_version == "14.0.0":
        assert np.array_equal(known_classes(), expected)


CHARACTERS = {
    "“”‘’‚„«»‹›–—―…•·†‡§¶©®™€£¥°±×÷№¿¡、。，！（）「」《》・～\u00a0\u2002\u2009\u202f\u3000\u0085\ufffd": 0,
    "aZéßжΩאعককガ한ªµ𝒜": LETTER,
    "中日あのช": LETTER | ALONE,
    "\u0301\u094d\u0e31\u3099\u093f": MARK,
    "07٣५²½Ⅷ": NUMBER,
    "\u00ad\u200b\u200c\u200d\u200e\u2060\ufe0f\ufeff\U000e0101": IGNORED,
}


@pytest.mark.parametrize("characters", CHARACTERS)
def test_word_table_characters_end_words_make_them_or_are_ignored(characters: str) -> None:
    assert [one for one in characters if word_table()[ord(one)] != CHARACTERS[characters]] == []
