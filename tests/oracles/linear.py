"""Features and scores of linear models, one item at a time in plain Python."""

import math
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence

from datapipe.kernels.learned.exponential import logistic
from datapipe.kernels.text.unicode_classes import UNSPACED, codes_of
from tests.oracles.texts import MASK, characters, fnv, polynomial

_GOLDEN, _FACTOR = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93
_UNSPACED = frozenset(codes_of(UNSPACED).tolist())
_BLANKS = " \xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


def _kind(character: str) -> str:
    """ " " between words, "w" in a word, "m" for a mark, "a" for its own word, "s" for a sign."""
    if character in _BLANKS or unicodedata.category(character) == "Cc":
        return " "
    category = unicodedata.category(character)
    if category[0] == "M":
        return "m"
    is_letter = category[0] in "LN" or category == "Cn"
    if is_letter and ord(character) in _UNSPACED:
        return "a"
    return "w" if is_letter else "s"


def _words(text: bytes) -> Iterator[bytes]:
    before, word = " ", b""
    for offset, character, size in characters(text):
        kind = _kind(character)
        joins = (kind == "m" and before in "wam") or (kind == "w" and before in "wm" and not word_is_alone(word))
        if not joins and word:
            yield word
            word = b""
        if kind != " ":
            word += text[offset : offset + size]
        before = kind
    if word:
        yield word


def word_is_alone(word: bytes) -> bool:
    return bool(word) and _kind(next(characters(word))[1]) == "a"


def _slot(items: Sequence[int], bits: int) -> int:
    hashed = polynomial(items, _FACTOR)
    return ((hashed ^ hashed >> 32) * _GOLDEN & MASK) >> (64 - bits)


def _character_slot(items: Sequence[int], bits: int) -> int:
    return polynomial((item * _GOLDEN for item in items), _FACTOR) >> (64 - bits)


def word_slots(text: bytes, bits: int) -> dict[int, int]:
    """The slots of words and of pairs of words, in the order of their first occurrence; each counts once."""
    hashes = [fnv(word) for word in _words(text)]
    slots = []
    for index, hashed in enumerate(hashes):
        slots += [_slot([hashed], bits), *([_slot(hashes[index - 1 : index + 1], bits)] if index else [])]
    return dict.fromkeys(slots, 1)


def character_slots(text: bytes, bits: int) -> dict[int, int]:
    """The slots of n-grams of characters with their counts, in the order of their first occurrence."""
    runs = "".join(" " if _kind(character) == " " else character for _, character, _ in characters(text)).split(" ")
    counts: Counter[int] = Counter()
    for run in filter(None, runs):
        padded = [ord(character) for character in f" {run} "]
        for stop in range(1, len(padded) + 1):
            counts.update(_character_slot(padded[stop - size : stop], bits) for size in (3, 4, 5) if size <= stop)
    return {slot: min(count, 255) for slot, count in counts.items()}


def sigmoid(value: float) -> float:
    """By the same additions and multiplications as in kernels; `test_kernels.py` compares them with the library."""
    return float(logistic(value))


def sums(text: bytes, bits: tuple[int, int], entries: list[list[int]], scales: list[float], biases: list[float]) -> list[float]:
    """The sums of a text, by the bits of words and of characters."""
    found, first = [], 0
    for number, slots_of in zip(bits, (word_slots, character_slots)):
        if number:
            found.append({first + slot: count for slot, count in slots_of(text, number).items()})
            first += 1 << number
    totals = list(biases)
    for counts in found:
        squares = sum(((entries[slot][0] & 255) * count) ** 2 for slot, count in counts.items())
        length = math.sqrt(max(squares, 1)) / 16
        for column, scale in enumerate(scales):
            total = sum((entries[slot][column] >> 8) * count for slot, count in counts.items())
            totals[column] += total * scale / length
    return totals
