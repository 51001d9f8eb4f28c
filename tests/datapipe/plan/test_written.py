"""Which documents go to which file: every one to one, whatever tasks they come from."""

from __future__ import annotations

import random

import pytest

from datapipe.metrics import DocumentCounts, TaskMetrics
from datapipe.plan.outputs import TableFile
from datapipe.plan.work import Record
from datapipe.plan.written import documents_by_part, weight


def _record(number: int, sizes: list[int]) -> Record:
    counts = DocumentCounts(kept=len(sizes), kept_bytes=sum(sizes))
    file = TableFile(path=str(number), rows=len(sizes), bytes=1, checksum=str(number), row_bytes=1)
    outputs = {"documents": (file,) if sizes else ()}
    return Record(step="web/read", fingerprint=str(number), outputs=outputs, metrics=TaskMetrics(document_counts=counts))


def _cut(sizes: list[int], rng: random.Random) -> list[list[int]]:
    """The documents of some tasks, of which some keep nothing."""
    borders = sorted(rng.choices(range(len(sizes) + 1), k=rng.randrange(12)))
    return [sizes[start:stop] for start, stop in zip([0, *borders], [*borders, len(sizes)])]


@pytest.mark.medium
@pytest.mark.parametrize("seed", range(20))
def test_every_document_begins_in_one_part_that_reads_its_task(seed):
    rng = random.Random(seed)
    sizes = [rng.choice([0, 0, 10, 500, 40_000]) for _ in range(rng.randrange(1, 80))]
    tasks, part_bytes = _cut(sizes, rng), rng.choice([64, 1000, 30_000, 1 << 20])
    parts = documents_by_part([_record(number, own) for number, own in enumerate(tasks)], part_bytes)
    begin, begins = 0, []
    for number, own in enumerate(tasks):
        for size in own:
            begins.append((begin, str(number)))
            begin += weight(size, 1)
    for begin, task in begins:
        (part,) = [part for part in parts if part.start <= begin < part.stop]
        assert task in [file.path for file in part.documents]
    for part in parts:  # `begin` is the weight before the first of its files
        before = sum(weight(sum(own), len(own)) for own in tasks[: int(part.documents[0].path)])
        assert part.begin == before <= part.start


def test_a_source_without_documents_has_no_part():
    assert documents_by_part([_record(0, []), _record(1, [])], 1000) == []
