"""A snapshot is whole, or every file that is not is named: flipped, cut short, gone, wrong in the manifest, or nobody's."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe.errors import CorruptionError
from datapipe.loader import Loader
from datapipe.metrics import TaskMetrics
from datapipe.records.checksum import READINGS, bytes_checksum, file_checksum
from datapipe.records.commit_files import CommitFiles, line_of
from datapipe.records.outputs import Content, Record
from datapipe.records.packed import Packer
from datapipe.shards import writer as writers
from datapipe.shards.document_files import files_with_hashes
from datapipe.shards.manifest import FileEntry, Snapshot, read_snapshot
from datapipe.shards.reader import ShardReader
from datapipe.shards.shard_table import RowForm, ShardEntry
from datapipe.shards.writer import ShardWriter
from datapipe.snapshots.export.export import with_mask
from datapipe.snapshots.verify import batch_problem, verify_snapshot
from datapipe.storage.root import Root
from tests.support import packed_shards
from tests.support.object_store import upload
from tests.support.packed_shards import EOS, FINGERPRINT, RemoteRoot, make_snapshot, packed_batch, schema_of
from tests.support.unreliable_store import UnreliableStore

LENGTH = 16
FORMATS = pytest.mark.parametrize("shard_format", ["arrow", "parquet"])
CHANGING = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(params=["arrow", "parquet"])
def output(request, tmp_path):
    return Root(str(tmp_path)), make_snapshot(tmp_path, packed_batch(80, LENGTH), request.param, target_bytes=50 * 2 * LENGTH)


def problems(root: Root, snapshot: Snapshot) -> list[str]:
    """The files that verifying names."""
    return [problem.partition(":")[0] for problem in verify_snapshot(root, snapshot)]


def without_a_piece() -> pa.RecordBatch:
    """Rows of which one is lost that goes on with a document."""
    batch = packed_batch(40, LENGTH)
    goes_on = next(row for row, starts in enumerate(batch.column("starts").to_pylist()) if max(starts) > 0)
    return batch.take(np.delete(np.arange(batch.num_rows), goes_on))


@pytest.mark.medium
@pytest.mark.parametrize("method", ["best_fit", "concat"])
def test_verify_finds_nothing_in_a_sound_snapshot_and_names_every_damaged_file(output, tmp_path, method):
    root, snapshot = output
    if method == "concat":
        snapshot = make_snapshot(tmp_path, packed_batch(80, LENGTH, method=method), snapshot.shard_format, 50 * 2 * LENGTH)
    assert verify_snapshot(root, snapshot) == []
    rng = np.random.default_rng(7)
    for path in ("tokenizer.json", "files.parquet", *(shard.path for shard in snapshot.shards)):
        content = (tmp_path / path).read_bytes()
        damaged = [content[:-1], content[: len(content) // 2], b""]
        for _ in range(5):
            flipped = bytearray(content)
            flipped[rng.integers(len(content))] ^= 1 << rng.integers(8)
            damaged.append(bytes(flipped))
        for bad in damaged:
            (tmp_path / path).write_bytes(bad)
            assert problems(root, snapshot) == [path]
        (tmp_path / path).unlink()
        assert problems(root, snapshot) == [path]
        (tmp_path / path).mkdir()
        assert problems(root, snapshot) == [path]
        (tmp_path / path).rmdir()
        (tmp_path / path).write_bytes(content)
    (tmp_path / "shards/web/notes.txt").write_text("not mine")
    (tmp_path / snapshot.shards[0].path).unlink()
    assert problems(root, snapshot) == [snapshot.shards[0].path, "shards/web/notes.txt"]


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
        reader = ShardReader(kind(str(tmp_path)), shard, RowForm(LENGTH, FINGERPRINT))
        reader.read(np.array([0, 9, 15, batch.num_rows - 1]))
        # From an object store, zstd's error cannot be told from a network's, so it stays an OSError, which is retried.
        with pytest.raises((CorruptionError, OSError) if kind is RemoteRoot else CorruptionError):
            reader.read(np.array([14]))
        reader.close()
    path.write_bytes(sound[:6] + b"x" + sound[7:])  # behind the magic number
    (problem,) = verify_snapshot(Root(str(tmp_path)), snapshot)
    assert shard_format == "parquet" or "all rows are intact" in problem


def test_verify_document_of_an_unknown_file_or_with_a_lost_piece_is_found(tmp_path):
    lost = make_snapshot(tmp_path, without_a_piece())
    assert problems(Root(str(tmp_path)), lost) == ["shards/web"]
    snapshot = make_snapshot(tmp_path, packed_batch(20, LENGTH, seed=4))
    path = tmp_path / "files.parquet"
    pq.write_table(pq.read_table(path).set_column(0, "hash", pa.array([77], pa.uint64())), path)
    checksum, size = file_checksum(Root(str(tmp_path)), "files.parquet")
    files = FileEntry(path="files.parquet", bytes=size, checksum=checksum)
    (problem,) = verify_snapshot(Root(str(tmp_path)), snapshot.model_copy(update={"files": files}))
    assert all(text in problem for text in (snapshot.shards[0].path, f"document {5:016x}", "files.parquet"))


def ending_within(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with a mask, of which every second that a document goes on behind ends with the end-of-text token."""
    tokens = batch.column("tokens").values.to_numpy().copy().reshape(-1, LENGTH)
    tokens[np.flatnonzero(tokens[:, -1] != EOS)[::2], -1] = EOS
    values = pa.FixedSizeListArray.from_arrays(pa.array(tokens.reshape(-1)), type=batch.schema.field("tokens").type)
    return with_mask(batch.set_column(0, batch.schema.field("tokens"), values))


