"""A document that makes a stage raise costs itself and nothing else; results that break the contract are refused."""

import errno
import os
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import PrivateAttr

from datapipe.columns import make_keys
from datapipe.errors import DatapipeError, StageError, StageMemoryError
from datapipe.machine import activity
from datapipe.stage import Filter, FilterResult, Map, Rule
from datapipe.stage.documents import DocumentBatch
from datapipe.steps.guard import NO_HINTS, Guard, RetryHints
from datapipe.steps.results import NewColumns, checked_filter, checked_map, checked_tables
from datapipe.storage.root import open_input

TEXTS = st.lists(st.sampled_from(["bad", "a", "bcd", ""]), max_size=40)


class Lengths(Map):
    """Is a stage to blame; the tests pass their own functions."""

    def process(self, batch):
        return {}


def _batch(texts: list[str]) -> DocumentBatch:
    keys = make_keys(1, np.arange(len(texts), dtype=np.uint64))
    columns = [keys, pa.array(texts, pa.large_string()), pa.array(texts, pa.large_string())]
    return DocumentBatch(pa.record_batch(columns, names=["key", "id", "text"]))


def _guard(hints: RetryHints = NO_HINTS) -> Guard:
    method = Lengths().process
    return Guard(
        name="mine", stage=Lengths(), method=method, place_of=lambda batch: f"a.jsonl at {batch.texts[0]}", hints=hints
    )


def _rows(texts: list[str], bad: str = "bad") -> list[int]:
    return [row for row, text in enumerate(texts) if text == bad]


class PanicException(BaseException):
    """As libraries in Rust raise it: not an Exception."""


@given(TEXTS, st.none() | st.integers(1, 50), st.sampled_from([ValueError, OSError, PanicException]))
def test_guarded_result_is_that_of_the_good_documents_alone(texts, most_docs, kind):
    """Whatever a document makes the stage raise; and no call gets more documents than memory sufficed for."""
    calls: list[int] = []

    def lengths(batch: DocumentBatch) -> list[int]:
        calls.append(batch.num_docs)
        if "bad" in batch.texts.to_pylist():
            raise kind("a bad document")
        return [len(text) for text in batch.texts.to_pylist()]

    parts, failed = _guard(RetryHints(most_docs=most_docs)).run(lengths, _batch(texts))
    assert list(failed) == _rows(texts)
    assert all("a bad document" in error for error in failed.values())
    assert [length for _, part in parts for length in part] == [len(text) for text in texts if text != "bad"]
    assert max(calls, default=0) <= (most_docs or len(texts))


def test_error_of_a_document_is_kept_without_credentials():
    def process(part: DocumentBatch):
        raise ValueError("no answer of https://user:Zq81Secret@host/a?sig=Zq81Secret " + "x" * 3960)

    _, failed = _guard().run(process, _batch(["text"]))
    assert "Zq81Secret" not in failed[0]


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "full"), OSError(errno.EMFILE, "files"), TimeoutError(), DatapipeError("x"), KeyboardInterrupt(), 0],
    ids=repr,
)
def test_guarded_what_is_not_a_documents_fault_is_raised_with_the_stage_and_the_document(error, tmp_path):
    def fail(batch: DocumentBatch) -> None:
        if error == 0:
            open_input(str(tmp_path / "absent"))  # datapipe's own code
        raise error

    with pytest.raises(FileNotFoundError if error == 0 else type(error)) as caught:
        _guard().run(fail, _batch(["a", "b"]))
    assert caught.value.__notes__ == ["in stage mine, from the document a.jsonl at a on"]


def test_guarded_batch_that_does_not_fit_into_memory_is_halved_down_to_the_document_that_does_not():
    def process(batch: DocumentBatch) -> int:
        if batch.num_docs > 2 or "bad" in batch.texts.to_pylist():
            raise MemoryError
        return batch.num_docs

    parts, failed = _guard().run(process, _batch([str(number) for number in range(7)]))
    assert (sum(count for _, count in parts), failed) == (7, {})
    with pytest.raises(StageMemoryError, match=r"mine: .*a.jsonl at bad, of 3 B of text: .*test_guard.py:\d+, in process"):
        _guard().run(process, _batch(["a", "bad", "b"]))


def test_guarded_breach_of_several_documents_together_names_them_all():
    def process(batch: DocumentBatch) -> None:
        if batch.num_docs > 3:
            raise StageError("only with many documents")

    with pytest.raises(StageError, match=r"a\.jsonl at c and the 4 after it"):
        _guard().run(process, _batch([*"cdefg"]))


class _Crash(KeyboardInterrupt):
    """A crash of the process, in a test: the guard must not catch it."""


def _crashing(batch: DocumentBatch) -> list[str]:
    texts = batch.texts.to_pylist()
    if "bad" in texts:
        raise _Crash
    return texts


@given(TEXTS.filter(len), st.booleans())
def test_guarded_with_hints_gives_the_stage_all_but_the_crashing_documents(texts, one_by_one):
    batch = _batch(texts)
    keys = batch.keys.to_pylist()
    known_crashes = tuple(("mine", keys[row], "SIGSEGV") for row in _rows(texts))
    batches = (("mine", keys[-1]),) if one_by_one else (("another", keys[-1]),)
    parts, failed = _guard(RetryHints(one_by_one=batches, known_crashes=known_crashes)).run(_crashing, batch)
    assert list(failed) == _rows(texts)
    assert all("SIGSEGV" in error for error in failed.values())
    assert [text for _, part in parts for text in part] == [text for text in texts if text != "bad"]
    assert all(part.num_docs == 1 for part, _ in parts) or not one_by_one


@given(TEXTS.filter(lambda texts: "bad" in texts))
def test_guarded_reports_the_crashing_document_before_a_doubtful_batch_crashes(texts):
    descriptor = activity.shared_file(activity.BLOCK_BYTES)
    page = activity.ActivityBlock(descriptor)
    os.close(descriptor)
    batch = _batch(texts)
    activity.publish_to(page)
    try:
        with pytest.raises(_Crash):
            _guard(RetryHints(one_by_one=(("mine", batch.keys[0].as_py()),))).run(_crashing, batch)
        told = page.read()
    finally:
        activity.publish_to(None)
        page.close()
    assert told is not None
    assert (told[1].key, told[1].num_docs) == (batch.keys[texts.index("bad")].as_py(), 1)


# ------------------------------------------------------------------------------------------------ what stages return


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


def _mapped(columns: Any, kind: type[Returns] = Returns) -> dict[str, pa.Array]:
    stage = kind()
    stage._columns = columns
    return checked_map(stage, _batch(["a", "b"]))


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
    new, of_none, batch = NewColumns(), NewColumns(), _batch(["a", "b"])
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
    return checked_filter(stage, _batch(["a", "b"]))


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
