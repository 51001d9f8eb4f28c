"""Shards have the same bytes however rows arrive, a fixed layout, and correct counts."""

from __future__ import annotations

import os
from pathlib import Path

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


def write(folder: Path, batches: list[pa.RecordBatch], shard_format="arrow", target_bytes=1 << 30):
    writer = ShardWriter(Root(str(folder)), "try/part", shard_format, schema_of(batches[0]), target_bytes)
    for batch in batches:
        writer.append(batch)
    return writer.finish()


def read_back(folder: Path, path: str) -> tuple[pa.Table, list[int]]:
    """The rows of a file, and how many each of its record batches or row groups has."""
    if path.endswith(".parquet"):
        with pq.ParquetFile(folder / path) as file:
            return file.read(), [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    file = pa.ipc.open_file(folder / path)
    return file.read_all(), [file.get_batch(number).num_rows for number in range(file.num_record_batches)]


@pytest.mark.medium
@settings(max_examples=25)
@given(
    num_docs=st.integers(1, 200),
    vocab_size=st.sampled_from([50_000, 100_000]),
    cuts=st.lists(st.integers(0, 400), max_size=12),
    shard_format=st.sampled_from(["arrow", "parquet"]),
    rows_per_shard=st.sampled_from([1, 90, 10_000]),
    rows_per_batch=st.integers(1, 40),
)
def test_write_any_batches_make_files_of_the_rows_in_order_with_their_counts(
    tmp_path_factory, num_docs, vocab_size, cuts, shard_format, rows_per_shard, rows_per_batch
):
    """The bytes follow from the rows alone, not from the batches in which they come nor from the folder."""
    folder, batch = tmp_path_factory.mktemp("shards"), packed_batch(num_docs, 16, vocab_size=vocab_size)
    row_bytes = 32 if vocab_size < 65_500 else 64
    borders = [0, *sorted(min(cut, batch.num_rows) for cut in cuts), batch.num_rows]
    pieces = [batch.slice(start, stop - start) for start, stop in zip(borders[:-1], borders[1:])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writers, "BATCH_BYTES", rows_per_batch * row_bytes)
        shards = write(folder / "whole", [batch], shard_format, rows_per_shard * row_bytes)
        assert write(folder / "over/there", pieces, shard_format, rows_per_shard * row_bytes) == shards
    assert [shard.path for shard in shards] == [f"try/part-{number:05d}.{shard_format}" for number in range(len(shards))]
    rows = [min(rows_per_shard, batch.num_rows - start) for start in range(0, batch.num_rows, rows_per_shard)]
    assert [shard.sequences for shard in shards] == rows
    tables, most_rows = [], min(rows_per_batch, rows_per_shard)
    for shard in shards:
        table, per_batch = read_back(folder / "whole", shard.path)
        whole, rest = divmod(shard.sequences, most_rows)
        assert per_batch == [most_rows] * whole + [rest] * (rest > 0)
        assert table.schema.metadata[b"datapipe.rows_per_batch"] == str(most_rows).encode()
        assert shard.tokens == sum(map(sum, table["lengths"].to_pylist()))
        assert shard.documents == sum(starts.count(0) for starts in table["starts"].to_pylist())
        assert (shard.checksum, shard.bytes) == file_checksum(Root(str(folder / "whole")), shard.path)
        tables.append(table.replace_schema_metadata(None))
    assert pa.concat_tables(tables).equals(pa.table(batch))


def test_write_parquet_tokens_are_split_into_bytes_and_compressed(tmp_path):
    (shard,) = write(tmp_path, [packed_batch(60, 32)], "parquet")
    column = pq.read_metadata(tmp_path / shard.path).row_group(0).column(0)
    assert (column.path_in_schema, column.compression) == ("tokens.list.element", "ZSTD")
    assert "BYTE_STREAM_SPLIT" in column.encodings


def test_write_no_rows_makes_no_file(tmp_path):
    assert write(tmp_path, [packed_batch(5, 8).slice(0, 0)]) == ()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shard_format", ["arrow", "parquet"])
def test_write_that_fails_or_is_aborted_leaves_no_open_handle(tmp_path, shard_format, monkeypatch):
    monkeypatch.setattr(writers, "BATCH_BYTES", 64)
    batch = packed_batch(300, 32)
    failing, aborted = (
        ShardWriter(Root(str(tmp_path)), name, shard_format, schema_of(batch), target_bytes=100 * 64) for name in ("a", "b")
    )
    (tmp_path / f"a-00001.{shard_format}").mkdir()  # so the second file cannot be opened
    with pytest.raises(OSError, match="a-00001"):
        failing.append(batch.slice(0, 220))
    aborted.append(batch.slice(0, 30))
    assert [link for link in open_files() if link.startswith(str(tmp_path / "b"))]
    aborted.abort()
    assert not [link for link in open_files() if link.startswith(str(tmp_path))]


def open_files() -> list[str]:
    folder = Path("/proc/self/fd")
    if not folder.is_dir():
        pytest.skip("no /proc here")
    return [os.readlink(entry) for entry in folder.iterdir() if entry.is_symlink()]
