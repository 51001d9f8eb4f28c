"""Exports hold the same documents and rows in every format, leave the snapshot unchanged, and are whole or marked."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe import columns
from datapipe.errors import CorruptionError, DatapipeError, UserError
from datapipe.loader import Loader
from datapipe.records.names import SNAPSHOT
from datapipe.shards import writer as writers
from datapipe.shards.loss_mask import learned_of
from datapipe.shards.manifest import Snapshot, read_snapshot
from datapipe.shards.reader import ShardReader
from datapipe.snapshots.export.export import ExportRequest, export_snapshot, has_mask, shard_batches, with_mask
from datapipe.snapshots.export.folder import MARK, RECORD, is_whole
from datapipe.snapshots.export.mds import MdsWriter
from datapipe.snapshots.export.megatron import MegatronWriter
from datapipe.snapshots.export.parts import parts_of_rows
from datapipe.snapshots.verify import verify_snapshot
from datapipe.storage.root import Root
from tests.support import snapshots
from tests.support.killed_changes import content_of, is_killed
from tests.support.megatron_reader import read_pair
from tests.support.packed_shards import EOS, FINGERPRINT, TOKENIZER, RemoteRoot, make_snapshot, packed_batch, schema_of

LENGTH = 16
FORMATS = ("megatron", "arrow", "parquet")


def documents(num_docs: int, vocab_size: int, seed: int) -> list[list[int]]:
    """The documents that `packed_batch` packs, before it packs them."""
    lengths = np.random.default_rng(seed).integers(1, 3 * LENGTH, num_docs)
    tokens = 1 + np.arange(lengths.sum()) % (vocab_size - 1)
    tokens[np.cumsum(lengths) - 1] = EOS
    return [one.tolist() for one in np.split(tokens, np.cumsum(lengths)[:-1])]


def joined_documents(batch) -> list[list[int]]:
    """Documents from rows, piece by piece: a document comes where its last piece lies."""
    pieces: dict[bytes, dict[int, list[int]]] = {}
    found = []
    for row in batch.to_pylist():
        at = 0
        for length, key, start in zip(row["lengths"], row["keys"], row["starts"]):
            parts = pieces.setdefault(key, {})
            parts[start] = row["tokens"][at : at + length]
            at += length
            document = [token for _, part in sorted(parts.items()) for token in part]
            if document[-1] == EOS and len(document) == max(parts) + len(parts[max(parts)]):
                found.append(document)
    return found


def all_rows(root: Root) -> list[np.ndarray]:
    """Tokens, lengths, keys and starts of every row, through the reader."""
    snapshot = read_snapshot(root)
    found = []
    for entry in snapshot.shards_of("web", "train"):
        reader = ShardReader(root, entry, snapshot.form)
        rows = reader.read(np.arange(entry.sequences))
        found.append((rows.tokens, rows.piece_lengths, rows.keys, rows.starts))
        reader.close()
    return [np.concatenate(parts) for parts in zip(*found)]


@pytest.mark.medium
@given(
    num_docs=st.integers(1, 60),
    method=st.sampled_from(["best_fit", "concat"]),
    vocab_size=st.sampled_from([50_000, 100_000]),
    shard_format=st.sampled_from(["arrow", "parquet"]),
    kind=st.sampled_from([Root, RemoteRoot]),
    rows_per_block=st.integers(1, 9),
    target_bytes=st.none() | st.integers(64, 4000),
    seed=st.integers(0, 5),
)
@settings(max_examples=5)
def test_export_round_trip_gives_the_same_documents_and_rows(
    tmp_path_factory, num_docs, method, vocab_size, shard_format, kind, rows_per_block, target_bytes, seed
):
    folder = tmp_path_factory.mktemp("export")
    batch = packed_batch(num_docs, LENGTH, vocab_size=vocab_size, method=method, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writers, "BATCH_BYTES", rows_per_block * 2 * LENGTH)
        snapshot = make_snapshot(folder / "out", batch, shard_format, 20 * 2 * LENGTH, vocab_size)
        root = kind(str(folder / "out"))
        root.write_atomic(SNAPSHOT, snapshot.to_json())
        before = content_of(folder / "out")
        for other in ("arrow", "parquet"):
            target = Root(str(folder / other))
            (part,) = export_snapshot(root, snapshot, target, ExportRequest(format=other, target_bytes=target_bytes))
            assert verify_snapshot(target, read_snapshot(target)) == []
            assert all(np.array_equal(one, same) for one, same in zip(all_rows(root), all_rows(target), strict=True))
            assert (part.rows, part.tokens) == (batch.num_rows, sum(s.tokens for s in snapshot.shards))
    wanted = joined_documents(batch)
    assert sorted(wanted) == sorted(documents(num_docs, vocab_size, seed))
    request = ExportRequest(format="megatron", target_bytes=target_bytes)
    (part,) = export_snapshot(root, snapshot, Root(str(folder / "m")), request)
    found = [one.tolist() for pair in part.files[1::2] for one in read_pair(folder / "m" / pair)[0]]
    assert found == wanted
    assert (part.rows, part.tokens) == (num_docs, sum(map(len, wanted)))
    (part,) = export_snapshot(root, snapshot, Root(str(folder / "r")), ExportRequest(format="megatron", rows=True))
    assert part.files == ("web/train.bin", "web/train.idx")
    found, _, dtype = read_pair(folder / "r" / "web/train")
    assert np.array_equal(np.stack(found), all_rows(root)[0])
    assert dtype == ("uint16" if vocab_size < 65_500 else "int32")
    assert content_of(folder / "out") == before


@pytest.fixture
def two_sources(tmp_path, monkeypatch) -> tuple[Root, Snapshot]:
    """Two sources, of which one has a validation split."""
    monkeypatch.setattr(snapshots, "TOKENIZER", FINGERPRINT)
    sizes, weights = {"code": 12, "web": 31}, {"code": 3, "web": 7}
    folder = snapshots.make_snapshot(tmp_path / "out", sizes, validation={"web": 9}, weights=weights)
    (folder / "tokenizer.json").write_bytes(TOKENIZER)
    return Root(str(folder)), read_snapshot(Root(str(folder)))


@pytest.mark.parametrize("shard_format", ["arrow", "parquet"])
def test_export_of_a_whole_snapshot_streams_the_same_batches(two_sources, tmp_path, shard_format):
    export_snapshot(*two_sources, Root(str(tmp_path / "copy")), ExportRequest(format=shard_format, target_bytes=800))
    for split in ("train", "validation"):
        one, other = (Loader(str(tmp_path / name), split=split, global_batch_size=4, prefetch=0) for name in ("out", "copy"))
        for step in range(2):
            assert np.array_equal(one.batch(step)["input_ids"], other.batch(step)["input_ids"])
        one.close()
        other.close()


def test_export_of_one_source_and_split_holds_nothing_else(two_sources, tmp_path):
    for target_bytes, names in ((None, [f"train-0000-0000{n}" for n in range(5)]), (1 << 20, ["part-00000-00000"])):
        target = Root(str(tmp_path / f"{target_bytes}"))
        request = ExportRequest(format="arrow", source="web", split="train", target_bytes=target_bytes)
        (part,) = export_snapshot(*two_sources, target, request)
        assert (part.source, part.split, part.rows) == ("web", "train", 31)
        assert [shard.path for shard in read_snapshot(target).shards] == [f"shards/web/{name}.arrow" for name in names]
        (tokens, *_) = all_rows(target)
        assert sorted((tokens[:, 0] - 1) // 16) == list(range(12, 43))
    parts = export_snapshot(*two_sources, Root(str(tmp_path / "m")), ExportRequest(format="megatron", rows=True))
    counts = [("code", "train", 12), ("web", "train", 31), ("web", "validation", 9)]
    assert [(part.source, part.split, part.rows) for part in parts] == counts


@pytest.mark.parametrize(
    ("wanted", "folder", "told"),
    [
        ({"source": "wep"}, "new", "Did you mean 'web'"),
        ({"source": "code", "split": "validation"}, "new", "no validation shard of code"),
        ({}, "full", "mine.txt"),
        ({}, "full/mine.txt", "a file"),
        ({}, "out/m", "inside"),
        ({}, "out", "inside"),
        ({}, "link/m", "inside"),
        ({}, "full/mine.txt/m", "cannot be written"),
        ({}, "/proc/m", "cannot be written"),
    ],
)
def test_export_that_cannot_be_made_is_refused_and_writes_nothing(two_sources, tmp_path, wanted, folder, told):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "out")
    before = content_of(tmp_path)
    with pytest.raises(UserError, match=told):
        export_snapshot(*two_sources, Root(str(tmp_path / folder)), ExportRequest(**{"format": "arrow", **wanted}))
    assert content_of(tmp_path) == before
    root, snapshot = two_sources
    with pytest.raises(UserError, match="inside the snapshot"):  # beside a snapshot that lies within another
        export_snapshot(root.within("within"), snapshot, root.within("new"), ExportRequest(format="arrow"))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("damage", ["bit", "names of columns", "tokenizer.json", "files.parquet"])
def test_export_of_a_damaged_snapshot_is_refused_and_leaves_no_finished_export(tmp_path, format, damage):
    if format == "megatron" and "." in damage:
        return  # it holds neither file
    batch, new = packed_batch(40, LENGTH), Root(str(tmp_path / "new"))
    snapshot = make_snapshot(tmp_path / "out", batch, "arrow" if damage == "bit" else "parquet")
    row = np.array(batch.column("tokens")[13].as_py(), np.uint16).tobytes()
    change = {"bit": (row, row[:4] + bytes([row[4] ^ 1]) + row[5:]), "names of columns": (b"starts", b"st\xe1rts")}
    if damage in change:
        path = tmp_path / "out" / snapshot.shards[0].path
        path.write_bytes(path.read_bytes().replace(*change[damage]))
    else:
        (tmp_path / "out" / damage).unlink()
    with pytest.raises(CorruptionError, match=damage if "." in damage else snapshot.shards[0].path):
        export_snapshot(Root(str(tmp_path / "out")), snapshot, new, ExportRequest(format=format))
    assert not {path.name for path in (tmp_path / "new").rglob("*")} & {SNAPSHOT, "train.idx"}
    assert not is_whole(new)


def test_export_of_documents_whose_pieces_are_lost_is_refused(tmp_path):
    batch = packed_batch(40, LENGTH)
    goes_on = next(row for row, starts in enumerate(batch.column("starts").to_pylist()) if max(starts) > 0)
    snapshot = make_snapshot(tmp_path / "out", batch.take(np.delete(np.arange(batch.num_rows), goes_on)))
    root = Root(str(tmp_path / "out"))
    with pytest.raises(CorruptionError):
        export_snapshot(root, snapshot, Root(str(tmp_path / "m")), ExportRequest(format="megatron"))
    export_snapshot(root, snapshot, Root(str(tmp_path / "r")), ExportRequest(format="megatron", rows=True))


# ------------------------------------------------------------------------------------------------ the folder of an export


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Snapshot:
    monkeypatch.setattr(writers, "BATCH_BYTES", 128)
    made = make_snapshot(tmp_path / "out", packed_batch(40, 16, vocab_size=500), "arrow", 640, 500)
    Root(str(tmp_path / "out")).write_atomic(SNAPSHOT, made.to_json())
    return made


def _export(snapshot: Snapshot, folder: Path, **options) -> list:
    root, wanted = Root(str(folder.parent / "out")), ExportRequest(**{"format": "arrow", "target_bytes": 640, **options})
    return export_snapshot(root, snapshot, Root(str(folder)), wanted)


@pytest.mark.medium
@pytest.mark.parametrize("format", FORMATS)
def test_export_that_is_killed_anywhere_is_marked_and_the_same_command_completes_it(tmp_path, small, format):
    expected, folder, kills = _export(small, tmp_path / "whole", format=format), tmp_path / "killed", 0
    whole = content_of(tmp_path / "whole")
    while is_killed(lambda: _export(small, folder, format=format), kills):
        kills += 1
        there = content_of(folder) if folder.exists() else {}
        assert MARK in there or not there
        assert not is_whole(Root(str(folder)))
        if kills % 3 == 0:  # from here, and from the beginning too
            assert _export(small, folder, format=format) == expected
            assert content_of(folder) == whole
            shutil.rmtree(folder)
    assert kills > 5
    assert content_of(folder) == whole
    assert is_whole(Root(str(folder)))
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert _export(small, folder, format=format) == expected
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before  # nothing is written again
    record = json.loads((folder / RECORD).read_text())
    (folder / MARK).write_text(json.dumps(record["request"]))  # killed between its two marks
    assert _export(small, folder, format=format) == expected
    assert is_whole(Root(str(folder)))


@pytest.mark.parametrize("is_finished", [True, False])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"format": "parquet"}, "format 'arrow' in place of 'parquet'"),
        ({"format": "megatron", "rows": True}, "rows false in place of true"),
        ({"target_bytes": None}, "target_bytes 640 in place of none"),
        ({"split": "train"}, "split none in place of 'train'"),
        ({"snapshot": "other"}, "snapshot '[0-9a-f]{12}' in place of '[0-9a-f]{12}'"),
    ],
)
def test_export_of_something_else_is_refused_with_the_difference(tmp_path, small, is_finished, change, told):
    folder, options, other = tmp_path / "new", dict(change), small
    assert is_killed(lambda: _export(small, folder), 99 if is_finished else 4) != is_finished
    before = content_of(folder)
    if options.pop("snapshot", None):
        other = small.model_copy(update={"name": "other"}).sealed()
    with pytest.raises(UserError, match=told):
        _export(other, folder, **options)
    assert content_of(folder) == before


def test_export_that_lost_a_file_or_found_another_is_refused_with_its_name(tmp_path, small):
    [part] = _export(small, tmp_path / "new")
    lost = tmp_path / "new" / part.files[1]
    for damage in (lambda: lost.write_bytes(lost.read_bytes()[:-1]), lost.unlink):
        damage()
        with pytest.raises(UserError, match=part.files[1]):
            _export(small, tmp_path / "new")
    assert is_killed(lambda: _export(small, tmp_path / "more"), 4)
    (tmp_path / "more/mine.txt").write_text("mine")
    with pytest.raises(UserError, match=r"mine\.txt"):
        _export(small, tmp_path / "more")
    assert (tmp_path / "more/mine.txt").read_text() == "mine"


# ------------------------------------------------------------------------------------ the bytes of Megatron's own writer

UINT16, UINT32 = pa.uint16(), pa.uint32()
GOLDEN_INDEX = (
    "4d4d494449445800000100000000000000 08 0300000000000000 0400000000000000 04000000 00000000 02000000"
    "0000000000000000 0800000000000000 0800000000000000"
    "0000000000000000 0100000000000000 0200000000000000 0300000000000000"
)


def write(folder, sequences, id_type=UINT16, target_bytes=None, batches=1):
    """Writes sequences in about `batches` calls."""
    writer = MegatronWriter(Root(str(folder)), "web/train", id_type, target_bytes)
    size = max(1, -(-len(sequences) // batches))
    for start in range(0, len(sequences), size):
        part = sequences[start : start + size]
        flat = np.array([token for one in part for token in one], id_type.to_pandas_dtype())
        writer.append(flat, np.array([len(one) for one in part], np.int64))
    return writer.finish()


@pytest.mark.parametrize(
    ("id_type", "last", "bin_sha", "idx_sha"),
    [(UINT16, 65499, "51555f986c35d8b1", "95d6733bdd723f17"), (UINT32, 128000, "0687501b8de05df4", "8907bbd237a6aac7")],
)
def test_golden_bytes_are_those_of_megatrons_writer(tmp_path, id_type, last, bin_sha, idx_sha):
    """The digests are of files that Megatron's own IndexedDatasetBuilder wrote from the same documents."""
    (pair,) = write(tmp_path, [[1, 2, 3, 50256], [], [7, last]], id_type, batches=2)
    content, index = ((tmp_path / f"{pair.prefix}.{ending}").read_bytes() for ending in ("bin", "idx"))
    assert hashlib.sha256(content).hexdigest().startswith(bin_sha)
    assert hashlib.sha256(index).hexdigest().startswith(idx_sha)
    if id_type == UINT16:
        assert content.hex() == "01000200030050c40700dbff"
        assert index == bytes.fromhex(GOLDEN_INDEX)


