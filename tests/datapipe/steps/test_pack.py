"""Packing: every token of a task once, in rows that plain Python reads again; lengths, buckets and padding of whole runs."""

from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.columns import make_keys
from datapipe.errors import SnapshotError, UserError
from datapipe.loader import Loader
from datapipe.records.outputs import ShardFile
from datapipe.shards import schemas
from datapipe.shards.manifest import Snapshot, read_snapshot
from datapipe.shards.reader import ShardReader
from datapipe.shards.shard_table import RowForm, ShardEntry
from datapipe.snapshots.clean import clean
from datapipe.snapshots.export.export import ExportRequest, export_snapshot
from datapipe.snapshots.verify import verify_snapshot
from datapipe.steps.pack import PackMetrics, PackTask
from datapipe.steps.run_task import run_task
from datapipe.storage.root import Root
from tests.support import corpora, runs
from tests.support.exchange_rows import write
from tests.support.megatron_reader import read_pair

pytestmark = pytest.mark.medium

BUCKETS = ["pack.method=buckets"]
EOS = 0

Piece = tuple[bytes, int, tuple[int, ...]]
"""Document, position in it and tokens of a piece."""


def rows_of(root: Root, entries: list[ShardEntry], form: RowForm) -> list[list[Piece]]:
    """The pieces of every row of some shards; the rest of a row is padding."""
    found: list[list[Piece]] = []
    for entry in entries:
        reader = ShardReader(root, entry, form)
        rows = reader.read(np.arange(reader.num_rows))
        reader.close()
        for row, (first, last) in enumerate(zip(rows.piece_offsets, rows.piece_offsets[1:])):
            tokens, pieces = rows.tokens[row].tolist(), []
            for piece in range(first, last):
                size = int(rows.piece_lengths[piece])
                pieces.append((bytes(rows.keys[piece]), int(rows.starts[piece]), tuple(tokens[:size])))
                del tokens[:size]
            assert set(tokens) <= {EOS}
            found.append(pieces)
    return found


def documents_in(rows: list[list[Piece]]) -> dict[bytes, dict[int, int]]:
    """For every document, the token at each of its positions; no position comes up twice."""
    documents: dict[bytes, dict[int, int]] = {}
    for key, start, tokens in (piece for row in rows for piece in row):
        document, positions = documents.setdefault(key, {}), dict(enumerate(tokens, start))
        assert not document.keys() & positions.keys()
        document |= positions
    return documents


