"""Pretokens of `tokenizers` itself, and texts that are hard to cut."""

from functools import cache
from itertools import accumulate

import numpy as np
from tokenizers import Regex, pre_tokenizers

from datapipe.tokens.patterns import PATTERNS

SPACES = " \t\n\r\x0b\x0c\x85\xa0\u1680\u2000\u2003\u2007\u2009\u200a\u2028\u2029\u202f\u205f\u3000"


@cache
def reference(pattern: str) -> pre_tokenizers.PreTokenizer:
    """Splits by a pattern, without the byte-level step, so that offsets are those of the text."""
    return pre_tokenizers.Split(Regex(PATTERNS[pattern]), "isolated")


def pretoken_ends(splitter: pre_tokenizers.PreTokenizer, text: str) -> list[int]:
    """The end of each pretoken, in bytes of UTF-8."""
    pretokens = [text[start:stop] for _, (start, stop) in splitter.pre_tokenize_str(text)]
    assert "".join(pretokens) == text
    return list(accumulate(len(pretoken.encode()) for pretoken in pretokens))


ATOMS: list[tuple[int, list[str]]] = [
    (30, list("abstmdlrveSTMDLRVE")),
    (20, list("'''''’`´ʼ")),
    (10, ["'s", "'S", "'t", "'re", "'RE", "'Ve", "'ll", "'lL", "'d", "'M", "'ſ", "''s", "'l", "'r", "'v", "ſ", "K", "'K"]),
    (40, [" ", " ", " ", "  ", "   ", "\n", "\n", "\r\n", "\r", "\n\n", "\t", " \n", "\n ", " \n \n "]),
    (15, list(SPACES)),
    (20, [*"0123456789", "12", "123", "1234", "٣", "९", "²", "Ⅷ", "½", "〇", "㊿", "𝟘", "\U00016ac0", "\U0001e4f0"]),
    (20, [*'!.,;:/-_#$%&()[]{}<>=+*^~|\\"@?', "//", "/\n", "!\n", "!\r\n/", "…", "—", "。", "«", "€", "¬", "°"]),
    (15, [*"éßÅжЖǅǈᾳᾼʰˈªℵאب中文日你가一龥龦"]),
    (12, ["か", "カ", "・", "ー", "゠", "゛", "゜", "\u3099", "\u3040", "\u3097", "ヿ", "ゟ", "々", "㐀", "\u31f0", "𠀀"]),
    (15, ["\u0301", "\u0327", "\u20dd", "\ufe0f", "\u0903", "\u093e", "e\u0301", "\u1abe", "\U0001e130", "न\u094d", "ำ", "ํ"]),
    (12, ["😀", "👩\u200d👩\u200d👧", "🇫🇷", "👍🏽", "1\ufe0f\u20e3", "☺", "\u200d", "\u200c", "\u200b", "\ufeff", "\u00ad"]),
    (8, [*"\0\x01\x1b\x1c\x1f\x7f\x80\x9f\ufffd\ue000\U0010ffff\u0378\U000e0041"]),
    (20, [" the", " word", "longer", " Incomprehensibilities", "naïveté", " I", " don't", "ALLCAPS", " x"]),
    (15, ["A", "Z", "Ab", "ABC", "iPhone", "McD", "camelCase", "HTTPServer", "ABCdef", "中A", "A中", "AʰB", "É", "ÉCOLE"]),
]
"""(weight, what is drawn with it): the hard parts of all patterns, so that every border between them comes about."""


def hard_texts(generator: np.random.Generator, count: int, longest: int = 16) -> list[str]:
    """Random strings of atoms, a tenth of them with any character at all among them."""
    atoms = np.array([atom for _, group in ATOMS for atom in group], object)
    weights = np.array([weight / len(group) for weight, group in ATOMS for _ in group])
    lengths = generator.integers(1, longest + 1, count)
    drawn = generator.choice(len(atoms), int(lengths.sum()), p=weights / weights.sum())
    texts, start = [], 0
    codes = _any_codes(generator, count)
    for number, length in enumerate(lengths.tolist()):
        text = "".join(atoms[drawn[start : start + length]])
        if number % 10 == 0:
            index = number // 10 % (len(text) + 1)
            text = text[:index] + codes[number] + text[index:]
        texts.append(text)
        start += length
    return texts


def _any_codes(generator: np.random.Generator, count: int) -> str:
    """Half of them of the first 64 thousand, half of the first 256 thousand; no surrogates."""
    codes = generator.integers(0, np.where(generator.integers(0, 2, count) == 1, 0x10000, 0x40000))
    return "".join(map(chr, np.where((codes >= 0xD800) & (codes < 0xE000), 0x2E80, codes)))
