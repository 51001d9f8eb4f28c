"""A stage that breaks its contract is told so by its name; no document is blamed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import PrivateAttr

from datapipe.columns import make_keys
from datapipe.errors import DatapipeError
from datapipe.stage import Filter, FilterResult, Map, Rule
from datapipe.stage.documents import DocumentBatch
from datapipe.tasks.results import checked_filter, checked_map


class Returns(Map):
    """Returns what it is told to."""

    counts = ()
    _columns: Any = PrivateAttr()

    def process(self, batch):
        return self._columns


class Counts(Returns):
    """Declares a tally."""

    counts = ("found",)


class Judges(Filter):
    """Decides what it is told to."""

    _result: Any = PrivateAttr()

    def rules(self):
        return [Rule(name="first", limit=1.0), Rule(name="second", limit=2.0)]

    def process(self, batch):
        return self._result


def _batch() -> DocumentBatch:
    texts = pa.array(["a", "b"], pa.large_string())
    return DocumentBatch(
        pa.record_batch([make_keys(1, np.arange(2, dtype=np.uint64)), texts, texts], names=["key", "id", "text"])
    )


def _invalid_utf8() -> pa.Array:
    offsets = pa.py_buffer(np.array([0, 1, 2], np.int64))
    return pa.Array.from_buffers(pa.large_string(), 2, [None, offsets, pa.py_buffer(b"a\xff")])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (None, "expected a dict of Arrow arrays"),
        ({"x": [1, 2]}, "column 'x': expected an Arrow array, found list"),
        ({"x": pa.array([1])}, "column 'x': expected 2 entries, one per document, found 1"),
        ({"x": pa.nulls(2)}, "column 'x' has only nulls and no type"),
        ({"key": make_keys(1, np.arange(2, dtype=np.uint64))}, "the column 'key' belongs to the engine"),
        ({"id": pa.array(["a", None])}, "the column 'id' belongs to the engine"),
        ({"cut_points": pa.array([[1], []])}, "the column 'cut_points' belongs to the engine"),
        ({"text": pa.array([1, 2])}, "column 'text': expected strings, found int64"),
        ({"text": pa.array(["a", None])}, "column 'text' holds nulls"),
        ({"text": _invalid_utf8()}, "column 'text' is not valid UTF-8"),
    ],
)
def test_map_result_that_breaks_the_contract_is_told_by_the_stages_name(columns, message):
    stage = Returns()
    stage._columns = columns
    with pytest.raises(DatapipeError, match=f"stage mine breaks its contract: {message}"):
        checked_map("mine", stage, _batch())


def test_map_result_without_a_declared_tally_is_told():
    stage = Counts()
    stage._columns = {}
    with pytest.raises(DatapipeError, match="the count 'found' is declared, but the stage returned no such column"):
        checked_map("mine", stage, _batch())


def test_map_texts_of_any_string_type_become_large_strings():
    stage = Returns()
    stage._columns = {"text": pa.array(["x", "y"])}
    assert checked_map("mine", stage, _batch())["text"].equals(pa.array(["x", "y"], pa.large_string()))


GOOD = {"keep": np.array([True, False]), "rule": np.array([-1, 1], np.int16), "value": np.array([0.0, 3.0])}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keep": [True, False]}, "keep: expected a NumPy array of shape \\(2,\\), found list"),
        ({"keep": np.array([True])}, "keep: expected a NumPy array of shape \\(2,\\), found shape \\(1,\\)"),
        ({"keep": np.array([1, 0])}, "keep: expected bool, found int64"),
        ({"rule": np.array([-1, -1])}, "rule: expected 0 to 1 for every dropped document, found -1"),
        ({"rule": np.array([-1, 2])}, "rule: expected 0 to 1 for every dropped document, found 2"),
    ],
)
def test_filter_result_that_breaks_the_contract_is_told_by_the_stages_name(change, message):
    stage = Judges()
    stage._result = FilterResult(**{**GOOD, **change})
    with pytest.raises(DatapipeError, match=f"stage mine breaks its contract: {message}"):
        checked_filter("mine", stage, _batch())


def test_filter_result_of_another_kind_is_told():
    stage = Judges()
    stage._result = (True, False)
    with pytest.raises(DatapipeError, match="expected a FilterResult, found tuple"):
        checked_filter("mine", stage, _batch())


def test_filter_result_that_keeps_the_contract_is_passed_on():
    stage = Judges()
    stage._result = FilterResult(**GOOD)
    passed = checked_filter("mine", stage, _batch())
    assert all(getattr(passed, name) is getattr(stage._result, name) for name in ("keep", "rule", "value", "limit", "measured"))


def test_filter_result_with_an_edited_text_is_passed_on_as_large_strings():
    stage = Judges()
    stage._result = FilterResult(**GOOD, columns={"text": pa.array(["new", "text"])})
    assert checked_filter("mine", stage, _batch()).columns["text"].type == pa.large_string()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"limit": np.zeros(1)}, r"limit: expected shape \(2,\)"),
        ({"columns": {"text": pa.array(["one"])}}, "expected 2 entries"),
        ({"columns": {"key": pa.array(["a", "b"])}}, "belongs to the engine"),
    ],
)
def test_filter_result_with_wrong_limits_or_columns_is_refused(change, message):
    stage = Judges()
    stage._result = FilterResult(**{**GOOD, **change})
    with pytest.raises(DatapipeError, match=message):
        checked_filter("mine", stage, _batch())


def test_filter_result_without_every_measure_cannot_tag():
    stage = Judges(mode="tag")
    stage._result = FilterResult(**GOOD)
    with pytest.raises(DatapipeError, match="an array for each of 2 rules, found 0"):
        checked_filter("mine", stage, _batch())