@given(
    sequences=st.lists(st.lists(st.integers(0, 65_499), max_size=9), max_size=30),
    wide=st.booleans(),
    target_bytes=st.none() | st.integers(1, 60),
    batches=st.integers(1, 5),
)
@pytest.mark.medium
def test_write_any_sequences_come_back_within_the_size_asked(tmp_path_factory, sequences, wide, target_bytes, batches):
    folder = tmp_path_factory.mktemp("pairs")
    pairs = write(folder, sequences, UINT32 if wide else UINT16, target_bytes, batches)
    found = []
    for pair in pairs:
        part, borders, dtype = read_pair(folder / pair.prefix)
        assert borders == list(range(len(part) + 1))
        assert dtype == ("int32" if wide else "uint16")
        assert (pair.sequences, pair.tokens) == (len(part), sum(map(len, part)))
        assert target_bytes is None or len(part) == 1 or sum(one.nbytes for one in part) <= target_bytes
        found += part
    assert [one.tolist() for one in found] == sequences
    if target_bytes is None:
        assert [pair.prefix for pair in pairs] == ["web/train"] * bool(sequences)
    else:
        assert [pair.prefix for pair in pairs] == [f"web/train-{number:05d}" for number in range(len(pairs))]


def test_write_that_is_aborted_leaves_no_index(tmp_path):
    writer = MegatronWriter(Root(str(tmp_path)), "web/train", UINT16)
    writer.append(np.arange(3, dtype=np.uint16), np.array([3]))
    with pytest.raises(DatapipeError, match="at most 2147483647"):
        writer.append(np.zeros(0, np.uint16), np.array([1 << 31]))
    writer.abort()
    assert [path.name for path in (tmp_path / "web").iterdir()] == ["train.bin"]


