"""Repeated spans in plain Python: tokens, windows, the anchors they choose, and what is repeated by comparing all with all."""

from __future__ import annotations

from datapipe.kernels.text.unicode_words import ALONE, EXTENDS, JOINS, role_table
from tests.oracles.minhash import mix

_MASK = 2**64 - 1
_RADIX, _GRAM = 0xD1342543DE82EF9B, 0x9E3779B97F4A7C15

Window = tuple[bytes, ...]


def tokens(text: bytes, by_bytes: bool) -> list[tuple[int, bytes]]:
    """First byte and bytes of every token."""
    if by_bytes:
        return [(at, text[at : at + 1]) for at in range(len(text))]
    found: list[tuple[int, bytes]] = []
    at, before = 0, "white"
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
                found.append((at, encoded))
        at, before = at + len(encoded), kind
    return found


def _kind(character: str) -> str:
    role = int(role_table()[ord(character)])
    if character.isspace():
        return "white"
    if role & EXTENDS:
        return "more"
    return "alone" if role & ALONE else ("word" if role & JOINS else "sign")


def territories(text: bytes, by_bytes: bool) -> tuple[list[bytes], list[int]]:
    """The tokens, and where what each owns begins; and at last where the text ends."""
    found = tokens(text, by_bytes)
    return [token for _, token in found], [0, *(at for at, _ in found[1:]), len(text)] if found else [0]


def whole_characters(text: bytes, start: int, stop: int) -> tuple[int, int]:
    """[start, stop) without the characters that its ends cut."""
    while start < stop and text[start] & 0xC0 == 0x80:
        start += 1
    while stop < len(text) and stop > start and text[stop] & 0xC0 == 0x80:
        stop -= 1
    return start, stop


def token_hash(token: bytes, by_bytes: bool) -> int:
    if by_bytes:
        return mix(token[0] + 1)
    hashed = 0xCBF29CE484222325
    for byte in token:
        hashed = (hashed ^ byte) * 0x100000001B3 & _MASK
    return mix(hashed)


def run_hash(hashes: list[int]) -> int:
    total = 0
    for one in hashes:
        total = (total * _RADIX + one) & _MASK
    return mix(total)


Anchor = tuple[int, int, int, int, int, int]


def anchors(
    text: bytes, by_bytes: bool, length: int, gram: int, piece_tokens: int
) -> tuple[list[tuple[int, int, int]], list[Anchor], list[tuple[int, int, int]]]:
    """Pieces (number, first byte, last), anchors (piece, first byte, bytes, trims, hash of gram, hash of span) and echoes
    (piece, first byte, last)."""
    said, begins = territories(text, by_bytes)
    hashes = [token_hash(token, by_bytes) for token in said]
    grams = [run_hash(hashes[at : at + gram]) for at in range(len(hashes) - gram + 1)]
    pieces, found, echoes = [], [], []
    for first in range(0, max(0, len(hashes) - length + 1), piece_tokens):
        windows = range(first, min(first + piece_tokens, len(hashes) - length + 1))
        number = len(pieces)
        pieces.append((number, begins[first], begins[windows[-1] + length]))
        chosen = [min(range(at, at + length - gram + 1), key=lambda place: (grams[place], place)) for at in windows]
        recent: dict[int, int] = {}
        echo: tuple[int, int] | None = None
        for place in sorted(set(chosen)):
            mine = [window for window, one in zip(windows, chosen) if one == place]
            hashed, span = mix(grams[place] ^ _GRAM), run_hash(hashes[mine[0] : mine[-1] + length])
            before = recent.get(hashed % 4096)
            if before is not None and found[before][4:] == (hashed, span):
                piece, start, size, trims, *both = found[before]
                found[before] = (piece, start, size, trims % 256 + 256, *both)
                echo = (echo[0] if echo else mine[0], mine[-1] + length)
                continue
            if echo:
                echoes.append((number, *_ends(text, begins[echo[0]], begins[echo[1]], by_bytes)))
                echo = None
            start, stop = begins[mine[0]], begins[mine[-1] + length]
            whole = _ends(text, start, stop, by_bytes)
            recent[hashed % 4096] = len(found)
            found.append((number, start, stop - start, whole[0] - start + 16 * (stop - whole[1]), hashed, span))
        if echo:
            echoes.append((number, *_ends(text, begins[echo[0]], begins[echo[1]], by_bytes)))
    return pieces, found, echoes


def _ends(text: bytes, start: int, stop: int, by_bytes: bool) -> tuple[int, int]:
    return whole_characters(text, start, stop) if by_bytes else (start, stop)


def window_hashes(hashes: list[int], gram: int) -> tuple[int, int]:
    check = run_hash(hashes)
    return mix((gram + mix(check ^ _GRAM)) & _MASK), check


def repeated(texts: list[bytes], by_bytes: bool, length: int, keep: str) -> list[set[int]]:
    """The bytes of each text that go: those of whole characters in a window that occurs before (keep none: elsewhere too)."""
    windows: list[Window] = []
    places: list[tuple[int, int, int]] = []
    for document, text in enumerate(texts):
        said, begins = territories(text, by_bytes)
        for at in range(len(said) - length + 1):
            windows.append(tuple(said[at : at + length]))
            places.append((document, begins[at], begins[at + length]))
    gone: list[set[int]] = [set() for _ in texts]
    for number, (window, (document, start, stop)) in enumerate(zip(windows, places)):
        if windows.count(window) > 1 if keep == "none" else windows.index(window) < number:
            gone[document].update(range(*(whole_characters(texts[document], start, stop) if by_bytes else (start, stop))))
    return gone
