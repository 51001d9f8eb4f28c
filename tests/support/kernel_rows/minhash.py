"""Rows of `datapipe/kernels/dedup/minhash.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels.dedup import minhash as kernels
from datapipe.kernels.dedup.case_folding import fold_texts, word_folding
from tests.oracles import minhash as oracle
from tests.support.kernel_table import Case, Row

_NGRAM, _NUM_PERM, _NUM_BANDS = 3, 7, 2
"""One permutation more than the bands use."""


def _sign_arguments(case: Case, by_character: bool = False) -> list[Any]:
    chosen, num_docs = kernels.permutations(case.seed, _NUM_PERM), len(case.texts)
    offsets, words = fold_texts(case.offsets, case.data, word_folding())
    signed = np.empty((num_docs, _NUM_PERM), np.uint32)
    out = kernels.SignaturesOut(np.empty(num_docs, np.int64), np.empty(num_docs, np.uint64), signed)
    return [offsets, words, chosen, _NGRAM, by_character, out]


def _sign_expected(case: Case, by_character: bool = False) -> tuple[None, list[Any]]:
    chosen = kernels.permutations(case.seed, _NUM_PERM)
    signatures = [oracle.signature(text, chosen.a.tolist(), chosen.b.tolist(), _NGRAM, by_character) for text in case.texts]
    return None, [[signed_text[part] for signed_text in signatures] for part in range(3)]


def _band_arguments(case: Case) -> list[Any]:
    chosen = kernels.permutations(case.seed, _NUM_PERM)
    signatures = [oracle.signature(text, chosen.a.tolist(), chosen.b.tolist(), _NGRAM) for text in case.texts]
    num_words = np.array([signed_text[0] for signed_text in signatures], np.int64)
    num_rows = int(np.where(num_words >= _NGRAM, _NUM_BANDS, num_words > 0).sum())
    signed = np.array([signed_text[2] for signed_text in signatures], np.uint32).reshape(-1, _NUM_PERM)
    word_hashes = np.array([signed_text[1] for signed_text in signatures], np.uint64)
    return [signed, num_words, word_hashes, _NGRAM, _NUM_BANDS, np.empty(num_rows, np.uint64), np.empty(num_rows, np.int64)]


def _band_expected(
    signed: np.ndarray, num_words: np.ndarray, word_hashes: np.ndarray, ngram: int, num_bands: int
) -> tuple[None, list[Any]]:
    signatures = list(zip(num_words.tolist(), word_hashes.tolist(), signed.tolist()))
    rows = oracle.band_rows(signatures, ngram, num_bands)
    return None, [[row[0] for row in rows], [row[1] for row in rows]]


ROWS = [
    Row(kernel=kernels.sign, arguments=_sign_arguments, oracle=_sign_expected, from_case=True),
    Row(
        kernel=kernels.sign,
        arguments=lambda case: _sign_arguments(case, by_character=True),
        oracle=lambda case: _sign_expected(case, by_character=True),
        variant="characters",
        from_case=True,
    ),
    Row(kernel=kernels.band, arguments=_band_arguments, oracle=_band_expected, num_outputs=2),
]
