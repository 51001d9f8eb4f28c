"""Rows of `datapipe/kernels/filters/letters.py`."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import numpy as np

from datapipe.kernels.filters import letters
from tests.oracles.words import characters
from tests.support.kernel_table import Case, Row

_LINE = "\nDéjà vu ё 漢字かなカナ ｶﾅ 한국어 ኢትዮጵያ ꀀꀁ ꕉ हिन्दी ไทยนี้ a\u0301 عَربي שָׁלוֹם 々〇Ⅳ"


_IDEOGRAPHS = ("CJK ", "HANGUL SYLLABLE", "YI SYLLABLE", "KHITAN ", "TANGUT COMPONENT")
_SYLLABLES = ("ETHIOPIC ", "HIRAGANA ", "KATAKANA", "HALFWIDTH KATAKANA", "HENTAIGANA ", "VAI ")
_VOWEL_MARKS = re.compile("[\u0900-\u1aaf\u1b00-\u1c7f\ua800-\uabff\U00011000-\U00011fff]")


def _weight(character: str) -> int:
    """The letters that a character counts as, by its name. Tangut ideographs have none."""
    category, name = unicodedata.category(character)[0], unicodedata.name(character, "")
    if category == "M":
        return int(bool(_VOWEL_MARKS.match(character)))
    if category != "L":
        return 0
    if not name or name.startswith(_IDEOGRAPHS):
        return 3
    return 2 if name.startswith(_SYLLABLES) else 1


def _arguments(case: Case) -> list[Any]:
    case = Case(texts=(*case.texts, _LINE.encode()), seed=case.seed)
    starts, stops = case.offsets[:-1], case.offsets[1:].copy()
    return [starts, stops, case.data, letters.letter_weights(), np.empty(len(case.texts), np.int64)]


def _expected(starts: np.ndarray, stops: np.ndarray, data: np.ndarray, _: np.ndarray) -> tuple[None, list[Any]]:
    texts = [data[start:stop].tobytes() for start, stop in zip(starts, stops)]
    return None, [[sum(_weight(character) for _, character, _ in characters(text)) for text in texts]]


ROWS = [Row(kernel=letters.count_letters, arguments=_arguments, oracle=_expected)]
