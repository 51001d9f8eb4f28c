"""Words and lines one character at a time, in plain Python."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

from tests.oracles.hashing import fnv, mix

WORD_CLASSES = {"L": 1, "M": 2, "N": 4, "P": 8, "S": 16}
SPACE, OTHER = 32, 64


class Span(NamedTuple):
    """A word or a line: its span in the text, hash, characters and flags."""

    start: int
    length: int
    hashed: int
    chars: int
    flag: int


def characters(text: bytes) -> Iterator[tuple[int, str, int]]:
    """(offset, character, bytes) of each character; a byte that begins none is U+FFFD."""
    offset = 0
    while offset < len(text):
        character, size = "\ufffd", 1
        for size_tried in (1, 2, 3, 4):
            try:
                character, size = text[offset : offset + size_tried].decode(), size_tried
                break
            except UnicodeDecodeError:
                continue
        yield offset, character, size
        offset += size


def text_of(text: bytes) -> str:
    return "".join(character for _, character, _ in characters(text))


def kind(character: str) -> int:
    if character.isspace():
        return SPACE
    return WORD_CLASSES.get(unicodedata.category(character)[0], OTHER)


def hashed(word: bytes) -> int:
    return mix(fnv(word))


def words(text: bytes) -> list[Span]:
    spans: list[Span] = []
    word: list[tuple[int, str, int]] = []
    for offset, character, size in [*characters(text), (len(text), " ", 1)]:
        if not character.isspace():
            word.append((offset, character, size))
        elif word:
            start, flag = word[0][0], 0
            for _, inner, _ in word:
                flag |= kind(inner)
            spans.append(Span(start, offset - start, hashed(text[start:offset]), len(word), flag))
            word = []
    return spans


def lines(text: bytes, separator: bytes = b"\n") -> list[Span]:
    """The lines that are not blank; the flag is 1 for the first of a paragraph."""
    spans: list[Span] = []
    line_start, opens = 0, 1
    for line in text.split(separator):
        seen = list(characters(line))
        while seen and seen[0][1].isspace():
            seen.pop(0)
        while seen and seen[-1][1].isspace():
            seen.pop()
        if seen:
            start, stop = seen[0][0], seen[-1][0] + seen[-1][2]
            spans.append(Span(line_start + start, stop - start, hashed(line[start:stop]), len(seen), opens))
        opens = 0 if seen else 1
        line_start += len(line) + len(separator)
    return spans


def paragraphs(text: bytes) -> list[Span]:
    """The text between empty lines, without the white space around it; each opens a paragraph."""
    return [span._replace(flag=1) for span in lines(text, b"\n\n")]
