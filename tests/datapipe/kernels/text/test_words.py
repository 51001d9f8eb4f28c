"""Words of batches compared with Python's own splitting; the kernel table compares lines and paragraphs with oracles."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe import columns
from datapipe.kernels.text.words import find_words

SPACES = "".join(chr(code) for code in range(0x3001) if chr(code).isspace())
TEXTS = st.lists(
    st.text(st.sampled_from(SPACES + "ab\x01é中😀\u0301.") | st.characters(codec="utf-8"), max_size=40), max_size=6
)


@pytest.fixture(autouse=True)
def _uncompiled_kernels_may_wrap():
    with np.errstate(over="ignore"):
        yield


@pytest.mark.medium
@settings(deadline=None)
@given(TEXTS)
def test_find_words_any_text_splits_as_python_does(texts: list[str]) -> None:
    offsets, data = columns.text_buffers(pa.array(texts, pa.large_string()))
    spans = find_words(offsets, data)
    found = [data[start : start + size].tobytes().decode() for start, size in zip(spans.starts, spans.lengths, strict=True)]
    expected = [text.split() for text in texts]
    assert [found[start:stop] for start, stop in zip(spans.doc_offsets[:-1], spans.doc_offsets[1:], strict=True)] == expected
    assert spans.chars.tolist() == [len(word) for words in expected for word in words]


def test_find_words_one_huge_word_takes_no_room_by_bytes() -> None:
    offsets, data = columns.text_buffers(pa.array(["x" * 200_000], pa.large_string()))
    find_words(offsets, data)  # compiled, and the class table built
    tracemalloc.start()
    try:
        assert find_words(offsets, data).chars.tolist() == [200_000]
        assert tracemalloc.get_traced_memory()[1] < 20_000
    finally:
        tracemalloc.stop()
