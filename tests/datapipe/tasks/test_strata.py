"""Sources in strata, from a column of their documents to shards of their own; and whatever reads those."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from datapipe import columns
from datapipe.errors import UserError
from datapipe.exchange.partitions import read_documents
from datapipe.loader import Loader
from datapipe.metrics import TaskMetrics
from datapipe.shards.export import ExportRequest, export_snapshot
from datapipe.shards.manifest import SNAPSHOT, Snapshot, Strata, read_snapshot
from datapipe.shards.reader import ShardReader
from datapipe.shards.verify import verify_snapshot
from datapipe.stage.documents import DocumentBatch
from datapipe.storage import Root
from datapipe.tasks.strata import strata_of
from tests.support import corpora, runs

pytestmark = pytest.mark.medium

STRATA = "strata: {by: score, bounds: [2, 10], repeat: [1, 2, 3], order: ascending}"
TAIL = """
validation: 10%
tokenizer: {train: {vocab_size: 400}}
pack: {sequence_length: 64, pool_documents: 60}
shards: {target_bytes: 8KiB}
execution: {split_bytes: 64KiB}
"""


def run(mixture: Path, *overrides: str) -> runs.Finished:
    return runs.run_mixture(mixture, overrides=overrides, make_engine=runs.InProcess)


def stratum_of(score: float) -> int:
    return 0 if score < 2 else 1 if score < 10 else 2


@pytest.fixture(scope="module")
def mixture(tmp_path_factory) -> Path:
    """Two sources; one has strata by a score that it keeps. Whoever runs it with other options leaves the output so."""
    folder = tmp_path_factory.mktemp("strata")
    rows = corpora.documents(1, 260, exact=0, near=0, short=0)
    scores = [[0.5, 2, 3, 9.99, 10, 400][number % 6] for number in range(len(rows))]
    corpora.write_jsonl(folder / "web/a.jsonl", [row | {"score": score} for row, score in zip(rows, scores)])
    corpora.write_jsonl(folder / "code/a.jsonl", corpora.documents(2, 60))
    sources = (
        f"  web:\n    path: {folder}/web/*.jsonl\n    keep: [score]\n    {STRATA}\n  code:\n    path: {folder}/code/*.jsonl\n"
    )
    return runs.write_mixture(folder, sources, stages="", tail=TAIL)


@pytest.fixture(scope="module")
def finished(mixture) -> runs.Finished:
    return run(mixture)


def keys_of(root: Root, snapshot: Snapshot, **wanted: object) -> set[bytes]:
    """The documents in the shards that have these things in the manifest."""
    found: set[bytes] = set()
    for entry in snapshot.shards:
        if all(getattr(entry, name) == value for name, value in wanted.items()):
            reader = ShardReader(root, entry, snapshot.sequence_length, snapshot.tokenizer.fingerprint)
            found |= {bytes(key) for key in reader.read(np.arange(reader.num_rows)).keys}
            reader.close()
    return found


def scores_of(finished: runs.Finished) -> dict[bytes, float]:
    """The score of every document of the source with strata, by its key."""
    (step,) = finished.plan.of_kind("map", "web")
    batches = read_documents(Root(finished.mixture.output), step.outputs("documents"), TaskMetrics())
    return {
        bytes(key): score
        for batch in batches
        for key, score in zip(columns.key_matrix(batch.keys), map(float, batch.record.column("score").to_pylist()))
    }


@pytest.mark.slow
def test_shards_of_a_stratum_hold_exactly_its_documents(finished):
    root, snapshot, scores = Root(finished.mixture.output), finished.snapshot, scores_of(finished)
    held_out = keys_of(root, snapshot, source="web", split="validation")
    assert 5 < len(held_out) < 60
    for stratum in range(3):
        wanted = {key for key, score in scores.items() if stratum_of(score) == stratum} - held_out
        assert keys_of(root, snapshot, source="web", split="train", stratum=stratum) == wanted
    assert sum(len(keys_of(root, snapshot, source="web", stratum=one)) for one in range(3)) + len(held_out) == len(scores)
    for entry in snapshot.shards:
        if entry.source == "web" and entry.split == "train":
            assert entry.path.startswith(f"shards/web/part-stratum-{entry.stratum:02d}-")
        else:
            assert (entry.stratum, "stratum" in entry.path) == (None, False)
    assert len([entry for entry in snapshot.shards if entry.stratum == 1]) > 1


def test_snapshot_of_strata_verifies_streams_and_says_how_they_are_drawn(finished):
    root, snapshot = Root(finished.mixture.output), read_snapshot(Root(finished.mixture.output))
    assert verify_snapshot(root, snapshot) == []
    wanted = Strata(column="score", bounds=(2, 10), repeats=(1, 2, 3), order="ascending")
    assert (snapshot.sources["web"].strata, snapshot.sources["code"].strata) == (wanted, None)
    loader = Loader(finished.mixture.output, global_batch_size=8)
    assert loader.batch(3)["input_ids"].shape == (8, 64)
    loader.close()


def test_report_counts_each_stratum_as_often_as_it_repeats(finished):
    web = finished.report["mixture"]["sources"]["web"]
    assert [one["repeat"] for one in web["strata"]] == [1, 2, 3]
    documents = [len(keys_of(Root(finished.mixture.output), finished.snapshot, stratum=one)) for one in range(3)]
    assert [one["documents"] for one in web["strata"]] == documents
    assert web["epoch_tokens"] == 64 * sum(one["repeat"] * one["sequences"] for one in web["strata"])
    assert finished.report["mixture"]["sources"]["code"]["strata"] is None


@pytest.mark.slow
def test_other_strata_re_run_what_they_must_and_no_more(mixture, finished):
    repeats = run(mixture, "sources.web.strata.repeat=[1, 1, 9]", "sources.web.strata.order=shuffled")
    assert repeats.watcher.records == []
    assert repeats.snapshot.sources["web"].strata == Strata(column="score", bounds=(2, 10), repeats=(1, 1, 9))
    assert repeats.snapshot.shards == finished.snapshot.shards
    bounds = run(mixture, "sources.web.strata={by: score, bounds: [5]}")
    assert set(bounds.watcher.steps) == {"web/tokenize", "web/pack"}
    assert {entry.stratum for entry in bounds.snapshot.shards_of("web", "train")} == {0, 1}
    assert verify_snapshot(Root(bounds.mixture.output), bounds.snapshot) == []
    back = run(mixture)
    assert (back.watcher.records, back.snapshot) == ([], finished.snapshot)


@pytest.mark.slow
def test_strata_do_not_depend_on_cuts(mixture, finished, tmp_path):
    other = runs.run_mixture(
        mixture, output=tmp_path / "other", overrides=["execution.split_bytes=4KiB"], make_engine=runs.InProcess
    )
    assert len(other.watcher.records) > len(finished.watcher.records)
    assert other.checksums == finished.checksums


@pytest.mark.parametrize("target_bytes", [None, 2000])
@pytest.mark.parametrize("shard_format", ["arrow", "parquet"])
def test_export_keeps_strata_and_the_order_of_rows(finished, tmp_path, shard_format, target_bytes):
    root, target = Root(finished.mixture.output), Root(str(tmp_path / "copy"))
    export_snapshot(root, finished.snapshot, target, ExportRequest(format=shard_format, target_bytes=target_bytes))
    there = read_snapshot(target)
    assert verify_snapshot(target, there) == []
    for stratum in range(3):
        assert keys_of(target, there, stratum=stratum) == keys_of(root, finished.snapshot, stratum=stratum)
    if target_bytes is None:
        assert [(one.hashes, one.stratum, one.sequences) for one in there.shards] == [
            (one.hashes, one.stratum, one.sequences) for one in finished.snapshot.shards
        ]
    rows = [all_tokens(one, snapshot) for one, snapshot in ((root, finished.snapshot), (target, there))]
    assert np.array_equal(*rows)


def all_tokens(root: Root, snapshot: Snapshot) -> np.ndarray:
    tokens = []
    for entry in snapshot.shards_of("web", "train"):
        reader = ShardReader(root, entry, snapshot.sequence_length, snapshot.tokenizer.fingerprint)
        tokens.append(reader.read(np.arange(reader.num_rows)).tokens)
        reader.close()
    return np.concatenate(tokens)


def test_export_to_megatron_has_every_document_of_all_strata(finished, tmp_path):
    parts = export_snapshot(
        Root(finished.mixture.output), finished.snapshot, Root(str(tmp_path / "m")), ExportRequest(format="megatron")
    )
    (web,) = [part for part in parts if (part.source, part.split) == ("web", "train")]
    assert web.sequences == sum(entry.documents for entry in finished.snapshot.shards_of("web", "train"))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [("stratum", 2, "datapipe.stratum is 0, expected 2"), ("hashes", [5, 6], "whose shuffle hash is not in the range")],
)
def test_verify_finds_a_shard_that_is_not_where_the_manifest_says(finished, tmp_path, field, value, message):
    root, content = Root(finished.mixture.output), json.loads(finished.snapshot.to_json())
    shard = next(one for one in content["shards"] if one.get("stratum") == 0)
    shard[field] = value
    edited = Snapshot.model_validate(content).sealed()
    (problem,) = verify_snapshot(root, edited)
    assert shard["path"] in problem
    assert message in problem
    assert root.exists(SNAPSHOT)


def test_strata_by_a_column_that_is_not_there_say_what_to_keep(mixture, tmp_path):
    with pytest.raises(UserError, match=r"sources\.web\.strata\.by: documents have no column 'score'.*name it under `keep`"):
        runs.run_mixture(mixture, output=tmp_path / "none", overrides=["sources.web.keep=[]"], make_engine=runs.InProcess)


def test_documents_with_many_duplicates_can_be_a_stratum_that_comes_up_more_often(tmp_path):
    texts = [corpora.prose(random.Random(seed)) for seed in range(6)]
    rows = [{"text": text} for number, text in enumerate(texts) for _ in range([1, 1, 2, 3, 3, 8][number])]
    corpora.write_jsonl(tmp_path / "web/a.jsonl", rows)
    source = (
        f"  web:\n    path: {tmp_path}/web/*.jsonl\n    strata: {{by: copies, bounds: [2, 4], repeat: [1, 2, 3]}}\n"
        "    stages:\n      - dedup.exact: {size_column: copies}\n"
    )
    done = run(runs.write_mixture(tmp_path, source, stages="", tail=TAIL.replace("validation: 10%", "")))
    web = done.report["mixture"]["sources"]["web"]
    assert [(one["documents"], one["repeat"]) for one in web["strata"]] == [(2, 1), (3, 2), (1, 3)]
    without = run(tmp_path / "mixture.yaml", "sources.web.stages=[dedup.exact]", "sources.web.strata=null")
    assert {entry.stratum for entry in without.snapshot.shards} == {None}
    (step,) = [step for step in without.plan.of_kind("map", "web") if step.id == "web/apply-dedup.exact"]
    batches = read_documents(Root(without.mixture.output), step.outputs("documents"), TaskMetrics())
    assert {name for batch in batches for name in batch.record.schema.names} == {"key", "id", "text"}


def test_size_column_cannot_take_the_place_of_a_column_that_is_there(mixture):
    with pytest.raises(UserError, match="every document already has a column of this name"):
        run(mixture, "stages=[dedup.exact: {size_column: text}]")


@pytest.mark.parametrize(
    ("stages", "told"),
    [
        ("[dedup.exact: {size_column: score}]", "score is the name of a column that the source keeps"),
        ("[dedup.exact: {size_column: n, cluster_column: n}]", "n is the name of a column that dedup.exact writes"),
        ("[dedup.lines: {size_column: n}]", "cuts text out of documents, so there are no clusters"),
        ("[dedup.exact: {size_column: n}, dedup.minhash: {size_column: n}]", "a column that dedup.exact writes"),
    ],
)
def test_columns_about_clusters_take_the_place_of_no_other(mixture, stages, told):
    with pytest.raises(UserError, match=told):
        run(mixture, f"stages={stages}", "sources.web.keep=[score]")


def batch_of(values: pa.Array) -> DocumentBatch:
    names = pa.array([f"d{number}" for number in range(len(values))], pa.large_string())
    keys = columns.make_keys(1, np.arange(len(values), dtype=np.uint64))
    record = pa.record_batch([keys, names, names, values], names=["key", "id", "text", "n"])
    return DocumentBatch(record)


@pytest.mark.parametrize("type_", [pa.int64(), pa.uint8(), pa.float32(), pa.decimal128(20, 1), pa.string()])
def test_stratum_is_the_number_of_bounds_that_are_reached(type_):
    batch = batch_of(pa.array([1, 2, 9, 10, 11], pa.int64()).cast(type_))
    assert strata_of(batch, "web", "n", (2.0, 10.0)).tolist() == [0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pa.array(["1", "many"]), "column 'n' holds text that is not a number: .*'many'.* such as 3"),
        (pa.array([True, False]), "column 'n' holds bool, expected numbers"),
        (pa.array([1, None]), "document d1 has no number in column 'n'"),
        (pa.array([1.0, float("nan")]), "document d1 has no number in column 'n'"),
    ],
)
def test_column_without_numbers_is_refused_with_the_document(values, message):
    with pytest.raises(UserError, match=message):
        strata_of(batch_of(values), "web", "n", (1.0,))
