"""Words and lines of batches compared with Python's own splitting."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe import columns
from datapipe.kernels.text.unicode_classes import LETTER, NUMBER, PUNCTUATION
from datapipe.kernels.text.words import Lines, Words, find_lines, find_paragraphs, find_words

SPACES = "".join(chr(code) for code in range(0x3001) if chr(code).isspace())
TEXTS = st.lists(
    st.text(st.sampled_from(SPACES + "ab\x01é中😀\u0301.") | st.characters(codec="utf-8"), max_size=40), max_size=6
)


@pytest.fixture(autouse=True)
def _uncompiled_kernels_may_wrap():
    with np.errstate(over="ignore"):
        yield


def _words(texts: list[str]) -> Words:
    return find_words(*columns.text_buffers(pa.array(texts, pa.large_string())))


def _lines(texts: list[str]) -> Lines:
    return find_lines(*columns.text_buffers(pa.array(texts, pa.large_string())))


def _texts_of(texts: list[str], spans: Words | Lines) -> list[list[str]]:
    data = "".join(texts).encode()
    flat = [data[start : start + length].decode() for start, length in zip(spans.starts, spans.lengths, strict=True)]
    return [flat[start:stop] for start, stop in zip(spans.doc_offsets[:-1], spans.doc_offsets[1:], strict=True)]


@pytest.mark.medium
@settings(deadline=None)
@given(TEXTS)
def test_find_words_any_text_splits_as_python_does(texts: list[str]) -> None:
    spans = _words(texts)
    assert _texts_of(texts, spans) == [text.split() for text in texts]
    assert spans.chars.tolist() == [len(word) for text in texts for word in text.split()]


@settings(deadline=None)
@given(st.lists(st.text(st.sampled_from("\n\n\n\r \u3000aé"), max_size=20), max_size=6))
def test_find_paragraphs_any_text_splits_as_python_does(texts: list[str]) -> None:
    spans = find_paragraphs(*columns.text_buffers(pa.array(texts, pa.large_string())))
    paragraphs = [[part.strip() for part in text.split("\n\n") if part.strip()] for text in texts]
    assert _texts_of(texts, spans) == paragraphs
    assert spans.chars.tolist() == [len(part) for parts in paragraphs for part in parts]


def test_find_words_equal_words_have_equal_hashes() -> None:
    spans = _words(["to be or not to be", "be to", "ab a b"])
    assert len(set(spans.hashes.tolist())) == len({"to", "be", "or", "not", "ab", "a", "b"})
    assert spans.hashes[0] == spans.hashes[4] == spans.hashes[7]


def test_find_words_flags_are_the_union_of_classes() -> None:
    spans = _words(["it's 3.5 ... x"])
    assert spans.flags.tolist() == [LETTER | PUNCTUATION, NUMBER | PUNCTUATION, PUNCTUATION, LETTER]


def test_find_words_one_huge_word_takes_no_room_by_bytes() -> None:
    offsets, data = columns.text_buffers(pa.array(["x" * 200_000], pa.large_string()))
    find_words(offsets, data)  # compiled, and the class table built
    tracemalloc.start()
    try:
        assert find_words(offsets, data).chars.tolist() == [200_000]
        assert tracemalloc.get_traced_memory()[1] < 20_000
    finally:
        tracemalloc.stop()


def test_find_lines_paragraphs_open_after_blank_lines() -> None:
    spans = _lines(["a\nb\n\nc\n \t\nd\n", "\n\ne"])
    assert spans.opens.tolist() == [1, 0, 1, 1, 1]


def test_find_lines_white_space_around_a_line_does_not_change_its_hash() -> None:
    spans = _lines(["  same line\r\nsame line\n\tsame  line"])
    assert spans.hashes[0] == spans.hashes[1] != spans.hashes[2]
