"""A document that makes a stage raise costs itself and nothing else."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.columns import make_keys
from datapipe.errors import DatapipeError
from datapipe.stage.documents import DocumentBatch
from datapipe.tasks.guard import guarded


def _batch(texts: list[str]) -> DocumentBatch:
    keys = make_keys(1, np.arange(len(texts), dtype=np.uint64))
    columns = [keys, pa.array(texts, pa.large_string()), pa.array(texts, pa.large_string())]
    return DocumentBatch(pa.record_batch(columns, names=["key", "id", "text"]))


def _lengths(batch: DocumentBatch) -> list[int]:
    texts = batch.texts.to_pylist()
    if "bad" in texts:
        raise ValueError("a bad document")
    return [len(text) for text in texts]


@given(st.lists(st.sampled_from(["bad", "a", "bcd", ""]), max_size=40))
def test_guarded_result_is_that_of_the_good_documents_alone(texts):
    done = guarded(_lengths, _batch(texts))
    assert [document.row for document in done.failed] == [row for row, text in enumerate(texts) if text == "bad"]
    assert all("a bad document" in document.error for document in done.failed)
    assert [length for _, _, part in done.parts for length in part] == [len(text) for text in texts if text != "bad"]


@pytest.mark.parametrize("error", [MemoryError(), OSError("disk"), TimeoutError(), DatapipeError("ours")])
def test_guarded_what_is_not_a_documents_fault_is_raised(error):
    def fail(batch: DocumentBatch) -> None:
        raise error

    with pytest.raises(type(error)):
        guarded(fail, _batch(["a", "b"]))
