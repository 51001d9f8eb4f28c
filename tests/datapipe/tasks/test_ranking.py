"""Runs that keep a share of a source: exactly the documents of the highest scores, whatever ran them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from datapipe.errors import DatapipeError, UserError
from datapipe.inspect.sweep import sweep
from datapipe.report.summary import write_report
from datapipe.shards.manifest import DocumentsSnapshot
from datapipe.storage import Root
from tests.support import runs

pytestmark = pytest.mark.medium

TAIL = """
tokenizer: none
execution: {split_bytes: 8KiB, bucket_bytes: 16KiB}
"""


def _write(folder: Path, scores: Sequence[float], files: int = 3) -> list[dict[str, object]]:
    """Documents with scores, in some files."""
    rows = [
        {"id": f"{number}", "text": f"{number} " + "word " * (number % 40), "score": score}
        for number, score in enumerate(scores)
    ]
    folder.mkdir(exist_ok=True)
    for number in range(files):
        lines = [json.dumps(row) for row in rows[number::files]]
        (folder / f"{number}.jsonl").write_text("\n".join(lines) + "\n" if lines else "")
    return rows


def _scores(count: int, seed: int = 1) -> list[float]:
    rng = random.Random(seed)
    return [rng.choice([0.0, 0.25, 0.5, rng.random()]) for _ in range(count)]


def _run(folder: Path, options: str = "", stages: str = "", **how) -> runs.Finished:
    source = f"  web: {{path: {folder}/web/*.jsonl, keep: [score]}}\n"
    ranked = f"  - tests.support.ranked_stages:ByScore: {{as: best{options}}}\n"
    path = runs.write_mixture(folder, source, f"stages:\n{ranked}{stages}", TAIL)
    return runs.run_mixture(path, **({"make_engine": runs.InProcess} | how))


def _files(run: runs.Finished) -> list[Path]:
    assert isinstance(run.snapshot, DocumentsSnapshot)
    return [Path(run.mixture.output, file.path) for file in run.snapshot.documents]


def _kept(run: runs.Finished) -> list[str]:
    return [name for file in _files(run) for name in pq.read_table(file).column("id").to_pylist()]


@pytest.mark.parametrize(("share", "count"), [("1/10", 30), ("29/100", 87), ("1", 300)])
def test_share_of_documents_is_exact(tmp_path, share, count):
    rows = _write(tmp_path / "web", _scores(300))
    run = _run(tmp_path, f", keep_share: {share!r}")
    kept = set(_kept(run))
    assert len(kept) == count
    dropped = [row["score"] for row in rows if row["id"] not in kept]
    assert not kept or not dropped or min(row["score"] for row in rows if row["id"] in kept) >= max(dropped)
    found = run.report["thresholds"]["web"]["best"]
    assert (found["documents"], found["kept_documents"], found["of"]) == (300, count, "documents")
    assert run.report["sources"]["web"]["documents"]["dropped"] == ({"best:below_share": 300 - count} if count < 300 else {})


def test_share_of_bytes_is_right_to_the_longest_document(tmp_path):
    rows = _write(tmp_path / "web", _scores(300))
    kept = set(_kept(_run(tmp_path, ", keep_share: '1/3', share_of: bytes")))
    sizes = {row["id"]: len(str(row["text"])) for row in rows}
    wanted = sum(sizes.values()) / 3
    assert wanted - max(sizes.values()) <= sum(sizes[name] for name in kept) <= wanted


def test_share_counts_the_documents_that_pass_the_other_rules(tmp_path):
    scores = _scores(300)
    _write(tmp_path / "web", scores)
    run = _run(tmp_path, ", least: 0.25, keep_share: '1/2'")
    passed = sum(score >= 0.25 for score in scores)
    assert len(_kept(run)) == passed // 2
    assert run.report["sources"]["web"]["documents"]["dropped"] == {
        "best:low": 300 - passed,
        "best:below_share": passed - passed // 2,
    }


def test_documents_of_one_score_are_chosen_evenly(tmp_path):
    _write(tmp_path / "web", [0.5] * 400, files=2)
    kept = {int(name) for name in _kept(_run(tmp_path, ", keep_share: '1/2'"))}
    assert len(kept) == 200
    assert 60 < sum(name % 2 for name in kept) < 140  # of both files
    assert 60 < sum(name < 200 for name in kept) < 140


@pytest.mark.slow
def test_decisions_do_not_depend_on_workers_splits_and_buckets(tmp_path):
    _write(tmp_path / "web", _scores(400))
    one = _run(tmp_path, ", keep_share: '1/3'")
    ways = [
        {"workers": 2, "make_engine": None},
        {"make_engine": runs.LastFirst},
        {"overrides": ["execution.split_bytes=1MiB", "execution.bucket_bytes=1MiB"]},
    ]
    for number, how in enumerate(ways):
        other = _run(tmp_path, ", keep_share: '1/3'", output=tmp_path / f"out-{number}", **how)
        assert _kept(other) == _kept(one)
        assert other.report["thresholds"] == one.report["thresholds"]


def test_stages_after_the_cut_see_what_it_keeps_and_no_column_more(tmp_path):
    _write(tmp_path / "web", _scores(300))
    run = _run(tmp_path, ", keep_share: '1/2'", "  - filter.length: {min_words: 5}\n  - dedup.exact\n")
    assert [step.id for step in run.plan.of_kind("map", "web")] == ["web/read", "web/apply-best", "web/apply-dedup.exact"]
    assert "best.below_share" not in pq.read_schema(_files(run)[0]).names
    assert {"best:below_share": 150}.items() <= run.report["sources"]["web"]["documents"]["dropped"].items()


def test_two_shares_after_another_each_count_what_reaches_them(tmp_path):
    _write(tmp_path / "web", _scores(300))
    again = "  - tests.support.ranked_stages:ByScore: {as: again, keep_share: '1/2'}\n"
    run = _run(tmp_path, ", keep_share: '1/2'", again)
    assert len(_kept(run)) == 75
    assert {name: cut["documents"] for name, cut in run.report["thresholds"]["web"].items()} == {"best": 300, "again": 150}


def test_tag_mode_drops_nothing_and_publishes_the_threshold(tmp_path):
    rows = _write(tmp_path / "web", _scores(300))
    dropping = _run(tmp_path, ", keep_share: '1/4'", output=tmp_path / "dropping")
    tagging = _run(tmp_path, ", keep_share: '1/4', mode: tag")
    assert len(_kept(tagging)) == 300
    assert tagging.report["thresholds"] == dropping.report["thresholds"]
    tagged = [row for file in _files(tagging) for row in pq.read_table(file).to_pylist()]
    assert sorted(row["id"] for row in tagged if row["best.rule"] is None) == sorted(_kept(dropping))
    assert {row["best.rule"] for row in tagged} == {None, "below_share"}
    found = sweep(str(tagging.mixture.output), "best.keep_share", thresholds=[0.25]).total.kept[0]
    assert found.alone.documents == sum(row["score"] >= 0.25 for row in rows)


def test_threshold_of_an_earlier_run_is_not_moved_by_new_files(tmp_path):
    _write(tmp_path / "web", _scores(200))
    first = _run(tmp_path, ", keep_share: '1/10'", output=tmp_path / "first")
    write_report(Root(str(tmp_path / "first")), first.report)
    frozen = f", keep_share: '1/10', threshold_from: {tmp_path}/first"
    assert _kept(_run(tmp_path, frozen)) == _kept(first)
    more = [0.99, 0.98, 0.001]
    lines = [json.dumps({"id": f"new-{number}", "text": "new text", "score": score}) for number, score in enumerate(more)]
    (tmp_path / "web" / "new.jsonl").write_text("\n".join(lines) + "\n")
    second = _run(tmp_path, frozen)
    assert set(_kept(second)) == {*_kept(first), *(f"new-{number}" for number, score in enumerate(more) if score > 0.5)}
    own = ("threshold", "tie", "documents")
    cuts = [run.report["thresholds"]["web"]["best"] for run in (first, second)]
    assert [[cut[name] for name in own] for cut in cuts] == [[cuts[0][name] for name in own]] * 2
    source = f"  news: {{path: {tmp_path}/web/*.jsonl, keep: [score]}}\n"
    stages = f"stages:\n  - tests.support.ranked_stages:ByScore: {{as: best{frozen}}}\n"
    path = runs.write_mixture(tmp_path, source, stages, TAIL, "other.yaml")
    with pytest.raises(UserError, match=r"threshold_from: .*report.json holds no threshold of best in news"):
        runs.run_mixture(path, make_engine=runs.InProcess)


def test_new_files_decide_the_source_anew_and_read_no_old_file_again(tmp_path):
    _write(tmp_path / "web", [0.1] * 100)
    _run(tmp_path, ", keep_share: '1/10'")
    lines = [json.dumps({"id": f"new-{number}", "text": "new text", "score": 0.9}) for number in range(50)]
    (tmp_path / "web" / "new.jsonl").write_text("\n".join(lines) + "\n")
    second = _run(tmp_path, ", keep_share: '1/10'")
    assert all(name.startswith("new") for name in _kept(second))
    assert len(_kept(second)) == 15
    assert second.watcher.steps.count("web/read") <= 2  # the group that the new file joins


@pytest.mark.parametrize(("options", "reason"), [("least: 0.6, keep_share: '1/2'", "low"), ("keep_share: '0'", "below_share")])
def test_source_without_documents_above_the_cut_keeps_none(tmp_path, options, reason):
    _write(tmp_path / "web", [0.5], files=1)
    with pytest.raises(DatapipeError, match=rf"source 'web': of 1 document, best:{reason} dropped 1"):
        _run(tmp_path, f", {options}")
