"""Deduplication decides the same wherever and however it runs: the same drops, the same texts, the same shards, byte for byte.

The four stages over two sources (`tests/support/dedup_runs.py`). Kills are in `test_kill.py`, a Ray cluster in `test_ray.py`,
over the same corpus.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from datapipe.plan.runs import fan_in
from datapipe.plan.work import GatherTask, ReduceTask
from tests.support import dedup_runs, runs
from tests.support.dedup_runs import AT_ONCE, IN_ROUNDS, Outcome, outcome

pytestmark = pytest.mark.slow

SMALL = ("execution.split_bytes=16KiB", "execution.bucket_bytes=4KiB")
_TINY_BUCKETS = "execution.bucket_bytes=1KiB"
LARGE = ("execution.split_bytes=1MiB", "execution.bucket_bytes=16MiB")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dedup_runs.write_corpus(tmp_path_factory.mktemp("dedup"))


@pytest.fixture(scope="module")
def reference(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> runs.Finished:
    mixture = dedup_runs.write_mixture(tmp_path_factory.mktemp("reference"), corpus, AT_ONCE)
    return runs.run_mixture(mixture, make_engine=runs.InProcess)


@pytest.fixture(scope="module")
def expected(reference: runs.Finished) -> Outcome:
    return outcome(reference)


def test_dedup_reference_has_work_for_every_stage(reference: runs.Finished, expected: Outcome) -> None:
    by_rule = [f"{stage}:{rule}" for _, stage, rule, _, _ in expected.drops]
    least = {"dedup.exact:duplicate": 5, "dedup.minhash:duplicate": 20, "dedup.lines:too_much_removed": 3}
    assert all(by_rule.count(name) >= count for name, count in least.items())
    assert max(size for _, size in expected.kept.values()) > 8
    num_cuts = {step.id: sum(output.rows for output in step.outputs("cuts")) for step in reference.plan.of_kind("reduce")}
    assert all(num_cuts[name] > 3 for name in ("dedup.lines/match", "dedup.substring/match", "dedup.substring/verify"))


@pytest.mark.parametrize(
    ("stages", "overrides", "is_turned", "options"),
    [
        (IN_ROUNDS, SMALL, True, {"make_engine": runs.LastFirst}),
        pytest.param(IN_ROUNDS, LARGE, False, {"make_engine": runs.InProcess}, marks=pytest.mark.slow),
        pytest.param(AT_ONCE, (), True, {"make_engine": runs.InProcess}, marks=pytest.mark.slow),
        *(pytest.param(IN_ROUNDS, (), False, {"workers": count}, marks=pytest.mark.slow) for count in (1, 2, 7)),
    ],
    ids=["cut-small-and-turned", "cut-large", "files-turned", "1-worker", "2-workers", "7-workers"],
)
def test_dedup_outcome_does_not_depend_on_how_it_ran(
    tmp_path: Path,
    corpus: Path,
    expected: Outcome,
    stages: str,
    overrides: tuple[str, ...],
    is_turned: bool,
    options: dict[str, Any],
) -> None:
    mixture = dedup_runs.write_mixture(tmp_path, corpus, stages, is_turned)
    done = runs.run_mixture(mixture, overrides=overrides, **options)
    assert outcome(done) == expected
    steps = done.watcher.steps
    num_rounds = len({step for step in steps if "/cluster-" in step})
    assert num_rounds > 4 if stages == IN_ROUNDS else num_rounds == 1
    exchanged = ["dedup.minhash/match-bands", "dedup.lines/match", "dedup.substring/extend"]
    exchanged += ["dedup.minhash/cluster-1"] if overrides == SMALL else []
    assert overrides == LARGE or all(steps.count(name) > 1 for name in exchanged)


@pytest.mark.slow
@pytest.mark.parametrize(("most_runs", "options"), [(2, {"workers": 2}), (3, {"make_engine": runs.InProcess})])
def test_dedup_outcome_is_that_of_files_merged_before_they_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, corpus: Path, expected: Outcome, most_runs: int, options: dict[str, Any]
) -> None:
    monkeypatch.setattr("datapipe.plan.runs.MOST_RUNS", most_runs)
    done = runs.run_mixture(dedup_runs.write_mixture(tmp_path, corpus), overrides=(*SMALL, _TINY_BUCKETS), **options)
    assert outcome(done) == expected
    merged = {step.id for step in done.plan.of_kind("merge")}
    steps = {
        "exact/match",
        "minhash/match-bands",
        "minhash/fetch-signatures",
        "minhash/cluster-1",
        "lines/match",
        "lines/decisions",
    }
    assert {f"dedup.{step}.merge-1" for step in steps} <= merged
    assert "dedup.lines/match.merge-2" in merged
    exchanged = [step.tasks for kind in ("reduce", "gather") for step in done.plan.of_kind(kind) if step.tasks]
    read = [task.tables for tasks in exchanged if len(tasks) > 1 for task in tasks if isinstance(task, ReduceTask | GatherTask)]
    assert len(read) > 30
    assert all(fan_in(files) <= most_runs for one in read for files in one.values())