@settings(max_examples=20)
@given(
    seed=st.integers(0, 1 << 20),
    count=st.integers(0, 60),
    method=st.sampled_from(["best_fit", "concat", "buckets"]),
    vocab_size=st.sampled_from([50_000, 100_000]),
    pool=st.sampled_from([7, 10_000]),
    target_bytes=st.sampled_from([64, 1 << 20]),
    start=st.sampled_from([0, 1 << 62]),
    stratum=st.none() | st.integers(0, 2),
)
@pytest.mark.slow
def test_pack_task_holds_every_token_of_its_range_once(
    tmp_path_factory, seed, count, method, vocab_size, pool, target_bytes, start, stratum
):
    root, rng, length, min_piece = Root(str(tmp_path_factory.mktemp("pack"))), np.random.default_rng(seed), 16, 4
    id_type, stop = schemas.token_type(vocab_size), 3 << 62
    texts = [[*rng.integers(1, vocab_size, rng.integers(0, 40)).tolist(), EOS] for _ in range(count)]
    hashes = rng.integers(0, 1 << 64, count, dtype=np.uint64)
    keys = make_keys(5, np.arange(count, dtype=np.uint64))
    schema = schemas.tokens(id_type)
    lists = pa.array(texts, schema.field("tokens").type)
    rows = pa.RecordBatch.from_arrays([pa.array(hashes), keys, lists], schema=schema)
    files = tuple(write(root, f"{part}", rows.slice(part * 20, 20), 5) for part in range(3) if count > part * 20)
    task = PackTask(
        step="web/pack", source="web", seed=1, files=files, start=start, stop=stop, bucket=3, split="train", fingerprint="p",
        stratum=stratum, tokenizer_fingerprint="t", vocab_size=vocab_size, eos_id=EOS, sequence_length=length, method=method,
        pool_documents=pool, max_padding=1.0, min_piece=min_piece, format="arrow", target_bytes=target_bytes,
    )  # fmt: skip
    record = run_task(task, root, "1")
    shards = record.of("shards", ShardFile)
    entries = [ShardEntry.of(shard, source="web", split="train", stratum=stratum) for shard in shards]
    packed = rows_of(root, entries, RowForm(length, "t"))
    wanted = {
        key: dict(enumerate(tokens)) for key, tokens, value in zip(keys.to_pylist(), texts, hashes) if start <= value < stop
    }
    found = documents_in(packed)
    lost = {key: len(tokens) - len(found.get(key, {})) for key, tokens in wanted.items()}
    if method == "buckets":  # which drops the pieces below `min_piece`, at the ends of documents
        assert all(num_lost == len(wanted[key]) % min_piece for key, num_lost in lost.items())
        wanted = {key: dict(list(tokens.items())[: len(tokens) - lost[key]]) for key, tokens in wanted.items()}
    assert found == {key: tokens for key, tokens in wanted.items() if tokens}

    pieces = [piece for row in packed for piece in row]
    num_tokens = sum(len(tokens) for _, _, tokens in pieces)
    counted = record.metrics.of(PackMetrics).packing.get(length)
    assert (counted is None) == (not pieces and not wanted)
    if counted is not None:
        assert (counted.rows, counted.tokens, counted.pieces) == (len(packed), num_tokens, len(pieces))
        assert counted.padding_tokens == length * len(packed) - num_tokens
        assert (counted.documents, counted.dropped_documents) == (len(found), len(wanted) - len(found))
        assert counted.dropped_tokens == sum(lost.values())
        whole = {key for key, begin, tokens in pieces if begin == 0 and len(tokens) == len(wanted[key]) and not lost[key]}
        assert counted.split_documents == len(found) - len(whole)
    assert record.metrics.of(PackMetrics).sequences == len(packed)
    assert sum(shard.documents for shard in shards) == len(found)
    order = [key for _, key in sorted((value, key) for value, key in zip(hashes.tolist(), keys.to_pylist()) if key in wanted)]
    if method == "concat":
        assert list(found) == order
        assert all(sum(len(tokens) for _, _, tokens in row) == length for row in packed[:-1])
    elif method == "best_fit":  # documents of one pool come together
        pools = [{order.index(key) // pool for key, _, _ in row} for row in packed]
        assert all(len(numbers) == 1 for numbers in pools)
        assert pools == sorted(pools, key=min)
    for entry in entries:
        assert ("stratum-" in entry.path, "-pieces-" in entry.path) == (stratum is not None, method == "buckets")
        sizes = {len(tokens) for row in rows_of(root, [entry], RowForm(length, "t")) for _, _, tokens in row}
        assert method != "buckets" or sizes == {entry.piece_length}


# ------------------------------------------------------------------------------------------------ whole runs


def run(mixture: Path, *overrides: str) -> runs.Finished:
    return runs.run_mixture(mixture, overrides=overrides, make_engine=runs.InProcess)


def kinds_of_steps(finished: runs.Finished) -> set[str]:
    return {step.rpartition("/")[2] for step in finished.watcher.steps}


def snapshot_at(folder: str | Path, sequence_length: int | None = None) -> Snapshot:
    """The snapshot of a folder, which verifies, or its rows of one length."""
    root = Root(str(folder))
    snapshot = read_snapshot(root)
    assert verify_snapshot(root, snapshot) == []
    return snapshot if sequence_length is None else snapshot.of_length(sequence_length)


def documents_of(folder: str | Path, sequence_length: int | None = None) -> dict[bytes, dict[int, int]]:
    snapshot = snapshot_at(folder, sequence_length)
    return documents_in(rows_of(Root(str(folder)), list(snapshot.shards), snapshot.form))


@pytest.fixture(scope="module")
def packed_anew(tmp_path_factory, corpus):
    """A mixture that has run once, and that run. Whoever uses it runs it with other options in the same output."""
    mixture = runs.write_mixture(tmp_path_factory.mktemp("packed"), corpus)
    return mixture, run(mixture)


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [["pack.method=concat"], ["pack.pool_documents=50"], [*BUCKETS, "pack.min_piece=4"], ["shards.format=parquet"]],
    ids=lambda overrides: overrides[-1],
)
def test_run_with_other_pack_or_shards_options_only_packs_and_back_again_does_nothing(packed_anew, overrides):
    mixture, first = packed_anew
    other = run(mixture, *overrides)
    assert kinds_of_steps(other) == {"pack"}
    assert snapshot_at(other.mixture.output) == other.snapshot != first.snapshot
    assert "min_piece" in overrides[-1] or documents_of(other.mixture.output) == documents_of(first.mixture.output)
    back = run(mixture)
    assert back.watcher.records == []
    assert snapshot_at(back.mixture.output) == first.snapshot


def test_run_with_several_lengths_makes_a_snapshot_of_each(packed_anew):
    mixture, first = packed_anew
    output = Path(first.mixture.output)
    both = run(mixture, "pack.sequence_length=[64, 32]")
    assert kinds_of_steps(both) == {"pack-32"}
    assert snapshot_at(output).shards == both.snapshot.shards == first.snapshot.shards
    assert documents_of(output, 32) == documents_of(output)
    for loader in (Loader(output, sequence_length=32, batch_size=4), Loader(output / "length-32", batch_size=4)):
        assert next(iter(loader))["input_ids"].shape == (4, 32)
    with pytest.raises(SnapshotError, match="rows of 64 and 32 tokens, and not of 16"):
        Loader(output, sequence_length=16, batch_size=4)
    with pytest.raises(SnapshotError, match=rf"length-32: no snapshot.json here. Expected {output}, with --sequence-length 32"):
        snapshot_at(output / "length-32")

    turned = run(mixture, "pack.sequence_length=[32, 64]")
    assert turned.watcher.records == []
    assert snapshot_at(output).sequence_lengths == (32, 64)
    assert [entry.checksum for entry in snapshot_at(output, 64).shards] == [entry.checksum for entry in first.snapshot.shards]

    (output / "length-32/shards/web/notes.txt").write_text("mine")
    assert run(mixture).snapshot == first.snapshot
    run(mixture, "mixture.tokens=100k")  # another snapshot
    clean(Root(str(output)), 1)
    assert not list((output / "length-64").rglob("*.*"))
    assert [path.name for path in (output / "length-32").rglob("*.*")] == ["notes.txt"]
    again = run(mixture, "pack.sequence_length=[64, 32]")
    assert any("length-32/shards/web/notes.txt is no file of a run" in line for line in again.told)
    (output / "length-32/shards/web/notes.txt").unlink()


def rows_by_piece_length(shards: Iterable[ShardEntry]) -> Counter[tuple[str, str, int | None]]:
    found: Counter[tuple[str, str, int | None]] = Counter()
    for shard in shards:
        found[shard.source, shard.split, shard.piece_length] += shard.sequences
    return found


@pytest.mark.slow
def test_buckets_of_several_lengths_are_loaded_counted_and_exported(packed_anew, tmp_path):
    mixture, _ = packed_anew
    done = run(mixture, *BUCKETS, "pack.min_piece=16", "pack.sequence_length=[64, 32]")
    report, snapshot = done.report, snapshot_at(done.mixture.output)
    sizes = rows_by_piece_length(snapshot.shards)
    assert {size for source, _, size in sizes if source == "web"} == {16, 32, 64}
    for name, source in report["sources"].items():
        found, here = source["packing"]["64"], [shard for shard in snapshot.shards if shard.source == name]
        assert found["rows"] == source["sequences"] == sum(shard.sequences for shard in here)
        assert found["tokens"] == sum(shard.tokens for shard in here) == source["tokens"] - found["dropped_tokens"]
        assert found["documents"] + found["dropped_documents"] == source["documents"]["kept"]
        assert found["padding_share"] == pytest.approx(1 - found["tokens"] / (64 * found["rows"]), abs=1e-9)
        assert 0 < found["dropped_tokens"] == source["packing"]["32"]["dropped_tokens"] < 16 * source["documents"]["kept"]
    with closing(Loader(done.mixture.output, global_batch_size=8, fields=("input_ids", "piece_lengths"))) as loader:
        batches = [loader.batch(step) for step in range(10)]
    assert all(batch["input_ids"].shape == (8, 64) for batch in batches)
    assert {int(size) for batch in batches for size in batch["piece_lengths"]} <= {16, 32, 64}
    for shard_format, target_bytes in (("arrow", None), ("parquet", 1 << 20)):  # shards of one piece length stay apart
        request = ExportRequest(format=shard_format, target_bytes=target_bytes)
        export_snapshot(Root(done.mixture.output), snapshot, Root(str(tmp_path / shard_format)), request)
        assert documents_of(tmp_path / shard_format) == documents_of(done.mixture.output)
        assert rows_by_piece_length(snapshot_at(tmp_path / shard_format).shards) == sizes
    run(mixture)


@pytest.mark.slow
def test_run_where_min_piece_drops_all_of_a_source_gives_its_weight_to_the_others(tmp_path, corpus):
    corpora.write_jsonl(tmp_path / "short/a.jsonl", [{"text": "only a few words"}] * 3)
    sources = corpus + f"  short:\n    path: {tmp_path}/short/*.jsonl\n    stages: []\n"
    done = run(runs.write_mixture(tmp_path, sources), *BUCKETS, "pack.min_piece=64")
    assert done.snapshot.phases[0].weights["short"] == 0
    packing = done.report["sources"]["short"]["packing"]["64"]
    assert (packing["rows"], packing["dropped_documents"]) == (0, 3)
    assert any("'short' kept no document" in line for line in done.told)
    kept = corpora.write_jsonl(tmp_path / "out/length-32/a.jsonl", corpora.documents(1, 30))
    with pytest.raises(UserError, match="inside the output"):
        run(runs.write_mixture(tmp_path, f"  web:\n    path: {kept}\n"))


# ------------------------------------------------------------------------------------------------ padding

NUM_DOCS = 400
WHOLE = "pack.max_padding=100%"


@pytest.fixture(scope="module")
def crowded(tmp_path_factory) -> Path:
    """A mixture of documents of 35 tokens, a token for each byte: one to a row of 64."""
    folder = tmp_path_factory.mktemp("crowded")
    corpora.write_jsonl(folder / "data/a.jsonl", [{"text": f"{number:034d}"} for number in range(NUM_DOCS)])
    tail = "validation: 5%\ntokenizer: {train: {vocab_size: 257}}\npack: {sequence_length: 64}"
    return runs.write_mixture(folder, f"  web:\n    path: {folder}/data/*.jsonl\n", "", tail)


def padding_of(finished: runs.Finished) -> float:
    """The share of padding in all rows of the training split but the emptiest, read from the shards."""
    snapshot = finished.snapshot
    entries = list(snapshot.shards_of("web", "train"))
    rows = rows_of(Root(finished.mixture.output), entries, RowForm(64, snapshot.tokenizer.fingerprint))
    rooms = sorted(64 - sum(len(tokens) for _, _, tokens in row) for row in rows)
    return sum(rooms[:-1]) / (64 * (len(rooms) - 1))


def megatron_documents(output: str | Path, to: Path) -> set[tuple[int, ...]]:
    """The documents of an export, whose cut ones are joined again."""
    root = Root(str(output))
    export_snapshot(root, read_snapshot(root), Root(str(to)), ExportRequest(format="megatron"))
    documents = [tuple(ids.tolist()) for split in ("train", "validation") for ids in read_pair(to / "web" / split)[0]]
    assert len(set(documents)) == len(documents)
    return set(documents)


def warnings_of(finished: runs.Finished) -> list[tuple[str, str, int, int | None]]:
    """Kind, source, length and split documents of what is reported about padding."""
    told = [warning for warning in finished.report["warnings"] if warning["kind"] in ("padding", "split_for_padding")]
    return [(each["kind"], each["source"], each["sequence_length"], each.get("split")) for each in told]


def test_run_keeps_the_limit_of_padding_and_reports_how_many_documents_it_splits(crowded, tmp_path):
    whole = run(crowded, WHOLE)
    assert padding_of(whole) > 0.45
    assert warnings_of(whole) == []
    expected = megatron_documents(whole.mixture.output, tmp_path / "whole")
    assert len(expected) == NUM_DOCS
    done = run(crowded)
    assert kinds_of_steps(done) == {"pack"}
    assert verify_snapshot(Root(done.mixture.output), done.snapshot) == []
    assert padding_of(done) <= 0.02
    assert megatron_documents(done.mixture.output, tmp_path / "packed") == expected
    before, after = (finished.report["total"]["packing"]["64"] for finished in (whole, done))
    assert (before["split_for_padding"], before["split_documents"]) == (0, 0)
    assert 0 < after["split_for_padding"] == after["split_documents"] <= 0.45 * NUM_DOCS
    assert warnings_of(done) == [("split_for_padding", "web", 64, after["split_for_padding"])]
    assert (after["documents"], after["tokens"]) == (before["documents"], before["tokens"])
    assert after["rows"] < before["rows"]
    assert "padding" in {kind for kind, *_ in warnings_of(run(crowded, "pack.pool_documents=3"))}
