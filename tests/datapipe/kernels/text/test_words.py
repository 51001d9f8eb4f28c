"""Words and lines of batches, against Python's own splitting."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe import columns
from datapipe.kernels.text.unicode_classes import LETTER, NUMBER, PUNCTUATION
from datapipe.kernels.text.words import Lines, Words, find_lines, find_words

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


def _pieces(texts: list[str], found: Words | Lines) -> list[list[str]]:
    data = "".join(texts).encode()
    pieces = [data[start : start + length].decode() for start, length in zip(found.starts, found.lengths, strict=True)]
    return [pieces[start:stop] for start, stop in zip(found.doc_offsets[:-1], found.doc_offsets[1:], strict=True)]


@settings(deadline=None)
@given(TEXTS)
def test_find_words_any_text_splits_as_python_does(texts: list[str]) -> None:
    found = _words(texts)
    assert _pieces(texts, found) == [text.split() for text in texts]
    assert found.chars.tolist() == [len(word) for text in texts for word in text.split()]


@settings(deadline=None)
@given(TEXTS)
def test_find_lines_any_text_splits_as_python_does(texts: list[str]) -> None:
    found = _lines(texts)
    assert _pieces(texts, found) == [[line.strip() for line in text.split("\n") if line.strip()] for text in texts]


def test_find_words_equal_words_have_equal_hashes() -> None:
    found = _words(["to be or not to be", "be to", "ab a b"])
    assert len(set(found.hashes.tolist())) == len({"to", "be", "or", "not", "ab", "a", "b"})
    assert found.hashes[0] == found.hashes[4] == found.hashes[7]


def test_find_words_flags_are_the_union_of_classes() -> None:
    found = _words(["it's 3.5 ... x"])
    assert found.flags.tolist() == [LETTER | PUNCTUATION, NUMBER | PUNCTUATION, PUNCTUATION, LETTER]


def test_find_words_slice_of_a_batch_sees_its_own_texts() -> None:
    texts = pa.array(["one two", "three four", "five"], pa.large_string())
    found = find_words(*columns.text_buffers(texts.slice(1, 1)))
    assert found.doc_offsets.tolist() == [0, 2]
    assert found.starts.tolist() == [7, 13]


def test_find_words_memory_is_25_bytes_a_word() -> None:
    found = _words(["word " * 1000])
    per_word = (found.starts, found.lengths, found.hashes, found.chars, found.flags)
    assert sum(array.nbytes for array in per_word) == 25 * 1000


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
    found = _lines(["a\nb\n\nc\n \t\nd\n", "\n\ne"])
    assert found.opens.tolist() == [1, 0, 1, 1, 1]


def test_find_lines_white_space_around_a_line_does_not_change_its_hash() -> None:
    found = _lines(["  same line\r\nsame line\n\tsame  line"])
    assert found.hashes[0] == found.hashes[1] != found.hashes[2]
