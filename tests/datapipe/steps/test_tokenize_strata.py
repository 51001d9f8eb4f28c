"""Sources in strata, from a column of their documents to their own shards; and whatever reads those."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from datapipe import columns
from datapipe.errors import UserError
from datapipe.exchange.tables import read_documents
from datapipe.loader import Loader
from datapipe.metrics import TaskMetrics
from datapipe.shards.manifest import Snapshot, read_snapshot
from datapipe.shards.reader import ShardReader
from datapipe.shards.source_entry import Strata
from datapipe.snapshots.export.export import ExportRequest, export_snapshot
from datapipe.snapshots.verify import verify_snapshot
from datapipe.stage.documents import DocumentBatch
from datapipe.steps.tokenize import strata_of
from datapipe.storage.root import Root
from tests.support import corpora, runs

pytestmark = pytest.mark.medium

TAIL = """
validation: 10%
tokenizer: {train: {vocab_size: 400}}
pack: {sequence_length: 64, pool_documents: 60}
shards: {target_bytes: 8KiB}
execution: {split_bytes: 64KiB}
"""
SCORES = [0.5, 2, 3, 9.99, 10, 400]
STRATUM_OF = dict(zip(SCORES, [0, 1, 1, 1, 2, 2]))


def run(mixture: Path, *overrides: str, **options) -> runs.Finished:
    return runs.run_mixture(mixture, overrides=overrides, make_engine=runs.InProcess, **options)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory) -> Path:
    """Two sources; one has strata by a score that it keeps. Whoever runs it with other options leaves the output so."""
    folder = tmp_path_factory.mktemp("strata")
    rows = corpora.documents(1, 150, exact=0, near=0, short=0)
    corpora.write_jsonl(folder / "web/a.jsonl", [row | {"score": SCORES[number % 6]} for number, row in enumerate(rows)])
    corpora.write_jsonl(folder / "code/a.jsonl", corpora.documents(2, 30))
    strata = "strata: {by: score, bounds: [2, 10], repeat: [1, 2, 3], order: ascending}"
    sources = f"  web: {{path: {folder}/web/*.jsonl, keep: [score], {strata}}}\n  code: {{path: {folder}/code/*.jsonl}}\n"
    return runs.write_mixture(folder, sources, stages="", tail=TAIL)


@pytest.fixture(scope="module")
def finished(mixture) -> runs.Finished:
    return run(mixture)


def read(root: Root, snapshot: Snapshot, **wanted: object) -> tuple[set[bytes], list[list[int]]]:
    """The documents and rows in the shards that have these things in the manifest."""
    keys, rows = set[bytes](), []
    for entry in snapshot.shards:
        if all(getattr(entry, name) == value for name, value in wanted.items()):
            reader = ShardReader(root, entry, snapshot.form)
            found = reader.read(np.arange(reader.num_rows))
            keys |= {bytes(key) for key in found.keys}
            rows += found.tokens.tolist()
            reader.close()
    return keys, rows


def documents_of(finished: runs.Finished) -> list[dict]:
    """The documents of the source with strata, after its last step."""
    step = finished.plan.of_kind("map", "web")[-1]
    batches = read_documents(Root(finished.mixture.output), step.outputs("documents"), TaskMetrics())
    return [row for batch in batches for row in batch.record.to_pylist()]


def test_shards_of_a_stratum_hold_exactly_its_documents(finished):
    root, snapshot = Root(finished.mixture.output), finished.snapshot
    assert verify_snapshot(root, snapshot) == []
    rows = documents_of(finished)
    held_out, _ = read(root, snapshot, source="web", split="validation")
    assert 5 < len(held_out) < 60
    counts = []
    for stratum in range(3):
        wanted = {row["key"] for row in rows if STRATUM_OF[float(row["score"])] == stratum} - held_out
        found, _ = read(root, snapshot, source="web", split="train", stratum=stratum)
        assert found == wanted
        counts.append(len(found))
    for entry in snapshot.shards:
        if entry.source == "web" and entry.split == "train":
            assert entry.path.startswith(f"shards/web/part-stratum-{entry.stratum:02d}-")
        else:
            assert (entry.stratum, "stratum" in entry.path) == (None, False)
    assert len([entry for entry in snapshot.shards if entry.stratum == 1]) > 1
    wanted = Strata(column="score", bounds=(2, 10), repeats=(1, 2, 3), order="ascending")
    assert (snapshot.sources["web"].strata, snapshot.sources["code"].strata) == (wanted, None)
    report = finished.report["mixture"]["sources"]
    assert [(one["repeat"], one["documents"]) for one in report["web"]["strata"]] == list(zip((1, 2, 3), counts))
    assert report["web"]["epoch_tokens"] == 64 * sum(one["repeat"] * one["sequences"] for one in report["web"]["strata"])
    assert report["code"]["strata"] is None
    loader = Loader(finished.mixture.output, global_batch_size=8)
    assert loader.batch(3)["input_ids"].shape == (8, 64)
    loader.close()


@pytest.mark.slow
def test_other_strata_re_run_what_they_must_and_no_more(mixture, finished, tmp_path):
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
    other = run(mixture, "execution.split_bytes=4KiB", output=tmp_path / "other")
    assert len(other.watcher.records) > len(finished.watcher.records)
    assert other.checksums == finished.checksums


@pytest.mark.parametrize(
    ("shard_format", "target_bytes"),
    [("arrow", None), ("parquet", 2000), pytest.param("parquet", None, marks=pytest.mark.slow)],
)
def test_export_keeps_strata_and_the_order_of_rows(finished, tmp_path, shard_format, target_bytes):
    root, target = Root(finished.mixture.output), Root(str(tmp_path / "copy"))
    export_snapshot(root, finished.snapshot, target, ExportRequest(format=shard_format, target_bytes=target_bytes))
    there = read_snapshot(target)
    assert verify_snapshot(target, there) == []
    for stratum in (None, 0, 1, 2):
        assert read(target, there, stratum=stratum) == read(root, finished.snapshot, stratum=stratum)
    if target_bytes is None:
        shards = [[(one.hashes, one.stratum, one.sequences) for one in each.shards] for each in (there, finished.snapshot)]
        assert shards[0] == shards[1]


@pytest.mark.parametrize(("field", "value"), [("stratum", 2), ("hashes", [5, 6])])
def test_verify_finds_a_shard_that_is_not_where_the_manifest_declares(finished, field, value):
    shards = list(finished.snapshot.shards)
    number = next(number for number, one in enumerate(shards) if one.stratum == 0)
    shards[number] = shards[number].model_copy(update={field: value})
    (problem,) = verify_snapshot(Root(finished.mixture.output), finished.snapshot.model_copy(update={"shards": tuple(shards)}))
    assert shards[number].path in problem


def test_documents_with_many_duplicates_can_be_a_stratum_that_comes_up_more_often(tmp_path):
    texts = [corpora.prose(random.Random(seed)) for seed in range(6)]
    rows = [{"text": text} for text, copies in zip(texts, [1, 1, 2, 3, 3, 8]) for _ in range(copies)]
    corpora.write_jsonl(tmp_path / "web/a.jsonl", rows)
    strata, stages = "{by: copies, bounds: [2, 4], repeat: [1, 2, 3]}", "[dedup.exact: {size_column: copies}]"
    source = f"  web: {{path: {tmp_path}/web/*.jsonl, strata: {strata}, stages: {stages}}}\n"
    done = run(runs.write_mixture(tmp_path, source, stages="", tail=TAIL.replace("validation: 10%", "")))
    web = done.report["mixture"]["sources"]["web"]
    assert [(one["documents"], one["repeat"]) for one in web["strata"]] == [(2, 1), (3, 2), (1, 3)]
    without = run(tmp_path / "mixture.yaml", "sources.web.stages=[dedup.exact]", "sources.web.strata=null")
    assert {entry.stratum for entry in without.snapshot.shards} == {None}
    assert {name for row in documents_of(without) for name in row} == {"key", "id", "text"}


EXACT = "dedup.exact: {size_column: "


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("sources.web.keep=[]", r"sources\.web\.strata\.by: .*'score'.*`keep`"),
        (f"stages=[{EXACT}text}}]", "already has a column"),
        (f"stages=[{EXACT}score}}]", "score is the name of a column that the source keeps"),
        (f"stages=[{EXACT}n, cluster_column: n}}]", "n is the name of a column that dedup.exact"),
        (f"stages=[{EXACT}n}}, dedup.minhash: {{size_column: n}}]", "a column that dedup.exact"),
        ("stages=[dedup.lines: {size_column: n}]", "cuts text"),
    ],
)
def test_columns_that_are_not_there_or_there_already_are_refused(mixture, tmp_path, override, told):
    with pytest.raises(UserError, match=told):
        run(mixture, override, output=tmp_path / "none")


def batch_of(values: pa.Array) -> DocumentBatch:
    names = pa.array([f"d{number}" for number in range(len(values))], pa.large_string())
    keys = columns.make_keys(1, np.arange(len(values), dtype=np.uint64))
    return DocumentBatch(pa.record_batch([keys, names, names, values], names=["key", "id", "text", "n"]))


@pytest.mark.parametrize("type_", [pa.int64(), pa.uint8(), pa.float32(), pa.decimal128(20, 1), pa.string()])
def test_stratum_is_the_number_of_bounds_that_are_reached(type_):
    batch = batch_of(pa.array([1, 2, 9, 10, 11], pa.int64()).cast(type_))
    assert strata_of(batch, "web", "n", (2.0, 10.0)).tolist() == [0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (pa.array(["1", "many"]), "document d1 has 'many' in column 'n'"),
        (pa.array([True, False]), "'n' holds bool"),
        (pa.array([1, None]), "document d1 .*'n'"),
        (pa.array([1.0, float("nan")]), "document d1 .*'n'"),
    ],
)
def test_column_without_numbers_is_refused_with_the_document(values, told):
    with pytest.raises(UserError, match=told):
        strata_of(batch_of(values), "web", "n", (1.0,))
