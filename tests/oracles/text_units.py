"""Lines, paragraphs and spans of three sentences, and their hashes, in plain Python."""

import unicodedata

from datapipe.kernels.text.marks import END_CHARS
from tests.oracles.case_folding import caseless, syllables, visible
from tests.oracles.texts import MASK, mix

_PRIME_1, _PRIME_2, _PRIME_3, _PRIME_4 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93


def folded(text: str, normalize: str) -> str:
    """What is left of the text: its characters but those that are dropped, without surplus white space."""
    if normalize == "none":
        return text.strip()
    kept = "".join(
        " " if character.isspace() else "0" if character.isdecimal() else character
        for character in text
        if character.isspace() or not (unicodedata.category(character)[0] == "P" or unicodedata.category(character) == "Cc")
    )
    return " ".join(visible(kept.encode()).split())


def text_hash(text: str, normalize: str) -> tuple[int, int]:
    hashed, digest = _PRIME_3, _PRIME_1
    for code in map(ord, text if normalize == "none" else caseless(text)):
        hashed = (hashed ^ code) * _PRIME_2 & MASK
        digest = (digest + code) * _PRIME_4 & MASK
        hashed, digest = hashed ^ (hashed >> 29), digest ^ (digest >> 32)
    return mix(hashed), mix(digest)


def length(text: str, normalize: str) -> int:
    """Characters; of a decomposition, without combining marks."""
    if normalize == "none":
        return len(text)
    return sum(unicodedata.combining(part) == 0 for part in syllables(unicodedata.normalize("NFD", text)))


def lines(text: str, paragraphs: bool) -> list[tuple[int, int, str]]:
    """Begin and stop in characters, and the text, of each line that is not blank, or each run of such lines."""
    found: list[tuple[int, str]] = []
    position, apart = 0, True
    for line in text.split("\n"):
        if line.strip():
            if paragraphs and not apart:
                found[-1] = (found[-1][0], found[-1][1] + "\n" + line)
            else:
                found.append((position, line))
        apart = not line.strip()
        position += len(line) + 1
    stops = [begin for begin, _ in found[1:]] + [len(text)]
    return [(begin, stop, content) for (begin, content), stop in zip(found, stops)]


def sentences(text: str) -> list[tuple[int, int]]:
    """Begin and stop in characters of each sentence, white space after it with it."""
    begins, ended, wide, broken = [0] if text else [], False, False, False
    for place, character in enumerate(text):
        is_punctuation = unicodedata.category(character)[0] == "P"
        if character.isspace():
            broken |= ended or character == "\n"
            continue
        if broken or (wide and character not in END_CHARS and not is_punctuation):
            begins.append(place)
            ended = wide = broken = False
        if character in END_CHARS:
            ended, wide = True, 0x3000 <= ord(character) < 0x10000
        elif not is_punctuation:
            ended = wide = False
    return list(zip(begins, [*begins[1:], len(text)]))


def three_sentences(text: str, normalize: str, min_chars: int) -> list[tuple[int, int, tuple[int, int]]]:
    """Begin, stop and hash of every three sentences with a normal form."""
    found: list[tuple[int, int, str]] = []
    for begin, stop in sentences(text):
        content = folded(text[begin:stop], normalize)
        if length(content, normalize):
            found.append((begin, stop, content))
        elif found:
            found[-1] = (found[-1][0], stop, found[-1][2])
    spans = []
    for three in zip(found, found[1:], found[2:]):
        if sum(length(content, normalize) for *_, content in three) < min_chars:
            continue
        (first, other), (second, another), (third, last) = (text_hash(content, normalize) for *_, content in three)
        hashed = mix((mix((first + second * _PRIME_1) & MASK) + third * _PRIME_2) & MASK)
        digest = mix((mix((other + another * _PRIME_3) & MASK) + last * _PRIME_4) & MASK)
        spans.append((three[0][0], three[2][1], (hashed, digest)))
    return spans


def units(text: str, unit: str, normalize: str, min_chars: int) -> list[tuple[int, int, tuple[int, int]]]:
    """Begin and stop in bytes and hash of every unit."""
    if unit == "three_sentences":
        found = three_sentences(text, normalize, min_chars)
    else:
        content = [(begin, stop, folded(part, normalize)) for begin, stop, part in lines(text, unit == "paragraph")]
        long_enough = [row for row in content if length(row[2], normalize) >= max(1, min_chars)]
        found = [(begin, stop, text_hash(part, normalize)) for begin, stop, part in long_enough]
    return [(len(text[:begin].encode()), len(text[:stop].encode()), both) for begin, stop, both in found]
