"""The sums over records of a step are those of its tasks, whether they are summed at once or as they are committed."""

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import cast

import pytest

from datapipe.metrics import DocumentCounts, TaskMetrics, UnreadableFile
from datapipe.records.commit_files import line_of
from datapipe.records.outputs import Content, Outputs, Record, TableFile
from datapipe.records.packed import Packer
from datapipe.steps.counts import FirstTasks
from datapipe.steps.kind import Step
from datapipe.steps.map import MapTask
from datapipe.steps.read_batches import MapMetrics
from datapipe.steps.totals import TASK_SECONDS, Records, Totals


def _record(number: int) -> Record:
    drawn = random.Random(number)
    counts = DocumentCounts(read=drawn.randrange(99), kept=drawn.randrange(99), dropped=Counter({f"a:{number % 3}": number}))
    unreadable = [UnreadableFile(path=str(number), position=0, error="cut off")] if number % 4 == 0 else []
    own = MapMetrics(field_values={"url": number}, searched={"ngram": {str(number): [1, 0]}}, unreadable_files=unreadable)
    metrics = TaskMetrics(document_counts=counts, own=own, seconds=float(2**number) / 64, peak_bytes=number % 5, rereads=1)
    metrics.second_attempt = ("", "won", "lost")[number % 3]
    for name in ("read", f"stage {number % 2}"):
        metrics.spent(name, 1.0, number, 2)
    file = TableFile(path=str(number), rows=number, bytes=10, checksum="x", row_bytes=1)
    return Record("web/read", f"{number:064x}", Content({"documents": (file, file), "drops": ()}, metrics))


RECORDS = [_record(number) for number in range(12)]


def _totals(records: Records) -> Totals:
    return records.totals(MapMetrics)


def test_totals_are_the_sums_over_all_records() -> None:
    totals = _totals(Records(RECORDS))
    metrics = [record.metrics for record in RECORDS]
    assert (totals.tasks, totals.seconds) == (12, sum(each.seconds for each in metrics))
    assert (totals.slowest, totals.slowest_s) == (RECORDS[11].fingerprint[:12], 32.0)
    assert totals.documents.read == sum(each.document_counts.read for each in metrics)
    assert totals.documents.dropped == Counter({"a:0": 18, "a:1": 22, "a:2": 26})
    assert list(totals.work) == ["read", "stage 0", "stage 1"]
    assert (totals.work["read"].seconds, totals.work["stage 1"].bytes) == (12.0, 1 + 3 + 5 + 7 + 9 + 11)
    assert totals.rows == Counter(documents=2 * 66)
    assert (totals.bytes, totals.peak_bytes, totals.rereads) == (240, 4, 12)
    assert totals.second_attempts == Counter(won=4, lost=4)
    bounds = [sum(each.seconds <= bound for each in metrics) for bound in TASK_SECONDS]
    assert [sum(totals.durations[place] for place in range(number + 1)) for number in range(len(TASK_SECONDS))] == bounds
    assert totals.own.field_values == {"url": 66}
    assert totals.own.searched == {"ngram": {str(number): [1, 0] for number in range(12)}}
    assert [file.path for file in totals.own.unreadable_files] == ["0", "4", "8"]


@pytest.mark.parametrize("sizes", [(0, 12), (3, 7, 12), (12, 12)])
def test_totals_of_a_growing_step_are_those_of_all_its_records(sizes: tuple[int, ...]) -> None:
    shuffled = random.Random(7).sample(RECORDS, len(RECORDS))
    records = Records()
    for size in sizes:
        before, sums = records, repr(_totals(records))
        records = Records(record for record in RECORDS if record in shuffled[:size]).growing(before)
        assert _totals(records).tasks == size
        assert repr(_totals(before)) == sums  # which another plan may still show
    whole = _totals(Records(RECORDS))
    assert _totals(records).documents == whole.documents
    assert _totals(records).own.field_values == whole.own.field_values
    assert _totals(records).work == whole.work


class _Counted:
    """The content of a record, that counts how often it is decoded."""

    def __init__(self, record: Record) -> None:
        self._content, self.num_decoded = record.content, 0

    @property
    def content(self) -> Content:
        self.num_decoded += 1
        return self._content

    @property
    def outputs(self) -> Outputs:
        return self.content.outputs

    @property
    def metrics(self) -> TaskMetrics:
        return self.content.metrics


def _counted(records: Iterable[Record]) -> tuple[list[Record], list[_Counted]]:
    counted = [Record(record.step, record.fingerprint, _Counted(record)) for record in records]
    return counted, [cast(_Counted, record.stored) for record in counted]


def _step(records: Sequence[Record]) -> Step:
    tasks = tuple(MapTask(step="web/read", fingerprint=record.fingerprint, seed=0) for record in records)
    return Step(id="web/read", work=MapTask, label="read", source="web", tasks=tasks, records=tuple(records))


def test_outputs_of_a_kind_are_decoded_once() -> None:
    records, [stored] = _counted(RECORDS[5:6])
    step = Records(records)
    assert step.outputs("documents") == step.outputs("documents") == RECORDS[5].of("documents")
    assert stored.num_decoded == 1


def test_seconds_are_the_same_in_any_order_and_from_the_ledger() -> None:
    drawn = random.Random(3)
    metrics = [TaskMetrics(seconds=round(drawn.expovariate(0.1), 6), own=MapMetrics()) for _ in range(300)]
    records = [Record("web/read", f"{number:064x}", Content({}, each)) for number, each in enumerate(metrics)]
    stored = [Packer().packed(line_of(record)).record() for record in records]
    sums = {_totals(Records(each)).seconds for each in (records, records[::-1], drawn.sample(records, 300), stored)}
    assert len(sums) == 1


def test_records_of_a_snapshot_that_files_are_added_to_are_summed_once_for_all_plans() -> None:
    earlier, stored = _counted(RECORDS[:8])
    step = _step(earlier)
    for stop in range(8, 12):  # plans of the files that are added, of which more tasks are committed each time
        joined = step.joined(_step(RECORDS[6:stop]))
        assert repr(joined.totals) == repr(_totals(Records(RECORDS[:stop])))
    assert {each.num_decoded for each in stored} == {1}


def test_plans_without_sums_are_not_kept_for_the_next_one() -> None:
    records = Records(RECORDS[:1])
    for stop in range(2, 6):
        records = Records(RECORDS[:stop]).growing(records)
    assert records._before is not None and records._before._before is None
    assert repr(_totals(records)) == repr(_totals(Records(RECORDS[:5])))


def test_first_tasks_decode_no_records_of_a_step_that_has_documents() -> None:
    records, stored = _counted(RECORDS[1:])
    step = _step(records)
    assert step.totals.documents.read > step.totals.documents.quarantined
    first = FirstTasks.of(step)
    first.add(records[0])
    assert not first.records and not first.is_hopeless(0.0)
    assert {each.num_decoded for each in stored} == {1}  # for the sums


def test_first_tasks_are_those_that_are_quarantined_alone() -> None:
    all_bad = TaskMetrics(document_counts=DocumentCounts(read=5, quarantined=5), own=MapMetrics())
    bad = [Record("web/read", f"{number:064x}", Content({}, all_bad)) for number in range(3)]
    first = FirstTasks.of(replace(_step([*bad, *RECORDS[3:6]]), records=tuple(bad[:2])))
    first.add(bad[2])
    assert (first.records, first.num_left, first.is_hopeless(0.4)) == (bad, 3, True)
    first.add(RECORDS[5])
    assert (first.records, first.num_left, first.is_hopeless(0.4)) == ([], 6, False)
