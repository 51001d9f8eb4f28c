"""A bench does the work of a run on a sample: its counts equal those of a run, and it leaves no file."""

from __future__ import annotations

import json
import os
import queue
import random
import tempfile
import threading
from pathlib import Path

import pytest

from datapipe.bench.bench import bench
from datapipe.bench.one_core import one_core
from datapipe.bench.rows import Row, advice, bottleneck, medians
from datapipe.bench.sample import choose_sample
from datapipe.config import load_mixture
from datapipe.engine.prepare import prepare
from datapipe.errors import UserError
from datapipe.stage import FieldNames
from tests.support import corpora, runs

pytestmark = pytest.mark.medium

MB = 1_000_000


def _bench(path: Path, **options) -> dict:
    return bench(load_mixture(path), **{"seconds": 0, "say": lambda line: None, **options}).to_json()


@pytest.fixture(scope="module")
def measured(tmp_path_factory, corpus) -> tuple[dict, dict]:
    """A bench whose sample is the whole source, and the report of a run of that source alone."""
    folder = tmp_path_factory.mktemp("bench")
    web = corpus[: corpus.index("  books:")]
    mixture = runs.write_mixture(folder, web)
    found = _bench(mixture, sample_bytes=64 * MB)
    assert not (folder / "out").exists()
    return found, runs.run_mixture(mixture, make_engine=runs.InProcess).report


def _rows(found: dict, source: str = "web") -> dict[str, dict]:
    return {row["name"]: row for row in found["sources"][source]["rows"]}


def test_bench_of_a_whole_source_counts_the_documents_of_a_run(measured):
    found, report = measured
    rows, documents = _rows(found), report["sources"]["web"]["documents"]
    assert found["sources"]["web"]["is_whole"]
    assert found["sources"]["web"]["documents"] == documents["read"] == rows["read"]["documents_in"]
    assert found["sources"]["web"]["tokens"] == report["sources"]["web"]["tokens"]
    for name in ("normalize.unicode", "filter.gopher_quality", "dedup.exact", "dedup.minhash", "redact.pii"):
        step = f"{name}: apply" if name.startswith("dedup") else name
        dropped = sum(count for reason, count in documents["dropped"].items() if reason.startswith(f"{name}:"))
        assert rows[name]["documents_in"] == report["sources"]["web"]["steps"][name]["documents"]
        assert rows[step]["documents_in"] - rows[step]["documents_out"] == dropped, name
    assert documents["dropped"]["dedup.minhash:duplicate"] > 0
    assert rows["redact.pii"]["documents_out"] == documents["kept"] == rows["tokenize"]["documents_in"]
    assert rows["words"]["documents_in"] >= rows["filter.gopher_quality"]["documents_in"] > 0 == len(rows["words"]["uses"])


def test_bench_rows_are_the_work_of_a_run_in_data_flow_order(measured):
    found, report = measured
    rows = _rows(found)
    assert set(report["total"]["steps"]) == set(rows) - {"other"}
    expected = ["read", "words", "filter.gopher_quality", "dedup.exact", "dedup.exact: exchange", "dedup.exact: match"]
    expected += ["dedup.exact: apply", "train tokenizer", "tokenize", "pack", "write shards"]
    assert [name for name in rows if name in expected] == expected
    kinds = {"words": "segmentation", "lines": "segmentation", "dedup.minhash": "emit", "redact.pii": "stage"}
    assert {name: rows[name]["kind"] for name in kinds} == kinds


def test_bench_shares_add_up_without_training(measured):
    source = measured[0]["sources"]["web"]
    shares = {row["name"]: row["share"] for row in source["rows"]}
    assert shares.pop("train tokenizer") is None
    assert sum(shares.values()) == pytest.approx(1)
    assert shares[source["bottleneck"]] == max(shares.values())
    assert json.loads(json.dumps(measured[0])) == measured[0]


