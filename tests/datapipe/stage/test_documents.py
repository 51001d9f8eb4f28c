"""What a batch finds once, and whose time that is."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from datapipe import columns
from datapipe.columns import make_keys
from datapipe.errors import DatapipeError, StageError
from datapipe.stage.documents import DocumentBatch, only_covered, segmentation
from tests.support.global_stages import batch_of


def _batch() -> DocumentBatch:
    return batch_of(["a b", "c\nd"])


def test_segmentation_is_found_once_and_its_time_noted_under_its_name():
    batch = _batch()
    assert batch.segmentation_s == {}
    words = batch.words
    assert set(batch.segmentation_s) == {"words"}
    batch.segmentation_s.clear()
    assert batch.words is words
    assert batch.segmentation_s == {}


def test_segmentation_lives_on_with_new_columns_but_its_time_is_noted_once():
    batch = _batch()
    lines = batch.lines
    later = batch.with_columns({"score": pa.array([1.0, 2.0])})
    assert later.lines is lines
    assert later.segmentation_s == {}
    assert batch.with_columns({"text": batch.texts}).lines is not lines


def test_segmentation_that_needs_another_is_charged_for_its_own_part(monkeypatch):
    class Deep(DocumentBatch):
        @segmentation
        def inner(self):
            return 1

        @segmentation
        def outer(self):
            return self.inner + 1

    clock = iter([0.0, 10.0, 13.0, 15.0])  # outer begins, inner begins, inner ends, outer ends
    monkeypatch.setattr("datapipe.stage.documents.perf_counter", lambda: next(clock))
    batch = Deep(_batch().record)
    assert batch.outer == 2
    assert batch.segmentation_s == {"inner": 3.0, "outer": 12.0}


def _columns(found) -> list[list[int]]:
    return [getattr(found, name).tolist() for name in found._fields]


@pytest.mark.parametrize("name", ["words", "lines", "english_words", "unicode_words", "raw_lines"])
def test_segmentation_of_a_filtered_batch_is_as_found_anew(name: str):
    texts = pa.array(["a b.", "c\n\nd e", "", "don't stop\n", "x"], pa.large_string()).slice(1)
    keys = make_keys(1, np.arange(4, dtype=np.uint64))
    batch = DocumentBatch(pa.record_batch([keys, texts, texts], names=["key", "id", "text"]))  # of a slice
    _ = batch.words, batch.lines, batch.english_words, batch.unicode_words
    once = batch.filter(np.array([True, True, False, True]))
    twice = once.filter(np.array([True, False, True]))  # before and after `once` was asked
    for kept in (once, twice, once.filter(np.array([False, False, True])), once.filter(np.zeros(3, bool))):
        assert _columns(getattr(kept, name)) == _columns(getattr(DocumentBatch(kept.record), name))
    later = twice.with_columns({"text": pa.array(["other words", "here"], pa.large_string())})
    assert _columns(getattr(later, name)) == _columns(getattr(DocumentBatch(later.record), name))


def test_buffers_of_a_writable_column_are_read_only() -> None:
    data = np.frombuffer(bytearray(b"ab"), np.uint8)
    texts = columns.texts_from(np.array([0, 1, 2]), data)
    assert [array.flags.writeable for array in columns.text_buffers(texts)] == [False, False]
    assert data.flags.writeable


# ------------------------------------------------------------------------------------------------ what a fingerprint covers


@pytest.mark.parametrize("name", ["record", "buffers", "words", "anything"])
def test_batch_refuses_assignments_as_the_fault_of_the_stage(name: str) -> None:
    batch = _batch()
    with pytest.raises(StageError, match=f"assigns to `{name}`"):
        setattr(batch, name, batch)
    assert batch.texts.to_pylist() == ["a b", "c\nd"]


def test_segmentation_that_is_not_covered_is_refused_also_where_it_is_found_already():
    batch = _batch()
    words = batch.words
    with only_covered("own.stage", frozenset({"lines"})):
        assert len(batch.lines.starts) == 3
        for use in (lambda: batch.words, lambda: batch.words_by("whitespace"), lambda: batch.slice(0, 1).words):
            with pytest.raises(DatapipeError, match=r'own\.stage uses `words` .*\n.*segmentations.*\n.*"words"'):
                use()
    assert batch.words is words