def test_verify_finds_a_lost_piece_of_documents_that_mean_the_end_of_text_within(tmp_path):
    root, batch = Root(str(tmp_path)), packed_batch(40, LENGTH)
    sound = ending_within(batch)
    assert verify_snapshot(root, make_snapshot(tmp_path, sound)) == []
    in_the_middle = [
        row for row, each in enumerate(batch.to_pylist()) if each["starts"] == [LENGTH] and each["tokens"][-1] != EOS
    ]
    assert len(in_the_middle) > 3
    for lost in in_the_middle:
        rest = sound.take(np.delete(np.arange(sound.num_rows), lost))
        assert problems(root, make_snapshot(tmp_path, rest)) == ["shards/web"]


def test_verify_shards_that_are_not_as_in_the_manifest_are_found(output):
    root, snapshot = output
    first, *others = snapshot.shards
    for field in ("tokens", "documents", "sequences"):
        wrong = first.model_copy(update={field: getattr(first, field) + 1})
        assert problems(root, snapshot.model_copy(update={"shards": (wrong, *others)})) == [first.path]
    small = snapshot.model_copy(update={"tokenizer_entry": snapshot.tokenizer.model_copy(update={"vocab_size": 100})})
    assert problems(root, small) == [shard.path for shard in snapshot.shards]
    sound = schema_of(packed_batch(1, LENGTH))
    schema = sound.with_metadata({**sound.metadata, b"datapipe.tokenizer": b"another"})
    writer = ShardWriter(root, "shards/web/part-00001", snapshot.shard_format, schema, 1 << 20)
    writer.append(packed_batch(9, LENGTH))
    more = [ShardEntry.of(shard, source="web", split="train") for shard in writer.finish()]
    assert problems(root, snapshot.model_copy(update={"shards": (*snapshot.shards, *more)})) == [more[0].path]


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


# ------------------------------------------------------------------------------- bytes that a store changes on their way


@pytest.mark.medium
@CHANGING
def test_commit_file_is_read_again_so_that_no_record_is_lost(store: UnreliableStore) -> None:
    root = Root(f"s3://outputs/ledger{store.query}")
    records = [Record("web/read", f"{n:064x}", Content({}, TaskMetrics())) for n in range(3)]
    CommitFiles(root).write(map(line_of, records))
    for after in (0, 40, 300):
        failing = store.fail("flip", path="work/ledger/", after=after, times=READINGS - 1)
        assert [Packer().packed(line).record() for line in CommitFiles(root).read()] == records
        assert failing.hits == READINGS - 1


@FORMATS
@pytest.mark.slow
@CHANGING
def test_snapshot_is_read_again(store: UnreliableStore, query: str, tmp_path: Path, shard_format) -> None:
    folder = tmp_path / "packed"
    folder.mkdir()
    snapshot = packed_shards.make_snapshot(folder, packed_shards.packed_batch(40, 32), shard_format)
    (folder / "snapshot.json").write_bytes(snapshot.to_json())
    upload(folder, f"s3://outputs/{shard_format}{query}")
    root = Root(f"s3://outputs/{shard_format}{store.query}")
    store.fail("flip", path="snapshot.json", after=200, times=READINGS - 1)
    assert read_snapshot(root) == snapshot
    files = files_with_hashes(root, snapshot)
    store.fail("flip", path="files.parquet", after=30, times=READINGS - 1)
    assert files_with_hashes(root, snapshot) == files
    expected = Loader(str(folder), batch_size=4).batch(0)["input_ids"]
    size = snapshot.shards[0].bytes
    for after in (200, size // 2, size - 40):
        store.heal()
        store.fail("flip", path="/shards/", after=after, times=1)
        assert verify_snapshot(root, snapshot) == []
        store.fail("flip", path="/shards/", after=after, times=1)
        with closing(Loader(root.url, batch_size=4)) as loader:
            np.testing.assert_array_equal(loader.batch(0)["input_ids"], expected)


@pytest.mark.medium
@CHANGING
def test_checksum_of_a_new_file_is_that_of_what_was_written(store: UnreliableStore) -> None:
    root = Root(f"s3://outputs/new{store.query}")
    failing = store.fail("flip", path="file", times=None)
    with root.open_output("file") as stream:
        stream.write(b"content")
    assert (stream.checksum, stream.num_bytes) == (bytes_checksum(b"content"), 7)
    assert failing.hits == 0
    store.heal()
    assert file_checksum(root, "file") == (stream.checksum, 7)
