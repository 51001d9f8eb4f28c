"""The Gopher repetition measurements of one document, by counting tuples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.oracles.words import mixed

_FACTOR, _ALL_BITS = 0x9E3779B97F4A7C15, 2**64 - 1


def of_units(hashes: Sequence[int], chars: Sequence[int]) -> list[float]:
    """Shares of units, and of their characters, that repeat an earlier one."""
    copies = [unit for unit in range(len(hashes)) if hashes[unit] in hashes[:unit]]
    return [len(copies) / max(len(hashes), 1), sum(chars[unit] for unit in copies) / max(sum(chars), 1)]


def paragraphs(hashes: Sequence[int], chars: Sequence[int], opens: Sequence[int]) -> tuple[list[int], list[int]]:
    """Hash and characters of each paragraph."""
    joined_hashes: list[int] = []
    joined_chars: list[int] = []
    for hashed, length, opening in zip(hashes, chars, opens, strict=True):
        if opening:
            joined_hashes.append(0)
            joined_chars.append(0)
        joined_hashes[-1] = mixed((joined_hashes[-1] * _FACTOR + hashed) & _ALL_BITS)
        joined_chars[-1] += length
    return joined_hashes, joined_chars


def of_words(hashes: Sequence[int], chars: Sequence[int]) -> list[float]:
    """Shares of characters: the top 2, 3, 4-gram, then the repeated 5..10-grams."""
    return [top(hashes, chars, n) for n in (2, 3, 4)] + [repeated(hashes, chars, n) for n in (5, 6, 7, 8, 9, 10)]


def top(hashes: Sequence[int], chars: Sequence[int], n: int) -> float:
    ngrams = [tuple(hashes[at : at + n]) for at in range(len(hashes) - n + 1)]
    counts = Counter(ngrams)
    most = max(counts.values(), default=0)
    if most < 2:
        return 0.0
    longest = max(sum(chars[at : at + n]) for at, ngram in enumerate(ngrams) if counts[ngram] == most)
    return most * longest / sum(chars)


def repeated(hashes: Sequence[int], chars: Sequence[int], n: int) -> float:
    ngrams = [tuple(hashes[at : at + n]) for at in range(len(hashes) - n + 1)]
    counts = Counter(ngrams)
    marked = {word for at, ngram in enumerate(ngrams) if counts[ngram] > 1 for word in range(at, at + n)}
    return sum(chars[word] for word in marked) / max(sum(chars), 1)
