"""Shards give the requested rows to any thread; files that contradict the manifest are refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.errors import CorruptionError, SnapshotError
from datapipe.shards import writer as writers
from datapipe.shards.blocks import SequenceRows
from datapipe.shards.reader import ShardReader
from datapipe.storage import Root
from tests.support.packed_shards import FINGERPRINT, RemoteRoot, packed_batch, write_shards

LENGTH = 16
FORMATS = ("arrow", "parquet")


@pytest.fixture(
    scope="module", params=[("arrow", 50_000), ("parquet", 50_000), ("arrow", 100_000), ("parquet", 100_000)], ids=str
)
def shard(request, tmp_path_factory):
    """A shard of several record batches: its rows, and a reader of it."""
    shard_format, vocab_size = request.param
    folder = tmp_path_factory.mktemp("shard")
    batch = packed_batch(150, LENGTH, vocab_size=vocab_size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writers, "BATCH_BYTES", 4 * 7 * LENGTH)
        (entry,) = write_shards(folder, batch, shard_format)
    reader = ShardReader(Root(str(folder)), entry, LENGTH, FINGERPRINT)
    yield batch, reader
    reader.close()


def expected(batch: pa.RecordBatch, rows) -> SequenceRows:
    taken = [batch.slice(row, 1).to_pylist()[0] for row in rows]
    pieces = [len(row["lengths"]) for row in taken]
    return SequenceRows(
        tokens=np.array([row["tokens"] for row in taken], batch.column("tokens").type.value_type.to_pandas_dtype()).reshape(
            -1, LENGTH
        ),
        piece_lengths=np.array([length for row in taken for length in row["lengths"]], np.int32),
        piece_offsets=np.concatenate([[0], np.cumsum(pieces)]).astype(np.int64),
        keys=np.frombuffer(b"".join(key for row in taken for key in row["keys"]), np.uint8).reshape(-1, 16),
        starts=np.array([start for row in taken for start in row["starts"]], np.int64),
    )


def assert_same(found: SequenceRows, wanted: SequenceRows) -> None:
    for name in ("tokens", "piece_lengths", "piece_offsets", "keys", "starts"):
        one, other = getattr(found, name), getattr(wanted, name)
        assert one.dtype == other.dtype, name
        assert np.array_equal(one, other), name


@pytest.mark.medium
@given(picks=st.lists(st.floats(0, 1, exclude_max=True), max_size=20))
@settings(deadline=None)
def test_read_any_rows_gives_them_in_the_order_asked(shard, picks):
    batch, reader = shard
    rows = np.array([int(pick * batch.num_rows) for pick in picks], np.int64)
    assert_same(reader.read(rows), expected(batch, rows))
    assert np.array_equal(reader.read(rows, {"tokens"}).tokens, expected(batch, rows).tokens)


def test_read_every_row_gives_the_shard(shard):
    batch, reader = shard
    assert reader.num_rows == batch.num_rows
    assert_same(reader.read(np.arange(batch.num_rows)), expected(batch, range(batch.num_rows)))


@pytest.mark.medium
def test_read_from_many_threads_gives_each_its_rows(shard):
    batch, reader = shard
    reader.close()  # so that threads also race to open it
    requests = [np.random.default_rng(number).integers(0, batch.num_rows, 9) for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        for rows, found in zip(requests, pool.map(reader.read, requests)):
            assert_same(found, expected(batch, rows))


@pytest.mark.parametrize("row", [-1, 10**6])
def test_read_row_out_of_range_is_refused(shard, row):
    with pytest.raises(IndexError, match="rows"):
        shard[1].read(np.array([0, row]))


def test_read_after_close_opens_again_and_results_stay(shard):
    batch, reader = shard
    rows = np.array([3, 1])
    before = reader.read(rows)
    reader.close()
    assert_same(before, expected(batch, rows))
    assert_same(reader.read(rows), before)


@pytest.mark.parametrize("shard_format", FORMATS)
def test_open_other_tokenizer_or_length_is_refused(tmp_path, shard_format):
    (entry,) = write_shards(tmp_path, packed_batch(20, LENGTH), shard_format)
    root = Root(str(tmp_path))
    with pytest.raises(SnapshotError, match=f"{entry.path}: datapipe.tokenizer is {FINGERPRINT}, expected other"):
        ShardReader(root, entry, LENGTH, "other").open()
    with pytest.raises(SnapshotError, match=rf"{entry.path}: datapipe.sequence_length is {LENGTH}, expected 8"):
        ShardReader(root, entry, 8, FINGERPRINT).open()


@pytest.mark.parametrize("shard_format", FORMATS)
def test_open_shard_of_other_pieces_than_the_manifest_says_is_refused(tmp_path, shard_format):
    (entry,) = write_shards(tmp_path, packed_batch(20, LENGTH), shard_format)
    other = entry.model_copy(update={"piece_length": 4})
    with pytest.raises(SnapshotError, match=rf"{entry.path}: datapipe.piece_length is nothing, expected 4"):
        ShardReader(Root(str(tmp_path)), other, LENGTH, FINGERPRINT).open()


@pytest.mark.parametrize("shard_format", FORMATS)
def test_open_truncated_file_is_corruption(tmp_path, shard_format):
    (entry,) = write_shards(tmp_path, packed_batch(20, LENGTH), shard_format)
    path = tmp_path / entry.path
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CorruptionError, match=f"{entry.path}: {entry.bytes - 5} bytes, expected {entry.bytes}"):
        ShardReader(Root(str(tmp_path)), entry, LENGTH, FINGERPRINT).open()


def test_open_missing_file_is_corruption(tmp_path):
    (entry,) = write_shards(tmp_path, packed_batch(20, LENGTH))
    (tmp_path / entry.path).unlink()
    with pytest.raises(CorruptionError, match="no such file"):
        ShardReader(Root(str(tmp_path)), entry, LENGTH, FINGERPRINT).open()


@pytest.mark.parametrize("shard_format", FORMATS)
def test_open_broken_footer_is_corruption(tmp_path, shard_format):
    (entry,) = write_shards(tmp_path, packed_batch(20, LENGTH), shard_format)
    path = tmp_path / entry.path
    content = path.read_bytes()
    for broken in (content[:-6] + b"\0" * 6, content[:-40] + b"\xff" * 30 + content[-10:], b"\0" * len(content)):
        path.write_bytes(broken)
        with pytest.raises(CorruptionError, match=entry.path):
            ShardReader(Root(str(tmp_path)), entry, LENGTH, FINGERPRINT).open()


def test_open_other_number_of_rows_is_corruption(tmp_path):
    (entry,) = write_shards(tmp_path, packed_batch(20, LENGTH))
    for sequences in (entry.sequences - 1, entry.sequences + 1, 10**8):
        with pytest.raises(CorruptionError, match=entry.path):
            ShardReader(Root(str(tmp_path)), entry.model_copy(update={"sequences": sequences}), LENGTH, FINGERPRINT).open()


def test_read_row_whose_offsets_are_damaged_is_corruption(tmp_path):
    batch = packed_batch(40, LENGTH)
    (entry,) = write_shards(tmp_path, batch)
    path = tmp_path / entry.path
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in batch.column("lengths").to_pylist()])]).astype(np.int32)
    damaged = offsets.copy()
    damaged[5] = 1 << 30
    content = path.read_bytes()
    assert content.count(offsets.tobytes()) == 3  # of the lengths, the keys and the starts
    path.write_bytes(content.replace(offsets.tobytes(), damaged.tobytes()))
    reader = ShardReader(Root(str(tmp_path)), entry, LENGTH, FINGERPRINT)
    with pytest.raises(CorruptionError, match=entry.path):
        reader.read(np.array([5]))


@pytest.mark.parametrize("shard_format", FORMATS)
def test_read_from_an_object_store_equals_local(tmp_path, shard_format, monkeypatch):
    """A sub-tree file system has no local path, as an object store has none."""
    batch = packed_batch(60, LENGTH)
    monkeypatch.setattr(writers, "BATCH_BYTES", 7 * 2 * LENGTH)
    (entry,) = write_shards(tmp_path, batch, shard_format)
    root = RemoteRoot(str(tmp_path))
    reader = ShardReader(root, entry, LENGTH, FINGERPRINT)
    rows = np.random.default_rng(0).permutation(batch.num_rows)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(reader.read, [rows] * 8):
            assert_same(found, expected(batch, rows))
    reader.close()
