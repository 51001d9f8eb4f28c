"""The sums of a run while its plan is compiled again."""

from __future__ import annotations

from collections.abc import Iterator

from datapipe.metrics import DocumentCounts, TaskMetrics
from datapipe.plan.compile import Plan, Step
from datapipe.plan.steps import lay_out
from datapipe.plan.work import MapTask, Record
from datapipe.watching.state import RunState

RECORDS = tuple(
    Record(
        step="web/read",
        fingerprint=f"{number:064x}",
        outputs={},
        metrics=TaskMetrics(document_counts=DocumentCounts(read=10, kept=7), seconds=1.0 + number),
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
            self.seen.append(self.state.sums.documents["web", "read"])
            yield record


def _plan(records: tuple[Record, ...]) -> Plan:
    step = Step(id="web/read", kind="map", label="read", source="web", tasks=TASKS, records=records)
    return Plan(pipeline=lay_out({"web": []}), steps=[step])


def test_no_sum_falls_while_a_new_plan_is_read() -> None:
    state, seen = RunState(), []
    state.planned(_plan(()))
    for record in RECORDS:
        state.committed(record)
    state.planned(_plan(_Scraped(state, seen)))
    assert seen == [30, 30, 30]
    assert state.sums.documents == {("web", "read"): 30, ("web", "kept"): 21, ("web", "dropped"): 0, ("web", "quarantined"): 0}
    assert state.sums.task_seconds["map"].total == 6.0


def test_a_step_knows_its_slowest_task() -> None:
    state = RunState()
    state.planned(_plan(RECORDS))
    step = state.steps["web/read"]
    assert (step.slowest_s, step.slowest, step.seconds) == (3.0, RECORDS[2].fingerprint[:12], 6.0)
