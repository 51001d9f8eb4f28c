"""The files of an index: those that the version before wrote are read, other versions are refused."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe.errors import UserError
from datapipe.index.write import IndexedFile, IndexedRows, IndexedStage, open_index, write_index
from datapipe.plan.outputs import ExchangeFile
from datapipe.shards.checksum import bytes_checksum
from datapipe.storage import Root

ROW = {"stage": 0, "group": 0, "table": "texts", "path": "rows/1.exchange", "rows": 2, "bytes": 9, "weight": 48}
ENDS = {"checksum": "xxh3:1", "first": 5, "last": (1 << 64) - 1, "runs": 1}
FILE = {"hash": 7, "source": "web", "path": "a.jsonl", "group": 0}
_UNSIGNED = ("first", "last", "hash")


def _write_version(root: Root, version: int) -> None:
    """An index as version 1 has been written from the first release on, by no code of today."""
    parts = {}
    for name, row in (("tables", ROW | ENDS), ("files", FILE)):
        sink = io.BytesIO()
        columns = {key: pa.array([value], pa.uint64() if key in _UNSIGNED else None) for key, value in row.items()}
        pq.write_table(pa.table(columns), sink)
        root.write_atomic(f"index/{name}.parquet", sink.getvalue())
        parts[name] = {"path": f"index/{name}.parquet", "checksum": bytes_checksum(sink.getvalue())}
    stages = [{"name": "dedup.exact", "identity": {"stage": "dedup.exact"}}]
    root.write_atomic("index.json", json.dumps({"index": version, "stages": stages, **parts}).encode())


def test_index_of_the_version_before_is_read(tmp_path: Path):
    _write_version(Root(str(tmp_path)), 1)
    index = open_index(str(tmp_path))
    file = ExchangeFile(
        path="rows/1.exchange", rows=2, bytes=9, checksum="xxh3:1", row_bytes=48, first=5, last=(1 << 64) - 1, runs=1
    )
    assert index.rows == (IndexedRows(stage=0, group=0, table="texts", output=file),)
    assert index.files == (IndexedFile(**FILE),)
    assert index.stages == (IndexedStage(name="dedup.exact", identity={"stage": "dedup.exact"}),)


def test_index_that_is_written_is_read_as_it_was(tmp_path: Path):
    _write_version(Root(str(tmp_path)), 1)
    index = open_index(str(tmp_path))
    write_index(index)
    again = open_index(str(tmp_path))
    assert (again.stages, again.rows, again.files) == (index.stages, index.rows, index.files)


def test_index_of_another_version_is_refused(tmp_path: Path):
    _write_version(Root(str(tmp_path)), 2)
    with pytest.raises(UserError, match=r"an index of version 2. Expected version 1"):
        open_index(str(tmp_path))
