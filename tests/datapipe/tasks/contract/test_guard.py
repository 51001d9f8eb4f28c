"""A document that makes a stage raise costs itself and nothing else."""

from __future__ import annotations

import errno
import os

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe import activity
from datapipe.columns import make_keys
from datapipe.errors import DatapipeError, StageError, StageMemoryError
from datapipe.plan.work import StageCare
from datapipe.stage import Map
from datapipe.stage.documents import DocumentBatch
from datapipe.storage import open_input
from datapipe.tasks.contract.guard import Guard

TEXTS = st.lists(st.sampled_from(["bad", "a", "bcd", ""]), max_size=40)


class Lengths(Map):
    """Is a stage to blame; the tests pass functions of their own."""

    def process(self, batch):
        return {}


def _batch(texts: list[str]) -> DocumentBatch:
    keys = make_keys(1, np.arange(len(texts), dtype=np.uint64))
    columns = [keys, pa.array(texts, pa.large_string()), pa.array(texts, pa.large_string())]
    return DocumentBatch(pa.record_batch(columns, names=["key", "id", "text"]))


def _guard(care: StageCare | None = None) -> Guard:
    method = Lengths().process
    return Guard(name="mine", stage=Lengths(), method=method, place_of=lambda batch: f"a.jsonl at {batch.texts[0]}", care=care)


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

    done = _guard(most_docs and StageCare(most_docs=most_docs)).run(lengths, _batch(texts))
    assert [document.row for document in done.failed] == _rows(texts)
    assert all("a bad document" in document.error for document in done.failed)
    assert [length for _, _, part in done.parts for length in part] == [len(text) for text in texts if text != "bad"]
    assert max(calls, default=0) <= (most_docs or len(texts))


def test_error_of_a_document_is_kept_without_credentials():
    def process(part: DocumentBatch):
        raise ValueError("no answer of https://user:Zq81Secret@host/a?sig=Zq81Secret " + "x" * 3960)

    (failed,) = _guard().run(process, _batch(["text"])).failed
    assert "Zq81Secret" not in failed.error


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

    done = _guard().run(process, _batch([str(number) for number in range(7)]))
    assert (sum(count for _, _, count in done.parts), done.failed) == (7, ())
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
def test_guarded_with_care_gives_the_stage_all_but_the_crashing_documents(texts, one_by_one):
    batch = _batch(texts)
    keys = batch.keys.to_pylist()
    crashing = {keys[row]: "SIGSEGV" for row in _rows(texts)}
    suspects = frozenset(keys[-1:] if one_by_one else ())
    done = _guard(StageCare(suspects=suspects, crashing=crashing)).run(_crashing, batch)
    assert [document.row for document in done.failed] == _rows(texts)
    assert all("SIGSEGV" in document.error for document in done.failed)
    assert [text for _, _, part in done.parts for text in part] == [text for text in texts if text != "bad"]
    assert all(stop == start + 1 for start, stop, _ in done.parts) or not one_by_one


@given(TEXTS.filter(lambda texts: "bad" in texts))
def test_guarded_tells_the_crashing_document_before_a_suspect_batch_crashes(texts):
    descriptor = activity.shared_file(activity.PAGE_BYTES)
    page = activity.Page(descriptor)
    os.close(descriptor)
    batch = _batch(texts)
    activity.tell_to(page)
    try:
        with pytest.raises(_Crash):
            _guard(StageCare(suspects=frozenset([batch.keys[0].as_py()]))).run(_crashing, batch)
        told = page.read()
    finally:
        activity.tell_to(None)
        page.close()
    assert told is not None
    assert (told[1].key, told[1].num_docs) == (batch.keys[texts.index("bad")].as_py(), 1)
