"""Rows by address, in the order of the request, from any shards."""

from __future__ import annotations

import os
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from datapipe.errors import CorruptionError
from datapipe.loader import reading
from datapipe.loader.order.layout import plan_layout
from datapipe.loader.reading import LocalCopy, RowReader
from datapipe.shards import writer
from datapipe.shards.manifest import read_snapshot
from datapipe.shards.writer import ShardFormat
from datapipe.storage import Root
from tests.support.packed_shards import RemoteRoot
from tests.support.snapshots import make_snapshot

S = 16


def open_reader(folder: Path) -> RowReader:
    root = Root(str(folder))
    snapshot = read_snapshot(root)
    return RowReader(root, snapshot, plan_layout(snapshot, "train"))


def test_layout_shards_in_any_order_are_the_same(tmp_path: Path) -> None:
    snapshot = read_snapshot(Root(str(make_snapshot(tmp_path, {"b": 20, "a": 15, "none": 0}))))
    layout = plan_layout(snapshot, "train")
    turned = plan_layout(snapshot.model_copy(update={"shards": snapshot.shards[::-1]}), "train")
    assert layout.shards == turned.shards
    assert layout.sources == ("a", "b", "none")
    assert [layout.size(source) for source in range(3)] == [15, 20, 0]
    shards, rows = layout.find(np.array([0, 6, 7, 14, 15, 34]))
    assert [layout.shards[shard].path[-11:] for shard in shards] == [f"0000{n}.arrow" for n in (0, 0, 1, 2, 0, 2)]
    assert rows.tolist() == [0, 6, 0, 0, 0, 5]
    assert layout.source_of(np.array([0, 14, 15, 34])).tolist() == [0, 0, 1, 1]


