"""Rows of short texts, and similarities of regular words. The kernel table compares signatures with their oracle."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.kernels.dedup import minhash


def _buffers(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    return columns.text_buffers(pa.array(texts, pa.large_string()))


def test_band_rows_short_texts_match_only_equal_words() -> None:
    texts = ["One two", "one, two!", "two one", "onetwo", "one two two", "one", "two", "", "!", "one two three four five"]
    with np.errstate(over="ignore"):
        hashes, documents, _ = minhash.band_rows(*_buffers(texts), minhash.permutations(1, 4), 5, 2)
    assert documents.tolist() == [0, 1, 2, 3, 4, 5, 6, 9, 9]
    assert hashes[0] == hashes[1]
    assert len(set(hashes.tolist())) == 8


def test_signatures_of_regular_words_estimate_their_similarity_without_bias() -> None:
    """Consecutive numbers are the sets on which linear permutations without mixing are biased."""
    texts = [text for start in range(300) for text in _counting(start * 1000)]
    _, _, signed = minhash.signatures(*_buffers(texts), minhash.permutations(5, 112), 1)
    estimates = (signed[0::2] == signed[1::2]).mean(axis=1)
    assert abs(estimates.mean() - 1 / 3) < 3.5 * np.sqrt(2 / 9 / 112 / 300)


def _counting(start: int) -> tuple[str, str]:
    """Two runs of 100 numbers that share 50: similarity 1/3."""
    first, second = range(start, start + 100), range(start + 50, start + 150)
    return " ".join(map(str, first)), " ".join(map(str, second))
