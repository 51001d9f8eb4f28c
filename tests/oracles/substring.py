"""Repeated spans in plain Python: tokens, and repeated bytes by comparing all windows with all."""

import unicodedata

from datapipe.kernels.text.unicode_classes import UNSPACED, codes_of

Window = tuple[bytes, ...]

_UNSPACED = frozenset(codes_of(UNSPACED).tolist())


def tokens(text: bytes, by_bytes: bool) -> list[tuple[int, bytes]]:
    """First byte and bytes of every token."""
    if by_bytes:
        return [(position, text[position : position + 1]) for position in range(len(text))]
    found: list[tuple[int, bytes]] = []
    position, before = 0, "white"
    for character in text.decode():
        kind = _kind(character)
        encoded = character.encode()
        if kind == "more" and before != "white":
            kind = before
            found[-1] = (found[-1][0], found[-1][1] + encoded)
        elif kind != "white":
            kind = "word" if kind == "more" else kind
            if kind == before and kind != "alone":
                found[-1] = (found[-1][0], found[-1][1] + encoded)
            else:
                found.append((position, encoded))
        position, before = position + len(encoded), kind
    return found


def _kind(character: str) -> str:
    category = unicodedata.category(character)
    if character.isspace():
        return "white"
    if category[0] == "M" or character in "\u200c\u200d":
        return "more"
    if category[0] not in "LN" and character != "_":
        return "sign"
    return "alone" if ord(character) in _UNSPACED else "word"


def territories(text: bytes, by_bytes: bool) -> tuple[list[bytes], list[int]]:
    """The tokens, and the start of the bytes that each owns, followed by the end of the text."""
    found = tokens(text, by_bytes)
    return [token for _, token in found], [0, *(position for position, _ in found[1:]), len(text)] if found else [0]


def whole_characters(text: bytes, start: int, stop: int) -> tuple[int, int]:
    """[start, stop) without the characters that its ends cut."""
    while start < stop and text[start] & 0xC0 == 0x80:
        start += 1
    while stop < len(text) and stop > start and text[stop] & 0xC0 == 0x80:
        stop -= 1
    return start, stop


def repeated(texts: list[bytes], by_bytes: bool, length: int, keep: str) -> list[set[int]]:
    """The bytes to cut from each text: whole characters in a window that occurs earlier (keep none: anywhere else)."""
    windows: list[Window] = []
    places: list[tuple[int, int, int]] = []
    for document, text in enumerate(texts):
        token_bytes, begins = territories(text, by_bytes)
        for position in range(len(token_bytes) - length + 1):
            windows.append(tuple(token_bytes[position : position + length]))
            places.append((document, begins[position], begins[position + length]))
    removed: list[set[int]] = [set() for _ in texts]
    for number, (window, (document, start, stop)) in enumerate(zip(windows, places)):
        if windows.count(window) > 1 if keep == "none" else windows.index(window) < number:
            removed[document].update(range(*(whole_characters(texts[document], start, stop) if by_bytes else (start, stop))))
    return removed
