"""Exports hold the same documents and rows in every format, and leave the snapshot unchanged."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.errors import CorruptionError, UserError
from datapipe.loader import Loader
from datapipe.shards import writer as writers
from datapipe.shards.export import ExportRequest, export_snapshot
from datapipe.shards.manifest import SNAPSHOT, read_snapshot
from datapipe.shards.reader import ShardReader
from datapipe.shards.verify import verify_snapshot
from datapipe.shards.writer import ShardWriter, shard_schema
from datapipe.storage import Root
from tests.support import snapshots
from tests.support.megatron_reader import read_pair
from tests.support.packed_shards import EOS, FINGERPRINT, TOKENIZER, RemoteRoot, entry_of, make_snapshot, packed_batch

LENGTH = 16


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
        reader = ShardReader(root, entry, snapshot.sequence_length, snapshot.tokenizer.fingerprint)
        rows = reader.read(np.arange(entry.sequences))
        found.append((rows.tokens, rows.piece_lengths, rows.keys, rows.starts))
        reader.close()
    return [np.concatenate(parts) for parts in zip(*found)]


@pytest.mark.slow
@pytest.mark.medium
@given(
    num_docs=st.integers(1, 60),
    method=st.sampled_from(["best_fit", "concat"]),
    vocab_size=st.sampled_from([50_000, 100_000]),
    shard_format=st.sampled_from(["arrow", "parquet"]),
    rows_per_block=st.integers(1, 9),
    target_bytes=st.none() | st.integers(64, 4000),
    seed=st.integers(0, 5),
)
@settings(deadline=None, max_examples=12)
def test_export_round_trip_gives_the_same_documents_and_rows(
    tmp_path_factory, num_docs, method, vocab_size, shard_format, rows_per_block, target_bytes, seed
):
    folder = tmp_path_factory.mktemp("export")
    batch = packed_batch(num_docs, LENGTH, vocab_size=vocab_size, method=method, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writers, "BATCH_BYTES", rows_per_block * 2 * LENGTH)
        snapshot = make_snapshot(folder / "out", batch, shard_format, 20 * 2 * LENGTH, vocab_size)
        root = Root(str(folder / "out"))
        root.write_atomic(SNAPSHOT, snapshot.to_json())
        before = {path.name: path.read_bytes() for path in (folder / "out").rglob("*") if path.is_file()}
        for other in ("arrow", "parquet"):
            target = Root(str(folder / other))
            (part,) = export_snapshot(root, snapshot, target, ExportRequest(format=other, target_bytes=target_bytes))
            assert verify_snapshot(target, read_snapshot(target)) == []
            assert all(np.array_equal(one, same) for one, same in zip(all_rows(root), all_rows(target), strict=True))
            assert (part.sequences, part.tokens) == (batch.num_rows, sum(s.tokens for s in snapshot.shards))
    wanted = joined_documents(batch)
    assert sorted(wanted) == sorted(documents(num_docs, vocab_size, seed))
    (part,) = export_snapshot(
        root, snapshot, Root(str(folder / "m")), ExportRequest(format="megatron", target_bytes=target_bytes)
    )
    found = [one.tolist() for pair in part.files[1::2] for one in read_pair(folder / "m" / pair)[0]]
    assert found == wanted
    assert (part.sequences, part.tokens) == (num_docs, sum(map(len, wanted)))
    (part,) = export_snapshot(root, snapshot, Root(str(folder / "r")), ExportRequest(format="megatron", rows=True))
    assert part.files == ("web/train.bin", "web/train.idx")
    found, _, dtype = read_pair(folder / "r" / "web/train")
    assert np.array_equal(np.stack(found), all_rows(root)[0])
    assert dtype == ("uint16" if vocab_size < 65_500 else "int32")
    assert before == {path.name: path.read_bytes() for path in (folder / "out").rglob("*") if path.is_file()}


@pytest.fixture
def two_sources(tmp_path, monkeypatch):
    """Two sources, of which one has a validation split."""
    monkeypatch.setattr(snapshots, "TOKENIZER", FINGERPRINT)
    sizes, weights = {"code": 12, "web": 31}, {"code": 3, "web": 7}
    folder = snapshots.make_snapshot(tmp_path / "out", sizes, validation={"web": 9}, weights=weights)
    (folder / "tokenizer.json").write_bytes(TOKENIZER)
    root = Root(str(folder))
    return root, read_snapshot(root)


@pytest.mark.parametrize("shard_format", ["arrow", "parquet"])
def test_export_of_a_whole_snapshot_streams_the_same_batches(two_sources, tmp_path, shard_format):
    root, snapshot = two_sources
    export_snapshot(root, snapshot, Root(str(tmp_path / "copy")), ExportRequest(format=shard_format, target_bytes=800))
    for split in ("train", "validation"):
        one, other = (Loader(str(tmp_path / name), split=split, global_batch_size=4, prefetch=0) for name in ("out", "copy"))
        for step in range(2):
            assert np.array_equal(one.batch(step)["input_ids"], other.batch(step)["input_ids"])
        one.close()
        other.close()


@pytest.mark.parametrize("shard_format", ["arrow", "parquet"])
@pytest.mark.parametrize("target_bytes", [None, 1 << 20])
def test_export_of_buckets_keeps_shards_of_one_piece_length_and_strata_apart(tmp_path, shard_format, target_bytes):
    batch = packed_batch(60, LENGTH, method="buckets")
    of_row = np.array([lengths[0] for lengths in batch.column("lengths").to_pylist()])
    entries = []
    for number, piece in enumerate((16, 8, 8, 4, 2, 1)):
        schema = shard_schema(pa.uint16(), LENGTH, FINGERPRINT, "web", piece, int(number == 2))
        rows = batch.filter(pa.array(of_row == piece)).replace_schema_metadata(schema.metadata)
        writer = ShardWriter(Root(str(tmp_path / "out")), f"shards/web/part-{number}", "arrow", schema, 1 << 20)
        writer.append(rows.slice(number == 2, 1) if piece == 8 else rows)
        entries += [
            entry_of(shard).model_copy(update={"piece_length": piece, "stratum": int(number == 2)}) for shard in writer.finish()
        ]
    whole = make_snapshot(tmp_path / "whole", batch)
    for name in ("tokenizer.json", "files.parquet"):
        (tmp_path / "out" / name).write_bytes((tmp_path / "whole" / name).read_bytes())
    snapshot = whole.model_copy(update={"shards": tuple(entries)}).sealed()
    root, target = Root(str(tmp_path / "out")), Root(str(tmp_path / "new"))
    assert verify_snapshot(root, snapshot) == []
    export_snapshot(root, snapshot, target, ExportRequest(format=shard_format, target_bytes=target_bytes))
    there = read_snapshot(target)
    assert verify_snapshot(target, there) == []
    found, expected = (
        [(one.stratum, one.piece_length, one.sequences) for one in shards]
        for shards in (there.shards_of("web", "train"), entries)
    )
    assert sorted(found) == sorted(expected)  # sorted by name, the shards of a stratum are neighbours


def test_export_of_one_source_and_split_holds_nothing_else(two_sources, tmp_path):
    root, snapshot = two_sources
    target = Root(str(tmp_path / "part"))
    (part,) = export_snapshot(root, snapshot, target, ExportRequest(format="arrow", source="web", split="train"))
    assert (part.source, part.split, part.sequences) == ("web", "train", 31)
    there = read_snapshot(target)
    assert [shard.path for shard in there.shards] == [f"shards/web/train-0000-0000{number}.arrow" for number in range(5)]
    one_file = Root(str(tmp_path / "one"))
    export_snapshot(root, snapshot, one_file, ExportRequest(format="arrow", source="web", split="train", target_bytes=1 << 20))
    assert [shard.path for shard in read_snapshot(one_file).shards] == ["shards/web/part-00000-00000.arrow"]
    loader = Loader(target.url, global_batch_size=31, prefetch=0)
    assert sorted((loader.batch(0)["input_ids"][:, 0] - 1) // 16) == list(range(12, 43))
    loader.close()
    parts = export_snapshot(root, snapshot, Root(str(tmp_path / "m")), ExportRequest(format="megatron", rows=True))
    assert [(part.source, part.split, part.sequences) for part in parts] == [
        ("code", "train", 12),
        ("web", "train", 31),
        ("web", "validation", 9),
    ]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (ExportRequest(format="arrow", source="wep"), "no source 'wep'. Did you mean 'web'"),
        (ExportRequest(format="arrow", source="code", split="validation"), "no validation shard of code"),
        (ExportRequest(format="parquet", rows=True), "--rows requires --format megatron"),
    ],
)
def test_export_request_that_cannot_be_met_is_refused(two_sources, tmp_path, wanted, message):
    root, snapshot = two_sources
    with pytest.raises(UserError, match=message):
        export_snapshot(root, snapshot, Root(str(tmp_path / "new")), wanted)
    assert not (tmp_path / "new").exists()


def test_export_into_an_existing_file_or_snapshot_is_refused(two_sources, tmp_path):
    root, snapshot = two_sources
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "out")
    for folder, message in (
        ("full", "not empty: it holds mine.txt"),
        ("full/mine.txt", "a file"),
        ("out/m", "inside"),
        ("out", "inside"),
        ("link/m", "inside"),
        ("full/mine.txt/m", "cannot be written: Not a directory"),
        ("/proc/m", "cannot be written"),
    ):
        with pytest.raises(UserError, match=message):
            export_snapshot(root, snapshot, Root(str(tmp_path / folder)), ExportRequest(format="parquet"))
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("format", ["arrow", "parquet", "megatron"])
def test_export_of_damaged_rows_is_refused_and_leaves_no_finished_export(tmp_path, format):
    batch = packed_batch(40, LENGTH)
    snapshot = make_snapshot(tmp_path / "out", batch)
    path = tmp_path / "out" / snapshot.shards[0].path
    row = np.array(batch.column("tokens")[13].as_py(), np.uint16).tobytes()
    path.write_bytes(path.read_bytes().replace(row, row[:4] + bytes([row[4] ^ 1]) + row[5:]))
    with pytest.raises(CorruptionError, match="record batch 0, rows 0 to"):
        export_snapshot(Root(str(tmp_path / "out")), snapshot, Root(str(tmp_path / "new")), ExportRequest(format=format))
    names = {found.name for found in (tmp_path / "new").rglob("*") if found.is_file()}
    assert not names & {SNAPSHOT, "tokenizer.json", "train.idx"}


def test_export_of_a_remote_snapshot_equals_that_of_a_local_one(tmp_path):
    snapshot = make_snapshot(tmp_path / "out", packed_batch(40, LENGTH))
    for kind in (Root, RemoteRoot):
        export_snapshot(
            kind(str(tmp_path / "out")), snapshot, Root(str(tmp_path / kind.__name__)), ExportRequest(format="megatron")
        )
    for ending in ("bin", "idx"):
        near, far = (tmp_path / kind / f"web/train.{ending}" for kind in ("Root", "RemoteRoot"))
        assert near.read_bytes() == far.read_bytes()


def test_export_beside_a_snapshot_within_another_is_refused(two_sources, tmp_path):
    root, snapshot = two_sources
    further = Root(str(tmp_path / "out/length-32"))
    with pytest.raises(UserError, match="inside the snapshot"):
        export_snapshot(further, snapshot, root.within("new"), ExportRequest(format="arrow"))


@pytest.mark.parametrize("name", ["tokenizer.json", "files.parquet"])
def test_export_of_a_snapshot_without_a_file_beside_its_shards_is_refused(tmp_path, name):
    snapshot = make_snapshot(tmp_path / "out", packed_batch(40, LENGTH))
    (tmp_path / "out" / name).unlink()
    with pytest.raises(CorruptionError, match=f"{name}: no such file"):
        export_snapshot(Root(str(tmp_path / "out")), snapshot, Root(str(tmp_path / "new")), ExportRequest(format="arrow"))


def test_export_of_a_shard_whose_column_names_are_damaged_is_refused(tmp_path):
    snapshot = make_snapshot(tmp_path / "out", packed_batch(40, LENGTH), "parquet")
    path = tmp_path / "out" / snapshot.shards[0].path
    path.write_bytes(path.read_bytes().replace(b"starts", b"st\xe1rts"))
    with pytest.raises(CorruptionError, match="cannot be read"):
        export_snapshot(Root(str(tmp_path / "out")), snapshot, Root(str(tmp_path / "new")), ExportRequest(format="arrow"))


def test_export_of_documents_whose_pieces_are_lost_is_refused(tmp_path):
    batch = packed_batch(40, LENGTH)
    goes_on = next(row for row, starts in enumerate(batch.column("starts").to_pylist()) if max(starts) > 0)
    snapshot = make_snapshot(tmp_path / "out", batch.take(np.delete(np.arange(batch.num_rows), goes_on)))
    root = Root(str(tmp_path / "out"))
    with pytest.raises(CorruptionError, match="some of its pieces are in no row"):
        export_snapshot(root, snapshot, Root(str(tmp_path / "m")), ExportRequest(format="megatron"))
    export_snapshot(root, snapshot, Root(str(tmp_path / "r")), ExportRequest(format="megatron", rows=True))
