"""Shards give the requested rows to any thread; files that contradict the manifest are refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.errors import CorruptionError, SnapshotError
from datapipe.shards import writer as writers
from datapipe.shards.blocks import SequenceRows
from datapipe.shards.reader import ShardReader
from datapipe.shards.shard_table import ShardEntry
from datapipe.storage import Root
from tests.support.packed_shards import FINGERPRINT, RemoteRoot, packed_batch, write_shards

LENGTH = 16
CASES = [("arrow", 50_000, Root), ("parquet", 50_000, RemoteRoot), ("arrow", 100_000, RemoteRoot), ("parquet", 100_000, Root)]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}, {case[1]}, {case[2].__name__}")
def shard(request, tmp_path_factory):
    """A shard of several record batches, on a disk or a store: its rows, and a reader of it."""
    shard_format, vocab_size, kind = request.param
    folder = tmp_path_factory.mktemp("shard")
    batch = packed_batch(150, LENGTH, vocab_size=vocab_size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writers, "BATCH_BYTES", 4 * 7 * LENGTH)
        (entry,) = write_shards(folder, batch, shard_format)
    reader = ShardReader(kind(str(folder)), entry, LENGTH, FINGERPRINT)
    yield batch, reader
    reader.close()


def expected(batch: pa.RecordBatch, rows) -> SequenceRows:
    taken = [batch.slice(row, 1).to_pylist()[0] for row in rows]
    tokens = np.array([row["tokens"] for row in taken], batch.column("tokens").type.value_type.to_pandas_dtype())
    return SequenceRows(
        tokens=tokens.reshape(-1, LENGTH),
        piece_lengths=np.array([length for row in taken for length in row["lengths"]], np.int32),
        piece_offsets=np.concatenate([[0], np.cumsum([len(row["lengths"]) for row in taken])]).astype(np.int64),
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
@settings(max_examples=25)
def test_read_any_rows_gives_them_in_the_order_asked(shard, picks):
    batch, reader = shard
    rows = np.array([int(pick * batch.num_rows) for pick in picks], np.int64)
    assert_same(reader.read(rows), expected(batch, rows))
    assert np.array_equal(reader.read(rows, {"tokens"}).tokens, expected(batch, rows).tokens)


@pytest.mark.medium
def test_read_from_many_threads_gives_each_its_rows_and_after_close_opens_again(shard):
    batch, reader = shard
    every = reader.read(np.arange(batch.num_rows))
    reader.close()  # so that threads also race to open it
    assert_same(every, expected(batch, range(batch.num_rows)))
    requests = [np.random.default_rng(number).integers(0, batch.num_rows, 9) for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        for rows, found in zip(requests, pool.map(reader.read, requests)):
            assert_same(found, expected(batch, rows))
    for row in (-1, batch.num_rows):
        with pytest.raises(IndexError):
            reader.read(np.array([0, row]))


def _open(folder: Path, entry: ShardEntry, length: int = LENGTH, fingerprint: str = FINGERPRINT) -> None:
    reader = ShardReader(Root(str(folder)), entry, length, fingerprint)
    try:
        reader.open()
    finally:
        reader.close()


@pytest.mark.parametrize("shard_format", ["arrow", "parquet"])
def test_open_of_a_file_that_is_not_as_the_manifest_says_is_refused_with_its_name(tmp_path, shard_format):
    (entry,) = write_shards(tmp_path, packed_batch(20, LENGTH), shard_format)
    _open(tmp_path, entry)
    for what, options in (("tokenizer", {"fingerprint": "other"}), ("sequence_length", {"length": 8})):
        with pytest.raises(SnapshotError, match=rf"{entry.path}: datapipe\.{what}"):
            _open(tmp_path, entry, **options)
    with pytest.raises(SnapshotError, match=rf"{entry.path}: datapipe\.piece_length is nothing, expected 4"):
        _open(tmp_path, entry.model_copy(update={"piece_length": 4}))
    for sequences in (entry.sequences - 1, entry.sequences + 1, 10**8):
        with pytest.raises(CorruptionError, match=entry.path):
            _open(tmp_path, entry.model_copy(update={"sequences": sequences}))
    content = (tmp_path / entry.path).read_bytes()
    footers = (content[:-6] + b"\0" * 6, content[:-40] + b"\xff" * 30 + content[-10:])
    for bad in (*footers, b"\0" * len(content), content[:-5], None):
        (tmp_path / entry.path).unlink()
        if bad is not None:
            (tmp_path / entry.path).write_bytes(bad)
        with pytest.raises(CorruptionError, match=entry.path):
            _open(tmp_path, entry)


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
    with pytest.raises(CorruptionError, match=entry.path):
        ShardReader(Root(str(tmp_path)), entry, LENGTH, FINGERPRINT).read(np.array([5]))
