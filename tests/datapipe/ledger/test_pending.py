"""Records wait for 0.1 s at most, and at most a thousand of them."""

from __future__ import annotations

from datapipe.ledger.commit_files import MOST_RECORDS
from datapipe.ledger.pending import LONGEST_WAIT_S, Pending
from datapipe.metrics import TaskMetrics
from datapipe.plan.work import Record


def _record(number: int) -> Record:
    return Record(step=f"step-{number % 2}", fingerprint=f"{number:064x}", outputs={}, metrics=TaskMetrics())


def test_group_is_due_when_its_first_record_has_waited_or_when_it_is_full() -> None:
    now = [10.0]
    pending = Pending(clock=lambda: now[0])
    assert pending.due_in_s == float("inf")
    pending.add(_record(0))
    now[0] += LONGEST_WAIT_S / 2
    pending.add(_record(1))
    assert 0 < pending.due_in_s <= LONGEST_WAIT_S / 2
    now[0] += LONGEST_WAIT_S
    assert pending.due_in_s == 0
    assert [record.step for record in pending.take()] == ["step-0", "step-1"]
    assert (pending.due_in_s, pending.by_step) == (float("inf"), {})
    for number in range(MOST_RECORDS):
        assert pending.due_in_s > 0
        pending.add(_record(number))
    assert pending.due_in_s == 0
    assert pending.by_step == {"step-0": MOST_RECORDS // 2, "step-1": MOST_RECORDS // 2}
