"""Verifying a snapshot: no output for an intact one, and one line for each problem."""

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


@pytest.fixture(params=["arrow", "parquet"])
def output(request, tmp_path):
    return Root(str(tmp_path)), make_snapshot(tmp_path, packed_batch(80, LENGTH), request.param, target_bytes=50 * 2 * LENGTH)


@pytest.mark.parametrize("method", ["best_fit", "concat"])
@pytest.mark.parametrize("shard_format", ["arrow", "parquet"])
def test_verify_sound_snapshot_finds_nothing(tmp_path, method, shard_format):
    snapshot = make_snapshot(tmp_path, packed_batch(200, LENGTH, method=method), shard_format, target_bytes=50 * 2 * LENGTH)
    seen: list[str] = []
    assert verify_snapshot(Root(str(tmp_path)), snapshot, seen.append) == []
    assert seen == ["files.parquet", "tokenizer.json", *(shard.path for shard in snapshot.shards)]


@pytest.mark.medium
def test_verify_any_flipped_bit_is_found_and_named(output, tmp_path):
    root, snapshot = output
    rng = np.random.default_rng(7)
    files = [shard.path for shard in snapshot.shards] + ["tokenizer.json", "files.parquet"]
    for path in files * (60 // len(files)):
        content = (tmp_path / path).read_bytes()
        flipped = bytearray(content)
        flipped[rng.integers(len(content))] ^= 1 << rng.integers(8)
        (tmp_path / path).write_bytes(flipped)
        (problem,) = verify_snapshot(root, snapshot)
        assert problem.startswith(f"{path}: checksum xxh3_128:")
        (tmp_path / path).write_bytes(content)
    assert verify_snapshot(root, snapshot) == []


@pytest.mark.parametrize("name", ["tokenizer.json", "files.parquet", "manifest"])
def test_verify_flipped_bit_in_either_copy_of_a_file_of_the_newest_snapshot_is_found(tmp_path, name):
    """A run leaves them in the folder of the snapshot and in the output, where people and other tools read them."""
    snapshot = make_snapshot(tmp_path, packed_batch(20, LENGTH))
    (tmp_path / "snapshot.json").write_bytes(snapshot.to_json())
    folder = tmp_path / "snapshots" / snapshot.fingerprint
    folder.mkdir(parents=True)
    for own in ("snapshot.json", "tokenizer.json", "files.parquet"):
        (folder / own).write_bytes((tmp_path / own).read_bytes())
    root = Root(str(tmp_path))
    assert verify_snapshot(root, snapshot) == []
    path = folder / "snapshot.json" if name == "manifest" else tmp_path / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    (problem,) = verify_snapshot(root, snapshot)
    assert (str(path) if name == "manifest" else f"{name}: checksum xxh3_128:") in problem


@pytest.mark.parametrize("shard_format", ["arrow", "parquet"])
def test_verify_damaged_rows_are_named_and_no_others(tmp_path, shard_format, monkeypatch):
    """A bit flipped in the tokens of row 13 damages the block of row 13."""
    monkeypatch.setattr(writers, "BATCH_BYTES", 5 * 2 * LENGTH)
    batch = packed_batch(80, LENGTH)
    snapshot = make_snapshot(tmp_path, batch, shard_format)
    (shard,) = snapshot.shards
    path = tmp_path / shard.path
    content = bytearray(path.read_bytes())
    if shard_format == "arrow":
        wanted = np.array(batch.column("tokens")[13].as_py(), np.uint16).tobytes()
        assert content.count(wanted) == 1
        place, block = content.index(wanted), "record batch 2"
    else:
        place, block = pq.ParquetFile(path).metadata.row_group(2).column(0).data_page_offset + 40, "row group 2"
    content[place] ^= 16
    path.write_bytes(content)
    (problem,) = verify_snapshot(Root(str(tmp_path)), snapshot)
    assert problem.startswith(f"{shard.path}: checksum ")
    assert problem.endswith(f"; damaged: {block}, rows 10 to 14")
    sound = ShardReader(RemoteRoot(str(tmp_path)), shard, LENGTH, FINGERPRINT)
    sound.read(np.array([0, 9, 15, batch.num_rows - 1]))
    # From an object store, zstd's error cannot be told from a network's, so it stays an OSError, which is retried.
    with pytest.raises(CorruptionError if shard_format == "arrow" else (CorruptionError, OSError)):
        sound.read(np.array([14]))
    sound.close()
    if shard_format == "parquet":
        with pytest.raises(CorruptionError, match=rf"{shard.path}: {block}, rows 10 to 14,"):
            ShardReader(Root(str(tmp_path)), shard, LENGTH, FINGERPRINT).read(np.array([14]))


def test_verify_flip_outside_the_rows_says_that_all_are_whole(tmp_path):
    snapshot = make_snapshot(tmp_path, packed_batch(20, LENGTH))
    path = tmp_path / snapshot.shards[0].path
    path.write_bytes(path.read_bytes()[:6] + b"x" + path.read_bytes()[7:])  # padding behind the magic number
    (problem,) = verify_snapshot(Root(str(tmp_path)), snapshot)
    assert "all rows are intact" in problem


def test_verify_document_of_an_unknown_file_is_found(tmp_path):
    snapshot = make_snapshot(tmp_path, packed_batch(20, LENGTH, seed=4))
    path = tmp_path / "files.parquet"
    table = pq.read_table(path)
    pq.write_table(table.set_column(0, "hash", pa.array([77], pa.uint64())), path)
    checksum, size = file_checksum(Root(str(tmp_path)), "files.parquet")
    files = FileEntry(path="files.parquet", bytes=size, checksum=checksum)
    (problem,) = verify_snapshot(Root(str(tmp_path)), snapshot.model_copy(update={"files": files}))
    assert f"{snapshot.shards[0].path}: record batch 0, rows 0 to " in problem
    assert f"document {5:016x}" in problem
    assert "files.parquet" in problem


def test_verify_lost_piece_of_a_cut_document_is_found(tmp_path):
    batch = packed_batch(40, LENGTH, method="best_fit")
    goes_on = next(row for row, starts in enumerate(batch.column("starts").to_pylist()) if max(starts) > 0)
    kept = pa.Table.from_batches([batch.slice(0, goes_on), batch.slice(goes_on + 1)]).combine_chunks().to_batches()
    assert sum(part.num_rows for part in kept) == batch.num_rows - 1
    snapshot = make_snapshot(tmp_path, kept[0])
    (problem,) = verify_snapshot(Root(str(tmp_path)), snapshot)
    assert problem.startswith("shards/web: train documents have ")


def test_verify_missing_truncated_and_foreign_files_are_named(output, tmp_path):
    root, snapshot = output
    first, second = snapshot.shards[0], snapshot.shards[1]
    (tmp_path / first.path).unlink()
    (tmp_path / second.path).write_bytes((tmp_path / second.path).read_bytes()[:-1])
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "shards" / "web" / "notes.txt").write_text("not mine")
    problems = verify_snapshot(root, snapshot)
    assert [problem.split(":")[0] for problem in problems] == [
        "tokenizer.json",
        first.path,
        second.path,
        "shards/web/notes.txt",
    ]
    assert "no such file" in problems[1]
    assert f"{second.bytes - 1} bytes, expected {second.bytes}" in problems[2]


