"""Pairs of texts of known similarity, and how many of them match: for the test of the S-curve and its benchmark."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from datapipe import columns

_FIRST, _NUM_CHARACTERS = 0x4E00, 20_000


def pairs(num_shared: int, num_all: int, num_pairs: int, seed: int, shingle: str = "word", ngram: int = 1) -> list[str]:
    """Texts side by side whose sets of n-grams of words, or characters, have `num_shared` of `num_all` in common.

    The similarity is num_shared / num_all exactly; the words that they do not share are halved, so both differences must be
    even. They share a run of words, which the first text has at its beginning and the second at its end.
    """
    generator, texts = np.random.default_rng(seed), []
    num_own, num_run = (num_all - num_shared) // 2, num_shared + ngram - 1
    assert num_shared + 2 * num_own == num_all
    num_words = num_run + 2 * num_own
    for _ in range(num_pairs):
        if shingle == "char":
            drawn = [chr(_FIRST + code) for code in generator.choice(_NUM_CHARACTERS, num_words, replace=False).tolist()]
        else:
            drawn = [f"{number:x}" for number in generator.integers(0, 2**62, num_words).tolist()]
        shared, own, others = drawn[:num_run], drawn[num_run : num_run + num_own], drawn[num_run + num_own :]
        texts += [" ".join(shared + own), " ".join(others + shared)]
    return texts


def share_matched(rows: pa.RecordBatch, num_pairs: int) -> float:
    """The share of pairs with a hash in common, from the rows emitted for their documents in order."""
    _, places = columns.key_halves(rows.column("key"))
    hashes = columns.numbers(rows.column("hash"))
    order = np.lexsort((places, hashes))
    hashes, places = hashes[order], places[order]
    is_match = (hashes[1:] == hashes[:-1]) & (places[1:] == places[:-1] + 1) & (places[1:] % 2 == 1)
    return len(np.unique(places[1:][is_match])) / num_pairs
