"""Words and lines of documents that stages have dropped or edited, beside those that are found again."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.kernels.text.words import find_words
from datapipe.stage.documents import MOST_COPIED_BYTES, DocumentBatch
from datapipe.stage.segmentation.dictionary_words import dictionary_words
from datapipe.stage.segmentation.english_words import english_words
from datapipe.stage.segmentation.lines import lines
from datapipe.stage.segmentation.raw_lines import raw_lines
from datapipe.stage.segmentation.spaced_words import spaced_words
from datapipe.stage.segmentation.unicode_words import unicode_words
from datapipe.stage.segmentation.words import words

_FOUND = (words, english_words, unicode_words, spaced_words, dictionary_words, lines, raw_lines)
_PARTS = [
    "a",
    "it's",
    "(so):",
    "U.S.",
    "3.5",
    "don't.",
    "ไทย",
    "日本語を話す。",
    "e\u0301",
    "\u200d",
    "\u0301",
    "--",
    "_",
    "\xa0",
    "\u2028",
    "\r",
    "🫶",
]
_BLANKS = [" ", "  ", "\t", "\n", "\n", "\n\n", ""]

_text = st.lists(st.tuples(st.sampled_from(_PARTS), st.sampled_from(_BLANKS)), max_size=40).map(
    lambda parts: "".join(part + blank for part, blank in parts)
)


def _batch(texts: list[str]) -> DocumentBatch:
    return DocumentBatch(pa.record_batch({"text": pa.array(texts, pa.large_string())}))


def _assert_as_found_again(batch: DocumentBatch) -> None:
    again = DocumentBatch(batch.record)
    for find in _FOUND:
        for ours, fresh in zip(find(batch), find(again), strict=True):
            np.testing.assert_array_equal(ours, fresh, find.__name__)


def _edited(text: str, choices: list[int]) -> str:
    """Some lines are dropped, changed or swapped with the next one, others stay."""
    left = text.split("\n")
    for number, choice in enumerate(choices):
        place = number % len(left)
        if choice == 0 and len(left) > 1:
            del left[place]
        elif choice == 1:
            left[place] += "[1]"
        elif choice == 2:
            left[place] = left[place].strip()
        elif choice == 3 and place + 1 < len(left):
            left[place : place + 2] = left[place + 1], left[place]
    return "\n".join(left)


@given(data=st.data(), texts=st.lists(_text, min_size=1, max_size=6))
def test_segmentations_follow_documents_that_are_dropped_and_edited(data, texts):
    batch = _batch(texts)
    for _ in range(data.draw(st.integers(1, 5))):
        step = data.draw(st.sampled_from(["find", "drop", "edit"]))
        if step == "find":
            for find in data.draw(st.sets(st.sampled_from(_FOUND))):
                find(batch)
        elif step == "drop":
            rows = batch.num_docs
            batch = batch.filter(np.array(data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows)), np.bool_))
        else:
            choices = st.lists(st.integers(0, 3), max_size=8)
            edited = [_edited(text, data.draw(choices)) for text in batch.texts.to_pylist()]
            batch = batch.with_columns({"text": pa.array(edited, pa.large_string())})
    _assert_as_found_again(batch)


_LINES = [f"line {number} of many" for number in range(1000)]


@pytest.mark.parametrize(
    ("edited", "expected"),
    [
        (_LINES, []),
        (_LINES[:300] + _LINES[340:], []),
        ([*_LINES[:500], "a new line", *_LINES[500:]], ["a new line"]),
        ([*_LINES[:500], *["changed"] * 20, *_LINES[520:]], ["\n".join(["changed"] * 20)]),
        ([*_LINES[:10], "changed", *_LINES[11:20], "changed"], ["changed", "changed"]),
    ],
    ids=["none", "lines that go", "a line that comes", "twenty lines in a row", "lines here and there"],
)
def test_words_of_the_lines_that_an_edit_changes_alone_are_computed_again(monkeypatch, edited, expected):
    from datapipe.stage.segmentation import words as module

    batch, computed = _batch(["\n".join(_LINES), "another text"]), list[str]()
    words(batch)

    def find(offsets: np.ndarray, data: np.ndarray):
        computed.extend(data[start:stop].tobytes().decode() for start, stop in pairwise(offsets))
        return find_words(offsets, data)

    monkeypatch.setattr(module, "find_words", find)
    batch = batch.with_columns({"text": pa.array(["\n".join(edited), "another text"], pa.large_string())})
    words(batch)
    assert computed == expected


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("word " * 300_000, "word\n" * 300_000),
        ("word\n" * 300_000, "word " * 300_000),
        ("word " * 100_000 + "\n" + "a line\n" * 100_000, "sword " * 100_000 + "\n" + "b line\n" * 100_000),
        ("\n".join(["x" * 40 + "a"] * 20_000), "\n".join(["x" * 40 + "b"] * 20_000)),
    ],
    ids=["one line is split", "lines are joined", "a long line and all others", "lines that differ at their ends"],
)
def test_the_work_of_following_is_linear(before, after):
    """The square of these sizes takes longer than a test may."""
    batch = _batch([before])
    english_words(batch)
    _assert_as_found_again(batch.with_columns({"text": pa.array([after], pa.large_string())}))


def test_segmentations_that_cannot_be_copied_are_not_kept():
    batch = _batch(["one\ntwo", "three"])
    for find in _FOUND:
        find(batch)
    edited = batch.with_columns({"text": batch.texts})
    assert {find.__name__ for find in edited._earlier} == {find.__name__ for find in _FOUND if "words" in find.__name__}
    assert not edited.filter(np.zeros(2, np.bool_))._earlier
    large = _batch(["word " * (MOST_COPIED_BYTES // 5 + 1)])
    words(large)
    assert not large.with_columns({"text": large.texts})._earlier


@pytest.mark.parametrize("find", _FOUND)
def test_a_segmentation_is_found_once_for_all_stages(find):
    batch = _batch(["one two\nthree", ""])
    assert find(batch) is find(batch)
    assert find(batch.with_columns({"more": pa.array([1, 2])})) is find(batch)
