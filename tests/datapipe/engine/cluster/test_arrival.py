"""What a node lacks, as it finds out itself."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from datapipe.config import load_mixture
from datapipe.engine.cluster import arrival
from datapipe.engine.cluster.arrival import (
    INPUTS_OF_STORE,
    Expectation,
    first_inputs,
    lacks_here,
    other_versions,
    versions_here,
)
from datapipe.engine.cluster.on_node import Order, opened, run_attempt
from datapipe.engine.prepare import prepare
from datapipe.engine.workers import supervisor
from datapipe.engine.workers.limits import NO_LIMITS
from datapipe.plan.outputs import TableFile
from datapipe.storage import Root
from tests.support import corpora, runs
from tests.support.empty_tasks import sample

NODE = "n" * 56
NOT_THERE = TableFile(path="not/there.arrow", bytes=1, rows=1, checksum="", row_bytes=1)


@pytest.fixture
def expected(tmp_path) -> Expectation:
    root = Root(str(tmp_path / "out"))
    root.write_atomic("work/probe-1", b"datapipe")
    (tmp_path / "a.jsonl").write_text("{}\n")
    return Expectation(versions=versions_here(), output=root.url, probe="work/probe-1", inputs=(str(tmp_path / "a.jsonl"),))


def test_node_like_the_driver_lacks_nothing_and_writes_an_answer(expected):
    assert lacks_here(expected) == []
    root = Root(expected.output)
    assert [path for path, _ in root.list_files("")] == ["work/probe-1"]
    assert lacks_here(expected, NODE) == []
    assert root.exists(expected.answer(NODE))


def test_versions_that_differ_are_named_with_those_of_the_driver(expected):
    driver = {"Python": "3.12.1", "datapipe": "0.2.0", "numba": "0.61.0", "source of datapipe": "aa"}
    here = {"Python": "3.12.1", "datapipe": "0.1.0", "source of datapipe": "bb"}
    of_datapipe, of_numba = other_versions(driver, here)
    assert all(version in of_datapipe for version in ("datapipe", "0.1.0", "0.2.0"))
    assert all(version in of_numba for version in ("numba", "none", "0.61.0"))
    [of_source] = other_versions(driver, {**driver, "source of datapipe": "bb"})
    assert "source code" in of_source
    assert {"Python", "datapipe", "numba", "pyarrow"} < versions_here().keys()
    other = replace(expected, versions={**expected.versions, "numba": "0.1"}, probe="work/not-there")
    [looked_no_further] = lacks_here(other)
    assert "numba" in looked_no_further


def test_node_that_does_not_see_the_output_or_inputs_names_each(expected, tmp_path):
    (tmp_path / "elsewhere/work").mkdir(parents=True)
    [of_output] = lacks_here(replace(expected, output=str(tmp_path / "elsewhere")), NODE)
    assert f"{tmp_path}/elsewhere" in of_output
    told = lacks_here(replace(expected, inputs=(f"{tmp_path}/b.jsonl", *expected.inputs, f"{tmp_path}/c.jsonl")))
    assert [line.partition(": ")[0] for line in told] == [f"it does not see {tmp_path}/{name}.jsonl" for name in "bc"]


def test_node_that_cannot_write_to_the_output_says_so(expected, monkeypatch):
    def refuse(self, relative, content):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Root, "write_atomic", refuse)
    [told] = lacks_here(expected, NODE)
    assert expected.output in told and "Read-only file system" in told


def test_node_with_a_full_disk_or_without_temporary_folder_says_so(expected, monkeypatch, tmp_path):
    monkeypatch.setattr(arrival, "free_bytes", lambda path: 0)
    monkeypatch.setattr(arrival.tempfile, "gettempdir", lambda: str(tmp_path))
    assert lacks_here(expected) == [f"its disk is full: {tmp_path}"]

    def no_folder():
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(arrival.tempfile, "gettempdir", no_folder)
    assert "no folder for temporary files" in lacks_here(expected)[0]


def test_few_inputs_of_a_disk_are_looked_at(tmp_path):
    names = [f"s{number}" for number in range(INPUTS_OF_STORE + 2)]
    for name in names:
        corpora.write_jsonl(tmp_path / f"{name}/a.jsonl", [{"text": "a text"}])
    sources = "\n".join(f"  {name}:\n    path: {tmp_path}/{name}/*.jsonl" for name in names)
    request = prepare(load_mixture(runs.write_mixture(tmp_path, sources, "stages: [normalize.unicode]")))
    assert len(first_inputs(request)) == INPUTS_OF_STORE


def test_task_on_a_node_that_lacks_something_comes_back_with_that_and_a_report_before(expected, tmp_path, monkeypatch):
    reports = []
    order = opened(Order.of(sample(), "one", replace(expected, output=str(tmp_path / "elsewhere")), {}, NO_LIMITS))
    [told], record, failure = run_attempt(order, lambda report: reports.append(report) is None)
    assert f"{tmp_path}/elsewhere" in told
    assert (record, failure) == (None, None)
    assert [(report.number, report.message.attempt, report.process_id) for report in reports] == [(0, "one", os.getpid())]
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    order = opened(Order.of(sample(), "one", expected, {"mine.py": ""}, NO_LIMITS))
    [told], record, _ = run_attempt(order, lambda report: True)
    assert record is None and "modules" in told


@pytest.mark.medium
@pytest.mark.parametrize("is_gone", [False, True])
def test_failure_on_a_node_that_lost_the_output_meanwhile_comes_with_what_it_lacks(expected, is_gone, monkeypatch):
    monkeypatch.setattr(supervisor, "_worker", None)
    order = opened(Order.of(sample(documents=(NOT_THERE,)), "one", expected, {}, NO_LIMITS))

    def tell(report) -> bool:
        if is_gone and report.number:  # the node has been looked at
            Root(expected.output).delete(expected.probe)
        return True

    lacks, record, failure = run_attempt(order, tell)
    supervisor._worker[1].stop()
    assert record is None and failure is not None
    assert [expected.output in told for told in lacks] == [True] * is_gone
