"""Results that break the contract of stages are refused; what is refused says what was expected and found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import PrivateAttr

from datapipe.columns import make_keys
from datapipe.errors import StageError
from datapipe.stage import Filter, FilterResult, Map, Rule
from datapipe.stage.documents import DocumentBatch
from datapipe.tasks.contract.results import NewColumns, checked_filter, checked_map, checked_tables


class Returns(Map):
    """Returns what it is told to."""

    counts = ()
    _columns: Any = PrivateAttr()

    def process(self, batch):
        return self._columns


class Counts(Returns):
    """Declares a tally."""

    counts = ("found",)


class Declares(Returns):
    """Declares the column that it writes."""

    writes = ("score",)


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
def test_map_result_that_breaks_the_contract_is_refused(columns, message):
    stage = Returns()
    stage._columns = columns
    with pytest.raises(StageError, match=message):
        checked_map(stage, _batch())


def test_map_result_without_a_declared_tally_is_told():
    stage = Counts()
    stage._columns = {}
    with pytest.raises(StageError, match="the count 'found' is declared, but the stage returned no such column"):
        checked_map(stage, _batch())


def test_map_count_that_is_no_number_is_refused():
    stage = Counts()
    stage._columns = {"found": pa.array(["1", "2"])}
    with pytest.raises(StageError, match="the count 'found': expected whole numbers, found string"):
        checked_map(stage, _batch())


def test_map_that_declares_its_columns_may_return_no_other():
    stage = Declares()
    stage._columns = {"score": pa.array([1, 2]), "text": pa.array(["x", "y"])}
    assert set(checked_map(stage, _batch())) == {"score", "text"}
    stage._columns = {"scores": pa.array([1, 2])}
    with pytest.raises(StageError, match="column 'scores' is not one that it declares in `writes`: score"):
        checked_map(stage, _batch())


def test_new_columns_have_the_names_of_the_first_batch_and_its_types():
    new, batch = NewColumns(), _batch()
    first = {"score": pa.array([1, 2]), "text": pa.array(["x", "y"])}
    assert new.same(first, batch) == first
    assert new.same({"score": pa.array([3.0, 4.0])}, batch)["score"].equals(pa.array([3, 4]))
    with pytest.raises(StageError, match="column 'score': expected int64, as in earlier batches, found string"):
        new.same({"score": pa.array(["a", "b"])}, batch)
    with pytest.raises(StageError, match="expected the new columns of earlier batches: score, found none"):
        new.same({"text": pa.array(["x", "y"])}, batch)


def test_new_columns_of_a_stage_that_added_none_stay_none():
    new = NewColumns()
    new.same({}, _batch())
    with pytest.raises(StageError, match="expected the new columns of earlier batches: none, found score"):
        new.same({"score": pa.array([1, 2])}, _batch())


ROWS = pa.schema([pa.field("hash", pa.uint64())])


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (None, "expected a dict of record batches by table, found NoneType"),
        ({"other": pa.record_batch([pa.array([1], pa.uint64())], schema=ROWS)}, "table 'other' is not declared. .*: rows"),
        ({"rows": pa.table({"hash": pa.array([1], pa.uint64())})}, "table 'rows': expected a record batch, found Table"),
        ({"rows": pa.record_batch({"hash": [1]})}, "table 'rows': expected the columns 'hash: uint64', found 'hash: int64'"),
    ],
)
def test_tables_that_are_not_as_declared_are_refused(tables, message):
    with pytest.raises(StageError, match=message):
        checked_tables(tables, {"rows": ROWS})


def test_map_texts_of_any_string_type_become_large_strings():
    stage = Returns()
    stage._columns = {"text": pa.array(["x", "y"])}
    assert checked_map(stage, _batch())["text"].equals(pa.array(["x", "y"], pa.large_string()))


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
def test_filter_result_that_breaks_the_contract_is_refused(change, message):
    stage = Judges()
    stage._result = FilterResult(**{**GOOD, **change})
    with pytest.raises(StageError, match=message):
        checked_filter(stage, _batch())


def test_filter_result_of_another_kind_is_told():
    stage = Judges()
    stage._result = (True, False)
    with pytest.raises(StageError, match="expected a FilterResult, found tuple"):
        checked_filter(stage, _batch())


def test_filter_result_that_keeps_the_contract_is_passed_on():
    stage = Judges()
    stage._result = FilterResult(**GOOD)
    passed = checked_filter(stage, _batch())
    assert all(getattr(passed, name) is getattr(stage._result, name) for name in ("keep", "rule", "value", "limit", "measured"))


def test_filter_result_with_an_edited_text_is_passed_on_as_large_strings():
    stage = Judges()
    stage._result = FilterResult(**GOOD, columns={"text": pa.array(["new", "text"])})
    assert checked_filter(stage, _batch()).columns["text"].type == pa.large_string()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"limit": np.zeros(1)}, r"limit: expected a NumPy array of shape \(2,\), found shape \(1,\)"),
        ({"limit": [1.0, 2.0]}, r"limit: expected a NumPy array of shape \(2,\), found list"),
        ({"rule": np.array([-1.0, 1.0])}, "rule: expected whole numbers, found float64"),
        ({"value": np.array(["a", "b"])}, "value: expected numbers, found <U1"),
        ({"measured": (np.zeros(2), np.zeros(3))}, r"measured\[1\]: expected a NumPy array of shape \(2,\)"),
        ({"measured": (np.zeros(2),)}, "an array for each of 2 rules, found 1"),
        ({"columns": [1]}, "expected a dict of Arrow arrays by column name, found list"),
        ({"columns": {1: pa.array(["a", "b"])}}, "expected a dict of Arrow arrays by column name"),
        ({"columns": {"text": pa.array(["one"])}}, "expected 2 entries"),
        ({"columns": {"key": pa.array(["a", "b"])}}, "belongs to the engine"),
    ],
)
def test_filter_result_with_wrong_limits_or_columns_is_refused(change, message):
    stage = Judges()
    stage._result = FilterResult(**{**GOOD, **change})
    with pytest.raises(StageError, match=message):
        checked_filter(stage, _batch())


def test_filter_result_without_every_measure_cannot_tag():
    stage = Judges(mode="tag")
    stage._result = FilterResult(**GOOD)
    with pytest.raises(StageError, match="an array for each of 2 rules, found 0"):
        checked_filter(stage, _batch())
