"""Hits of keywords, against a search for each keyword at each byte."""

import numpy as np
import pyarrow as pa
import pytest

from datapipe.columns import text_buffers
from datapipe.kernels.redact.keywords import find_hits, keyword_table


@pytest.mark.parametrize("words", [["k" * size for size in range(1, 91)], ["a", "ab", "b", "abc"]])
def test_hits_are_all_keywords_at_all_bytes_however_many_begin_at_one(words: list[str]) -> None:
    texts = ["k" * 2000, "", "abcab", "k", "b"]  # more hits than are found at once
    offsets, data = text_buffers(pa.array(texts, pa.large_string()))
    table = keyword_table({word: number for number, word in enumerate(words)})
    found = [hit for hits in find_hits(offsets, data, table) for hit in zip(hits.positions.tolist(), hits.numbers.tolist())]
    expected = {
        (int(start) + place, number)
        for start, text in zip(offsets, texts)
        for place in range(len(text))
        for number, word in enumerate(words)
        if text.startswith(word, place)
    }
    assert len(found) == len(expected)
    assert set(found) == expected
    assert np.all(np.diff([position for position, _ in found]) >= 0)