def test_mask_of_rows_that_are_learned_as_a_whole_takes_at_most_a_hundredth_more_bytes(tmp_path: Path) -> None:
    width = 2048
    plain = packed_batch(300, width)
    ids = (
        np.random.default_rng(5).integers(1, 50_000, plain.num_rows * width).astype(np.uint16)
    )  # text is no easier to compress
    tokens = pa.FixedSizeListArray.from_arrays(pa.array(ids), type=plain.schema.field("tokens").type)
    plain = plain.set_column(0, plain.schema.field("tokens"), tokens)

    def sizes(batch: pa.RecordBatch) -> list[int]:
        root, written = Root(str(tmp_path)), []
        for shard_format in ("arrow", "parquet"):
            writer = writers.ShardWriter(root, f"{shard_format}/part", shard_format, schema_of(batch), 1 << 30)
            writer.append(batch)
            [shard] = writer.finish()
            written.append(shard.bytes)
        rows = batch.select([name for name in batch.schema.names if name != "keys"])  # text in exports, with a mask or not
        mds = MdsWriter(root, "mds", rows.schema, 1 << 30, is_compressed=False)
        mds.add(rows)
        mds.finish()
        return [*written, sum((tmp_path / name).stat().st_size for name in mds.files)]

    for before, after in zip(sizes(plain), sizes(with_mask(plain))):
        assert before < after <= 1.01 * before


