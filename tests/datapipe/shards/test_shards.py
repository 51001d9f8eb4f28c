"""Shards: written with the same bytes however rows arrive, read by any thread, joined to documents without those taken down."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import process_time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe import columns
from datapipe.errors import CorruptionError, SnapshotError
from datapipe.records.checksum import file_checksum
from datapipe.records.names import REMOVED, SNAPSHOT
from datapipe.shards import writer as writers
from datapipe.shards.blocks import SequenceRows
from datapipe.shards.manifest import read_snapshot
from datapipe.shards.packed_documents import DocumentJoiner, without_removed
from datapipe.shards.reader import ShardReader
from datapipe.shards.removed import Removed, RemovedAtSteps, read_removed, removed_entry
from datapipe.shards.shard_file import Shard
from datapipe.shards.shard_table import RowForm, ShardEntry
from datapipe.shards.writer import ShardWriter
from datapipe.snapshots.verify import batch_problem, verify_snapshot
from datapipe.storage.root import Root
from datapipe.tokens.packing import assemble, pack
from tests.support import packed_shards
from tests.support.packed_shards import EOS, FINGERPRINT, RemoteRoot, packed_batch, schema_of, write_shards


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


@pytest.mark.slow
@settings(max_examples=12)
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
    assert [shard.rows for shard in shards] == rows
    tables, most_rows = [], min(rows_per_batch, rows_per_shard)
    for shard in shards:
        table, per_batch = read_back(folder / "whole", shard.path)
        whole, rest = divmod(shard.rows, most_rows)
        assert per_batch == [most_rows] * whole + [rest] * (rest > 0)
        assert table.schema.metadata[b"datapipe.rows_per_batch"] == str(most_rows).encode()
        assert shard.tokens == sum(map(sum, table["lengths"].to_pylist()))
        assert shard.documents == sum(starts.count(0) for starts in table["starts"].to_pylist())
        assert (shard.checksum, shard.bytes) == file_checksum(Root(str(folder / "whole")), shard.path)
        tables.append(table.replace_schema_metadata(None))
    assert pa.concat_tables(tables).equals(pa.table(batch))
    assert write(folder / "none", [batch.slice(0, 0)]) == ()


def test_write_parquet_tokens_are_split_into_bytes_and_compressed(tmp_path):
    (shard,) = write(tmp_path, [packed_batch(60, 32)], "parquet")
    column = pq.read_metadata(tmp_path / shard.path).row_group(0).column(0)
    assert (column.path_in_schema, column.compression) == ("tokens.list.element", "ZSTD")
    assert "BYTE_STREAM_SPLIT" in column.encodings


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
    return [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]


# ------------------------------------------------------------------------------------------------ reading

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
    reader = ShardReader(kind(str(folder)), entry, RowForm(LENGTH, FINGERPRINT))
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
        next_tokens=np.zeros((0, 0), np.int64),
        run_offsets=np.zeros(len(taken) + 1, np.int64),
        runs=np.zeros(0, np.int32),
    )


def assert_same(found: SequenceRows, wanted: SequenceRows) -> None:
    for name in ("tokens", "piece_lengths", "piece_offsets", "keys", "starts"):
        one, other = getattr(found, name), getattr(wanted, name)
        assert one.dtype == other.dtype, name
        assert np.array_equal(one, other), name


@pytest.mark.medium
@given(picks=st.lists(st.floats(0, 1, exclude_max=True), max_size=20))
@settings(max_examples=12)
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


def test_threads_that_want_the_same_blocks_fetch_each_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, numbers = packed_batch(40, LENGTH), list[int]()
    monkeypatch.setattr(writers, "BATCH_BYTES", 4 * 7 * LENGTH)
    (entry,) = write_shards(tmp_path, batch)
    reader = ShardReader(RemoteRoot(str(tmp_path)), entry, RowForm(LENGTH, FINGERPRINT))
    check, num_blocks = Shard.checked_batch, -(-batch.num_rows // reader.rows_per_block)

    def counted(shard: Shard, number: int) -> pa.RecordBatch:
        numbers.append(number)
        return check(shard, number)

    monkeypatch.setattr(Shard, "checked_batch", counted)
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(reader.read, [np.arange(batch.num_rows)] * 8):
            assert_same(found, expected(batch, range(batch.num_rows)))
    reader.close()
    assert num_blocks > 2
    assert sorted(numbers) == list(range(num_blocks))


def test_a_forked_process_waits_for_no_thread_that_fetched_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (entry,) = write_shards(tmp_path, packed_batch(4, LENGTH))
    reader = ShardReader(RemoteRoot(str(tmp_path)), entry, RowForm(LENGTH, FINGERPRINT))
    with reader._turn(0):
        monkeypatch.setattr("os.getpid", lambda: 0)
        assert not reader._turn(0).locked()


def _open(folder: Path, entry: ShardEntry, length: int = LENGTH, fingerprint: str = FINGERPRINT) -> None:
    reader = ShardReader(Root(str(folder)), entry, RowForm(length, fingerprint))
    try:
        reader.block(0)
    finally:
        reader.close()


@pytest.mark.parametrize("shard_format", ["arrow", "parquet"])
def test_open_of_a_file_that_is_not_as_in_the_manifest_is_refused_with_its_name(tmp_path, shard_format):
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


@pytest.mark.medium
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
        ShardReader(Root(str(tmp_path)), entry, RowForm(LENGTH, FINGERPRINT)).read(np.array([5]))


# ------------------------------------------------------------------------------------------------ documents


@pytest.mark.medium
def test_joiner_document_of_very_many_pieces_costs_linear_time():
    num_tokens = 120_000
    tokens = np.ones(num_tokens, np.uint16)
    tokens[-1] = EOS
    lengths, offsets = np.array([num_tokens]), np.array([0, num_tokens])
    keys = columns.key_matrix(columns.make_keys(1, np.arange(1)))
    packed = pack(lengths, 2, "best_fit")
    rows = assemble(packed, np.random.default_rng(1).permutation(packed.num_rows), tokens, offsets, keys, EOS, 2)
    joiner, started = DocumentJoiner(EOS), process_time()
    found, found_lengths = joiner.add(rows)
    joiner.finish()
    assert process_time() - started < 8  # 0.3 s; adding up all pieces at each one took 40 s
    assert np.array_equal(found, tokens)
    assert found_lengths.tolist() == [num_tokens]


@pytest.mark.parametrize("method", ["best_fit", "concat", "buckets"])
@pytest.mark.parametrize("share", [0.05, 0.6, 1.0])
def test_rows_without_removed_documents_hold_all_others_in_order(method, share):
    rows = packed_batch(120, 64, method=method, seed=3)
    every = [key.tobytes() for key in np.unique(columns.key_matrix(rows.column("keys").values), axis=0)]
    gone = set(every[:: int(1 / share)])
    left = without_removed(rows, Removed.none().with_takedown(gone), EOS)
    left.validate(full=True)
    assert _pieces(left) == [piece for piece in _pieces(rows) if piece[0] not in gone]
    assert left.schema == rows.schema
    assert left.num_rows == sum(any(key not in gone for key in keys) for keys in rows.column("keys").to_pylist())
    if method != "buckets":  # whose pieces end anywhere
        assert batch_problem(left, 50_000, EOS, was_cut=True) is None
    for row in left.to_pylist():
        assert row["lengths"]
        assert set(row["tokens"][sum(row["lengths"]) :]) <= {EOS}
    assert without_removed(rows, Removed.none(), EOS) is rows


def _pieces(rows: pa.RecordBatch) -> list[tuple[bytes, int, tuple[int, ...]]]:
    """Document, start and tokens of each piece, in order."""
    found = []
    for row in rows.to_pylist():
        first = 0
        for key, start, length in zip(row["keys"], row["starts"], row["lengths"]):
            found.append((key, start, tuple(row["tokens"][first : first + length])))
            first += length
    return found


# -------------------------------------------------------------- documents that were taken down


def _keys(count: int, seed: int) -> list[bytes]:
    rng = np.random.default_rng(seed)
    ends = [b"\0" * 8, b"\0" * 7 + b"\1", b"\xff" * 8]  # zeros at the end, which NumPy leaves out of a bytes object
    return [rng.bytes(8) + (ends[number] if number < len(ends) else rng.bytes(8)) for number in range(count)]


def _matrix(keys: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 16)


@pytest.mark.parametrize("seed", range(4))
def test_a_list_finds_its_keys_and_no_others(seed):
    inside, outside = _keys(300, seed), _keys(300, seed + 100)
    removed = Removed.none().with_takedown(inside[:100]).with_takedown(inside[50:])
    asked = [*inside, *outside, inside[0][:8] + outside[5][8:]]
    assert removed.holds(_matrix(asked)).tolist() == [True] * 300 + [False] * 301
    assert not Removed.none().holds(_matrix(asked)).any()
    assert removed.holds(np.zeros((0, 16), np.uint8)).tolist() == []


def test_keys_of_one_mixed_number_are_distinguished():
    key = b"\1" * 16
    removed = Removed.none().with_takedown([key])
    first, second = np.frombuffer(key, np.uint64)
    odd = np.uint64(0x9E3779B97F4A7C15)
    other = second + np.uint64(1)
    with np.errstate(over="ignore"):
        alike = np.array([first ^ (second * odd) ^ (other * odd), other], np.uint64).tobytes()
    assert removed.holds(_matrix([key, alike])).tolist() == [True, False]


def test_a_list_knows_what_it_held_after_each_takedown():
    keys = _keys(6, 0)
    lists = [Removed.none()]
    for part in (keys[:2], keys[1:4], keys[5:]):
        lists.append(lists[-1].with_takedown(part))
    last = lists[-1]
    held = dict(zip((key.ljust(16, b"\0") for key in last.keys.tolist()), last.takedowns.tolist()))
    assert held == dict(zip([*keys[:4], keys[5]], [1, 1, 2, 2, 3]))
    assert len(set(last.digests)) == 3
    for number, before in enumerate(lists):
        assert last.until(before.digests[-1] if number else "").keys.tolist() == before.keys.tolist()
        assert last.digests[:number] == before.digests
    assert last.with_takedown(keys[:2]) is last
    with pytest.raises(KeyError):
        lists[1].until(last.digests[-1])
    assert Removed.none().with_takedown(reversed(keys)).digests == Removed.none().with_takedown(keys).digests
    # what holds at a step is the last list before it
    at_steps = RemovedAtSteps(last, [(3, lists[1].digests[0]), (7, last.digests[2]), (9, "")], "f" * 32)
    assert [len(at_steps.at(step)) for step in (0, 2, 3, 6, 7, 8, 9, 100)] == [0, 0, 2, 2, 5, 5, 0, 0]
    unknown = RemovedAtSteps(lists[1], [(3, last.digests[1])], "f" * 32)
    assert len(unknown.at(2)) == 0
    with pytest.raises(SnapshotError, match="at step 3"):
        unknown.at(3)


def test_a_manifest_names_its_list_and_a_damaged_list_is_found(tmp_path):
    root = Root(str(tmp_path))
    before = packed_shards.make_snapshot(tmp_path, packed_shards.packed_batch(40, 64))
    root.write_atomic(SNAPSHOT, before.to_json())
    assert b"removed" not in (tmp_path / SNAPSHOT).read_bytes()
    removed = Removed.none().with_takedown(_keys(5, 2))
    entry, files = removed_entry(removed, REMOVED)
    for path, content in files.items():
        root.write_atomic(path, content)
    after = before.model_copy(update={"removed": entry}).sealed()
    root.write_atomic(SNAPSHOT, after.to_json())
    read = read_snapshot(root)
    assert read.removed == entry
    assert read.fingerprint != before.fingerprint
    assert read_removed(root, read).keys.tolist() == removed.keys.tolist()
    assert read_removed(root, before).keys.tolist() == []
    assert not [line for line in verify_snapshot(root, read) if "removed" in line]
    content = bytearray((tmp_path / REMOVED).read_bytes())
    content[20] ^= 1
    (tmp_path / REMOVED).write_bytes(content)
    assert [line.partition(":")[0] for line in verify_snapshot(root, read) if "removed" in line] == [REMOVED]
    with pytest.raises(CorruptionError, match=r"removed\.parquet"):
        read_removed(root, read)
    assert removed_entry(Removed.none(), REMOVED) == (None, {})
