"""The same bytes whatever ran them: workers, splits, engines, formats, resumed or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from datapipe.shards.manifest import read_snapshot
from datapipe.storage import Root
from tests.support import corpora, runs

pytestmark = pytest.mark.medium

SMALL_CUTS = ["execution.split_bytes=16KiB", "execution.bucket_bytes=16KiB"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory, corpus):
    folder = tmp_path_factory.mktemp("reference")
    return runs.run_mixture(runs.write_mixture(folder, corpus), workers=1)


@pytest.fixture(scope="module")
def cut_otherwise(tmp_path_factory, corpus):
    folder = tmp_path_factory.mktemp("cut_otherwise")
    return runs.run_mixture(runs.write_mixture(folder, corpus), overrides=SMALL_CUTS)


@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_shards_do_not_depend_on_the_number_of_workers(tmp_path, corpus, reference, workers):
    other = runs.run_mixture(runs.write_mixture(tmp_path, corpus), workers=workers)
    assert other.checksums == reference.checksums
    assert other.snapshot == reference.snapshot


@pytest.mark.slow
def test_shards_do_not_depend_on_how_the_input_is_cut(reference, cut_otherwise):
    assert cut_otherwise.checksums == reference.checksums
    assert {name: entry["documents"] for name, entry in cut_otherwise.report["sources"].items()} == {
        name: entry["documents"] for name, entry in reference.report["sources"].items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("method", ["concat", "buckets"])
def test_shards_of_every_length_do_not_depend_on_how_the_input_is_cut(reference, cut_otherwise, method):
    options = [f"pack.method={method}", "pack.sequence_length=[64, 32]"]
    outputs = [Path(run.mixture.output) for run in (reference, cut_otherwise)]
    one, other = (
        runs.run_mixture(output.parent / "mixture.yaml", overrides=[*options, *cut], make_engine=runs.InProcess)
        for output, cut in zip(outputs, ([], SMALL_CUTS))
    )
    assert {step.rpartition("/")[2] for step in (*one.watcher.steps, *other.watcher.steps)} <= {"pack", "pack-32"}
    for folder in ("", "length-32"):
        first, second = (read_snapshot(Root(str(output / folder))) for output in outputs)
        assert [(shard.path, shard.checksum) for shard in first.shards] == [(s.path, s.checksum) for s in second.shards]
    assert one.report["total"]["packing"] == other.report["total"]["packing"]


@pytest.mark.slow
def test_shards_depend_on_the_seed(tmp_path, corpus, reference):
    other = runs.run_mixture(runs.write_mixture(tmp_path, corpus), overrides=["seed=4"])
    assert other.checksums != reference.checksums


@pytest.mark.slow
def test_shards_of_parquet_format_hold_the_same_sequences(tmp_path, corpus, reference):
    other = runs.run_mixture(runs.write_mixture(tmp_path, corpus), overrides=["shards.format=parquet"])
    counts = [(shard.source, shard.split, shard.sequences, shard.tokens) for shard in reference.snapshot.shards]
    assert [(shard.source, shard.split, shard.sequences, shard.tokens) for shard in other.snapshot.shards] == counts


@pytest.mark.slow
def test_a_source_that_is_added_leaves_the_documents_of_others_alone(tmp_path, corpus, reference):
    corpora.write_jsonl(tmp_path / "more/a.jsonl", corpora.documents(77, 50))
    stages = "    stages: [normalize.unicode]\n"
    sources = corpus + f"  more:\n    path: {tmp_path}/more/*.jsonl\n    weight: 1\n{stages}"
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_bytes((tmp_path.__class__(reference.mixture.output) / "tokenizer.json").read_bytes())
    tail = runs.TAIL.replace("train: {vocab_size: 600, sample_bytes: 1MiB}", f"path: {tokenizer}")
    other = runs.run_mixture(runs.write_mixture(tmp_path, sources, tail=tail))
    mine = {path: checksum for path, checksum in other.checksums.items() if "/more/" not in path}
    assert mine == reference.checksums
