"""The features of fastText and their mean, written plainly: one number after another, in float32."""

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

END_OF_LINE, LABEL = b"</s>", b"__label__"


@lru_cache(maxsize=100_000)
def fnv(data: bytes) -> int:
    """FNV-1a of 32 bits over signed chars."""
    code = 2166136261
    for byte in data:
        code = (code ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * 16777619 % 2**32
    return code


def words(text: bytes) -> list[bytes]:
    return [word for word in re.split(rb"[ \n\r\t\v\f\0]+", text) if word not in (b"", END_OF_LINE)]


@lru_cache(maxsize=10_000)
def gram_buckets(word: bytes, least: int, most: int, num_buckets: int) -> list[int]:
    """Buckets of all n-grams of `<word>`, except `<` and `>` alone."""
    characters = re.findall(rb"(?s).[\x80-\xbf]*", b"<" + word + b">")
    buckets = []
    for first in range(len(characters)):
        for stop in range(first + 1, min(first + most, len(characters)) + 1):
            alone = stop == first + 1 and (first == 0 or stop == len(characters))
            if stop - first >= least and not alone:
                buckets.append(fnv(b"".join(characters[first:stop])) % num_buckets)
    return buckets


def run_buckets(run: Sequence[bytes], longest: int, num_buckets: int) -> list[int]:
    signed = [fnv(word) - (fnv(word) >> 31) * 2**32 for word in run]
    buckets = []
    for first in range(len(run)):
        code = signed[first] % 2**64
        for last in range(first + 1, min(first + longest, len(run))):
            code = (code * 116049371 + signed[last]) % 2**64
            buckets.append(code % num_buckets)
    return buckets


def rows_of(
    text: bytes,
    entries: Sequence[bytes],
    num_words: int,
    bucket_rows: dict[int, int] | None,
    chars: tuple[int, int],
    longest_run: int,
    num_buckets: int,
) -> list[int]:
    """The rows of a text's features, in fastText's order; none for a text without words.

    Args:
        bucket_rows: the row of each bucket that has one; None: each has one, behind the words.
    """
    numbers = {entry: number for number, entry in enumerate(entries)}
    rows, run = [], []

    def add_buckets(buckets: list[int]) -> None:
        if bucket_rows is None:
            rows.extend(num_words + bucket for bucket in buckets)
        else:
            rows.extend(bucket_rows[bucket] for bucket in buckets if bucket in bucket_rows)

    if not words(text):
        return []
    for word in words(text):
        if numbers.get(word, -1) >= num_words or (word not in numbers and word.startswith(LABEL)):
            continue
        rows.extend([numbers[word]] if word in numbers else [])
        add_buckets(gram_buckets(word, *chars, num_buckets))
        run.append(word)
    rows.extend([numbers[END_OF_LINE]] if END_OF_LINE in numbers else [])
    add_buckets(run_buckets([*run, END_OF_LINE], longest_run, num_buckets))
    return rows


def mean(rows: np.ndarray) -> np.ndarray:
    """(dim,) float32 of (num_rows, dim), added from the first to the last."""
    total = np.zeros(rows.shape[1], np.float32)
    for row in rows:
        total = total + row
    return total * np.float32(1.0 / max(len(rows), 1))