def test_read_rows_come_in_the_order_of_the_request(tmp_path: Path) -> None:
    reader = open_reader(make_snapshot(tmp_path, {"a": 40, "b": 25}))
    one_by_one = [reader.read(np.array([address])) for address in range(65)]
    addresses = np.random.default_rng(3).integers(0, 65, 100)  # some more than once
    rows = reader.read(addresses)
    assert ((rows.tokens[:, 0] - 1) // S).tolist() == addresses.tolist()
    for place, address in enumerate(addresses.tolist()):
        pieces = slice(rows.piece_offsets[place], rows.piece_offsets[place + 1])
        np.testing.assert_array_equal(rows.tokens[place], one_by_one[address].tokens[0])
        np.testing.assert_array_equal(rows.piece_lengths[pieces], one_by_one[address].piece_lengths)
        np.testing.assert_array_equal(rows.keys[pieces], one_by_one[address].keys)
        np.testing.assert_array_equal(rows.starts[pieces], one_by_one[address].starts)


def test_read_more_shards_than_may_be_open_reads_them_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_MAPPED_SHARDS", 2)
    reader = open_reader(make_snapshot(tmp_path, {"a": 40}, rows_per_shard=3))
    for _ in range(2):
        assert ((reader.read(np.arange(39, -1, -1)).tokens[:, 0] - 1) // S).tolist() == list(range(39, -1, -1))
    reader.close()
    assert reader.read(np.array([7])).tokens[0, 0] == 7 * S + 1


def flip(path: Path, found: bytes) -> None:
    """Flips a bit at the first occurrence of some bytes in a file."""
    content = bytearray(path.read_bytes())
    content[content.index(found)] ^= 1
    path.write_bytes(content)


def tokens_of(address: int) -> bytes:
    return (np.arange(address * S, address * S + 5) + 1).astype(np.uint32).tobytes()


def test_read_only_the_requested_columns(tmp_path: Path) -> None:
    reader = open_reader(make_snapshot(tmp_path, {"a": 40}))
    addresses = np.array([31, 2, 17])
    whole = reader.read(addresses)
    for dtype in (np.int64, np.int32, np.uint32):
        tokens = reader.read(addresses, {"tokens"}, np.dtype(dtype))
        assert tokens.tokens.dtype == dtype
        np.testing.assert_array_equal(tokens.tokens, whole.tokens)
        assert len(tokens.piece_lengths) == len(tokens.keys) == len(tokens.starts) == len(tokens.piece_offsets) == 0
    keys = reader.read(addresses, {"offsets", "keys"})
    np.testing.assert_array_equal(keys.keys, whole.keys)
    np.testing.assert_array_equal(keys.piece_offsets, whole.piece_offsets)
    assert len(keys.tokens) == len(keys.piece_lengths) == 0


def test_read_address_of_no_row_is_refused_and_nothing_is_empty(tmp_path: Path) -> None:
    reader = open_reader(make_snapshot(tmp_path, {"a": 40}))
    for address in (-1, 40, 1 << 60):
        with pytest.raises(IndexError):
            reader.read(np.array([3, address]))
    rows = reader.read(np.zeros(0, np.int64))
    assert (rows.tokens.shape, rows.piece_offsets.tolist()) == ((0, S), [0])


@pytest.mark.medium
def test_open_a_shard_beside_many_others_takes_no_more_memory(tmp_path: Path) -> None:
    reader = open_reader(make_snapshot(tmp_path, {"web": 420}, rows_per_shard=1))

    def peak_of_opening(addresses: range) -> float:
        peaks = []
        tracemalloc.start()
        for address in addresses:
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            reader.read(np.array([address]))
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
        tracemalloc.stop()
        return float(np.median(peaks))  # the dict of open shards itself grows at some of them

    peak_of_opening(range(5))
    with_few = peak_of_opening(range(5, 25))
    for address in range(25, 400):
        reader.read(np.array([address]))
    assert peak_of_opening(range(400, 420)) < with_few + 4096


def test_read_damaged_block_is_named_and_others_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "BATCH_BYTES", 5 * 4 * S)
    make_snapshot(tmp_path, {"a": 40}, rows_per_shard=20)
    flip(tmp_path / "shards/a/train-0000-00001.arrow", tokens_of(33))  # row 13 of the second shard
    reader = open_reader(tmp_path)
    assert len(reader.read(np.array([0, 29, 35, 39])).tokens) == 4
    for _ in range(2):
        with pytest.raises(CorruptionError, match=r"00001\.arrow: record batch 2, rows 10 to 14, are damaged") as caught:
            reader.read(np.array([1, 34]), {"tokens"})
        assert any("while reading 1 rows of shard shards/a/train-0000-00001.arrow" in note for note in caught.value.__notes__)
    trusting = RowReader(Root(str(tmp_path)), read_snapshot(Root(str(tmp_path))), reader.layout, check=False)
    assert trusting.read(np.array([34])).tokens[0, 0] == 34 * S + 1


def test_read_block_that_was_checked_is_not_checked_again(tmp_path: Path) -> None:
    make_snapshot(tmp_path, {"a": 40}, rows_per_shard=40)
    reader = open_reader(tmp_path)
    reader.read(np.array([3]))
    path = tmp_path / "shards/a/train-0000-00000.arrow"
    with open(path, "r+b") as stream:
        stream.seek(path.read_bytes().index(tokens_of(7)))
        stream.write(b"\xff\xff")
    assert reader.read(np.array([7])).tokens[0, 0] == 7 * S + 1 | 0xFFFF
    reader.close()
    with pytest.raises(CorruptionError, match="are damaged"):
        reader.read(np.array([3]))


def test_read_unchecked_lengths_that_do_not_fit_are_corruption(tmp_path: Path) -> None:
    root = Root(str(make_snapshot(tmp_path, {"a": 10}, rows_per_shard=10)))
    path, snapshot = tmp_path / "shards/a/train-0000-00000.arrow", read_snapshot(root)
    lengths, content = open_reader(tmp_path).read(np.arange(10)).piece_lengths, path.read_bytes()
    assert content.count(lengths.tobytes()) == 1
    for length in (0, -5, S + 1, 2**31 - 1):
        damaged = lengths.copy()
        damaged[4] = length
        path.write_bytes(content.replace(lengths.tobytes(), damaged.tobytes()))
        reader = RowReader(root, snapshot, plan_layout(snapshot, "train"), check=False)
        with pytest.raises(CorruptionError, match="a row points outside"):
            reader.read(np.arange(10), {"offsets", "lengths"})


def remote_reader(folder: Path, local_copy: LocalCopy | None = None) -> RowReader:
    root = RemoteRoot(str(folder))
    snapshot = read_snapshot(root)
    return RowReader(root, snapshot, plan_layout(snapshot, "train"), local_copy=local_copy)


@pytest.mark.parametrize("shard_format", ["arrow", "parquet"])
def test_read_remote_shards_equals_local(tmp_path: Path, shard_format: ShardFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "BATCH_BYTES", 5 * 4 * S)
    monkeypatch.setattr(reading, "MAX_OPEN_SHARDS", 2)
    make_snapshot(tmp_path, {"a": 60}, rows_per_shard=13, shard_format=shard_format)
    addresses = np.random.default_rng(1).integers(0, 60, 90)
    local, remote = open_reader(tmp_path).read(addresses), remote_reader(tmp_path).read(addresses)
    for name in ("tokens", "piece_lengths", "piece_offsets", "keys", "starts"):
        np.testing.assert_array_equal(getattr(remote, name), getattr(local, name))


def test_read_remote_shard_from_its_local_copy_once_there_is_one(tmp_path: Path) -> None:
    make_snapshot(tmp_path / "far", {"a": 20}, rows_per_shard=10)
    shards = [tmp_path / "far" / f"shards/a/train-0000-0000{number}.arrow" for number in range(2)]
    copies: dict[int, Path] = {}
    asked: list[int] = []

    def local_copy(shard: int) -> Path | None:
        asked.append(shard)
        return copies.get(shard)

    reader = remote_reader(tmp_path / "far", local_copy)
    wanted = np.arange(20)
    before = reader.read(wanted).tokens
    assert asked == [0, 1]
    reader.read(wanted)
    assert asked == [0, 1, 0, 1]
    copies[1] = tmp_path / "copy-of-1"
    copies[1].write_bytes(shards[1].read_bytes())
    np.testing.assert_array_equal(reader.read(wanted).tokens, before)
    shards[1].unlink()
    copies[1].unlink()  # an open file stays readable
    np.testing.assert_array_equal(reader.read(wanted).tokens, before)
    assert asked == [0, 1, 0, 1, 0, 1, 0]
    reader.forget(1)
    with pytest.raises(CorruptionError, match="no such file"):
        reader.read(wanted)


@pytest.mark.parametrize("damage", ["gone", "cut", "flipped", "cut while it is open"])
def test_read_remote_shard_with_a_damaged_copy_comes_from_the_store(tmp_path: Path, damage: str) -> None:
    make_snapshot(tmp_path / "far", {"a": 10}, rows_per_shard=10)
    copy = tmp_path / "copy"
    copy.write_bytes((tmp_path / "far/shards/a/train-0000-00000.arrow").read_bytes())
    reader = remote_reader(tmp_path / "far", lambda shard: copy)
    if damage == "cut while it is open":
        reader.read(np.arange(10))
    if damage == "gone":
        copy.unlink()
    elif damage == "flipped":
        flip(copy, tokens_of(4))
    else:
        os.truncate(copy, copy.stat().st_size - 30 if damage == "cut" else 100)
    for _ in range(2):
        assert ((reader.read(np.arange(10)).tokens[:, 0] - 1) // S).tolist() == list(range(10))


@pytest.mark.medium
def test_read_from_many_threads_while_shards_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_MAPPED_SHARDS", 2)
    reader = open_reader(make_snapshot(tmp_path, {"a": 60}, rows_per_shard=3))

    def is_right(seed: int) -> bool:
        addresses = np.random.default_rng(seed).integers(0, 60, 7)
        return ((reader.read(addresses).tokens[:, 0] - 1) // S).tolist() == addresses.tolist()

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(is_right, range(300)))
