"""`datapipe status`, the figures for Prometheus and the log of events, of runs that go on, end, fail and are killed."""

import json
import os
import re
import signal
import socket
import urllib.request
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from datapipe.config import load_mixture
from datapipe.engine.events import Event, EventLog, Observer, Planned, Progress, RunEnded, RunStarted, UserMessage, all_of
from datapipe.engine.protocol import Message
from datapipe.engine.run import Run
from datapipe.engine.run_report import run_and_report
from datapipe.engine.watching.metrics import serve_runs
from datapipe.engine.watching.screen import left_text, status_lines
from datapipe.engine.watching.state import RunState
from datapipe.engine.watching.status import StatusFile, read_status
from datapipe.engine.watching.time_left import TimeLeft
from datapipe.errors import DatapipeError, UserError
from datapipe.machine.http_server import MetricsServer
from datapipe.machine.json_log import JsonLog
from datapipe.records.names import STATUS
from datapipe.steps.estimate import StepCost
from datapipe.storage.root import Root
from tests.support import cli_processes, corpora, runs

_STAGES = "stages: [filter.length: {min_chars: 200}, dedup.exact]"


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    for number in range(4):
        corpora.write_jsonl(tmp_path / f"web/{number}.jsonl", corpora.documents(number, 24))
    tail = "tokenizer: none\nexecution: {split_bytes: 8KiB}"
    return runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/web/*.jsonl}}", _STAGES, tail)


Samples = dict[tuple[str, ...], float]


def _scraped(server: MetricsServer) -> Samples:
    """The samples of a server, by name and values of the labels, which are in the order of their names."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
        families = text_string_to_metric_families(answer.read().decode())
    samples = (sample for family in families for sample in family.samples)
    return {(sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value for sample in samples}


def _of_plan(samples: Samples) -> Samples:
    """The counters of committed tasks."""
    names = ("documents", "input_bytes", "tokens", "output_bytes", "second_attempts", "task_seconds", "task_duration_seconds")
    wanted = tuple(f"datapipe_run_{name}_" for name in names)
    return {key: value for key, value in samples.items() if key[0].startswith(wanted)}


def _run(mixture: Path, *observers: Observer) -> runs.Finished:
    return runs.run_mixture(mixture, make_engine=runs.InProcess, observer=all_of(observers))


def _started(output: str) -> RunStarted:
    return RunStarted(mixture="m", output=output, engine="local")


@pytest.mark.medium
def test_figures_and_events_are_those_of_the_report_and_a_resumed_run_has_them_again(mixture: Path, tmp_path: Path) -> None:
    state, scraped = RunState(), list[Samples]()
    state.observe(_started("a"))
    with closing(JsonLog(str(tmp_path / "log.jsonl"))) as log, serve_runs(state, {"mixture": "test"}, 0) as server:
        watcher = runs.Watcher(on_commit=lambda record: scraped.append(_scraped(server)) if not scraped else None)
        done = _run(mixture, state.observe, EventLog(log).observe, watcher)
        last = _scraped(server)
        state.observe(_started("a"))
        assert _of_plan(_scraped(server)) == _of_plan(last)  # before the run has a plan no counter falls,
        _run(mixture, state.observe)
        assert _of_plan(_scraped(server)) == pytest.approx(_of_plan(last))  # and then it finds the same committed
    source = done.report["sources"]["web"]["documents"]
    fates = source | {"dropped": sum(source["dropped"].values())}
    for fate in ("read", "kept", "dropped", "quarantined"):
        assert last["datapipe_run_documents_total", fate, "web"] == fates[fate]
    tasks = {key[-2:]: value for key, value in last.items() if key[0] == "datapipe_run_tasks"}
    committed = {step: value for (progress, step), value in tasks.items() if progress == "committed"}
    assert committed == {step.id: len(step.tasks or ()) for step in done.plan.steps}
    assert sum(tasks.values()) == sum(committed.values())
    assert scraped[0]["datapipe_run_steps", "waiting"] > last["datapipe_run_estimated_seconds_left", "about"] == 0
    counted = {key[1]: value for key, value in last.items() if key[0] == "datapipe_run_task_duration_seconds_count"}
    assert counted == Counter(step.kind for step in done.plan.steps for _ in step.tasks or ())
    buckets = {key[2]: value for key, value in last.items() if key[:2] == ("datapipe_run_task_duration_seconds_bucket", "map")}
    assert list(buckets.values()) == sorted(buckets.values())
    assert buckets["+Inf"] == counted["map"]
    counts = Counter(json.loads(line)["event"] for line in (tmp_path / "log.jsonl").read_text().splitlines())
    assert counts["task_started"] == counts["task_committed"] == len(watcher.records)
    assert counts["step_committed"] == len(done.plan.steps)


@pytest.mark.slow
def test_time_left_is_of_all_steps_and_the_same_on_the_screen_and_in_status(mixture: Path, tmp_path: Path) -> None:
    state, seen, root = RunState(), [], Root(str(tmp_path / "out"))

    def look(record: Any) -> None:
        StatusFile(root, state).observe(Progress())
        seen.append((state.time_left(), str(state.time_left() or ""), left_text(read_status(root))))

    def observe(event: Event) -> None:
        costs.update(event.costs if isinstance(event, Planned) else {})
        watcher(event)

    costs, watcher = dict[str, StepCost](), runs.Watcher(on_commit=look)
    run_and_report(Run(load_mixture(mixture), observe, make_engine=runs.InProcess), state).raise_problem()
    assert [text for _, text, _ in seen] == [text for _, _, text in seen]
    first = seen[0][0]
    assert first is not None and not first.is_least
    waiting = [name for name in state.steps if name not in ("web/read", "dedup.exact/match")]
    assert first.seconds > sum(costs[name].seconds for name in waiting) / 3 > 0
    assert state.time_left() == TimeLeft(seconds=0.0)


@pytest.mark.medium
def test_report_of_a_stopped_run_counts_what_the_step_had_committed(mixture: Path) -> None:
    state = RunState()

    def stop(record: Any) -> None:
        raise KeyboardInterrupt

    ended = run_and_report(Run(load_mixture(mixture), runs.Watcher(on_commit=stop), make_engine=runs.InProcess), state)
    assert ended.report is not None
    counts, tasks = ended.report.total.documents, ended.report.tasks["web/read"]
    assert (ended.report.status, 0 < tasks.committed < (tasks.planned or 0)) == ("stopped", True)
    assert counts.read == counts.kept + sum(counts.dropped.values()) > 0
    assert state.sums["documents", "web", "read"] == counts.read


class _Cold(runs.InProcess):
    """Compiles kernels for two updates of the driver."""

    def __init__(self, root: Root, request: Any) -> None:
        super().__init__(root, request)
        self.slots, self._left = 0, 2

    def waits_for(self) -> str:
        self._left -= 1
        self.slots = int(self._left < 0)
        return "" if self.slots else "kernels that 2 nodes compile"


@pytest.mark.slow
def test_status_of_a_run_that_waits_for_kernels_names_them_and_no_time_until_a_node_works(mixture: Path) -> None:
    state, seen = RunState(), []

    def look(event: Event) -> None:
        if isinstance(event, Progress):
            left = state.time_left()
            seen.append((tuple(state.waiting()), left is not None and left.seconds > 0))

    runs.run_mixture(mixture, make_engine=_Cold, observer=all_of([state.observe, look]))
    assert seen[:2] == [(("kernels that 2 nodes compile",), False)] * 2
    assert {waiting for waiting, _ in seen[2:]} == {()}


def test_a_taken_port_and_a_log_that_cannot_be_written_are_reported_before_anything_runs(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UserError, match="--metrics-port"):
        serve_runs(RunState(), {}, taken.getsockname()[1])
    with pytest.raises(UserError, match=r"--metrics-port: .*: 192\.0\.2\.1:0"):
        serve_runs(RunState(), {}, 0, "192.0.2.1")
    with pytest.raises(UserError, match="--log-json"):
        JsonLog(str(tmp_path / "no/such/folder"))


@pytest.mark.medium
def test_status_of_a_run_that_no_process_holds_is_killed_and_secrets_are_masked(mixture: Path, tmp_path: Path) -> None:
    state, root = RunState(), Root(str(tmp_path / "out"))
    with pytest.raises(UserError):
        read_status(root)
    observe = all_of([state.observe, StatusFile(root, state).observe])
    _run(mixture, observe)
    assert read_status(root)["state"] == "killed"
    observe(UserMessage("opened s3://key:secret@bucket/folder"))
    observe(RunEnded(problem=DatapipeError("cannot read s3://key:secret@bucket/folder")))
    assert "secret" not in root.read_bytes(STATUS).decode()
    failed = list(status_lines(read_status(root), "out"))
    assert "failed: cannot read s3://" in failed[0] and "opened s3://" in failed[-1]
    observe(Progress(messages=[Message(attempt="a", task="web/read (0)")], slots=1))
    observe(RunEnded())
    assert read_status(root)["num_running"] == 0
    assert next(status_lines(read_status(root), "out")) == "out: finished"


def _status(output: Path) -> tuple[int, dict[str, Any]]:
    done = cli_processes.run(["status", str(output), "--json"])
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
def test_status_from_another_process_while_a_run_goes_on_is_killed_and_finishes(mixture: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    driver = cli_processes.start(["run", str(mixture), "--workers", "1", "--metrics-port", "0", "--log-json", "-"])
    try:
        cli_processes.wait_until(lambda: (output / STATUS).exists() or driver.poll() is not None, "a status")
        driver.send_signal(signal.SIGSTOP)
        exit_status, running = _status(output)
        assert (exit_status, running["state"]) == (0, "running")
        assert running["holder"].startswith(str(driver.pid))
        unbuffered = {**os.environ, "PYTHONUNBUFFERED": "1"}
        watching = cli_processes.start(["status", str(output), "--watch", "0.1"], env=unbuffered)
        assert watching.stdout is not None
        assert re.match(rf"{output}: \d of \d steps done; ", watching.stdout.readline())
        watching.send_signal(signal.SIGINT)
        _, said = watching.communicate()
        assert (watching.returncode, said) == (130, "")
    finally:
        driver.kill()
        printed, _ = driver.communicate()
    events = [json.loads(line) for line in printed.splitlines()]
    assert events[0]["event"] == "run_started"
    assert {event["node"] for event in events if event["event"].startswith("task_")} <= {socket.gethostname()}
    exit_status, killed = _status(output)
    assert (exit_status, killed["state"]) == (3, "killed")
    assert cli_processes.run(["run", str(mixture), "--workers", "1"]).returncode == 0
    exit_status, finished = _status(output)
    assert (exit_status, finished["state"], finished["num_running"]) == (0, "finished", 0)
    assert {step["state"] for step in finished["steps"]} == {"committed"}
    assert all(0 < step["slowest"]["seconds"] <= step["seconds"] for step in finished["steps"])
