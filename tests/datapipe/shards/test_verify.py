"""A snapshot is whole, or every file that is not is named: flipped, cut short, gone, wrong in the manifest, or nobody's."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe.errors import CorruptionError
from datapipe.shards import writer as writers
from datapipe.shards.checksum import file_checksum
from datapipe.shards.manifest import FileEntry, Snapshot
from datapipe.shards.reader import ShardReader
from datapipe.shards.verify import batch_problem, verify_snapshot
from datapipe.shards.writer import ShardWriter
from datapipe.storage import Root
from tests.support.packed_shards import EOS, FINGERPRINT, RemoteRoot, entry_of, make_snapshot, packed_batch, schema_of

LENGTH = 16
FORMATS = pytest.mark.parametrize("shard_format", ["arrow", "parquet"])


@pytest.fixture(params=["arrow", "parquet"])
def output(request, tmp_path):
    return Root(str(tmp_path)), make_snapshot(tmp_path, packed_batch(80, LENGTH), request.param, target_bytes=50 * 2 * LENGTH)


def with_shards(snapshot: Snapshot, *shards) -> Snapshot:
    return snapshot.model_copy(update={"shards": shards})


@pytest.mark.medium
@pytest.mark.parametrize("method", ["best_fit", "concat"])
def test_verify_finds_nothing_in_a_sound_snapshot_and_names_every_damaged_file(output, tmp_path, method):
    root, snapshot = output
    if method == "concat":
        snapshot = make_snapshot(tmp_path, packed_batch(80, LENGTH, method=method), snapshot.shard_format, 50 * 2 * LENGTH)
    seen: list[str] = []
    assert verify_snapshot(root, snapshot, seen.append) == []
    assert seen == ["files.parquet", "tokenizer.json", *(shard.path for shard in snapshot.shards)]
    rng = np.random.default_rng(7)
    for path in seen:
        content = (tmp_path / path).read_bytes()
        damaged = [content[:-1], content[: len(content) // 2], b""]
        for _ in range(5):
            flipped = bytearray(content)
            flipped[rng.integers(len(content))] ^= 1 << rng.integers(8)
            damaged.append(bytes(flipped))
        for bad in damaged:
            (tmp_path / path).write_bytes(bad)
            assert [problem.partition(":")[0] for problem in verify_snapshot(root, snapshot)] == [path]
        (tmp_path / path).unlink()
        (problem,) = verify_snapshot(root, snapshot)
        assert problem.startswith(f"{path}: ")
        (tmp_path / path).mkdir()
        assert [problem.partition(":")[0] for problem in verify_snapshot(root, snapshot)] == [path]
        (tmp_path / path).rmdir()
        (tmp_path / path).write_bytes(content)
    assert verify_snapshot(root, snapshot) == []
    (tmp_path / "shards/web/notes.txt").write_text("not mine")
    (tmp_path / seen[2]).unlink()
    assert [problem.partition(":")[0] for problem in verify_snapshot(root, snapshot)] == [seen[2], "shards/web/notes.txt"]


@pytest.mark.parametrize("name", ["tokenizer.json", "files.parquet", "manifest"])
def test_verify_flipped_bit_in_either_copy_of_a_file_of_the_newest_snapshot_is_found(tmp_path, name):
    """A run leaves them in the folder of the snapshot and in the output, where people and other tools read them."""
    snapshot = make_snapshot(tmp_path, packed_batch(20, LENGTH))
    (tmp_path / "snapshot.json").write_bytes(snapshot.to_json())
    folder = tmp_path / "snapshots" / snapshot.fingerprint
    folder.mkdir(parents=True)
    for own in ("snapshot.json", "tokenizer.json", "files.parquet"):
        (folder / own).write_bytes((tmp_path / own).read_bytes())
    assert verify_snapshot(Root(str(tmp_path)), snapshot) == []
    path = folder / "snapshot.json" if name == "manifest" else tmp_path / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    (problem,) = verify_snapshot(Root(str(tmp_path)), snapshot)
    assert (str(path) if name == "manifest" else f"{name}: ") in problem


@FORMATS
def test_verify_damaged_rows_are_named_and_no_others(tmp_path, shard_format, monkeypatch):
    """A bit flipped in the tokens of row 13 damages the block of row 13."""
    monkeypatch.setattr(writers, "BATCH_BYTES", 5 * 2 * LENGTH)
    batch = packed_batch(80, LENGTH)
    snapshot = make_snapshot(tmp_path, batch, shard_format)
    (shard,) = snapshot.shards
    path = tmp_path / shard.path
    sound = path.read_bytes()
    if shard_format == "arrow":
        wanted = np.array(batch.column("tokens")[13].as_py(), np.uint16).tobytes()
        assert sound.count(wanted) == 1
        position = sound.index(wanted)
    else:
        position = pq.ParquetFile(path).metadata.row_group(2).column(0).data_page_offset + 40
    path.write_bytes(sound[:position] + bytes([sound[position] ^ 16]) + sound[position + 1 :])
    (problem,) = verify_snapshot(Root(str(tmp_path)), snapshot)
    assert problem.startswith(f"{shard.path}: ")
    assert "rows 10 to 14" in problem
    for kind in (Root, RemoteRoot):
        reader = ShardReader(kind(str(tmp_path)), shard, LENGTH, FINGERPRINT)
        reader.read(np.array([0, 9, 15, batch.num_rows - 1]))
        # From an object store, zstd's error cannot be told from a network's, so it stays an OSError, which is retried.
        with pytest.raises((CorruptionError, OSError) if kind is RemoteRoot else CorruptionError):
            reader.read(np.array([14]))
        reader.close()
    path.write_bytes(sound[:6] + b"x" + sound[7:])  # behind the magic number
    (problem,) = verify_snapshot(Root(str(tmp_path)), snapshot)
    assert shard_format == "parquet" or "all rows are intact" in problem


def test_verify_document_of_an_unknown_file_is_found(tmp_path):
    snapshot = make_snapshot(tmp_path, packed_batch(20, LENGTH, seed=4))
    path = tmp_path / "files.parquet"
    table = pq.read_table(path)
    pq.write_table(table.set_column(0, "hash", pa.array([77], pa.uint64())), path)
    checksum, size = file_checksum(Root(str(tmp_path)), "files.parquet")
    files = FileEntry(path="files.parquet", bytes=size, checksum=checksum)
    (problem,) = verify_snapshot(Root(str(tmp_path)), snapshot.model_copy(update={"files": files}))
    assert all(text in problem for text in (snapshot.shards[0].path, f"document {5:016x}", "files.parquet"))


def test_verify_lost_piece_of_a_cut_document_is_found(tmp_path):
    batch = packed_batch(40, LENGTH)
    goes_on = next(row for row, starts in enumerate(batch.column("starts").to_pylist()) if max(starts) > 0)
    snapshot = make_snapshot(tmp_path, batch.take(np.delete(np.arange(batch.num_rows), goes_on)))
    (problem,) = verify_snapshot(Root(str(tmp_path)), snapshot)
    assert problem.startswith("shards/web: train documents have ")


@pytest.mark.parametrize("field", ["tokens", "documents", "sequences"])
def test_verify_wrong_count_in_manifest_is_found(output, field):
    root, snapshot = output
    first = snapshot.shards[0]
    wrong = first.model_copy(update={field: getattr(first, field) + 1})
    (problem,) = verify_snapshot(root, with_shards(snapshot, wrong, *snapshot.shards[1:]))
    assert problem.startswith(f"{first.path}: ")


def test_verify_shard_of_another_tokenizer_or_vocabulary_is_found(output):
    root, snapshot = output
    small = snapshot.model_copy(update={"tokenizer": snapshot.tokenizer.model_copy(update={"vocab_size": 100})})
    assert [problem.partition(":")[0] for problem in verify_snapshot(root, small)] == [shard.path for shard in snapshot.shards]
    sound = schema_of(packed_batch(1, LENGTH))
    schema = sound.with_metadata({**sound.metadata, b"datapipe.tokenizer": b"another"})
    writer = ShardWriter(root, "shards/web/part-00001", snapshot.shard_format, schema, 1 << 20)
    writer.append(packed_batch(9, LENGTH))
    (shard,) = writer.finish()
    (problem,) = verify_snapshot(root, with_shards(snapshot, *snapshot.shards, entry_of(shard)))
    assert problem.startswith(f"{shard.path}: datapipe.tokenizer is another")


def rows(*rows: tuple[list[int], list[int]]) -> pa.RecordBatch:
    """A batch of (tokens, lengths) each; every piece starts a document."""
    schema = schema_of(packed_batch(1, 4)).remove_metadata()
    columns = {
        "tokens": [tokens for tokens, _ in rows],
        "lengths": [lengths for _, lengths in rows],
        "keys": [[b"k" * 16] * len(lengths) for _, lengths in rows],
        "starts": [[0] * len(lengths) for _, lengths in rows],
    }
    return pa.record_batch([pa.array(columns[field.name], field.type) for field in schema], schema=schema)


@pytest.mark.parametrize(
    ("tokens", "lengths", "bos", "problem"),
    [
        ([1, 0, 2, 0], [2, 2], None, None),
        ([1, 0, 2, 3], [2, 2], None, None),  # the last piece may continue in another row
        ([1, 2, 0, 0], [3], None, None),
        ([0, 0, 0, 0], [1], None, None),
        ([1, 9, 2, 0], [2, 2], None, "a document that ends with id 9"),
        ([1, 2, 0, 0], [2], None, "a document that ends with id 2"),  # not at the end of the row, so it must end there
        ([1, 0, 7, 0], [2], None, "padding with other ids"),
        ([1, 0, 2, 0], [2, 3], None, "a row of 5 tokens"),
        ([0, 0, 0, 0], [], None, "a row of 0 tokens"),
        ([1, 0, 2, 0], [2, 0, 2], None, "a piece of 0 tokens"),
        ([99, 0, 2, 0], [2, 2], None, "token id 99"),
        ([1, 0, 2, 0], [4], None, "1 end-of-text tokens"),
        ([0, 0, 0, 0], [2], None, "1 end-of-text tokens"),
        ([1, 2, 1, 0], [2, 2], 1, "a document that ends with id 2"),
        ([1, 0, 1, 0], [2, 2], 1, None),
        ([2, 0, 1, 0], [2, 2], 1, "a document that begins with id 2"),
        ([1, 1, 0, 0], [3], 1, "1 tokens of id 1"),
    ],
)
def test_batch_problem_of_a_row(tokens, lengths, bos, problem):
    found = batch_problem(rows(([1, 2, 3, 0], [4]), (tokens, lengths)), vocab_size=50, eos_id=EOS, bos_id=bos)
    assert found is None if problem is None else problem in (found or "")


def test_verify_piece_of_another_length_than_its_shard_is_found():
    batch = packed_batch(50, LENGTH, method="buckets")
    assert "of this shard" in (batch_problem(batch, 50_000, EOS, piece_length=LENGTH) or "")
    whole = batch.filter(pa.array([lengths == [LENGTH] for lengths in batch.column("lengths").to_pylist()]))
    assert whole.num_rows > 10
    assert batch_problem(whole, 50_000, EOS, piece_length=LENGTH) is None
