"""The files of an index: those that the version before wrote are read, other versions are refused."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe.errors import CorruptionError, UserError
from datapipe.index.write import IndexedFile, IndexedRows, IndexedStage, open_index, write_index
from datapipe.plan.outputs import ExchangeFile
from datapipe.shards.checksum import bytes_checksum
from datapipe.storage import Root

ROW = {"stage": 0, "group": 0, "table": "texts", "path": "rows/1.exchange", "rows": 2, "bytes": 9, "weight": 48}
ENDS = {"checksum": "xxh3:1", "first": 5, "last": (1 << 64) - 1, "runs": 1}
FILE = {"hash": 7, "source": "web", "path": "a.jsonl", "group": 0}
_UNSIGNED = ("first", "last", "hash")


def _write_version(root: Root, version: int, *, with_checksum: bool = True) -> None:
    """An index as version 2 was written first, by no code of today; version 1 had no checksum of its own."""
    parts = {}
    for name, row in (("tables", ROW | ENDS), ("files", FILE)):
        sink = io.BytesIO()
        columns = {key: pa.array([value], pa.uint64() if key in _UNSIGNED else None) for key, value in row.items()}
        pq.write_table(pa.table(columns), sink)
        root.write_atomic(f"index/{name}.parquet", sink.getvalue())
        parts[name] = {"path": f"index/{name}.parquet", "checksum": bytes_checksum(sink.getvalue())}
    stages = [{"name": "dedup.exact", "identity": {"stage": "dedup.exact"}}]
    content = {"index": version, "stages": stages, **parts}
    checksum = {"checksum": bytes_checksum(json.dumps(content, sort_keys=True).encode())} if with_checksum else {}
    root.write_atomic("index.json", json.dumps(content | checksum).encode())


def test_index_as_it_was_first_written_is_read(tmp_path: Path):
    _write_version(Root(str(tmp_path)), 2)
    index = open_index(str(tmp_path))
    file = ExchangeFile(
        path="rows/1.exchange", rows=2, bytes=9, checksum="xxh3:1", row_bytes=48, first=5, last=(1 << 64) - 1, runs=1
    )
    assert index.rows == (IndexedRows(stage=0, group=0, table="texts", output=file),)
    assert index.files == (IndexedFile(**FILE),)
    assert index.stages == (IndexedStage(name="dedup.exact", identity={"stage": "dedup.exact"}),)


def test_index_that_is_written_is_read_as_it_was(tmp_path: Path):
    _write_version(Root(str(tmp_path)), 2)
    index = open_index(str(tmp_path))
    write_index(index)
    again = open_index(str(tmp_path))
    assert (again.stages, again.rows, again.files) == (index.stages, index.rows, index.files)


@pytest.mark.parametrize(("version", "with_checksum"), [(1, False), (3, True)])
def test_index_of_another_version_is_refused(tmp_path: Path, version: int, with_checksum: bool):
    _write_version(Root(str(tmp_path)), version, with_checksum=with_checksum)
    with pytest.raises(UserError, match=f"an index of version {version}. Expected version 2. Make the index again"):
        open_index(str(tmp_path))


@pytest.mark.slow
def test_index_with_any_bit_flipped_is_damaged_or_the_same(tmp_path: Path):
    """White space between the parts of index.json has no meaning; every other bit has."""
    _write_version(Root(str(tmp_path)), 2)
    index, num_same = open_index(str(tmp_path)), 0
    for path, step in [("index.json", 1), ("index/tables.parquet", 97), ("index/files.parquet", 97)]:
        content = (tmp_path / path).read_bytes()
        for bit in range(0, 8 * len(content), step):
            flipped = bytearray(content)
            flipped[bit // 8] ^= 1 << bit % 8
            (tmp_path / path).write_bytes(flipped)
            found = _index_or_damage(tmp_path)
            assert found == index or path in str(found)
            num_same += found == index
        (tmp_path / path).write_bytes(content)
    assert num_same < 100


def _index_or_damage(folder: Path) -> object:
    try:
        return open_index(str(folder))
    except CorruptionError as error:
        return error


@pytest.mark.medium
def test_index_is_read_in_no_thread_that_may_outlive_the_reading(tmp_path: Path):
    """A thread of Arrow that lets go of Python's bytes while the interpreter ends aborts the process, with status 134."""
    _write_version(Root(str(tmp_path)), 2)
    program = (
        "import os, sys\n"
        "from datapipe.index.write import open_index\n"
        "before = set(os.listdir('/proc/self/task'))\n"
        "open_index(sys.argv[1])\n"
        "print(len(set(os.listdir('/proc/self/task')) - before))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"
