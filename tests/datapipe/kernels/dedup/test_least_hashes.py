"""Signatures of documents whose shingles fill blocks and vectors exactly, less one and more."""

import numpy as np
import pytest

from datapipe.kernels.dedup import minhash
from tests.oracles import dedup as dedup_oracle

NGRAM, BLOCK = 3, 256


@pytest.mark.parametrize("num_perm", [1, 2, 7, 112])
def test_signatures_any_number_of_shingles_equals_the_oracle(num_perm: int) -> None:
    numbers = [0, 1, 7, 8, 9, 16, 23, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5]
    drawn = np.random.default_rng(num_perm)
    texts = [" ".join(map(str, drawn.integers(0, 10**9, NGRAM - 1 + number))).encode() for number in numbers]
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    chosen = minhash.permutations(num_perm, num_perm)
    out = minhash.signatures(offsets, np.frombuffer(b"".join(texts), np.uint8), chosen, NGRAM)
    for row, text in enumerate(texts):
        num_words, word_hash, signed = dedup_oracle.signature(text, chosen.a.tolist(), chosen.b.tolist(), NGRAM, False)
        assert (out.num_words[row], out.word_hashes[row], out.signed[row].tolist()) == (num_words, word_hash, signed)
