"""Corpora of any size from a few pages: copies of the pages, with other words for each key.

    pages ─▶ words ─▶ classes of words ─▶ permuted by a key ─▶ the words of a copy ─▶ its pages

Words of a class have the same length, the same letter case and about the same frequency. The most
frequent words stay, and those that filters look for. Rare words and numbers get other letters and
digits, so that the vocabulary grows with the corpus. A key maps equal words to equal words: the
repeats within the pages are in each copy, filters and deduplication keep about the same share, and
the text compresses about as well. Two copies of a page share few 5-grams.

Each byte of the pages is stored as its position in the pool of their words, in four bytes. A copy
is a gather from another pool.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

_SAME_WORDS = 64  # of the most frequent, such as the stop words that filters count
_LOOKED_FOR = frozenset(b"lorem ipsum javascript terms use uses using privacy policy cookie cookies http https www".split())
_RARE = 2
_VOWELS, _CONSONANTS, _DIGITS = b"aeiou", b"bcdfghjklmnpqrstvwxyz", b"0123456789"
_WORD = rb"(?P<word>[A-Za-z]{3,}|[0-9]+)"

IN_TEXT = re.compile(_WORD)
IN_JSON = re.compile(rb"\\(?:u[0-9a-f]{4}|.)|" + _WORD)
IN_HTML = re.compile(rb"<script\b.*?</script|<style\b.*?</style|<!--.*?-->|<[^>]*>|&#?\w+;|" + _WORD, re.DOTALL | re.IGNORECASE)


class VariedPages:
    """Pages with other words for each key. `words` finds what is replaced: `IN_TEXT`, `IN_JSON` or `IN_HTML`."""

    def __init__(self, pages: Sequence[bytes], words: re.Pattern[bytes] = IN_TEXT, seed: int = 17) -> None:
        self.ends = np.cumsum([len(page) for page in pages])
        self.seed = seed
        content = b"".join(pages)
        spans = [match.span("word") for match in words.finditer(content) if match["word"] is not None]
        counts = Counter(content[start:stop] for start, stop in spans)
        same = _same_words(counts)
        ordered = sorted(counts, key=lambda word: (_class_of(word, counts[word], word.lower() in same), word))
        classes = [_class_of(word, counts[word], word.lower() in same) for word in ordered]
        self._pool = np.frombuffer(b"".join(ordered), np.uint8)
        self._classes = _blocks(classes)
        first = dict(zip(ordered, np.cumsum([0, *map(len, ordered)]).tolist()))
        self._origins = self._pool.size + np.frombuffer(content, np.uint8).astype(np.int32)  # (num_bytes,)
        starts = np.array([start for start, _ in spans], np.int64)
        lengths = np.array([stop - start for start, stop in spans], np.int64)
        shifts = np.array([first[content[start:stop]] for start, stop in spans], np.int64) - starts
        bytes_of_words = _ranges(starts, lengths)
        self._origins[bytes_of_words] = bytes_of_words + np.repeat(shifts, lengths)

    def copy(self, key: int) -> Iterator[bytes]:
        """The pages of one copy, in order."""
        pool, start = np.concatenate([self._words(key), np.arange(256, dtype=np.uint8)]), 0
        for end in self.ends.tolist():
            yield pool.take(self._origins[start:end]).tobytes()
            start = end

    def _words(self, key: int) -> np.ndarray:
        """The pool of a copy: the words of each class in another order."""
        rng, pool = np.random.default_rng([self.seed, key]), self._pool.copy()
        letters = _other_letters(rng)
        for (length, is_same, _, band), start, stop in self._classes:
            if is_same:
                continue
            words = pool[start:stop].reshape(-1, length)  # (num_words, length)
            words[:] = rng.permutation(words)
            if band == 0:
                words[:] = letters[words]
        return pool


def _same_words(counts: Counter[bytes]) -> frozenset[bytes]:
    lower: Counter[bytes] = Counter()
    for word, count in counts.items():
        if not word.isdigit():
            lower[word.lower()] += count
    return _LOOKED_FOR | {word for word, _ in lower.most_common(_SAME_WORDS)}


def _class_of(word: bytes, count: int, is_same: bool) -> tuple[int, bool, str, int]:
    """Length, whether it stays, case, and frequency by powers of four: 0 for rare words."""
    case = next((name for name in ("islower", "istitle", "isupper", "isdigit") if getattr(word, name)()), "mixed")
    return len(word), is_same, case, 0 if count <= _RARE else 1 + (count.bit_length() - 1) // 2


def _blocks(classes: Sequence[tuple[int, bool, str, int]]) -> list[tuple[tuple[int, bool, str, int], int, int]]:
    """Each class of sorted words with the range of its bytes in the pool."""
    blocks, start = [], 0
    for each, number in Counter(classes).items():
        blocks.append((each, start, start + number * each[0]))
        start += number * each[0]
    return blocks


def _ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """[starts[0], starts[0] + lengths[0]), [starts[1], …), … one after the other."""
    before = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) + np.repeat(starts - before, lengths)


def _other_letters(rng: np.random.Generator) -> np.ndarray:
    """(256,): another vowel for each vowel, and so on."""
    letters = np.arange(256, dtype=np.uint8)
    for signs in (_VOWELS, _CONSONANTS, _DIGITS):
        others = bytes(rng.permutation(np.frombuffer(signs, np.uint8)))
        for one, other in zip(signs + signs.upper(), others + others.upper()):
            letters[one] = other
    return letters
