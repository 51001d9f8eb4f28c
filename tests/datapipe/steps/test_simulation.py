"""`datapipe plan --at`: the tasks of a simulated run are those of a real run, and its bytes and requests near them."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from itertools import accumulate
from pathlib import Path

import pytest

from datapipe.config import load_mixture
from datapipe.engine.run import planned, simulation
from datapipe.steps.kind import Plan
from datapipe.steps.simulation import Prices, Simulation
from datapipe.storage.root import Root
from tests.benchmarks.fit import fits
from tests.support import corpora, runs
from tests.support.command_line import datapipe
from tests.support.counting_store import counting

pytestmark = pytest.mark.medium

STAGES = "stages: [filter.gopher_quality, dedup.exact, dedup.minhash]"
EXACT = "stages: [filter.gopher_quality, dedup.exact]"
TAIL = """
validation: 5%
tokenizer: {train: {vocab_size: 400, sample_bytes: 60KiB}}
pack: {sequence_length: [64, 32]}
shards: {target_bytes: 8KiB}
execution: {split_bytes: 20KiB, bucket_bytes: 8KiB}
"""
TEXT = "tokenizer: none\ndocuments: {target_bytes: 64KiB}\nexecution: {split_bytes: 20KiB, bucket_bytes: 8KiB}"
BY_PLAN = ("map", "sample", "train", "tokenize", "write", "fold", "rank", "narrow")
"""Kinds whose tasks follow from input files alone. Those of the others follow from sizes of rows, which differ a little."""


def written(folder: Path, times: int, stages: str = STAGES, tail: str = TAIL) -> Path:
    """A mixture with `times` as many files of one source, and half as many of another."""
    folder.mkdir()
    for name, count in (("web", 2 * times), ("code", times)):
        for number in range(count):
            corpora.write_jsonl(folder / name / f"{number:03d}.jsonl", _documents(1000 * len(name) + number))
    sources = "".join(f"  {name}: {{path: {folder}/{name}/*.jsonl, keep: [score]}}\n" for name in ("web", "code"))
    return runs.write_mixture(folder, sources, stages, tail)


def _documents(seed: int) -> list[dict[str, object]]:
    """Documents of 34 kB, so that each file is read by two tasks."""
    rows = [{**row, "score": seed * number % 101} for number, row in enumerate(corpora.documents(seed, 100))]
    ends = accumulate(len(corpora.jsonl([row])) for row in rows)
    return [row for row, end in zip(rows, ends) if end <= 34_000]


def finished(folder: Path, times: int, stages: str = STAGES, tail: str = TAIL, **options) -> runs.Finished:
    return runs.run_mixture(written(folder, times, stages, tail), make_engine=runs.InProcess, **options)


def at(run: runs.Finished, times: float, prices: Prices | None = None) -> Simulation:
    """The simulation of so many times the input of a run, by its output."""
    request, plan = planned(run.mixture)
    return simulation(Root(run.mixture.output), request, plan, round(_input(run) * times), 1000, prices or Prices())


def _input(run: runs.Finished) -> int:
    folders = [Path(source.path[0]).parent for source in run.mixture.sources.values()]
    return sum(path.stat().st_size for folder in folders for path in folder.iterdir())


def tasks_of(plan: Plan) -> dict[str, int]:
    tasks = Counter[str]()
    for step in plan.steps:
        tasks[step.kind] += len(step.tasks or ())
    return {kind: count for kind, count in tasks.items() if count}


def documents_of(plan: Plan) -> int:
    reading = (step for step in plan.of_kind("map") if step.id.endswith("/read"))
    return sum(record.metrics.document_counts.read for step in reading for record in step.records)


def bytes_of(plan: Plan) -> int:
    outputs = (files for step in plan.steps for record in step.records for files in record.outputs.values())
    return sum(file.bytes for files in outputs for file in files)


def check(simulated: Simulation, real: runs.Finished, tolerance: float) -> None:
    """Compares numbers of tasks: exactly where they follow from files, else within a tolerance."""
    tasks = tasks_of(real.plan)
    predicted = {kind: count for kind, count in simulated.tasks.items() if count}
    assert {kind: predicted.get(kind) for kind in BY_PLAN} == {kind: tasks.get(kind) for kind in BY_PLAN}
    assert predicted == pytest.approx(tasks, rel=tolerance, abs=2)


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> runs.Finished:
    return finished(tmp_path_factory.mktemp("sizes") / "1", 1)


def test_simulation_at_the_size_of_a_run_has_its_tasks_and_figures(small):
    simulated = at(small, 1)
    records = [record for step in small.plan.steps for record in step.records]
    assert simulated.tasks == tasks_of(small.plan)
    assert simulated.is_measured
    worked = sum(work.seconds for record in records for name, work in record.metrics.work.items() if "load" not in name)
    assert sum(simulated.core_seconds.values()) == pytest.approx(worked)
    assert sum(simulated.bytes_written.values()) == pytest.approx(bytes_of(small.plan), rel=0.001)
    assert simulated.documents == documents_of(small.plan)


@pytest.mark.parametrize("times", [4, 16])
@pytest.mark.slow
def test_simulation_of_a_larger_run_has_its_tasks(small, tmp_path, times):
    large = finished(tmp_path / "large", times)
    simulated = at(small, _input(large) / _input(small))
    check(simulated, large, 0.1)
    measured = {"text_bytes": 1, "documents": documents_of(large.plan), "bytes_written": {"all": bytes_of(large.plan)}}
    assert [fit.error for fit in fits(simulated.to_json(), measured)] == pytest.approx([0, 0], abs=0.2)


@pytest.mark.parametrize("tail", [pytest.param(TAIL, id="tokens"), pytest.param(TEXT, id="text")])
@pytest.mark.slow
def test_simulation_counts_merges_and_folds(tmp_path, monkeypatch, tail):
    monkeypatch.setattr("datapipe.steps.runs.MOST_RUNS", 4)
    monkeypatch.setattr("datapipe.steps.fold.MOST_FILES", 5)
    one, large = (finished(tmp_path / str(times), times, EXACT, tail) for times in (1, 5))
    simulated = at(one, _input(large) / _input(one))
    assert tasks_of(large.plan)["merge"] > 10
    assert tasks_of(large.plan)["fold"] > 10
    check(simulated, large, 0.25)


@pytest.mark.slow
def test_simulation_counts_the_tasks_that_find_a_cut(tmp_path):
    stages = "stages: [{'tests.support.ranked_stages:ByScore': {keep_share: 1/2}}]"
    tail = TEXT.replace("bucket_bytes: 8KiB", "bucket_bytes: 16KiB")
    one, large = (finished(tmp_path / str(times), times, stages, tail) for times in (1, 4))
    assert tasks_of(large.plan)["rank"] > tasks_of(one.plan)["rank"]
    check(at(one, _input(large) / _input(one)), large, 0.1)


@pytest.mark.slow
def test_simulation_counts_the_rows_of_cells_within_their_budgets(tmp_path):
    split = "{by: [{column: score, bounds: [50]}], max_tokens: {'0': 3k}}"
    one, large = (finished(tmp_path / str(times), times, EXACT, overrides=[f"sources.web.split={split}"]) for times in (1, 6))
    check(at(one, _input(large) / _input(one)), large, 0.2)


@pytest.mark.slow
def test_simulation_by_a_limited_run_has_the_tasks_of_a_whole_one(small, tmp_path):
    mixture = Path(small.mixture.output).parent / "mixture.yaml"
    limited = runs.run_mixture(mixture, output=tmp_path / "out", limit=30, make_engine=runs.InProcess)
    check(at(limited, 1), small, 0.25)


def test_simulation_without_a_run_goes_by_estimates_and_is_small_at_any_size(tmp_path):
    mixture = load_mixture(written(tmp_path / "in", 1, STAGES, TAIL + "\n"))
    request, plan = planned(mixture)
    tracemalloc.start()
    simulated = simulation(Root(mixture.output), request, plan, 10**12, 10**6, Prices())
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()
    assert not simulated.is_measured
    assert simulated.tasks["map"] == pytest.approx(3 * 10**12 / 17_000, rel=0.02)
    assert simulated.tasks["merge"] > 10**6
    assert simulated.hours * 3600 >= simulated.driver_seconds


def test_simulation_names_what_limits_the_time_and_what_it_costs(small, monkeypatch):
    monkeypatch.setattr("datapipe.steps.simulation._DRIVER_START_S", 0.0)  # beside which steps of a small run take no time
    few, many = (at(small, times, Prices(core_hour=1, put=1, get=0, tb_month=10)) for times in (1, 1000))
    idle = [limit.seconds for limit in few.limits]  # which steps are the longest is for the clock to say
    assert idle
    assert idle == sorted(idle, reverse=True)
    for limit in few.limits:
        assert any(step.id.endswith(limit.step) for step in small.plan.steps)
        assert limit.tasks < 1000
    assert few.hours > sum(few.core_seconds.values()) / 3600 / 1000
    assert many.dollars["compute"] == pytest.approx(1000 * many.hours)
    assert many.dollars["requests"] == pytest.approx((many.requests["PUT"] + many.requests["LIST"]) / 1000)
    assert many.dollars["storage_month"] == pytest.approx(many.output_bytes / 1e11)


@pytest.mark.parametrize("level", ["none", *(pytest.param(level, marks=pytest.mark.slow) for level in ("resume", "inspect"))])
def test_peak_of_work_is_that_of_a_run(tmp_path, level):
    most, folder = 0, tmp_path / "in" / "out" / "work"

    def look(_) -> None:
        nonlocal most
        files = (path.stat() for path in (folder / "attempts").rglob("*.*"))
        most = max(most, sum(file.st_size for file in files if file.st_nlink == 1))  # published shards are links

    tail = TAIL.replace("bucket_bytes", f"keep_work: {level}, bucket_bytes")
    watcher = runs.Watcher(on_commit=look)
    done = finished(tmp_path / "in", 2, EXACT, tail, watcher=watcher)
    assert at(done, 1).peak_work_bytes == pytest.approx(most, rel=0.2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_requests_are_those_of_a_run_on_an_object_store(query: str, tmp_path):
    with counting(query) as store:
        done = finished(tmp_path / "in", 1, EXACT, output=f"s3://outputs/simulated{store.query}")
        measured, simulated = Counter(store.requests), Counter(at(done, 1).requests)
    assert sum(simulated.values()) == pytest.approx(sum(measured.values()), rel=0.2), (simulated, measured)
    for name in ("GET", "PUT"):
        assert simulated[name] == pytest.approx(measured[name], rel=0.2), (simulated, measured)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--at", "many"], "--at many: expected a size above 0 such as 256MiB, 1GB or 1048576"),
        (["--at", "-5GB"], "--at -5GB: expected a size above 0"),
        (["--at", "0"], "--at 0: expected a size above 0"),
        (["--at", "1e400"], "--at 1e400: expected a size above 0"),
        (["--at", "1TB", "--limit", "5"], "--at and --limit: a run of another size reads all of its input"),
        (["--cores", "5"], "--cores: expected with --at SIZE"),
        (["--cores", "5", "--prices", "put=1"], "--cores and --prices: expected with --at SIZE"),
        (
            ["--at", "1TB", "--prices", "cores=1"],
            "--prices: cores=1: expected NAME=DOLLARS with one of core_hour, put, get, tb_month",
        ),
        (["--at", "1TB", "--prices", "put"], "--prices: put: expected NAME=DOLLARS"),
        (["--at", "1TB", "--prices", "put=nan"], "--prices: put=nan: expected NAME=DOLLARS"),
        (["--at", "1TB", "--prices", "put=-1"], "--prices: put=-1: expected NAME=DOLLARS"),
    ],
)
def test_options_of_a_simulation_that_do_not_fit_are_errors(small, options, error):
    done = datapipe(["plan", str(Path(small.mixture.output).parent / "mixture.yaml"), *options])
    assert done.returncode == 2
    assert error in done.stderr


def test_plan_prints_a_simulation_and_gives_it_as_json(small):
    command = ["plan", str(Path(small.mixture.output).parent / "mixture.yaml"), "--at", "1PiB", "--cores", "1000"]
    done = datapipe(command)
    assert done.returncode == 0, done.stderr
    for part in ("at 1,125.9 TB of input", "cores wait: ", "on an object store: ", "under work/ at most", "a month to store"):
        assert part in " ".join(done.stdout.split())
    figures = json.loads(datapipe([*command, "--json"]).stdout)
    assert (figures["text_bytes"], figures["cores"], figures["is_measured"]) == (1 << 50, 1000, True)
    assert figures["core_hours"] == pytest.approx(sum(figures["core_seconds"].values()) / 3600)