def test_verify_folder_instead_of_a_file_is_named_and_other_files_are_read(output, tmp_path):
    root, snapshot = output
    first, second = snapshot.shards[0], snapshot.shards[1]
    for path in ("tokenizer.json", first.path):
        (tmp_path / path).unlink()
        (tmp_path / path).mkdir()
    (tmp_path / second.path).unlink()
    problems = verify_snapshot(root, snapshot)
    assert [problem.split(":")[0] for problem in problems] == ["tokenizer.json", first.path, second.path]
    assert "cannot be read" in problems[0]


@pytest.mark.parametrize("field", ["tokens", "documents", "sequences"])
def test_verify_wrong_count_in_manifest_is_found(output, field):
    root, snapshot = output
    first = snapshot.shards[0]
    wrong = first.model_copy(update={field: getattr(first, field) + 1})
    (problem,) = verify_snapshot(root, with_shards(snapshot, wrong, *snapshot.shards[1:]))
    assert problem.startswith(f"{first.path}: ")


def test_verify_ids_above_the_vocabulary_are_found(output):
    root, snapshot = output
    small = snapshot.model_copy(update={"tokenizer": snapshot.tokenizer.model_copy(update={"vocab_size": 100})})
    problems = verify_snapshot(root, small)
    assert len(problems) == len(snapshot.shards)
    assert "expected ids below 100" in problems[0]


