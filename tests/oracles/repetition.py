"""The Gopher repetition measurements of one document, by counting tuples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.oracles.hashing import MASK, mix

_FACTOR = 0x9E3779B97F4A7C15


def of_units(hashes: Sequence[int], chars: Sequence[int], every: bool) -> list[int]:
    """Units and their characters; copies and theirs: units that repeat an earlier one, or `every` repeated unit."""
    counts = Counter(hashes)
    if every:
        copies = [unit for unit in range(len(hashes)) if counts[hashes[unit]] > 1]
    else:
        copies = [unit for unit in range(len(hashes)) if hashes[unit] in hashes[:unit]]
    by_hash = dict(zip(reversed(hashes), reversed(chars)))  # equal units are equally long
    return [len(hashes), sum(chars), len(copies), sum(by_hash[hashes[unit]] for unit in copies)]


def paragraphs(
    hashes: Sequence[int], chars: Sequence[int], opens: Sequence[int], joint_chars: int
) -> tuple[list[int], list[int]]:
    """Hash and characters of each paragraph."""
    joined_hashes: list[int] = []
    joined_chars: list[int] = []
    for hashed, length, opening in zip(hashes, chars, opens, strict=True):
        if opening:
            joined_hashes.append(0)
            joined_chars.append(-joint_chars)
        joined_hashes[-1] = mix((joined_hashes[-1] * _FACTOR + hashed) & MASK)
        joined_chars[-1] += length + joint_chars
    return joined_hashes, joined_chars


def of_words(hashes: Sequence[int], chars: Sequence[int], joined: bool) -> list[int]:
    """Characters: of the top 2, 3, 4-gram, then of the repeated 5..10-grams (0 where `joined`)."""
    tops = [first_top(hashes, chars, n) if joined else top(hashes, chars, n) for n in (2, 3, 4)]
    return tops + [0 if joined else repeated(hashes, chars, n) for n in (5, 6, 7, 8, 9, 10)]


def ngrams(hashes: Sequence[int], n: int) -> list[tuple[int, ...]]:
    return [tuple(hashes[word : word + n]) for word in range(len(hashes) - n + 1)]


def top(hashes: Sequence[int], chars: Sequence[int], n: int) -> int:
    counts = Counter(ngrams(hashes, n))
    most = max(counts.values(), default=0)
    if most < 2:
        return 0
    return most * max(sum(chars[word : word + n]) for word, ngram in enumerate(ngrams(hashes, n)) if counts[ngram] == most)


def first_top(hashes: Sequence[int], chars: Sequence[int], n: int) -> int:
    """As `Counter.most_common` picks: of equally frequent n-grams the first in the text, with its spaces."""
    candidates = ngrams(hashes, n)
    if not candidates:
        return 0
    ngram, most = Counter(candidates).most_common(1)[0]
    word = candidates.index(ngram)
    return most * (sum(chars[word : word + n]) + n - 1)


def repeated(hashes: Sequence[int], chars: Sequence[int], n: int) -> int:
    counts = Counter(ngrams(hashes, n))
    marked = {word for start, ngram in enumerate(ngrams(hashes, n)) if counts[ngram] > 1 for word in range(start, start + n)}
    return sum(chars[word] for word in marked)


def depth(hashes: Sequence[int]) -> list[int]:
    """The length of the longest repeated n-gram at each word, up to 10; 1 for none."""
    deepest = [1] * len(hashes)
    for n in range(2, 11):
        counts = Counter(ngrams(hashes, n))
        for word, ngram in enumerate(ngrams(hashes, n)):
            if counts[ngram] > 1:
                deepest[word] = n
    return deepest


def walked(hashes: Sequence[int], chars: Sequence[int]) -> list[int]:
    """Characters of n-grams that occurred before, from the left; each is skipped as a whole."""
    columns = [0, 0, 0]
    for n in (5, 6, 7, 8, 9, 10):
        seen, word, num_chars = set(), 0, 0
        while word < len(hashes) - n + 1:
            ngram = tuple(hashes[word : word + n])
            if ngram in seen:
                num_chars += sum(chars[word : word + n])
                word += n
            else:
                seen.add(ngram)
                word += 1
        columns.append(num_chars)
    return columns
