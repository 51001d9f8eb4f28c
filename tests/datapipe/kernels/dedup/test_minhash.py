"""The signature kernel against its oracle, and its estimates against true Jaccard similarities."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from datapipe import columns
from datapipe.kernels.dedup import minhash
from tests.oracles import minhash as oracle

TEXTS = [
    "The quick brown fox jumps over the lazy dog near a river.",
    "",
    "...!?",
    "one",
    "One, TWO; three",
    "eightlet eightlets sixteen_letters1 sixteenletters12 x",
    "größe naïve 東京タワー は 高い です ね",
    "no\0separator\rbut\u00a0these words of mine",
    " ".join(f"word{number * 7919 % 311}" for number in range(700)),
]


def _buffers(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    return columns.text_buffers(pa.array(texts, pa.large_string()))


@pytest.mark.parametrize("ngram", [1, 3, 5])
def test_signatures_any_text_equal_the_oracle(ngram: int) -> None:
    chosen = minhash.permutations(7, 6)
    with np.errstate(over="ignore"):
        num_words, word_hashes, signed = minhash.signatures(*_buffers(TEXTS), chosen, ngram)
    expected = [oracle.signature(text.encode(), chosen.a.tolist(), chosen.b.tolist(), ngram) for text in TEXTS]
    assert num_words.tolist() == [one[0] for one in expected]
    assert word_hashes.tolist() == [one[1] for one in expected]
    assert signed.tolist() == [one[2] for one in expected]


def test_band_rows_any_text_equal_the_oracle() -> None:
    chosen = minhash.permutations(7, 7)  # one permutation more than two bands of three rows use
    with np.errstate(over="ignore"):
        hashes, documents, _ = minhash.band_rows(*_buffers(TEXTS), chosen, 5, 2)
    found = [oracle.signature(text.encode(), chosen.a.tolist(), chosen.b.tolist(), 5) for text in TEXTS]
    expected = oracle.band_rows(found, 5, 2)
    assert list(zip(hashes.tolist(), documents.tolist(), strict=True)) == expected


def test_band_rows_slice_of_a_longer_column_equal_those_of_its_texts() -> None:
    chosen = minhash.permutations(1, 8)
    whole = pa.array(TEXTS, pa.large_string())
    with np.errstate(over="ignore"):
        hashes, documents, _ = minhash.band_rows(*columns.text_buffers(whole.slice(3, 4)), chosen, 3, 4)
        expected, whose, _ = minhash.band_rows(*_buffers(TEXTS[3:7]), chosen, 3, 4)
    assert hashes.tolist() == expected.tolist()
    assert documents.tolist() == whose.tolist()


def test_band_rows_no_documents_are_none() -> None:
    hashes, documents, _ = minhash.band_rows(*_buffers([]), minhash.permutations(1, 8), 3, 4)
    assert (len(hashes), len(documents)) == (0, 0)


def test_band_rows_short_texts_match_only_equal_words() -> None:
    texts = ["One two", "one, two!", "two one", "onetwo", "one two two", "one", "two", "", "!", "one two three four five"]
    with np.errstate(over="ignore"):
        hashes, documents, _ = minhash.band_rows(*_buffers(texts), minhash.permutations(1, 4), 5, 2)
    assert documents.tolist() == [0, 1, 2, 3, 4, 5, 6, 9, 9]
    assert hashes[0] == hashes[1]
    assert len(set(hashes.tolist())) == 8


def _pairs(similarity: float, num_pairs: int, seed: int) -> tuple[list[str], float]:
    """Pairs of texts of random words, side by side, and their true similarity as sets of words."""
    generator = np.random.default_rng(seed)
    num_shared = round(similarity * 120)
    num_own = (120 - num_shared) // 2
    texts = []
    for _ in range(num_pairs):
        drawn = [f"{number:x}" for number in generator.integers(0, 2**62, num_shared + 2 * num_own)]
        shared, own, others = drawn[:num_shared], drawn[num_shared : num_shared + num_own], drawn[num_shared + num_own :]
        texts += [" ".join(shared + own), " ".join(others + shared)]
    return texts, num_shared / (num_shared + 2 * num_own)


@pytest.mark.parametrize("similarity", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_signatures_of_random_sets_estimate_their_similarity_without_bias(similarity: float) -> None:
    num_pairs, num_perm = 400, 112
    texts, truth = _pairs(similarity, num_pairs, seed=int(similarity * 10))
    _, _, signed = minhash.signatures(*_buffers(texts), minhash.permutations(17, num_perm), 1)
    estimates = (signed[0::2] == signed[1::2]).mean(axis=1)
    spread = np.sqrt(truth * (1 - truth) / num_perm)
    assert abs(estimates.mean() - truth) < 3.5 * spread / np.sqrt(num_pairs)
    assert 0.85 < estimates.std() / spread < 1.15


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


@pytest.mark.parametrize(("similarity", "low", "high"), [(0.5, 0.02, 0.09), (0.8, 0.88, 0.96), (0.9, 0.985, 1.0)])
def test_band_rows_match_as_often_as_the_banding_says(similarity: float, low: float, high: float) -> None:
    num_pairs = 400
    texts, _ = _pairs(similarity, num_pairs, seed=3)
    hashes, documents, _ = minhash.band_rows(*_buffers(texts), minhash.permutations(3, 112), 1, 14)
    assert documents.tolist() == [document for document in range(2 * num_pairs) for _ in range(14)]
    meets = (hashes.reshape(num_pairs, 2, 14)[:, 0] == hashes.reshape(num_pairs, 2, 14)[:, 1]).any(axis=1)
    assert low <= meets.mean() <= high