def test_verify_shard_of_another_tokenizer_is_found(output, tmp_path):
    root, snapshot = output
    sound = schema_of(packed_batch(1, LENGTH))
    schema = sound.with_metadata({**sound.metadata, b"datapipe.tokenizer": b"another"})
    writer = ShardWriter(root, "shards/web/part-00001", snapshot.shard_format, schema, 1 << 20)
    writer.append(packed_batch(9, LENGTH))
    (shard,) = writer.finish()
    (problem,) = verify_snapshot(root, with_shards(snapshot, *snapshot.shards, entry_of(shard)))
    assert problem.startswith(f"{shard.path}: datapipe.tokenizer is another, expected xxh3_128:")


def with_shards(snapshot: Snapshot, *shards) -> Snapshot:
    return snapshot.model_copy(update={"shards": shards})


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
    ("tokens", "lengths", "problem"),
    [
        ([1, 0, 2, 0], [2, 2], None),
        ([1, 0, 2, 3], [2, 2], None),  # the last piece may continue in another row
        ([1, 2, 0, 0], [3], None),
        ([1, 9, 2, 0], [2, 2], "a document that ends with id 9"),
        ([1, 2, 0, 0], [2], "a document that ends with id 2"),  # not at the end of the row, so the document must end there
        ([1, 0, 7, 0], [2], "padding with other ids"),
        ([1, 0, 2, 0], [2, 3], "a row of 5 tokens"),
        ([0, 0, 0, 0], [], "a row of 0 tokens"),
        ([1, 0, 2, 0], [2, 0, 2], "a piece of 0 tokens"),
        ([99, 0, 2, 0], [2, 2], "token id 99"),
        ([1, 0, 2, 0], [4], "1 end-of-text tokens, 0, inside documents"),
        ([0, 0, 0, 0], [2], "1 end-of-text tokens"),
        ([0, 0, 0, 0], [1], None),
    ],
)
def test_batch_problem_of_a_row(tokens, lengths, problem):
    found = batch_problem(rows(([1, 2, 3, 0], [4]), (tokens, lengths)), vocab_size=50, eos_id=EOS)
    assert found is None if problem is None else problem in (found or "")


@pytest.mark.parametrize(
    ("tokens", "lengths", "problem"),
    [
        ([1, 2, 1, 0], [2, 2], "a document that ends with id 2"),
        ([1, 0, 1, 0], [2, 2], None),
        ([2, 0, 1, 0], [2, 2], "a document that begins with id 2, expected 1"),
        ([1, 1, 0, 0], [3], "1 tokens of id 1 inside documents"),
    ],
)
def test_batch_problem_of_documents_that_begin_with_a_token(tokens, lengths, problem):
    found = batch_problem(rows(([1, 2, 3, 0], [4]), (tokens, lengths)), vocab_size=50, eos_id=EOS, bos_id=1)
    assert found is None if problem is None else problem in (found or "")


def test_verify_piece_of_another_length_than_its_shard_is_found():
    batch = packed_batch(50, LENGTH, method="buckets")
    assert "of this shard" in (batch_problem(batch, 50_000, EOS, piece_length=LENGTH) or "")
    whole = batch.filter(pa.array([lengths == [LENGTH] for lengths in batch.column("lengths").to_pylist()]))
    assert whole.num_rows > 10
    assert batch_problem(whole, 50_000, EOS, piece_length=LENGTH) is None


def test_manifest_names_a_piece_length_only_where_there_is_one(output):
    _, snapshot = output
    assert b"piece_length" not in snapshot.to_json()
    marked = with_shards(snapshot, snapshot.shards[0].model_copy(update={"piece_length": 4}))
    assert b'"piece_length": 4' in marked.to_json()
    assert Snapshot.model_validate_json(marked.to_json()) == marked
    assert marked.digest() != with_shards(snapshot, snapshot.shards[0]).digest()
