"""Runs that keep a share of a source: exactly the documents of the highest scores, whatever ran them."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from datapipe.errors import DatapipeError, UserError
from datapipe.explore.documents import Inspector
from datapipe.explore.sweep import sweep
from datapipe.report.distributions import distributions
from datapipe.report.report import write_report
from datapipe.steps.measuring import Measured
from datapipe.storage.root import Root
from tests.support import runs

pytestmark = pytest.mark.medium

TAIL = "tokenizer: none\nexecution: {split_bytes: 8KiB, bucket_bytes: 16KiB}\n"

Row = dict[str, object]


def _write(folder: Path, scores: Sequence[float], files: int = 3) -> list[Row]:
    """Documents with scores, in some files."""
    rows: list[Row] = [
        {"id": f"{number}", "text": f"{number} " + "word " * (number % 40), "score": score}
        for number, score in enumerate(scores)
    ]
    for number in range(files):
        _append(folder, f"{number}.jsonl", rows[number::files])
    return rows


def _append(folder: Path, name: str, rows: Sequence[Row]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def _scores(count: int, seed: int = 1) -> list[float]:
    rng = random.Random(seed)
    return [rng.choice([0.0, 0.25, 0.5, rng.random()]) for _ in range(count)]


def _run(folder: Path, options: str = "", stages: str = "", source: str = "web", **how) -> runs.Finished:
    listed = f"  {source}: {{path: {folder}/web/*.jsonl, keep: [score]}}\n"
    ranked = f"  - tests.support.ranked_stages:ByScore: {{as: best{options}}}\n"
    path = runs.write_mixture(folder, listed, f"stages:\n{ranked}{stages}", TAIL)
    return runs.run_mixture(path, **({"make_engine": runs.InProcess} | how))


def _written(run: runs.Finished) -> list[Row]:
    assert not run.snapshot.has_tokens
    return [row for file in run.snapshot.shards for row in pq.read_table(Path(run.mixture.output, file.path)).to_pylist()]


def _kept(run: runs.Finished) -> list[str]:
    return [str(row["id"]) for row in _written(run)]


def _dropped(run: runs.Finished) -> dict[str, int]:
    return run.report["sources"]["web"]["documents"]["dropped"]


@pytest.mark.parametrize(
    ("options", "passed", "share"),
    [
        ("keep_share: '1/10'", -1.0, 1 / 10),
        ("keep_share: '29/100'", -1.0, 29 / 100),
        ("keep_share: '1'", -1.0, 1),
        ("least: 0.25, keep_share: '1/2'", 0.25, 1 / 2),  # of the documents that pass the other rules
    ],
)
def test_share_of_documents_is_exact(tmp_path, options, passed, share):
    rows = [row for row in _write(tmp_path / "web", _scores(300)) if row["score"] >= passed]
    run = _run(tmp_path, f", {options}")
    kept, count = set(_kept(run)), int(share * len(rows) + 1e-9)
    scores = sorted((row["score"], row["id"] in kept) for row in rows)
    assert len(kept) == count
    assert min(score for score, is_kept in scores if is_kept) >= max(
        (score for score, is_kept in scores if not is_kept), default=0
    )
    found = run.report["thresholds"]["web"]["best"]
    assert (found["documents"], found["kept_documents"], found["of"]) == (len(rows), count, "documents")
    dropped = {"best:low": 300 - len(rows), "best:below_share": len(rows) - count}
    assert _dropped(run) == {rule: number for rule, number in dropped.items() if number}
    assert run.report["total"]["steps"]["measure"]["documents"] == 300 + len(rows)  # by the filter, and by its cut


def test_share_of_bytes_is_right_to_the_longest_document(tmp_path):
    rows = _write(tmp_path / "web", [0.5] * 400, files=2)
    kept = {int(name) for name in _kept(_run(tmp_path, ", keep_share: '1/3', share_of: bytes"))}
    sizes = [len(str(row["text"])) for row in rows]
    assert sum(sizes) / 3 - max(sizes) <= sum(sizes[name] for name in kept) <= sum(sizes) / 3
    # Documents of one score are chosen evenly from both files, and from all of each.
    assert all(0.3 < sum(map(is_of, kept)) / len(kept) < 0.7 for is_of in (lambda name: name % 2, lambda name: name < 200))


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


def test_a_task_ranks_the_scores_of_as_many_files_as_a_quarter_of_a_bucket_holds(tmp_path):
    _write(tmp_path / "web", _scores(400))
    num_tasks = {}
    for bucket in ("16KiB", "1MiB"):
        run = _run(tmp_path, ", keep_share: '1/3'", output=tmp_path / bucket, overrides=[f"execution.bucket_bytes={bucket}"])
        num_tasks[bucket] = sum("/rank-" in step and step.endswith("-1") for step in run.watcher.steps)
    assert num_tasks["1MiB"] == 1
    assert num_tasks["16KiB"] > 1


def test_stages_after_a_cut_see_what_it_keeps_and_no_column_more(tmp_path):
    _write(tmp_path / "web", _scores(300))
    again = "  - tests.support.ranked_stages:ByScore: {as: again, keep_share: '1/2'}\n"
    run = _run(tmp_path, ", keep_share: '1/2'", f"{again}  - filter.length: {{min_words: 5}}\n  - dedup.exact\n")
    assert not {name for name in _written(run)[0] if name.startswith(("best", "again"))}
    assert {"best:below_share": 150, "again:below_share": 75}.items() <= _dropped(run).items()
    assert {name: cut["documents"] for name, cut in run.report["thresholds"]["web"].items()} == {"best": 300, "again": 150}


def test_tag_mode_drops_nothing_and_publishes_the_threshold(tmp_path):
    rows = _write(tmp_path / "web", _scores(300))
    dropping = _run(tmp_path, ", keep_share: '1/4'", output=tmp_path / "dropping")
    tagging = _run(tmp_path, ", keep_share: '1/4', mode: tag")
    assert tagging.report["thresholds"] == dropping.report["thresholds"]
    kept, tagged = set(_kept(dropping)), _written(tagging)
    assert {row["id"]: row["best.rule"] for row in tagged} == {
        row["id"]: None if row["id"] in kept else "below_share" for row in rows
    }
    root = Root(tagging.mixture.output)
    measured = Measured(root=root, steps=tagging.plan.of_kind("map"), name_of=bytes.hex)
    write_report(root, tagging.summary.with_(**distributions(measured)))
    found = sweep(Inspector.open(root.url), "best.keep_share", thresholds=[0.25])["total"]["kept"][0]
    assert found["alone"]["documents"] == sum(row["score"] >= 0.25 for row in rows)


def test_threshold_of_an_earlier_run_is_not_moved_by_new_files(tmp_path):
    _write(tmp_path / "web", _scores(200))
    first = _run(tmp_path, ", keep_share: '1/10'", output=tmp_path / "first")
    write_report(Root(str(tmp_path / "first")), first.summary)
    frozen = f", keep_share: '1/10', threshold_from: {tmp_path}/first"
    assert _kept(_run(tmp_path, frozen)) == _kept(first)
    _append(
        tmp_path / "web", "new.jsonl", [{"id": f"new-{score}", "text": "new", "score": score} for score in (0.99, 0.98, 0.001)]
    )
    second = _run(tmp_path, frozen)
    assert set(_kept(second)) == {*_kept(first), "new-0.99", "new-0.98"}
    cuts = [run.report["thresholds"]["web"]["best"] for run in (first, second)]
    assert len({(cut["threshold"], cut["tie"], cut["documents"]) for cut in cuts}) == 1
    with pytest.raises(UserError, match=r"report\.json holds no threshold of best in news"):
        _run(tmp_path, frozen, source="news")


@pytest.mark.parametrize(("options", "reason"), [("least: 0.6, keep_share: '1/2'", "low"), ("keep_share: '0'", "below_share")])
def test_source_without_documents_above_the_cut_keeps_none(tmp_path, options, reason):
    _write(tmp_path / "web", [0.5], files=1)
    with pytest.raises(DatapipeError, match=rf"'web': .*best:{reason} dropped 1"):
        _run(tmp_path, f", {options}")
