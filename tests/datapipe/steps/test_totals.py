"""The sums over records of a step are those of its tasks, whether they are summed at once or as they are committed."""

import random
from collections import Counter

import pytest

from datapipe.metrics import DocumentCounts, TaskMetrics, UnreadableFile
from datapipe.records.outputs import Content, Outputs, Record, TableFile
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


def test_outputs_of_a_kind_are_decoded_once() -> None:
    class Counted:
        num_decoded = 0

        @property
        def outputs(self) -> Outputs:
            self.num_decoded += 1
            return RECORDS[5].outputs

        metrics = property(lambda self: RECORDS[5].metrics)
        content = property(lambda self: RECORDS[5].content)

    stored = Counted()
    records = Records([Record("web/read", "5", stored)])
    assert records.outputs("documents") == records.outputs("documents") == RECORDS[5].of("documents")
    assert stored.num_decoded == 1
