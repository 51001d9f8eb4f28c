"""The line rules of C4 by regular expressions."""

from __future__ import annotations

import re

from tests.oracles.words import characters, text_of

CITATION = re.compile(rb"\[[0-9]*\]|\[edit\]|\[citation needed\]")
KEPT, LONG_WORD, NO_END_MARK, FEW_WORDS = range(4)
PAGE_AND_LINE_RULES = (
    rb"lorem ipsum",
    rb"javascript",
    rb"\{",
    rb"terms of use|privacy policy|cookie policy|uses cookies|use of cookies|use cookies",
)


def without_citations(line: bytes) -> bytes:
    return CITATION.sub(b"", line)


def reason(line: bytes, clean: bytes, limits: list[int]) -> int:
    """The reason to drop a line, 0 to keep it; limits in the order of `Limits`."""
    min_words, max_word_chars, words_before, need_end_mark, apostrophe, *checks = limits
    if any(len(word) > max_word_chars for word in text_of(line).split()):
        return LONG_WORD
    ends = (b".", b"?", b"!", b'"', b"'") if apostrophe else (b".", b"?", b"!", b'"')
    if need_end_mark and (not clean.endswith(ends) or clean.endswith(b"...")):
        return NO_END_MARK
    if len(text_of(line if words_before else clean).split()) < min_words:
        return FEW_WORDS
    for number, (pattern, checked) in enumerate(zip(PAGE_AND_LINE_RULES, checks, strict=True), FEW_WORDS + 1):
        if checked and re.search(pattern, clean.lower()):
            return number
    return KEPT


def joined(lines: list[bytes]) -> bytes:
    """Lines joined by newlines, without white space around the text."""
    seen = list(characters(b"\n".join(lines)))
    while seen and seen[0][1].isspace():
        seen.pop(0)
    while seen and seen[-1][1].isspace():
        seen.pop()
    return b"\n".join(lines)[seen[0][0] : seen[-1][0] + seen[-1][2]] if seen else b""
