"""Bytes that a store changes on their way are read again, a few times, wherever a checksum covers them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow.fs as pafs
import pytest

from datapipe.ledger.commit_files import CommitFiles, line_of
from datapipe.loader import Loader
from datapipe.metrics import TaskMetrics
from datapipe.plan.work import Record
from datapipe.shards.checksum import READINGS, bytes_checksum, file_checksum
from datapipe.shards.document_files import document_files
from datapipe.shards.manifest import read_snapshot
from datapipe.shards.verify import verify_snapshot
from datapipe.storage import Root
from tests.support import packed_shards
from tests.support.unreliable_store import UnreliableStore

pytestmark = [pytest.mark.medium, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


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
