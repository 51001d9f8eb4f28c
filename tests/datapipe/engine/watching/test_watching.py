"""What is shown of a run: the log of events, sums while a plan is read, the time left, the dashboard and `status --watch`."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console
from ruamel.yaml import YAML

from datapipe.engine.attempts import Attempts
from datapipe.engine.events import (
    Committed,
    EventLog,
    Planned,
    Progress,
    RunEnded,
    RunStarted,
    SourcesListed,
    all_of,
)
from datapipe.engine.protocol import Attempt, Engine, Failure, Message
from datapipe.engine.watching.metrics import RunMetrics
from datapipe.engine.watching.screen import status_lines, watch
from datapipe.engine.watching.state import RunState
from datapipe.engine.watching.status import step_json
from datapipe.engine.watching.terminal import Terminal, worker_lines
from datapipe.engine.watching.time_left import StepState, TimeLeft, time_left
from datapipe.machine.activity import Activity
from datapipe.machine.json_log import JsonLog
from datapipe.metrics import DocumentCounts, TaskMetrics
from datapipe.records.commit_files import line_of
from datapipe.records.outputs import Content, Record
from datapipe.records.packed import Packer
from datapipe.steps.costs import StepCost
from datapipe.steps.kind import Plan, Step
from datapipe.steps.map import MapTask
from datapipe.steps.pack import PackTask
from datapipe.steps.pipeline import lay_out
from datapipe.steps.totals import Totals
from datapipe.steps.train import TrainTask

TASK = MapTask(step="web/read", fingerprint="0123456789abcdef", seed=0)
RECORD = Record("web/read", TASK.fingerprint, Content({}, TaskMetrics()))


class _Log:
    """The log of the attempts of an engine that runs nothing."""

    def __init__(self, path: Path) -> None:
        self.path, self.log = path, JsonLog(str(path))
        self.observe = EventLog(self.log).observe
        self.attempts = Attempts(cast(Engine, SimpleNamespace(submit=_ignore, cancel=_ignore)), self.observe)

    def look(self, **nodes: str) -> None:
        """A look that finds attempts on nodes."""
        self.attempts.update([Message(attempt=name, task=TASK.label, node=node) for name, node in nodes.items()])

    def end(self, attempt: str, node: str = "", kind: str = "") -> None:
        failure = Failure(kind=kind, message="it failed") if kind else None
        record = None if kind else RECORD
        ended = Attempt(task=TASK, attempt=attempt, node=node, record=record, failure=failure)
        self.attempts.ended(ended)

    @property
    def events(self) -> list[dict[str, Any]]:
        self.log.close()
        events = [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]
        assert all(event.pop("time").endswith("Z") for event in events)
        return events


def _ignore(*anything: Any) -> None: ...


@pytest.fixture
def log(tmp_path: Path) -> _Log:
    return _Log(tmp_path / "log.jsonl")


def _where(attempt: str, node: str) -> dict[str, str]:
    return {"step": "web/read", "task": "0123456789ab", "attempt": attempt, "node": node}


def test_an_attempt_that_fails_and_the_next_one_are_logged_with_their_nodes(log: _Log) -> None:
    first = log.attempts.submit(TASK)
    log.look(**{first: ""})
    for _ in range(2):
        log.look(**{first: "n1"})
    log.end(first, kind="task")
    second = log.attempts.submit(TASK)
    log.end(second, "n2")  # between two looks
    unplaced = log.attempts.submit(TASK)
    log.end(unplaced, kind="node")
    assert log.events == [
        {"event": "task_started"} | _where(first, "n1"),
        {"event": "task_failed", "kind": "task", "message": "it failed"} | _where(first, "n1"),
        {"event": "task_started"} | _where(second, "n2"),
        {"event": "task_failed", "kind": "node", "message": "it failed"}
        | {"step": "web/read", "task": "0123456789ab", "attempt": unplaced},
    ]


def test_of_several_attempts_at_a_task_those_that_are_ended_are_logged_as_cancelled(log: _Log) -> None:
    a, b, c = (log.attempts.submit(TASK) for _ in range(3))
    log.look(**{a: "n1", b: "n2", c: "n3"})
    log.end(a, "n1", kind="infrastructure")
    log.end(b, "n2")
    assert log.events[3:] == [
        {"event": "task_failed", "kind": "infrastructure", "message": "it failed"} | _where(a, "n1"),
        {"event": "task_retried", "kind": "infrastructure", "message": f"it failed; another attempt at {TASK.label} goes on"}
        | _where(a, "n1"),
        {"event": "task_cancelled"} | _where(c, "n3"),
    ]


RECORDS = tuple(
    Record(
        "web/read",
        f"{number:064x}",
        Content({}, TaskMetrics(document_counts=DocumentCounts(read=10, kept=7), seconds=1.0 + number)),
    )
    for number in range(3)
)
TASKS = tuple(MapTask(step="web/read", fingerprint=record.fingerprint, seed=0) for record in RECORDS)


class _Scraped(tuple[Record, ...]):
    """Records of which the sums are read while somebody goes through them."""

    def __new__(cls, state: RunState, seen: list[int]) -> _Scraped:
        made = super().__new__(cls, RECORDS)
        made.state, made.seen = state, seen
        return made

    state: RunState
    seen: list[int]

    def __iter__(self) -> Iterator[Record]:
        for record in super().__iter__():
            self.seen.append(self.state.sums["documents", "web", "read"])
            yield record


def _committed(*records: Record) -> Committed:
    by_name = {task.fingerprint: task for task in TASKS}
    attempts = [Attempt(task=by_name[record.fingerprint], attempt="a", record=record) for record in records]
    return Committed(attempts=attempts, lags_s=[0.1] * len(records), seconds=0.1)


def _plan(records: tuple[Record, ...]) -> Plan:
    step = Step(id="web/read", work=MapTask, label="read", source="web", tasks=TASKS, records=records)
    return Plan(pipeline=lay_out({"web": []}), steps=[step])


def test_no_sum_falls_while_a_new_plan_is_read() -> None:
    state, seen = RunState(), []
    state.observe(Planned(plan=_plan(()), costs={}))
    state.observe(_committed(*RECORDS))
    state.observe(Planned(plan=_plan(_Scraped(state, seen)), costs={}))
    assert seen == [30, 30, 30]
    documents = {key[2]: number for key, number in state.sums.items() if key[:2] == ("documents", "web")}
    assert documents == {"read": 30, "kept": 21, "dropped": 0, "quarantined": 0}
    assert state.sums["task_duration_seconds", "map", "sum"] == 6.0
    step = state.steps["web/read"]
    assert (step.totals.slowest_s, step.totals.slowest, step.totals.seconds) == (3.0, RECORDS[2].fingerprint[:12], 6.0)


def test_no_sum_falls_when_the_next_plan_has_records_from_the_ledger() -> None:
    """Prometheus takes a counter that falls, by however little, for one that began again, and counts all of it twice."""
    records = [replace(each, stored=Content({}, TaskMetrics(seconds=n + 0.1234564))) for n, each in enumerate(RECORDS)]
    stored = tuple(Packer().packed(line_of(record)).record() for record in records)
    state = RunState()
    state.observe(Planned(plan=_plan(()), costs={}))
    state.observe(_committed(*reversed(records)))
    before = dict(state.sums)
    state.observe(Planned(plan=_plan(stored), costs={}))
    assert dict(state.sums) == before


def test_tasks_that_are_committed_change_no_sums_of_the_plan() -> None:
    for num_committed in range(3):
        state, plan = RunState(), _plan(RECORDS[:num_committed])
        state.observe(Planned(plan=plan, costs={}))
        state.observe(_committed(*RECORDS[num_committed:]))
        assert (plan.steps[0].totals.tasks, state.steps["web/read"].totals.tasks) == (num_committed, 3)


def _estimate(seconds: float, *, is_least: bool = False) -> StepCost:
    return StepCost(seconds=seconds, unknown=("a stage",) if is_least else ())


_STEP, _TRAIN = (Step(id=kind.kind, work=kind, label=kind.kind, source="web") for kind in (MapTask, TrainTask))


def _step(planned: int | None, **known: Any) -> StepState:
    totals = Totals(tasks=known.pop("committed", 0), microseconds=round(1e6 * known.pop("seconds", 0.0)))
    return StepState(**{"step": _STEP, "planned": planned, "totals": totals, **known})


READING = _step(planned=10, committed=4, seconds=40.0, estimate=_estimate(100.0))
DONE = _step(planned=3, committed=3, seconds=9.0)


def _running(committed: int, seconds: float, *running_s: float) -> StepState:
    return _step(planned=10, committed=committed, seconds=seconds, running_s=running_s, estimate=_estimate(100.0))


WAITING = _step(planned=None, estimate=_estimate(50.0))
TRAINING = _step(planned=None, estimate=_estimate(50.0), step=_TRAIN)


@pytest.mark.parametrize(
    ("steps", "slots", "seconds"),
    [
        ([DONE], 0, 0.0),  # on any number of slots
        ([DONE, READING], 2, 30.0),
        ([_running(4, 40.0, 4.0, 30.0)], 2, (60.0 - 4.0 - 10.0) / 2 + 3.0),  # tasks less what their attempts have done
        ([_running(9, 90.0, 4.0)], 16, 6.0),  # the last task takes as long on many slots
        ([READING, WAITING], 2, 30.0 + 25.0),
        ([_running(5, 100.0), WAITING], 1, 100.0 + 2 * 50.0),  # at the pace of the run
        ([_running(5, 5000.0), WAITING], 1, 5000.0 + 3 * 50.0),
        ([READING, TRAINING], 2, 30.0 + 50.0),  # shared by no slots
        ([_step(planned=1, running_s=(1.0,), estimate=_estimate(2.0))], 2, 1.0),
    ],
)
def test_time_left_of_steps_follows_from_their_tasks_and_estimates(steps: list[StepState], slots: int, seconds: float) -> None:
    assert time_left(steps, slots) == TimeLeft(seconds=seconds)


@pytest.mark.parametrize("estimate", [None, _estimate(0.0, is_least=True)], ids=["none", "in part"])
def test_a_step_without_an_estimate_makes_the_time_a_lower_bound_until_tasks_are_committed(estimate: StepCost | None) -> None:
    assert time_left([READING, _step(planned=None, estimate=estimate)], 2) == TimeLeft(seconds=30.0, is_least=True)
    begun = _step(planned=5, committed=1, seconds=2.0, estimate=estimate)
    assert time_left([READING, begun], 2) == TimeLeft(seconds=34.0)
    assert time_left([_step(planned=5, estimate=estimate)], 2) is None


def test_no_step_has_more_time_left_than_the_run_and_those_that_wait_or_are_done_have_none() -> None:
    left = time_left([DONE, _running(9, 90.0, 4.0), replace(READING, step=_TRAIN), WAITING], 4)
    assert left is not None
    assert left.by_step == {"map": 6.0, "train": 60.0}
    assert left.seconds > 66.0


def test_status_counts_tasks_too_short_to_be_seen_running_as_running_or_waiting() -> None:
    assert "5 tasks running in 2 slots or in the queue" in status_lines(_status(queued=5), "out")
    assert "0 running in 2 slots; 5 tasks in the queue" in status_lines(_status(queued=5, waiting=["a node"]), "out")


ROOT = Path(__file__).resolve().parents[4]
DEPLOY = ROOT / "deploy"
NAME = re.compile(r"datapipe_run_\w+")


def _names() -> set[str]:
    state = RunState()
    state.observe(SourcesListed())
    families = RunMetrics(state, {"mixture": "a"}).collect()
    return {family.name + ("_total" if family.type == "counter" else "") for family in families}


def test_every_expression_of_the_dashboard_and_the_alerts_and_the_readme_name_the_figures_that_exist() -> None:
    known = _names()
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    rules = [
        rule
        for group in YAML(typ="safe", pure=True).load((DEPLOY / "alerts.yml").read_text())["groups"]
        for rule in group["rules"]
    ]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]] + [rule["expr"] for rule in rules]
    named = {name.removesuffix("_bucket") for expression in expressions for name in NAME.findall(expression)}
    assert named <= known
    assert known - named <= {
        f"datapipe_run_{name}" for name in ("info", "commit_records", "published_total", "looked_timestamp_seconds")
    }
    assert set(NAME.findall((ROOT / "datapipe/engine/watching/README.md").read_text(encoding="utf-8"))) == known


def _status(state: str = "running", committed: int = 0, **facts: Any) -> dict[str, Any]:
    step = step_json(_step(planned=4, committed=committed), None)
    who = {"state": state, "outcome": state, "process": "7 on here", "holder": "7 on here", "started": 0.0}
    counts = {"steps": [step], "documents": {}, "num_running": 0, "slots": 2, "queued": 0, "seconds_left": 65.0}
    rest = {"running": [], "waiting": [], "failures": {}, "last_failure": "", "messages": [], "is_least": False}
    return {**who, **counts, **rest, **facts}


def _watched(*looks: dict[str, Any] | OSError, terminal: bool = False) -> tuple[int, list[str]]:
    """The exit status, and the lines that were printed."""
    stream, waiting = io.StringIO(), iter(looks)

    def read() -> dict[str, Any]:
        look = next(waiting)
        if isinstance(look, OSError):
            raise look
        return look

    status = watch(read, "out", 2.0, Console(file=stream, force_terminal=terminal, width=100), lambda seconds: None)
    assert next(waiting, None) is None
    return status, stream.getvalue().splitlines()


def test_on_a_pipe_a_line_is_printed_when_something_changed_and_the_exit_status_is_that_of_the_run() -> None:
    failing = _status(committed=1, failures={"task": 2}, seconds_left=None)
    looks = (_status(), _status(seconds_left=60.0), _status(committed=1), failing, _status("stopped", exit_status=130))
    status, printed = _watched(*looks)
    assert status == 130
    facts = ["; 0/4  web: map; about 1:05 left", "; 1/4  web: map", "2 failed attempts", "stopped"]
    assert [fact in line for fact, line in zip(facts, printed, strict=True)] == [True] * 4


FINISHED = _status("finished", exit_status=0)


@pytest.mark.parametrize(
    ("looks", "status", "facts"),
    [
        ((_status(), _status("killed"), FINISHED), 0, ["about 1:05 left", "finished"]),  # it ended between two files
        ((_status("killed"), _status("killed")), 3, ["process 7 on here is gone"]),
        ((TimeoutError("timed out"), _status("failed", exit_status=1)), 1, ["timed out", "failed"]),  # asked again
    ],
)
def test_exit_status_of_a_watched_run_that_ends_is_killed_or_cannot_be_read(looks, status: int, facts: list[str]) -> None:
    found, printed = _watched(*looks)
    assert found == status
    assert [fact in line for fact, line in zip(facts, printed, strict=True)] == [True] * len(facts)
    found, printed = _watched(*looks, terminal=True)
    assert (found, facts[-1] in " ".join(printed)) == (status, True)


class _Timed(RunState):
    def time_left(self) -> TimeLeft:
        return TimeLeft(seconds=250.0, by_step={"web/read": 65.0})


def _message(work: str, place: str, silent_s: float) -> Message:
    activity = Activity(work=work, place=place, key=bytes(range(16)), num_docs=80)
    return Message(attempt=place, task="web/read", activity=activity, silent_s=silent_s)


def _displayed(terminal: bool) -> str:
    stream, state = io.StringIO(), _Timed()
    display = Terminal(Console(file=stream, force_terminal=terminal, width=100), state)
    observe = all_of([state.observe, display.observe])
    first = Step(id="web/read", work=MapTask, label="read", source="web", tasks=TASKS[:2])
    last = Step(id="web/pack", work=PackTask, label="pack", source="web")
    observe(RunStarted(mixture="m", output="out", engine="local"))
    observe(Planned(plan=Plan(pipeline=lay_out({"web": []}), steps=[first, last]), costs={}))
    observe(_committed(RECORDS[0]))
    messages = [_message("filter.length", "a.jsonl:7", 11.0), *[_message("redact.pii", "b.jsonl:120", 0.5)] * 2]
    observe(Progress(messages=messages, slots=2))
    if terminal:
        display.console.print(display.display())
    observe(_committed(RECORDS[1]))
    observe(RunEnded())
    return stream.getvalue()


def test_progress_is_drawn_on_a_terminal_and_is_a_line_in_a_log_when_a_step_ends():
    shown = _displayed(terminal=True)
    for part in ("0 of 2 steps done, about 4:10 left", "1/2  1:05 left  7 kept", "workers: 2 redact.pii, 1 filter.length"):
        assert part in shown
    assert "no report for 11 s: filter.length on 80 documents, from a.jsonl:7" in shown
    [line] = _displayed(terminal=False).splitlines()
    assert line.startswith("2/2  14 kept  ") and "  web: read  " in line


def test_workers_that_start_are_counted_and_those_between_two_pieces_of_work_are_not() -> None:
    starting, fresh = (Message(attempt="a", task="web/read", silent_s=silent_s) for silent_s in (1.5, 0.1))
    resting = Message(attempt="b", task="web/read", activity=Activity(), silent_s=9.0)
    assert worker_lines([starting, resting, fresh]) == ["workers: 1 starting"]
    assert worker_lines([resting]) == worker_lines([]) == []


def test_progress_of_training_reports_what_it_is_at_and_the_time_left() -> None:
    task = TrainTask(step="tokenizer/train", fingerprint="t", seed=0, vocab_size=300, eos="</s>")
    step = Step(id="tokenizer/train", work=TrainTask, label="train the tokenizer", tasks=(task,))
    activity = Activity(work="train tokenizer", place="counting words, 64 MB of 256 MB, about 225 s left")
    stream, state = io.StringIO(), RunState()
    state.observe(Planned(plan=Plan(pipeline=lay_out({"web": []}), steps=[step]), costs={}))
    state.observe(Progress(messages=[Message(attempt="a", task=task.label, activity=activity, silent_s=0.1)], slots=1))
    console = Console(file=stream, width=80)
    console.print(Terminal(console, state).display())
    shown = "train the tokenizer: 0:00, counting words, 64 MB of 256 MB, about 225 s left"
    assert shown in re.sub(r"0:\d\d", "0:00", stream.getvalue())
