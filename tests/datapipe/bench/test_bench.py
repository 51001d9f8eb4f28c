"""A bench does the work of a run on a sample: its counts equal those of a run, and it leaves no file."""

import json
import os
import queue
import random
import tempfile
import threading
from pathlib import Path

import pytest

from datapipe.bench.bench import bench, one_core
from datapipe.bench.loader import bench_loader
from datapipe.bench.rows import Row, advice, medians
from datapipe.bench.sample import choose_sample
from datapipe.config import load_mixture
from datapipe.engine.prepare import prepare
from datapipe.errors import UserError
from datapipe.loader import Loader
from datapipe.stage import FieldNames
from tests.support import corpora, runs
from tests.support.snapshots import make_snapshot

pytestmark = pytest.mark.medium

MB = 1_000_000


def _bench(path: Path, **options) -> dict:
    return bench(load_mixture(path), **{"seconds": 0, "show": lambda line: None, **options})


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


def test_bench_rows_are_the_work_of_a_run_in_order_with_shares_that_add_up_without_training(measured):
    found, report = measured
    rows = _rows(found)
    assert set(report["total"]["steps"]) == set(rows) - {"other"}
    expected = ["read", "words", "filter.gopher_quality", "dedup.exact", "dedup.exact: exchange", "dedup.exact: match"]
    expected += ["dedup.exact: apply", "train tokenizer", "load tokenizer", "tokenize", "pack", "write shards"]
    assert [name for name in rows if name in expected] == expected
    kinds = {"words": "segmentation", "lines": "segmentation", "dedup.minhash": "emit", "redact.pii": "stage"}
    assert {name: rows[name]["kind"] for name in kinds} == kinds
    source = found["sources"]["web"]
    shares = {row["name"]: row["share"] for row in source["rows"]}
    assert (shares.pop("train tokenizer"), shares.pop("load tokenizer")) == (None, None)
    assert sum(shares.values()) == pytest.approx(1)
    assert shares[source["bottleneck"]] == max(shares.values())
    assert json.loads(json.dumps(found)) == found


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


def _planned(folder: Path, glob: str):
    text = f"name: s\noutput: {folder}/out\nsources:\n  web: {{path: '{folder}/{glob}'}}\nexecution: {{split_bytes: 256KiB}}\n"
    (folder / "sample.yaml").write_text(text)
    return prepare(load_mixture(folder / "sample.yaml")).sources["web"]


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Path:
    """Twenty-four files, a third each plain, gzip and zstd, and a Parquet file."""
    folder, rng = tmp_path_factory.mktemp("many"), random.Random(99)
    rows = [{"id": str(number), "text": corpora.prose(rng, 200)} for number in range(24 * 40)]
    for number in range(24):
        own = rows[40 * number : 40 * number + 40]
        corpora.write_jsonl(folder / f"{number:02}.jsonl{('', '.gz', '.zst')[number % 3]}", own)
    corpora.write_parquet(folder / "one.parquet", rows[:400])
    return folder


@pytest.mark.parametrize("glob", ["*.jsonl*", "*.jsonl", "*.gz", "*.zst", "*.parquet", "01.jsonl.gz"])
def test_sample_fills_its_budget_and_estimates_the_size_of_the_source(many, glob):
    planned = _planned(many, glob)
    whole = choose_sample(planned, FieldNames(), 100 * MB, seed=1)
    assert whole.is_whole and whole.estimated_text_bytes == whole.text_bytes
    assert set(whole.limits.values()) == {None}
    budget = whole.text_bytes // 5
    some = choose_sample(planned, FieldNames(), budget, seed=1)
    assert budget <= some.text_bytes < budget + 2000 and not some.is_whole
    is_known = glob in ("*.jsonl", "*.parquet")  # of an archive, four bytes of text are taken for each stored one
    assert some.estimated_text_bytes == pytest.approx(whole.text_bytes, rel=0.1 if is_known else 0.9)
    assert some == choose_sample(planned, FieldNames(), budget, seed=1)


def test_sample_comes_from_many_files_and_depends_on_the_seed(many):
    planned = _planned(many, "*.jsonl*")
    first, second = (choose_sample(planned, FieldNames(), MB // 10, seed=seed) for seed in (1, 2))
    assert len({split.file.path for splits in first.limits for split in splits}) > 2
    assert list(first.limits) != list(second.limits)


def test_medians_of_rows():
    seconds = ({"read": 1, "pack": 30}, {"read": 5, "pack": 10}, {"read": 2, "pack": 20})
    passes = [[Row(name=name, kind=name, uses="", seconds=s, bytes=MB) for name, s in each.items()] for each in seconds]
    assert [row.seconds for row in medians(passes)] == [2, 20]


def test_bench_of_a_source_without_documents_is_refused_and_of_stages_that_keep_none_measured(tmp_path):
    corpora.write_jsonl(tmp_path / "a.jsonl", corpora.documents(1, 20))
    stages = "stages:\n  - filter.length: {min_words: 100000}\n  - dedup.minhash\n"
    mixture = runs.write_mixture(tmp_path, f"  web:\n    path: {tmp_path}/a.jsonl\n", stages)
    found = _bench(mixture)
    assert _rows(found)["filter.length"]["documents_out"] == found["sources"]["web"]["tokens"] == 0
    with pytest.raises(UserError):
        _bench(mixture, source="wbe")
    (tmp_path / "a.jsonl").write_text("{broken\n")
    with pytest.raises(UserError, match="source 'web': nothing to measure"):
        _bench(mixture)


S = 16


def test_bench_runs_the_steps_and_measures_the_waits(tmp_path: Path) -> None:
    output = make_snapshot(tmp_path, {"web": 40})
    computed: list[float] = []
    loaders = [Loader(output, batch_size=4, prefetch=3)]
    found = bench_loader(loaders.pop, step_s=0.08, steps=12, compute=computed.append)
    assert computed == [0.08] * 12
    waits = found["wait_percentiles_s"]
    assert (found["steps"], list(waits.values())) == (12, sorted(waits.values()))
    assert all(seconds > 0 for seconds in (found["open_s"], found["first_batch_s"], *waits.values()))
    assert found["batch_tokens"] == 4 * S


def test_bench_of_finite_data_stops_at_its_end(tmp_path: Path) -> None:
    output = make_snapshot(tmp_path, {"web": 40}, total_tokens=S * 20)
    found = bench_loader(lambda: Loader(output, batch_size=4), step_s=0.0, steps=99, compute=lambda _: None)
    assert found["steps"] == 5
    with pytest.raises(UserError, match="fewer sequences than a global batch"):
        bench_loader(lambda: Loader(output, batch_size=64), step_s=0.0, steps=9)


def _row(name: str, kind: str, seconds: float, uses: str = "") -> Row:
    return Row(name=name, kind=kind, uses=uses, seconds=seconds, bytes=1 << 20)


def test_advice_goes_by_the_compression_of_files_and_by_whose_stage_it_is():
    assert advice(_row("read", "read", 1), ["", "gzip"], 1) != advice(_row("read", "read", 1), [""], 1)
    own = advice(_row("mine", "stage", 1, "my_module:Slow"), [], 1)
    assert "NumPy" in own and own != advice(_row("filter.length", "stage", 1, "filter.length"), [], 1)


def test_advice_about_fixed_costs_names_a_setting_only_where_there_are_several_tasks():
    assert ["split_bytes" in advice(_row("other", "other", 1), [], tasks) for tasks in (1, 2)] == [False, True]
