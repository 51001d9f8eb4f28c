"""Words without punctuation, one character at a time, by the Unicode database."""

from __future__ import annotations

import re
import unicodedata

from tests.oracles.words import Span, characters, hashed, kind

_ALONE_BLOCKS = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u309f\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\U00020000-\U00031fff"
)


def role(character: str) -> str:
    category = unicodedata.category(character)
    if character in "\u200c\u200d":
        return "j"
    if category[0] == "M":
        return "M"
    if character in "0123456789":
        return "D"
    if category[0] in "LN" or character == "_":
        return "A" if re.match(f"[{_ALONE_BLOCKS}]", character) else "L"
    if character in "'":
        return "q"
    if character == ".":
        return "p"
    if character in "’:·":
        return "l"
    return "n" if character in ",;" else " "


def words(text: bytes) -> list[Span]:
    """The words of a text: each character either joins the word before it or does not."""
    read = list(characters(text))
    roles = [role(character) for _, character, _ in read]
    spans, index = [], 0
    while index < len(read):
        if roles[index] not in "ALDM":
            index += 1
            continue
        stop, last = index + 1, roles[index]
        alone = roles[index] == "A"
        while stop < len(read):
            here, ahead = roles[stop], roles[stop + 1] if stop + 1 < len(read) else " "
            letters = here in "qpl" and last in "LM" and ahead == "L"
            digits = here in "qpn" and last == "D" and ahead == "D"
            if here in "Mj" or (not alone and (here in "LD" or letters or digits)):
                last = here if here in "LDM" else last
                stop += 1
            else:
                break
        start, end = read[index][0], read[stop - 1][0] + read[stop - 1][2]
        flag = 0
        for _, character, _ in read[index:stop]:
            flag |= kind(character)
        spans.append(Span(start, end - start, hashed(text[start:end]), stop - index, flag))
        index = stop
    return spans