@pytest.mark.parametrize("masked_parts", [(1,), (0,)])
def test_mask_of_some_parts_of_a_source_is_in_the_rows_of_all(tmp_path: Path, masked_parts: tuple[int, ...]) -> None:
    """A stage that makes segments was added, or taken away, while the source grew."""
    newest = snapshots.make_growing_snapshots(tmp_path / "out", {"web": (11, 9)}, masked_parts=masked_parts)[-1]
    root = Root(str(tmp_path / "out"))
    snapshot = read_snapshot(root, newest)
    batches = list(shard_batches(root, snapshot, snapshot.shards))
    tokens = np.concatenate([columns.numbers(batch.column("tokens").values) for batch in batches])
    expected = np.concatenate([learned_of(batch) for batch in batches])
    assert 0 < (~expected).sum() < (tokens > 0).sum() / 2
    assert has_mask(root, snapshot, snapshot.shards)
    assert np.concatenate([learned_of(with_mask(batch)) for batch in batches]).tolist() == expected.tolist()
    assert len({with_mask(batch).schema for batch in batches}) == 1
    (part,) = parts_of_rows(root, snapshot, None, None)
    assert sum(len(lists.column("unlearned").flatten()) for lists in part.batches()) == sum(
        len(batch.column("unlearned").flatten()) for batch in batches if "unlearned" in batch.schema.names
    )
