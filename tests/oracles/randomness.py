"""What `datapipe/kernels/redact/randomness.py` makes of a value, a character at a time, from the same tables."""

import math
import re
from collections import Counter
from functools import cache

from datapipe.kernels.redact.randomness import LETTERS, SIGNS, TRANSITIONS
from stages.redact._rules import built_in

_COSTS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _is_letter(char: str) -> bool:
    return char.isascii() and char.isalpha()


def _sort(char: str) -> int:
    if _is_letter(char):
        return 0 if char.islower() else 1
    return 2 if char in "0123456789" else 3 if char in "_-./" else 4


@cache
def _model() -> tuple[list[list[int]], list[list[int]], dict[str, int]]:
    transitions, letters = ([[_COSTS.index(cost) for cost in row] for row in table.split()] for table in (TRANSITIONS, LETTERS))
    return transitions, letters, {pair[0]: _COSTS.index(pair[1]) for pair in SIGNS.split(" ")}


def _bits(text: str) -> int:
    """Bits of one character drawn from the smallest alphabet of a text, in 64ths."""
    if re.fullmatch("[0-9a-f-]+|[0-9A-F-]+", text) and re.search("[0-9]", text) and re.search("[A-Fa-f]", text):
        return round(64 * math.log2(16 + ("-" in text)))
    size = sum(size for members, size in (("[a-z]", 26), ("[A-Z]", 26), ("[0-9]", 10)) if re.search(members, text))
    if re.search(r"[^0-9A-Za-z\-_+/=]", text):
        size += 32
    elif re.search(r"[\-_+/=]", text):
        size += 2
    return round(64 * math.log2(max(size, 1)))


def evidence(text: bytes) -> int:
    """In 64ths of a bit."""
    transitions, letters, signs = _model()
    written = text[:256].decode("latin-1")
    bits = _bits(written)
    read = written if re.search("[a-z]", written) else re.sub("[A-Z]", lambda match: match[0].lower(), written)
    total, before = 0, ""
    for char in read:
        total += transitions[_sort(before) if before else 5][_sort(char)]
        if _is_letter(char):
            total += letters[ord(before.lower()) - 97 if _is_letter(before) else 26][ord(char.lower()) - 97]
        else:
            total += 13 if char in "0123456789" else signs.get(char, 0)
        before = char
    return 16 * total - len(written) * bits


def best_evidence(text: bytes) -> int:
    return max(map(evidence, [text, *re.findall(rb"[0-9A-Za-z]{16,}", text[:256])]))


def has_entropy(text: bytes, millibits: int) -> bool:
    text = text[:256]

    def weight(count: int) -> int:
        return round(1000 * count * math.log2(count))

    most = min(5000, round(1000 * math.log2(len(text))), _bits(text.decode("latin-1")) * 1000 // 64)
    return (weight(len(text)) - sum(map(weight, Counter(text).values()))) * 5000 >= millibits * most * len(text)


def is_placeholder(text: bytes) -> bool:
    text = text[:256]
    folded = bytes(byte | 0x20 for byte in text)
    if any(bytes(byte | 0x20 for byte in word.encode()[-8:]) in folded for word in built_in()["placeholders"]):
        return True
    for first in range(len(text) - 7):
        steps = {folded[first + j + 1] - folded[first + j] for j in range(7)}
        if steps in ({1}, {-1}) and re.fullmatch(rb".[0-9A-Za-z]{7}", text[first : first + 8], re.DOTALL):
            return True
    return False
