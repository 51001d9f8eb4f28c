"""Results that break the contract of stages are refused with what was found; all others are passed on."""

from __future__ import annotations

import re
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
    """Returns what a test has given it."""

    counts = ()
    _columns: Any = PrivateAttr()

    def process(self, batch):
        return self._columns


def _kind(**declared: Any) -> type[Returns]:
    return type("Declares", (Returns,), declared)


Counts, Declares = _kind(counts=("found",)), _kind(writes=("score",))


class Judges(Filter):
    """Decides what a test has given it."""

    _result: Any = PrivateAttr()

    def rules(self):
        return [Rule(name="first", limit=1.0), Rule(name="second", limit=2.0)]

    def process(self, batch):
        return self._result


def _batch() -> DocumentBatch:
    texts, keys = pa.array(["a", "b"], pa.large_string()), make_keys(1, np.arange(2, dtype=np.uint64))
    return DocumentBatch(pa.record_batch([keys, texts, texts], names=["key", "id", "text"]))


def _mapped(columns: Any, kind: type[Returns] = Returns) -> dict[str, pa.Array]:
    stage = kind()
    stage._columns = columns
    return checked_map(stage, _batch())


def _invalid_utf8() -> pa.Array:
    offsets = pa.py_buffer(np.array([0, 1, 2], np.int64))
    return pa.Array.from_buffers(pa.large_string(), 2, [None, offsets, pa.py_buffer(b"a\xff")])


BAD_COLUMNS = [
    ({1: pa.array(["a", "b"])}, "by column name"),
    ({"x": [1, 2]}, "column 'x': expected an Arrow array, found list"),
    ({"x": pa.array([1])}, "column 'x': expected 2 entries, one per document, found 1"),
    ({"x": pa.nulls(2)}, "column 'x'"),
    ({"key": make_keys(1, np.arange(2, dtype=np.uint64))}, "'key' belongs to the engine"),
    ({"id": pa.array(["a", None])}, "'id' belongs to the engine"),
    ({"cut_points": pa.array([[1], []])}, "'cut_points' belongs to the engine"),
    ({"text": pa.array([1, 2])}, "column 'text': expected strings, found int64"),
    ({"text": pa.array(["a", None])}, "column 'text' holds nulls"),
    ({"text": _invalid_utf8()}, "column 'text' is not valid UTF-8"),
]


@pytest.mark.parametrize(
    ("kind", "columns", "told"),
    [
        *((Returns, columns, told) for columns, told in BAD_COLUMNS),
        (Returns, None, "NoneType"),
        (Counts, {}, "'found'"),
        (Counts, {"found": pa.array(["1", "2"])}, "'found': expected whole numbers, found string"),
        (Declares, {"scores": pa.array([1, 2])}, "'scores'"),
    ],
)
def test_columns_of_a_map_that_break_the_contract_are_refused(kind, columns, told):
    with pytest.raises(StageError, match=told):
        _mapped(columns, kind)


def test_columns_of_a_map_are_passed_on_with_texts_as_large_strings():
    columns = {"score": pa.array([1, 2]), "text": pa.array(["x", "y"])}
    assert _mapped(columns, Declares) == {**columns, "text": pa.array(["x", "y"], pa.large_string())}
    assert _mapped({"found": pa.array([1, 2])}, Counts)["found"].to_pylist() == [1, 2]


def test_new_columns_have_the_names_of_the_first_batch_and_its_types():
    new, of_none, batch = NewColumns(), NewColumns(), _batch()
    first = {"score": pa.array([1, 2]), "text": pa.array(["x", "y"])}
    assert new.same(first, batch) == first
    assert new.same({"score": pa.array([3.0, 4.0])}, batch)["score"].equals(pa.array([3, 4]))
    of_none.same({}, batch)
    strings = {"score": pa.array(["a", "b"])}
    for columns, later in (
        (new, strings),
        (new, {"text": first["text"]}),
        (new, first | {"more": first["score"]}),
        (of_none, first),
    ):
        with pytest.raises(StageError, match="earlier batches"):
            columns.same(later, batch)


ROWS = pa.schema([pa.field("hash", pa.uint64())])
GOOD_ROWS = pa.record_batch([pa.array([1], pa.uint64())], schema=ROWS)


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        (None, "NoneType"),
        ({"other": GOOD_ROWS}, "'other'"),
        ({"rows": pa.table({"hash": pa.array([1], pa.uint64())})}, "'rows': expected a record batch, found Table"),
        ({"rows": pa.record_batch({"hash": [1]})}, "'hash: uint64', found 'hash: int64'"),
    ],
)
def test_tables_that_are_not_as_declared_are_refused(tables, told):
    assert checked_tables({"rows": GOOD_ROWS}, {"rows": ROWS}) == {"rows": GOOD_ROWS}
    with pytest.raises(StageError, match=told):
        checked_tables(tables, {"rows": ROWS})


GOOD = {"keep": np.array([True, False]), "rule": np.array([-1, 1], np.int16), "value": np.array([0.0, 3.0])}


def _judged(result: Any = None, mode: Any = "drop", **change: Any) -> FilterResult:
    stage = Judges(mode=mode)
    stage._result = result or FilterResult(**{**GOOD, **change})
    return checked_filter(stage, _batch())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"result": (True, False)}, "found tuple"),
        ({"keep": [True, False]}, "keep: expected a NumPy array of shape (2,), found list"),
        ({"keep": np.array([True])}, "keep: expected a NumPy array of shape (2,), found shape (1,)"),
        ({"keep": np.array([1, 0])}, "keep: expected bool, found int64"),
        ({"rule": np.array([-1, -1])}, "rule: expected 0 to 1 for every dropped document, found -1"),
        ({"rule": np.array([-1, 2])}, "rule: expected 0 to 1 for every dropped document, found 2"),
        ({"rule": np.array([-1.0, 1.0])}, "rule: expected whole numbers, found float64"),
        ({"limit": np.zeros(1)}, "limit: expected a NumPy array of shape (2,), found shape (1,)"),
        ({"limit": [1.0, 2.0]}, "limit: expected a NumPy array of shape (2,), found list"),
        ({"value": np.array(["a", "b"])}, "value: expected numbers, found <U1"),
        ({"measured": (np.zeros(2), np.zeros(3))}, "measured[1]"),
        ({"measured": (np.zeros(2),)}, "2 rules, found 1"),
        ({"mode": "tag"}, "2 rules, found 0"),
        ({"columns": [1]}, "found list"),
        *(({"columns": columns}, told) for columns, told in BAD_COLUMNS),
    ],
)
def test_filter_result_that_breaks_the_contract_is_refused(change, told):
    with pytest.raises(StageError, match=re.escape(told)):
        _judged(**change)


def test_filter_result_that_keeps_the_contract_is_passed_on_with_texts_as_large_strings():
    result = FilterResult(**GOOD, columns={"text": pa.array(["new", "text"])})
    passed = _judged(result)
    assert all(getattr(passed, name) is getattr(result, name) for name in ("keep", "rule", "value", "limit", "measured"))
    assert passed.columns["text"].type == pa.large_string()
