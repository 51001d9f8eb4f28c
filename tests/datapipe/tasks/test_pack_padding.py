"""`pack.max_padding` in whole runs: documents of one length that best fit would pad by half."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.loader import Loader
from datapipe.shards.export import ExportRequest, export_snapshot
from datapipe.shards.manifest import read_snapshot
from datapipe.shards.reader import ShardReader
from datapipe.shards.verify import verify_snapshot
from datapipe.storage import Root
from tests.support import corpora, runs
from tests.support.megatron_reader import read_pair

pytestmark = pytest.mark.medium

LENGTH = 64
NUM_DOCS = 400
TAIL = """
validation: 5%
tokenizer: {train: {vocab_size: 257}}     # a token for each byte
pack: {sequence_length: 64}
"""
WHOLE = "pack.max_padding=100%"


def run(mixture: Path, *overrides: str) -> runs.Finished:
    return runs.run_mixture(mixture, overrides=overrides, make_engine=runs.InProcess)


@pytest.fixture(scope="module")
def crowded(tmp_path_factory) -> Path:
    """A mixture of documents of 35 tokens, one to a row of 64."""
    folder = tmp_path_factory.mktemp("crowded")
    corpora.write_jsonl(folder / "data/a.jsonl", [{"text": f"{number:034d}"} for number in range(NUM_DOCS)])
    return runs.write_mixture(folder, f"  web:\n    path: {folder}/data/*.jsonl\n", "", TAIL)


def packing(finished: runs.Finished) -> dict[str, float]:
    return finished.report["total"]["packing"][str(LENGTH)]


def counted_padding(output: str | Path) -> float:
    """The share of padding in all rows of the training split but the emptiest, read from the shards."""
    snapshot = read_snapshot(Root(str(output)))
    rooms: list[int] = []
    for entry in snapshot.shards_of("web", "train"):
        reader = ShardReader(Root(str(output)), entry, LENGTH, snapshot.tokenizer.fingerprint)
        rows = reader.read(np.arange(entry.sequences))
        rooms += (LENGTH - np.add.reduceat(rows.piece_lengths, rows.piece_offsets[:-1])).tolist()
        reader.close()
    return sum(sorted(rooms)[:-1]) / (LENGTH * (len(rooms) - 1))


def megatron_documents(output: str | Path, to: Path) -> set[tuple[int, ...]]:
    """The documents of an export, whose cut ones are joined again."""
    root = Root(str(output))
    export_snapshot(root, read_snapshot(root), Root(str(to)), ExportRequest(format="megatron"))
    sequences = [ids for split in ("train", "validation") for ids in read_pair(to / "web" / split)[0]]
    documents = [tuple(ids.tolist()) for ids in sequences]
    assert len(set(documents)) == len(documents)
    return set(documents)


def test_run_keeps_the_limit_and_every_reader_finds_whole_documents(crowded, tmp_path):
    whole = run(crowded, WHOLE)
    assert counted_padding(whole.mixture.output) > 0.45
    expected = megatron_documents(whole.mixture.output, tmp_path / "whole")
    assert len(expected) == NUM_DOCS

    done = run(crowded)
    output = done.mixture.output
    assert {step.rpartition("/")[2] for step in done.watcher.steps} == {"pack"}
    assert verify_snapshot(Root(output), done.snapshot) == []
    assert counted_padding(output) <= 0.02
    assert megatron_documents(output, tmp_path / "packed") == expected

    batch = Loader(output, batch_size=64, fields=("input_ids", "segment_ids", "piece_lengths")).batch(0)
    is_end = batch["segment_ids"][:, 1:] != batch["segment_ids"][:, :-1]
    assert set(batch["input_ids"][:, :-1][is_end].tolist()) == {done.snapshot.tokenizer.eos_id}
    assert 64 * LENGTH * 0.97 < batch["piece_lengths"].sum() <= 64 * LENGTH
    assert sum(shard.sequences for shard in done.snapshot.shards) < sum(shard.sequences for shard in whole.snapshot.shards)


def test_report_counts_documents_split_for_padding(crowded):
    whole, done = packing(run(crowded, WHOLE)), packing(run(crowded))
    assert (whole["split_for_padding"], whole["split_documents"]) == (0, 0)
    assert 0 < done["split_for_padding"] == done["split_documents"] <= 0.45 * NUM_DOCS
    assert done["documents"] == whole["documents"] == NUM_DOCS
    assert done["tokens"] == whole["tokens"]


def warnings_of(finished: runs.Finished, kind: str) -> list[dict[str, Any]]:
    return [warning for warning in finished.report["warnings"] if warning["kind"] == kind]


def test_run_that_splits_more_than_a_twentieth_says_so_of_each_length(crowded):
    done = run(crowded, "pack.sequence_length=[64, 105]")  # three documents fill a row of 105
    [warning] = warnings_of(done, "split_for_padding")
    split = packing(done)["split_for_padding"]
    assert (warning["source"], warning["sequence_length"]) == ("web", LENGTH)
    assert (warning["split"], warning["documents"]) == (split, NUM_DOCS)
    assert f"rows of 64: {split} of 400 documents ({split / 400:.2%}) are split" in warning["text"]
    assert warnings_of(done, "padding") == []
    assert warnings_of(run(crowded, WHOLE), "split_for_padding") == []


@pytest.mark.parametrize(("pool", "is_told"), [(1, True), (3, True), (20, False), (10_000, False)])
def test_run_of_small_pools_that_exceeds_the_limit_says_so(crowded, pool, is_told):
    done = run(crowded, f"pack.pool_documents={pool}")
    warnings = warnings_of(done, "padding")
    assert [(warning["source"], warning["sequence_length"]) for warning in warnings] == [("web", LENGTH)] * is_told
    for warning in warnings:
        share = packing(done)["padding_share"]
        assert f"rows of 64: {share:.2%} is padding, pack.max_padding is 2.00%. Its pools are small" in warning["text"]


def test_run_with_a_limit_that_is_kept_anyway_writes_the_same_shards(tmp_path, corpus):
    mixture = runs.write_mixture(tmp_path, corpus)
    first = run(mixture, WHOLE, "pack.pool_documents=1000")
    other = run(mixture, "pack.max_padding=50%", "pack.pool_documents=1000")
    assert other.checksums == first.checksums
