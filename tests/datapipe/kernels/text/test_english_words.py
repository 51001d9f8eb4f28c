"""Words of English by hand, each cut as spaCy 3.8 cuts it: special cases that signs split, and letters that are not ASCII."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from datapipe import columns
from datapipe.kernels.text.english_words import find_english_words
from datapipe.kernels.text.words import find_words

CASES = {
    "350°F. 20°c. °C": ["350", "°", "F", ".", "20", "°", "c", ".", "°", "C"],
    "He said ''so''.": ["He", "said", "''", "so", "''", "."],
    "(so): (yes); (no)!": ["(", "so", "):", "(", "yes", ")", ";", "(", "no", ")", "!"],
    "10 Gb/s, 5 b/s": ["10", "Gb", "/", "s", ",", "5", "b", "/", "s"],
    "500 e.Kr. er": ["500", "e.", "Kr", ".", "er"],
    "cf.[p.12] <p>Mr. Müller</p>": ["cf.[p.12", "]", "<", "p", ">", "Mr.", "Müller</p", ">"],
    "itd. (im. Jana)": ["it", "d.", "(", "i", "m.", "Jana", ")"],
    "[e.g., so] w/o, and/or.": ["[", "e.g.", ",", "so", "]", "w/o", ",", "and/or", "."],
    "he’s (it’s) 'em’": ["he", "’s", "(", "it", "’s", ")", "'em", "’"],
    "ab.,c so|. xy.,": ["ab", ".", ",c", "so|", ".", "xy", ".", ","],
    "une année.Étienne": ["une", "année", ".", "Étienne"],
    "год.Жизнь год.жизнь": ["год", ".", "Жизнь", "год.жизнь"],
    "www.é.fr/a-b.É www.Éa.É": ["www.é.fr/a-b.É", "www", ".", "Éa", ".", "É"],
    "a-é б-в და-და न-न ท-ท": ["a", "-", "é", "б", "-", "в", "და-და", "न", "-", "न", "ท-ท"],
    "წელი. ปี. है. 年. ѣ. ё.": ["წელი.", "ปี.", "है", ".", "年", ".", "ѣ.", "ё", "."],
    "ǅ-a aǅ. Ɂ,b": ["ǅ", "-", "a", "aǅ.", "Ɂ", ",", "b"],
    "a♥♥b♥ love🫶 love🙂": ["a", "♥", "♥", "b", "♥", "love🫶", "love", "🙂"],
    "5км/ч 7мг. 3كم 5US$ C$5": ["5", "км/ч", "7", "мг", ".", "3", "كم", "5", "US$", "C$", "5"],
    "(^_^) <3 :-))) <space> \\n": ["(^_^)", "<3", ":-)))", "<space>", "\\n"],
    "🙂.com me@x.é x.y1": ["🙂", ".com", "me@x.é", "x.y1"],
}


@pytest.mark.parametrize("text", CASES)
def test_english_words_are_cut_as_spacy_cuts_them(text: str) -> None:
    offsets, data = columns.text_buffers(pa.array([text], pa.large_string()))
    with np.errstate(over="ignore"):
        words = find_english_words(find_words(offsets, data), data)
    spans = zip(words.starts.tolist(), words.lengths.tolist(), strict=True)
    assert [data[start : start + length].tobytes().decode() for start, length in spans] == CASES[text]
