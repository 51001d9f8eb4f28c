"""Rows by address, in the order of the request, from any shards; damaged ones are named or replaced."""

import os
import shutil
import tracemalloc
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.errors import CorruptionError
from datapipe.loader import Loader, reading
from datapipe.loader.order.layout import plan_layout
from datapipe.loader.reading import LocalCopy, RowReader
from datapipe.shards import writer
from datapipe.shards.manifest import read_snapshot
from datapipe.shards.shard_file import Shard
from datapipe.shards.writer import ShardFormat
from datapipe.storage.root import Root
from tests.support.loader_rows import assert_joined
from tests.support.packed_shards import RemoteRoot
from tests.support.snapshots import make_snapshot

pytestmark = pytest.mark.filterwarnings("ignore::datapipe.loader.share.RaggedRanksWarning")

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
    assert layout.num_rows.tolist() == [15, 20, 0]
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


@pytest.mark.slow
def test_read_more_shards_than_may_be_open_reads_them_all_from_many_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_MAPPED_SHARDS", 2)
    reader = open_reader(make_snapshot(tmp_path, {"a": 60}, rows_per_shard=3))

    def is_right(seed: int) -> bool:
        addresses = np.random.default_rng(seed).integers(0, 60, 7)
        return ((reader.read(addresses).tokens[:, 0] - 1) // S).tolist() == addresses.tolist()

    assert all(map(is_right, range(20)))
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(is_right, range(100)))
    reader.close()
    assert is_right(7)


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


@pytest.mark.slow
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


def test_read_lengths_that_do_not_fit_are_corruption_without_a_checksum_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Shard, "checked_batch", Shard.batch)
    root = Root(str(make_snapshot(tmp_path, {"a": 10}, rows_per_shard=10)))
    path, snapshot = tmp_path / "shards/a/train-0000-00000.arrow", read_snapshot(root)
    lengths, content = open_reader(tmp_path).read(np.arange(10)).piece_lengths, path.read_bytes()
    assert content.count(lengths.tobytes()) == 1
    for length in (0, -5, S + 1, 2**31 - 1):
        damaged = lengths.copy()
        damaged[4] = length
        path.write_bytes(content.replace(lengths.tobytes(), damaged.tobytes()))
        reader = RowReader(root, snapshot, plan_layout(snapshot, "train"))
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


STEPS = range(30)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_snapshot(tmp_path_factory.mktemp("sound"), {"code": 31, "web": 83}, vocab_size=1 << 20)


@pytest.fixture
def damaged_copy(sound: Path, tmp_path: Path) -> Path:
    shutil.copytree(sound, tmp_path / "copy")
    return tmp_path / "copy"


def damage(damaged_copy: Path, kind: str) -> tuple[str, range]:
    """Damages the third shard of web. Returns its path and the numbers of its rows."""
    path, rows = "shards/web/train-0000-00002.arrow", range(31 + 2 * 7, 31 + 3 * 7)
    content = bytearray((damaged_copy / path).read_bytes())
    if kind == "flipped":
        content[content.index((rows[1] * S + 6).to_bytes(4, "little"))] ^= 1  # a token of its second row
    (damaged_copy / path).write_bytes(content[:-100] if kind == "truncated" else content)
    if kind == "missing":
        (damaged_copy / path).unlink()
    return path, rows


def numbers(batch: dict[str, Any]) -> np.ndarray:
    """The number of each row in its snapshot."""
    return (batch["input_ids"][:, 0] - 1) // S


@pytest.mark.parametrize("kind", ["flipped", "truncated", "missing"])
def test_damage_is_a_named_error(sound: Path, damaged_copy: Path, kind: str) -> None:
    path, rows = damage(damaged_copy, kind)
    reference, loader = Loader(sound, global_batch_size=5), Loader(damaged_copy, global_batch_size=5)
    hit = [step for step in STEPS if np.isin(numbers(reference.batch(step)), rows).any()]
    assert len(hit) > 3
    for step in STEPS:
        with pytest.raises(CorruptionError, match=path) if step in hit else nullcontext():
            loader.batch(step)
    with pytest.raises(CorruptionError, match=path):
        list(zip(STEPS, loader))


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["flipped", "truncated", "missing"])
def test_damaged_rows_are_replaced_alike_on_every_rank_and_after_any_resume(sound: Path, damaged_copy: Path, kind: str) -> None:
    path, rows = damage(damaged_copy, kind)
    options: dict[str, Any] = {"global_batch_size": 5, "fields": ("input_ids", "sources"), "on_corrupt": "replace"}
    reference, whole = Loader(sound, **options), Loader(damaged_copy, **options)
    with pytest.warns(UserWarning, match=path) as warned:
        batches = [whole.batch(step) for step in STEPS]
    assert len(warned) == 1
    for step, batch in zip(STEPS, batches):
        expected = reference.batch(step)
        kept = ~np.isin(numbers(expected), rows)
        np.testing.assert_array_equal(batch["input_ids"][kept], expected["input_ids"][kept])
        np.testing.assert_array_equal(batch["sources"], expected["sources"])
        assert not np.isin(numbers(batch), rows).any()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for step in STEPS[::-7]:
            ranks = [Loader(damaged_copy, rank=rank, world_size=3, **options) for rank in range(3)]
            assert_joined([rank.batch(step) for rank in ranks], batches[step], ["input_ids"])


def test_damage_to_the_rows_of_a_batch_is_a_named_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shard, "checked_batch", Shard.batch)
    damaged_copy = make_snapshot(tmp_path, {"web": 1}, rows_per_shard=1)
    path = next(damaged_copy.glob("shards/web/*.arrow"))
    content, one_row = path.read_bytes(), b"\1\0\0\x001\0\0\0"  # the metadata "1", as Arrow writes a string
    assert one_row in content
    path.write_bytes(content.replace(one_row, one_row.replace(b"1", b"0")))
    with pytest.raises(CorruptionError, match="are not those of a shard"):
        Loader(damaged_copy, global_batch_size=1).batch(0)
