"""Bytes that a store changes on their way are read again, a few times, wherever a checksum covers them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from datapipe.columns import make_keys
from datapipe.engine.protocol import failure_of
from datapipe.errors import CorruptionError
from datapipe.exchange.files import ExchangeWriter
from datapipe.exchange.partitions import TableWriter, committed_bytes, read_table
from datapipe.exchange.ranges import read_range
from datapipe.ledger.commit_files import CommitFiles, line_of
from datapipe.loader import Loader
from datapipe.metrics import TaskMetrics
from datapipe.plan.outputs import OutputFile
from datapipe.plan.work import HASH_SPACE, Record
from datapipe.shards.checksum import READINGS, bytes_checksum, file_checksum
from datapipe.shards.document_files import document_files
from datapipe.shards.manifest import read_snapshot
from datapipe.shards.verify import verify_snapshot
from datapipe.storage import Root
from stages.dedup.exact import TEXTS
from tests.support import packed_shards
from tests.support.unreliable_store import UnreliableStore

pytestmark = [pytest.mark.medium, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

Read = Callable[[Root], object]
_HASHES = pa.array(np.full(3, 9, np.uint64))
_KEYS = make_keys(9, np.arange(3, dtype=np.uint64))


def _exchange(root: Root) -> Read:
    writer = ExchangeWriter(root, "rows", TEXTS)
    writer.add(pa.RecordBatch.from_arrays([_HASHES, _HASHES, _HASHES, _KEYS], schema=TEXTS))
    output = writer.finish()
    return lambda root: read_range(root, [output], 0, HASH_SPACE)


def _table(root: Root) -> Read:
    writer = TableWriter(root, "rows")
    writer.add(pa.record_batch([_KEYS, _HASHES], ["key", "hash"]))
    (output,) = writer.finish()
    return lambda root: list(read_table(root, output))


def _bytes(root: Root) -> Read:
    root.write_atomic("rows", bytes(range(40)))
    output = OutputFile(path="rows", rows=3, bytes=40, checksum=bytes_checksum(bytes(range(40))))
    return lambda root: committed_bytes(root, output)


@pytest.mark.parametrize("after", [0, 150, 10_000])
@pytest.mark.parametrize("write", [_exchange, _table, _bytes], ids=lambda write: write.__name__)
def test_file_of_a_task_is_read_again_and_damaged_only_where_that_does_not_help(
    store: UnreliableStore, write: Callable[[Root], Read], after: int
) -> None:
    root = Root(f"s3://outputs/{write.__name__}{store.query}")
    read = write(root)
    sound = read(root)
    failing = store.fail("flip", path="rows", after=after, times=READINGS - 1)
    assert read(root) == sound
    assert failing.hits == READINGS - 1
    store.fail("flip", path="rows", after=after, times=None)
    with pytest.raises(CorruptionError, match="rows: ") as raised:
        read(root)
    assert f"read {READINGS} times" in failure_of(raised.value).message


def test_commit_file_is_read_again_so_that_no_record_is_lost(store: UnreliableStore) -> None:
    root = Root(f"s3://outputs/ledger{store.query}")
    records = [Record(step="web/read", fingerprint=f"{n:064x}", outputs={}, metrics=TaskMetrics()) for n in range(3)]
    CommitFiles(root).write(map(line_of, records))
    for after in (0, 40, 300):
        failing = store.fail("flip", path="work/ledger/", after=after, times=READINGS - 1)
        assert [line.record() for line in CommitFiles(root).read()] == records
        assert failing.hits == READINGS - 1


@pytest.mark.parametrize("shard_format", ["arrow", "parquet"])
def test_snapshot_is_read_again(store: UnreliableStore, query: str, tmp_path: Path, shard_format) -> None:
    folder = tmp_path / "packed"
    folder.mkdir()
    snapshot = packed_shards.make_snapshot(folder, packed_shards.packed_batch(40, 32), shard_format)
    (folder / "snapshot.json").write_bytes(snapshot.to_json())
    there = pafs.FileSystem.from_uri(f"s3://outputs{query}")[0]
    pafs.copy_files(str(folder), f"outputs/{shard_format}", pafs.LocalFileSystem(), there)
    root = Root(f"s3://outputs/{shard_format}{store.query}")
    store.fail("flip", path="snapshot.json", after=200, times=READINGS - 1)
    assert read_snapshot(root) == snapshot
    files = document_files(root, snapshot)
    store.fail("flip", path="files.parquet", after=30, times=READINGS - 1)
    assert document_files(root, snapshot) == files
    expected = Loader(str(folder), batch_size=4).batch(0)["input_ids"]
    size = snapshot.shards[0].bytes
    for after in (200, size // 2, size - 40):
        store.heal()
        store.fail("flip", path="/shards/", after=after, times=1)
        assert verify_snapshot(root, snapshot) == []
        store.fail("flip", path="/shards/", after=after, times=1)
        with closing(Loader(root.url, batch_size=4)) as loader:
            np.testing.assert_array_equal(loader.batch(0)["input_ids"], expected)


def test_checksum_of_a_new_file_is_that_of_what_was_written(store: UnreliableStore) -> None:
    root = Root(f"s3://outputs/new{store.query}")
    failing = store.fail("flip", path="file", times=None)
    with root.open_output("file") as stream:
        stream.write(b"content")
    assert (stream.checksum, stream.num_bytes) == (bytes_checksum(b"content"), 7)
    assert failing.hits == 0
    store.heal()
    assert file_checksum(root, "file") == (stream.checksum, 7)