@pytest.mark.slow
def test_bench_of_several_sources_trains_once_for_each_and_leaves_nothing_behind(tmp_path, mixture, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    cores = _allowed_cores()
    found = _bench(mixture, sample_bytes=20_000, seconds=1)
    assert list(found["sources"]) == ["web", "books"]
    assert list((tmp_path / "scratch").iterdir()) == []
    assert not (tmp_path / "out").exists()
    assert _allowed_cores() == cores
    assert found["scratch_bytes"] > 0
    for name, source in found["sources"].items():
        assert 20_000 <= source["text_bytes"] < 30_000 and not source["is_whole"]
        assert _rows(found, name)["read"]["documents_out"] == source["documents"]
        assert 1 <= source["passes"] <= 5
    total = sum(source["estimated_text_bytes"] for source in found["sources"].values())
    assert found["total"]["estimated_text_bytes"] == total


def test_bench_leaves_out_earlier_runs_that_stages_compare_against(tmp_path):
    """Otherwise each pass over a small sample would read all rows of a crawl."""
    rng = random.Random(11)
    texts = [corpora.prose(rng, 60) for _ in range(30)]
    for name, own in (("old", texts), ("new", texts[:10])):
        corpora.write_jsonl(tmp_path / f"{name}.jsonl", [{"text": text} for text in own])
    tail = "tokenizer: {train: {vocab_size: 300, sample_bytes: 16KiB}}\npack: {sequence_length: 64}"
    old = runs.write_mixture(tmp_path, f"  old: {{path: {tmp_path}/old.jsonl}}\n", "stages: [dedup.exact]", tail)
    runs.run_mixture(old, make_engine=runs.InProcess)
    benches = []
    for options in ("", f": {{against: {tmp_path}/out}}"):
        (tmp_path / "bench").mkdir(exist_ok=True)
        stages = f"stages: [dedup.exact{options}]"
        benches.append(_bench(runs.write_mixture(tmp_path / "bench", f"  new: {{path: {tmp_path}/new.jsonl}}\n", stages, tail)))
    alone, compared = (
        {name: (row["bytes"], row["documents_out"]) for name, row in _rows(result, "new").items()} for result in benches
    )
    assert alone == compared


def _allowed_cores() -> set[int] | None:
    """None on platforms without processor affinity."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None


def test_one_core_restricts_every_thread_and_restores_it():
    before, work, seen = _allowed_cores(), queue.SimpleQueue(), queue.SimpleQueue()
    thread = threading.Thread(target=lambda: [seen.put(_allowed_cores()) for _ in iter(work.get, None)], daemon=True)
    thread.start()
    with one_core() as core:
        work.put(1)
        expected = None if before is None else {core}
        assert _allowed_cores() == expected == seen.get(timeout=120)
    work.put(1)
    assert _allowed_cores() == before == seen.get(timeout=120)
    work.put(None)
    thread.join()


# ---------------------------------------------------------------------------------------------------- the sample


def _planned(folder: Path, glob: str):
    text = f"name: s\noutput: {folder}/out\nsources:\n  web: {{path: '{folder}/{glob}'}}\nexecution: {{split_bytes: 256KiB}}\n"
    (folder / "sample.yaml").write_text(text)
    return prepare(load_mixture(folder / "sample.yaml")).sources["web"]


def _words(seed: int, count: int) -> list[dict[str, str]]:
    rng = random.Random(seed)
    return [{"id": str(number), "text": corpora.prose(rng, 200)} for number in range(count)]


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Path:
    """Twenty-four files, a third each plain, gzip and zstd, and a Parquet file."""
    folder = tmp_path_factory.mktemp("many")
    for number in range(24):
        corpora.write_jsonl(folder / f"{number:02}.jsonl{('', '.gz', '.zst')[number % 3]}", _words(number, 40))
    corpora.write_parquet(folder / "one.parquet", _words(99, 400))
    return folder


@pytest.mark.parametrize("glob", ["*.jsonl*", "*.jsonl", "*.gz", "*.zst", "*.parquet", "01.jsonl.gz"])
def test_sample_fills_its_budget_and_estimates_the_size_of_the_source(many, glob):
    planned = _planned(many, glob)
    whole = choose_sample(planned, FieldNames(), 100 * MB, seed=1)
    assert whole.is_whole and whole.estimated_text_bytes == whole.text_bytes
    assert all(part.limit is None for part in whole.parts)
    budget = whole.text_bytes // 5
    some = choose_sample(planned, FieldNames(), budget, seed=1)
    assert budget <= some.text_bytes < budget + 2000 and not some.is_whole
    assert some.estimated_text_bytes == pytest.approx(whole.text_bytes, rel=0.1)
    assert some == choose_sample(planned, FieldNames(), budget, seed=1)


def test_sample_comes_from_many_files_and_depends_on_the_seed(many):
    planned = _planned(many, "*.jsonl*")
    first, second = (choose_sample(planned, FieldNames(), MB // 10, seed=seed) for seed in (1, 2))
    assert len({split.file.path for part in first.parts for split in part.splits}) > 2
    assert [part.splits for part in first.parts] != [part.splits for part in second.parts]


# ---------------------------------------------------------------------------------------------------- findings


def _row(name: str, kind: str, seconds: float, uses: str = "") -> Row:
    return Row(name=name, kind=kind, uses=uses, seconds=seconds, bytes=MB)


def test_bottleneck_and_medians_of_rows():
    rows = [_row("read", "read", 1), _row("train tokenizer", "train", 9), _row("tokenize", "tokenize", 2)]
    assert bottleneck(rows).name == "tokenize"  # training does not grow with the source
    passes = [[_row("read", "read", read_s), _row("pack", "pack", pack_s)] for read_s, pack_s in ((1, 30), (5, 10), (2, 20))]
    assert [row.seconds for row in medians(passes)] == [2, 20]


@pytest.mark.parametrize(
    ("row", "compressions", "message"),
    [
        (_row("read", "read", 1), ["", "gzip"], "re-compress as zstd"),
        (_row("read", "read", 1), [""], "Parquet"),
        (_row("english", "stage", 1, "filter.language"), [], "max_chars"),
        (_row("mine", "stage", 1, "my_company.clean:Drop"), [], "whole columns"),
        (_row("redact.pii", "stage", 1, "redact.pii"), [], "cheaper filters"),
        (_row("words", "segmentation", 1), [], "rewrites or drops"),
        (_row("tokenize", "tokenize", 1), [], "add cores"),
    ],
)
def test_advice_follows_from_the_kind_of_row(row, compressions, message):
    assert message in advice(row, compressions)


# ---------------------------------------------------------------------------------------------------- wrong input


@pytest.mark.parametrize(
    ("stages", "source", "message"),
    [
        ("stages:\n  - filter.length: {min_wrods: 3}\n", "", "min_wrods.*Did you mean 'min_words'"),
        ("stages:\n  - filter.lenth\n", "", "unknown stage 'filter.lenth'"),
        ("stages:\n  - filter.language: {keep: [xx]}\n", "", "the model knows no language 'xx'"),
        ("stages: []\n", "wbe", "no source 'wbe' in this mixture. Did you mean 'web'"),
    ],
)
def test_bench_of_a_wrong_mixture_is_the_users_error_as_in_a_run(tmp_path, stages, source, message):
    corpora.write_jsonl(tmp_path / "a.jsonl", corpora.documents(1, 20))
    mixture = runs.write_mixture(tmp_path, f"  web:\n    path: {tmp_path}/a.jsonl\n", stages)
    with pytest.raises(UserError, match=message):
        _bench(mixture, source=source)


def test_bench_of_a_source_without_documents_is_refused_and_of_stages_that_keep_none_measured(tmp_path):
    corpora.write_jsonl(tmp_path / "a.jsonl", corpora.documents(1, 20))
    stages = "stages:\n  - filter.length: {min_words: 100000}\n  - dedup.minhash\n"
    mixture = runs.write_mixture(tmp_path, f"  web:\n    path: {tmp_path}/a.jsonl\n", stages)
    found = _bench(mixture)
    assert _rows(found)["filter.length"]["documents_out"] == found["sources"]["web"]["tokens"] == 0
    (tmp_path / "a.jsonl").write_text("{broken\n")
    with pytest.raises(UserError, match="source 'web': nothing to measure"):
        _bench(mixture)
