"""Rows of `datapipe/kernels/tokens/bpe_training.py`: the words of each case, which occur a few times."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels.tokens import bpe_training as kernels
from datapipe.tokens.vocabulary import byte_alphabet
from tests.oracles import bpe_training as oracle
from tests.support.kernel_table import RUNS_AS_PYTHON, Case, Row

_ALPHABET = byte_alphabet()
_LETTERS = sorted(_ALPHABET)
_MOST_BYTES = 2_000 if RUNS_AS_PYTHON else 20_000


def _words(case: Case) -> list[bytes]:
    """Distinct words: those of the texts, and runs of two letters, in which pairs overlap."""
    runs = [bytes(case.generator.integers(97, 99, size, np.uint8)) for size in (3, 5, 9, 17, 40)]
    words = [word for text in case.texts for word in text[:_MOST_BYTES].split(b" ")] + runs
    return [word for word in dict.fromkeys(words) if word]


def _row(num_tokens: int, min_count: int) -> Row:
    def arguments(case: Case) -> list[Any]:
        words, letters = _words(case), np.array([_ALPHABET[letter] for letter in _LETTERS], np.uint8)
        ids = np.zeros(256, np.int32)
        ids[letters] = np.arange(1, 257)
        offsets = np.cumsum([0, *map(len, words)], dtype=np.int64)
        symbols, counts = ids[np.frombuffer(b"".join(words), np.uint8)], case.generator.integers(1, 6, len(words))
        return [offsets, symbols, counts, letters, num_tokens, min_count, np.zeros(6 * num_tokens, np.int32)]

    def expected(offsets: Any, symbols: Any, counts: Any, letters: Any, limit: int, least: int) -> tuple[int, list[Any]]:
        spelled = "".join(_LETTERS[symbol - 1] for symbol in symbols)
        words = [spelled[start:stop] for start, stop in zip(offsets[:-1], offsets[1:])]
        merges = oracle.joins(words, counts.tolist(), limit, least)
        return len(merges), [np.array(merges, np.int32).reshape(-1)]

    return Row(kernel=kernels.join_pairs, arguments=arguments, oracle=expected, variant=f"{num_tokens} tokens, {min_count}")


ROWS = [_row(num_tokens, min_count) for num_tokens, min_count in ((257, 2), (300, 2), (2000, 2), (1200, 1))]
