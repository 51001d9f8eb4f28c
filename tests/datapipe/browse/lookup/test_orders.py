"""The order of more rows than a bucket holds."""

from __future__ import annotations

import numpy as np
import pytest

from datapipe.browse.lookup import orders


@pytest.mark.parametrize("kind", ["random", "equal", "few", "skewed", "none"])
def test_rows_come_by_word_and_then_in_their_order_whatever_fits_into_a_bucket(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "CHUNK_ROWS", 700)
    rng = np.random.default_rng(3)
    words = {
        "random": rng.integers(0, 1 << 64, 5000, np.uint64),
        "equal": np.full(5000, 7, np.uint64),
        "few": rng.choice(np.array([0, 5, (1 << 64) - 1], np.uint64), 5000),
        "skewed": np.where(rng.random(5000) < 0.8, np.uint64(9), rng.integers(0, 1000, 5000, np.uint64)),
        "none": np.zeros(0, np.uint64),
    }[kind]
    ties = rng.integers(0, 5, len(words))
    parts = list(orders.sorted_rows(lambda start, stop: words[start:stop], len(words), bucket_rows=100))
    found = np.concatenate([np.zeros(0, np.int64), *parts])
    np.testing.assert_array_equal(found, np.argsort(words, kind="stable"))
    if kind in ("random", "few"):
        assert max(map(len, parts)) <= 2000, "a bucket of distinct words is small, and a large one comes in chunks"
    whole = np.concatenate(
        [np.zeros(0, np.int64), *orders.sorted_rows(lambda start, stop: words[start:stop], len(words), lambda rows: ties[rows])]
    )
    np.testing.assert_array_equal(whole, np.lexsort((ties, words)))
