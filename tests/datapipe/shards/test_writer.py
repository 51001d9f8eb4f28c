"""Shards have the same bytes however rows arrive, a fixed layout, and correct counts."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.shards import writer as writers
from datapipe.shards.checksum import file_checksum
from datapipe.shards.writer import ShardWriter
from datapipe.storage import Root
from tests.support.packed_shards import packed_batch, schema_of

FORMATS = ("arrow", "parquet")


def write(folder: Path, batches: list[pa.RecordBatch], shard_format="arrow", target_bytes=1 << 30):
    writer = ShardWriter(Root(str(folder)), "try/part", shard_format, schema_of(batches[0]), target_bytes)
    for batch in batches:
        writer.append(batch)
    return writer.finish()


def read_back(folder: Path, path: str) -> pa.Table:
    if path.endswith(".parquet"):
        return pq.read_table(folder / path)
    with pa.memory_map(str(folder / path)) as stream:
        return pa.ipc.open_file(stream).read_all()


@pytest.mark.parametrize("shard_format", FORMATS)
def test_write_rows_come_back_in_order_over_files(tmp_path, shard_format):
    batch = packed_batch(300, 32)
    shards = write(tmp_path, [batch], shard_format, target_bytes=100 * 64)
    assert [shard.path for shard in shards] == [f"try/part-{n:05d}.{shard_format}" for n in range(-(-batch.num_rows // 100))]
    assert [shard.sequences for shard in shards[:-1]] == [100] * (len(shards) - 1)
    found = pa.concat_tables(read_back(tmp_path, shard.path) for shard in shards)
    assert found.replace_schema_metadata(None).equals(pa.table(batch))


@pytest.mark.parametrize("shard_format", FORMATS)
def test_write_counts_and_checksums_describe_the_files(tmp_path, shard_format):
    for shard in write(tmp_path, [packed_batch(300, 32)], shard_format, target_bytes=100 * 64):
        table = read_back(tmp_path, shard.path)
        assert shard.sequences == table.num_rows
        assert shard.tokens == sum(map(sum, table["lengths"].to_pylist()))
        assert shard.documents == sum(starts.count(0) for starts in table["starts"].to_pylist())
        assert (shard.checksum, shard.bytes) == file_checksum(Root(str(tmp_path)), shard.path)
        assert shard.bytes == (tmp_path / shard.path).stat().st_size


@pytest.mark.medium
@given(cuts=st.lists(st.integers(0, 400), max_size=12), shard_format=st.sampled_from(FORMATS))
@settings(deadline=None, max_examples=30)
def test_write_batches_cut_anywhere_make_the_same_bytes(tmp_path_factory, cuts, shard_format):
    batch = packed_batch(200, 16)
    borders = [0, *sorted(min(cut, batch.num_rows) for cut in cuts), batch.num_rows]
    pieces = [batch.slice(start, stop - start) for start, stop in zip(borders[:-1], borders[1:])]
    folder = tmp_path_factory.mktemp("cut")
    whole = write(folder / "whole", [batch], shard_format, target_bytes=90 * 32)
    assert write(folder / "pieces", pieces, shard_format, target_bytes=90 * 32) == whole


@pytest.mark.parametrize("shard_format", FORMATS)
def test_write_record_batches_have_constant_rows(tmp_path, shard_format, monkeypatch):
    monkeypatch.setattr(writers, "BATCH_BYTES", 30 * 64)
    (shard,) = write(tmp_path, [packed_batch(60, 32, seed=2), packed_batch(60, 32, seed=3)], shard_format)
    if shard_format == "arrow":
        file = pa.ipc.open_file(tmp_path / shard.path)
        rows = [file.get_batch(number).num_rows for number in range(file.num_record_batches)]
        metadata = file.schema.metadata
    else:
        file = pq.ParquetFile(tmp_path / shard.path)
        rows = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        metadata = file.schema_arrow.metadata
        file.close()
    assert rows == [30] * (shard.sequences // 30) + [shard.sequences % 30] * (shard.sequences % 30 > 0)
    assert metadata[b"datapipe.rows_per_batch"] == b"30"


def test_write_parquet_tokens_are_split_into_bytes_and_compressed(tmp_path):
    (shard,) = write(tmp_path, [packed_batch(60, 32)], "parquet")
    column = pq.read_metadata(tmp_path / shard.path).row_group(0).column(0)
    assert column.path_in_schema == "tokens.list.element"
    assert column.compression == "ZSTD"
    assert "BYTE_STREAM_SPLIT" in column.encodings


@pytest.mark.parametrize("shard_format", FORMATS)
def test_write_same_rows_elsewhere_make_the_same_bytes(tmp_path, shard_format):
    batch = packed_batch(50, 16)
    first = write(tmp_path / "here", [batch], shard_format)
    second = write(tmp_path / "over" / "there", [batch], shard_format)
    assert first == second


def test_write_no_rows_makes_no_file(tmp_path):
    batch = packed_batch(5, 8)
    assert write(tmp_path, [batch.slice(0, 0)]) == ()
    assert list(tmp_path.iterdir()) == []


def test_write_row_above_target_gets_a_file_of_its_own(tmp_path):
    batch = packed_batch(3, 16)
    assert [shard.sequences for shard in write(tmp_path, [batch], target_bytes=5)] == [1] * batch.num_rows


def test_write_wide_ids_keep_their_width(tmp_path):
    batch = packed_batch(20, 16, vocab_size=100_000)
    (shard,) = write(tmp_path, [batch])
    assert read_back(tmp_path, shard.path)["tokens"].type.value_type == pa.uint32()
    assert np.array_equal(read_back(tmp_path, shard.path)["tokens"].to_pylist(), batch.column("tokens").to_pylist())


@pytest.mark.parametrize("shard_format", FORMATS)
def test_write_that_fails_leaves_no_open_handle(tmp_path, shard_format):
    batch = packed_batch(300, 32)
    writer = ShardWriter(Root(str(tmp_path)), "try/part", shard_format, schema_of(batch), target_bytes=100 * 64)
    writer.append(batch.slice(0, 120))
    (tmp_path / "try" / f"part-00001.{shard_format}").mkdir()  # so the second file cannot be opened
    with pytest.raises(OSError, match="part-00001"):
        writer.append(batch.slice(120, 100))
    assert not [link for link in open_files() if link.startswith(str(tmp_path))]


@pytest.mark.parametrize("shard_format", FORMATS)
def test_abort_closes_the_open_file(tmp_path, shard_format, monkeypatch):
    monkeypatch.setattr(writers, "BATCH_BYTES", 64)
    batch = packed_batch(30, 32)
    writer = ShardWriter(Root(str(tmp_path)), "try/part", shard_format, schema_of(batch), target_bytes=1 << 20)
    writer.append(batch)
    assert [link for link in open_files() if link.startswith(str(tmp_path))]
    writer.abort()
    assert not [link for link in open_files() if link.startswith(str(tmp_path))]


def open_files() -> list[str]:
    folder = Path("/proc/self/fd")
    if not folder.is_dir():
        pytest.skip("no /proc here")
    return [os.readlink(entry) for entry in folder.iterdir() if entry.is_symlink()]
