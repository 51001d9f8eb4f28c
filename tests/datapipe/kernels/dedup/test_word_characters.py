"""The characters of words, compared with the Unicode database."""

from __future__ import annotations

import sys
import unicodedata

import numpy as np

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


def test_word_table_typographic_signs_and_spaces_end_words() -> None:
    signs = "“”‘’‚„«»‹›–—―…•·†‡§¶©®™€£¥°±×÷№¿¡、。，！（）「」《》・～\u00a0\u2002\u2009\u202f\u3000\u0085\ufffd"
    assert [sign for sign in signs if word_table()[ord(sign)] != 0] == []


def test_word_table_letters_marks_and_digits_of_any_script_make_words() -> None:
    table = word_table()
    assert all(table[ord(letter)] == LETTER for letter in "aZéßжΩאعककガ한ªµ𝒜")
    assert all(table[ord(letter)] == LETTER | ALONE for letter in "中日あのช")
    assert all(table[ord(mark)] == MARK for mark in "\u0301\u094d\u0e31\u3099\u093f")
    assert all(table[ord(digit)] == NUMBER for digit in "07٣५²½Ⅷ")


def test_word_table_invisible_characters_are_ignored() -> None:
    invisible = [0xAD, 0x200B, 0x200C, 0x200D, 0x200E, 0x2060, 0xFE0F, 0xFEFF, 0xE0101]
    assert (word_table()[invisible] == IGNORED).all()
