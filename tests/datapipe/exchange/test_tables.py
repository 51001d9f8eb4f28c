"""Facts in Parquet files: the rows that were added, cut texts, names with their own meaning."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from datapipe.columns import make_keys
from datapipe.exchange import tables
from datapipe.exchange.tables import MOST_CHARS, FactWriter, TableWriter, kept_facts, read_row, read_table
from datapipe.stage.documents import DocumentBatch
from datapipe.storage.root import Root


def _documents(start: int, stop: int) -> pa.RecordBatch:
    texts = [f"text {number}" for number in range(start, stop)]
    columns = {"key": make_keys(1, np.arange(start, stop, dtype=np.uint64)), "id": pa.array(texts, pa.large_string())}
    more = {"value": pa.array(range(start, stop)), "long": pa.array(["é" * 2000] * len(texts)), "listed": [[1]] * len(texts)}
    return pa.record_batch({**columns, "text": pa.array(texts, pa.large_string()), **more})


def test_facts_are_the_rows_that_were_added_in_groups(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tables, "GROUP_ROWS", 7)
    root = Root(str(tmp_path))
    writer = FactWriter(root, "kept.parquet", source="web", fate="kept")
    for start in range(0, 40, 4):
        writer.add(kept_facts(DocumentBatch(_documents(start, start + 4))))
    writer.add(kept_facts(DocumentBatch(_documents(0, 0))))
    [file] = writer.finish()
    rows = [row for batch in read_table(root, file) for row in batch.to_pylist()]
    assert file.rows == 40
    assert [row["id"] for row in rows] == [f"text {number}" for number in range(40)]
    assert {tuple(row) for row in rows} == {("source", "fate", "key", "id", "bytes", "kept.value", "long")}
    assert rows[9] | {"key": b""} == {
        "source": "web",
        "fate": "kept",
        "key": b"",
        "id": "text 9",
        "bytes": 6,
        "kept.value": 9,
        "long": "é" * MOST_CHARS,
    }
    assert {tuple(batch.schema.names) for batch in read_table(root, file, ["bytes", "none"])} == {("bytes",)}
    assert FactWriter(root, "none.parquet").finish() == ()


def test_one_row_of_a_table_is_read_from_any_batch(tmp_path: Path) -> None:
    root = Root(str(tmp_path))
    writer = TableWriter(root, "documents.arrow")
    batches = [_documents(0, 3), _documents(3, 4), _documents(4, 9)]
    for batch in batches:
        writer.add(batch)
    [file] = writer.finish()
    expected = [row for batch in batches for row in batch.to_pylist()]
    assert [read_row(root, file, number).to_pylist() for number in range(9)] == [[row] for row in expected]
