"""Pairs of texts of known similarity."""

import numpy as np


def pairs(num_shared: int, num_all: int, num_pairs: int, seed: int, ngram: int) -> list[str]:
    """Texts side by side whose sets of n-grams of words have `num_shared` of `num_all` in common.

    The similarity is num_shared / num_all exactly; the words that they do not share are halved, so both differences must be
    even. They share a run of words, which the first text has at its beginning and the second at its end.
    """
    generator, texts = np.random.default_rng(seed), []
    num_own, num_run = (num_all - num_shared) // 2, num_shared + ngram - 1
    assert num_shared + 2 * num_own == num_all
    num_words = num_run + 2 * num_own
    for _ in range(num_pairs):
        drawn = [f"{number:x}" for number in generator.integers(0, 2**62, num_words).tolist()]
        shared, own, others = drawn[:num_run], drawn[num_run : num_run + num_own], drawn[num_run + num_own :]
        texts += [" ".join(shared + own), " ".join(others + shared)]
    return texts
