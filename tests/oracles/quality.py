"""The Gopher quality measurements of one document, from its words and lines as text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.oracles.words import kind, text_of

LETTER, PUNCTUATION_OR_SYMBOL = 1, 8 | 16


def is_sign(character: str) -> bool:
    return bool(kind(character) & PUNCTUATION_OR_SYMBOL)


def stripped(word: str) -> str:
    while word and is_sign(word[0]):
        word = word[1:]
    while word and is_sign(word[-1]):
        word = word[:-1]
    return word


def of_words(words: list[bytes]) -> list[int]:
    """Words; words with content, and their characters; words with a letter; all characters."""
    texts = [text_of(word) for word in words]
    content = [text for text in texts if not all(is_sign(character) for character in text)]
    letters = sum(any(kind(character) == LETTER for character in text) for text in texts)
    return [len(texts), len(content), sum(map(len, content)), letters, sum(map(len, texts))]


def word_starts(text: bytes) -> int:
    """Words between ASCII white space or NUL that begin with a letter or a digit."""
    pieces = re.split("[ \n\r\t\v\f\0]+", text_of(text))
    return sum(piece[:1].isalnum() for piece in pieces)


def of_text(text: bytes) -> list[int]:
    """`#`, ellipses, ellipses with spaces."""
    read = text_of(text)
    return [read.count("#"), read.count("...") + read.count("…"), spaced_ellipses(read)]


def spaced_ellipses(text: str) -> int:
    """Runs of dots with one space between: every third dot ends one."""
    count, run = 0, 0
    for index, character in enumerate(text):
        if character == ".":
            run = run + 1 if text[max(index - 2, 0) : index] == ". " else 1
            count += run % 3 == 0
    return count


def stop_words(words: list[bytes], known: Sequence[str], compare: str) -> list[int]:
    """Number of distinct stop words, and their occurrences."""
    matches = []
    for word in map(text_of, words):
        seen = stripped(word) if compare == "stripped" and any(kind(character) == LETTER for character in word) else word
        is_cased = seen in (seen.lower(), seen.upper(), seen.capitalize(), seen.title())
        folded = seen.lower() if compare != "exact" and (is_cased or len(seen) <= 6) else seen
        matches += [folded] * (folded in known)
    return [len(set(matches)), len(matches)]


def of_lines(lines: list[bytes], bullets: str, spaced: bool) -> list[int]:
    texts = [text_of(line) for line in lines]
    endings = ("...", "…", ". . .") if spaced else ("...", "…")
    return [sum(text.startswith(tuple(bullets)) for text in texts), sum(text.endswith(endings) for text in texts)]
