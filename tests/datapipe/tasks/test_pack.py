"""Packing in whole runs: what runs again, a snapshot for each length, buckets, and what the report says of it all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from datapipe.engine.clean import clean
from datapipe.errors import UserError
from datapipe.loader import Loader
from datapipe.report.funnel import print_funnel
from datapipe.shards.manifest import Snapshot, read_snapshot
from datapipe.shards.reader import ShardReader
from datapipe.shards.verify import verify_snapshot
from datapipe.storage import Root
from tests.support import corpora, runs

pytestmark = pytest.mark.medium

BUCKETS = ["pack.method=buckets"]


def run(mixture: Path, *overrides: str, output: Path | None = None) -> runs.Finished:
    return runs.run_mixture(mixture, overrides=overrides, output=output, make_engine=runs.InProcess)


def kinds_of_steps(finished: runs.Finished) -> set[str]:
    return {step.rpartition("/")[2] for step in finished.watcher.steps}


def snapshot_at(folder: str | Path) -> Snapshot:
    """The snapshot of a folder, which verifies."""
    root = Root(str(folder))
    snapshot = read_snapshot(root)
    assert verify_snapshot(root, snapshot) == []
    return snapshot


def documents_of(folder: str | Path) -> dict[bytes, dict[int, int]]:
    """For every document by its key, the token at each of its places; no place comes up twice."""
    snapshot, documents = snapshot_at(folder), {}
    for entry in snapshot.shards:
        reader = ShardReader(Root(str(folder)), entry, snapshot.sequence_length, snapshot.tokenizer.fingerprint)
        rows = reader.read(np.arange(reader.num_rows))
        reader.close()
        for row, (first, last) in enumerate(zip(rows.piece_offsets, rows.piece_offsets[1:])):
            at = 0
            for piece in range(first, last):
                document = documents.setdefault(bytes(rows.keys[piece]), {})
                start, length = int(rows.starts[piece]), int(rows.piece_lengths[piece])
                places = dict(enumerate(rows.tokens[row, at : at + length].tolist(), start))
                assert not document.keys() & places.keys()
                document |= places
                at += length
    return documents


@pytest.fixture(scope="module")
def packed_anew(tmp_path_factory, corpus):
    """A mixture that has run once, and that run. Whoever uses it runs it with other options in the same output."""
    mixture = runs.write_mixture(tmp_path_factory.mktemp("packed"), corpus)
    return mixture, run(mixture)


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ["pack.sequence_length=16"],
        ["pack.method=concat"],
        ["pack.pool_documents=50"],
        [*BUCKETS, "pack.min_piece=4"],
        ["shards.format=parquet"],
        ["shards.target_bytes=16KiB"],
    ],
    ids=lambda overrides: overrides[-1],
)
def test_run_with_other_pack_or_shards_options_only_packs_and_back_again_does_nothing(packed_anew, overrides):
    mixture, first = packed_anew
    other = run(mixture, *overrides)
    assert kinds_of_steps(other) == {"pack"}
    assert snapshot_at(other.mixture.output) == other.snapshot != first.snapshot
    back = run(mixture)
    assert back.watcher.records == []
    assert snapshot_at(back.mixture.output) == first.snapshot


@pytest.mark.slow
def test_run_with_several_lengths_makes_a_snapshot_of_each(packed_anew):
    mixture, first = packed_anew
    output = Path(first.mixture.output)
    both = run(mixture, "pack.sequence_length=[64, 32]")
    assert kinds_of_steps(both) == {"pack-32"}
    assert snapshot_at(output) == both.snapshot == first.snapshot
    assert snapshot_at(output / "length-32").sequence_length == 32
    assert documents_of(output / "length-32") == documents_of(output)
    batch = next(iter(Loader(output / "length-32", batch_size=4)))
    assert batch["input_ids"].shape == (4, 32)

    turned = run(mixture, "pack.sequence_length=[32, 64]")
    assert turned.watcher.records == []
    assert snapshot_at(output).sequence_length == 32
    assert snapshot_at(output / "length-64") == first.snapshot
    assert snapshot_at(output / "length-32") == snapshot_at(output)  # of the run before: only cleaning deletes

    back = run(mixture)
    assert back.snapshot == first.snapshot
    clean(Root(str(output)), 1)
    assert not list((output / "length-64").rglob("*.*"))


def test_cleaning_the_snapshot_of_a_length_leaves_other_files_alone(packed_anew):
    mixture, first = packed_anew
    output = Path(first.mixture.output)
    run(mixture, "pack.sequence_length=[64, 32]")
    (output / "length-32/shards/web/notes.txt").write_text("mine")
    run(mixture, "mixture.tokens=100k")
    clean(Root(str(output)), 1)
    assert [path.name for path in (output / "length-32").rglob("*.*")] == ["notes.txt"]
    again = run(mixture, "pack.sequence_length=[64, 32]")
    assert any("length-32/shards/web/notes.txt is no file of a run" in line for line in again.told)
    (output / "length-32/shards/web/notes.txt").unlink()


def test_run_with_input_where_a_length_goes_is_refused(tmp_path):
    kept = corpora.write_jsonl(tmp_path / "out/length-32/a.jsonl", corpora.documents(1, 30))
    with pytest.raises(UserError, match="lies inside the output"):
        run(runs.write_mixture(tmp_path, f"  web:\n    path: {kept}\n"))


@pytest.mark.parametrize("shard_format", ["arrow", "parquet"])
def test_run_with_buckets_holds_every_token_once_in_shards_of_one_piece_length(packed_anew, tmp_path, shard_format):
    mixture, first = packed_anew
    expected = documents_of(first.mixture.output)
    done = run(mixture, *BUCKETS, f"shards.format={shard_format}")
    assert documents_of(done.mixture.output) == expected
    lengths = {entry.piece_length for entry in done.snapshot.shards if entry.source == "web" and entry.split == "train"}
    assert lengths == {1, 2, 4, 8, 16, 32, 64}
    for entry in done.snapshot.shards:
        assert f"-pieces-{entry.piece_length:05d}-" in entry.path
        most_tokens = entry.sequences * done.snapshot.sequence_length
        assert most_tokens - 64 < entry.tokens <= most_tokens  # one row at most of each task is short, and is alone here
    run(mixture)


def test_loader_reads_buckets_as_any_other_snapshot(packed_anew):
    mixture, _ = packed_anew
    done = run(mixture, *BUCKETS)
    fields = ("input_ids", "labels", "segment_ids", "piece_lengths")
    loader = Loader(done.mixture.output, global_batch_size=8, fields=fields)
    batches = [loader.batch(step) for step in range(10)]
    assert all(batch["input_ids"].shape == (8, 64) for batch in batches)
    assert all(length in (1, 2, 4, 8, 16, 32, 64) for batch in batches for length in batch["piece_lengths"])
    run(mixture)


def test_report_counts_padding_splits_pieces_and_dropped_tokens(packed_anew):
    mixture, first = packed_anew
    best = first.report["total"]["packing"]["64"]
    assert (best["dropped_tokens"], best["dropped_documents"]) == (0, 0)
    done = run(mixture, *BUCKETS, "pack.min_piece=16", "pack.sequence_length=[64, 32]")
    report, shards = done.report, snapshot_at(done.mixture.output).shards
    for name, source in report["sources"].items():
        found = source["packing"]["64"]
        here = [shard for shard in shards if shard.source == name]
        assert found["rows"] == source["sequences"] == sum(shard.sequences for shard in here)
        assert found["tokens"] == sum(shard.tokens for shard in here) == source["tokens"] - found["dropped_tokens"]
        assert found["documents"] == sum(shard.documents for shard in here)
        assert found["documents"] + found["dropped_documents"] == source["documents"]["kept"]
        assert found["padding_tokens"] == 64 * found["rows"] - found["tokens"]
        assert found["padding_share"] == pytest.approx(found["padding_tokens"] / (64 * found["rows"]), abs=1e-9)
        assert 0 < found["split_documents"] <= found["documents"] < found["pieces"]
        assert 0 < found["dropped_tokens"] == source["packing"]["32"]["dropped_tokens"] < 16 * source["documents"]["kept"]
    total = report["total"]["packing"]["64"]
    assert total["pieces"] == sum(source["packing"]["64"]["pieces"] for source in report["sources"].values())
    run(mixture)


def test_funnel_shows_packing_of_every_length(packed_anew, capsys):
    mixture, _ = packed_anew
    report = run(mixture, *BUCKETS, "pack.min_piece=16", "pack.sequence_length=[64, 32]").report
    print_funnel(report, Console(width=160))
    printed = " ".join(capsys.readouterr().out.split())
    for length in ("64", "32"):
        total = report["total"]["packing"][length]
        assert f"rows of {length}" in printed
        assert f"{total['padding_tokens']:,} ({total['padding_share']:.3%})" in printed
        assert f"{total['dropped_tokens']:,}" in printed
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
