"""Measurements of filters by regular expressions and Python's own splitting."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Container, Mapping, Sequence

from tests.oracles.case_folding import words
from tests.oracles.texts import MASK, characters, kind, mix, text_of

LETTER, NUMBER, PUNCTUATION_OR_SYMBOL = 1, 4, 8 | 16


def is_sign(character: str) -> bool:
    return bool(kind(character) & PUNCTUATION_OR_SYMBOL)


def stripped(word: str) -> str:
    while word and is_sign(word[0]):
        word = word[1:]
    while word and is_sign(word[-1]):
        word = word[:-1]
    return word


def quality_of_words(words: list[bytes]) -> list[int]:
    """Words; words with content, and their characters; words with a letter; all characters."""
    texts = [text_of(word) for word in words]
    content = [text for text in texts if not all(is_sign(character) for character in text)]
    letters = sum(any(kind(character) == LETTER for character in text) for text in texts)
    return [len(texts), len(content), sum(map(len, content)), letters, sum(map(len, texts))]


def word_starts(text: bytes) -> int:
    """Words between ASCII white space or NUL that begin with a letter or a digit."""
    pieces = re.split("[ \n\r\t\v\f\0]+", text_of(text))
    return sum(piece[:1].isalnum() for piece in pieces)


def symbols_of_text(text: bytes) -> list[int]:
    """`#`, ellipses, ellipses with spaces."""
    read = text_of(text)
    return [read.count("#"), read.count("...") + read.count("…"), spaced_ellipses(read)]


def spaced_ellipses(text: str) -> int:
    """Runs of dots with one space between: every third dot ends one."""
    count, run = 0, 0
    for index, character in enumerate(text):
        if character == ".":
            run = run + 1 if text[max(index - 2, 0) : index] == ". " else 1
            count += run % 3 == 0
    return count


def stop_words(words: list[bytes], known: Sequence[str], compare: str) -> list[int]:
    """Number of distinct stop words, and their occurrences."""
    matches = []
    for word in map(text_of, words):
        seen = stripped(word) if compare == "stripped" and any(kind(character) == LETTER for character in word) else word
        is_cased = seen in (seen.lower(), seen.upper(), seen.capitalize(), seen.title())
        folded = seen.lower() if compare != "exact" and (is_cased or len(seen) <= 6) else seen
        matches += [folded] * (folded in known)
    return [len(set(matches)), len(matches)]


def of_lines(lines: list[bytes], bullets: str, spaced: bool) -> list[int]:
    texts = [text_of(line) for line in lines]
    endings = ("...", "…", ". . .") if spaced else ("...", "…")
    return [sum(text.startswith(tuple(bullets)) for text in texts), sum(text.endswith(endings) for text in texts)]


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


def repetition_of_words(hashes: Sequence[int], chars: Sequence[int], joined: bool) -> list[int]:
    """Characters: of the top 2, 3, 4-gram, then of the repeated 5..10-grams."""
    tops = [first_top(hashes, chars, n) if joined else top(hashes, chars, n) for n in (2, 3, 4)]
    return tops + [(walked if joined else repeated)(hashes, chars, n) for n in (5, 6, 7, 8, 9, 10)]


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


def walked(hashes: Sequence[int], chars: Sequence[int], n: int) -> int:
    """Characters of n-grams that occurred before, from the left; each is skipped as a whole."""
    seen, word, num_chars = set(), 0, 0
    while word < len(hashes) - n + 1:
        ngram = tuple(hashes[word : word + n])
        if ngram in seen:
            num_chars += sum(chars[word : word + n])
            word += n
        else:
            seen.add(ngram)
            word += 1
    return num_chars


_WORD = rb"[0-9A-Za-z_\x80-\xff]"
_BOUNDARY = rb"(?:(?<=W)(?!W)|(?<!W)(?=W))".replace(b"W", _WORD)
PATTERNS = (
    rb"[a-zA-Z0-9+/\n=]{64,}",
    rb"(?:\b(?:0x|\\x)?[0-9a-fA-F]{2}(?:,|\b\s*)){8,}".replace(rb"\b", _BOUNDARY),
    rb"(?:\\u[0-9a-fA-F]{4}){8,}",
)


def measures(text: bytes) -> list[float]:
    signs = [character for _, character, _ in characters(text)]
    lines = "".join(signs).split("\n")
    if not lines[-1]:
        del lines[-1]
    lengths = list(map(len, lines))
    letters = sum(kind(sign) == LETTER for sign in signs)
    numbers = sum(kind(sign) == NUMBER for sign in signs)
    number = max(len(signs), 1)
    mean = sum(lengths) / max(len(lines), 1)
    return [len(lines), mean, max(lengths, default=0), (letters + numbers) / number, letters / number, len(signs)]


def encoded(text: bytes) -> list[int]:
    spans = [match.span() for pattern in PATTERNS for match in re.finditer(pattern, text)]
    covered = {index for start, stop in spans for index in range(start, stop)}
    return [max((stop - start for start, stop in spans), default=0), len(covered)]


def beginning(text: bytes, num_lines: int) -> bytes:
    return b"".join(re.findall(rb"[^\n]*\n|[^\n]+", text)[:num_lines])


def ends_of_text(text: bytes, ends: Container[str], short_chars: int) -> list[int]:
    """Lines that are not blank, those whose last character is in `ends`, those of at most `short_chars` characters."""
    lines = [line for line in map(text_of, text.split(b"\n")) if line.strip()]
    return [len(lines), sum(line[-1] in ends for line in lines), sum(len(line) <= short_chars for line in lines)]


Entry = tuple[bytes, ...]


def count(text: bytes, entries: Mapping[Entry, int], mask: int) -> tuple[int, int, int]:
    """Hits, words in them, and all words: at each word the longest entry of a list in `mask`, then on behind it."""
    found = words(text)
    hits = listed = place = 0
    while place < len(found):
        lengths = [
            len(entry) for entry, bits in entries.items() if bits & mask and tuple(found[place : place + len(entry)]) == entry
        ]
        hits += bool(lengths)
        listed += max(lengths, default=0)
        place += max(lengths, default=1)
    return hits, listed, len(found)


def bin_of(value: float) -> int:
    """The number of the bin of a number that is not NaN."""
    magnitude = abs(value)
    if math.isinf(magnitude) or magnitude >= 2.0**48:
        number = 1280
    elif magnitude < 2.0**-32:
        number = 0
    else:
        octave = next(exponent for exponent in range(-32, 48) if magnitude < 2.0 ** (exponent + 1))
        part = int((magnitude / 2.0**octave - 1) * 16)  # exact: powers of two
        number = 1 + (octave + 32) * 16 + part
    return -number if math.copysign(1.0, value) < 0 else number


def tie(file_hash: int, position: int) -> int:
    return mix(file_hash ^ mix(position ^ 0x9E3779B97F4A7C15))


def fails(value: float, limit: float, reason: int, rule: int, side: int) -> bool:
    """Whether a document fails the rule: it is its reason, or it fails another one and this one, too."""
    beyond = value < limit if side < 0 else value > limit if side > 0 else False
    return reason == rule or (reason >= 0 and beyond)


def nearest(
    documents: Sequence[tuple[float, float, int, int, int]], rule: int, most: int
) -> list[list[tuple[float, int, float, float, int, int]]]:
    """(distance, tie, value, limit, file hash, position) of the nearest documents: of those kept, and of those dropped.

    Args:
        documents: value, limit, reason, file hash and position of each.
    """
    sides: list[list[tuple[float, int, float, float, int, int]]] = [[], []]
    for value, limit, reason, file_hash, position in documents:
        distance = abs(value - limit)
        if math.isfinite(distance) and reason in (-1, rule):
            entry = (distance, tie(file_hash, position), value, limit, file_hash, position)
            sides[reason == rule].append(entry)
    return [sorted(side)[:most] for side in sides]
