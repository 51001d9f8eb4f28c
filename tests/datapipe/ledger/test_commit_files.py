"""Commit files: each line is a record, or none; a damaged line costs no other."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from datapipe.ledger.commit_files import MOST_RECORDS, CommitFiles, line_of, lines_of
from datapipe.ledger.names import ATTEMPTS, LEDGER
from datapipe.metrics import DocumentCounts, TaskMetrics
from datapipe.plan.outputs import TableFile
from datapipe.plan.work import Record
from datapipe.storage import Root


def _record(number: int) -> Record:
    path = f"{ATTEMPTS}/web.read/{number:016x}-one/documents.arrow"
    output = TableFile(path=path, rows=1, bytes=5, checksum="x", row_bytes=3)
    metrics = TaskMetrics(document_counts=DocumentCounts(read=3, kept=1, dropped=Counter({"a\tb:é\n": 2})), tokens=number)
    return Record(step="web/read", fingerprint=f"{number:064x}", outputs={"documents": (output,)}, metrics=metrics)


def test_every_flipped_bit_and_every_torn_end_costs_one_record() -> None:
    records = [_record(number) for number in range(3)]
    content = b"".join(line_of(record).to_bytes() for record in records)
    first, second = (len(line_of(record).to_bytes()) for record in records[:2])
    for bit in range(8 * first, 8 * (first + second)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        lines, num_refused = lines_of(bytes(flipped))
        found = [line.record() for line in lines]
        assert found[0] == records[0]
        assert found in ([records[0], records[2]], records[:1], records)  # the end of a line separates two of them
        assert num_refused <= (bit // 8 == first)
    for length in range(len(content) - 1):
        whole = [record for record, end in zip(records, (first, first + second, len(content))) if length >= end - 1]
        assert [line.record() for line in lines_of(content[:length])[0]] == whole


def test_records_are_written_in_files_of_a_thousand_and_read_in_their_order(tmp_path: Path) -> None:
    root = Root(str(tmp_path))
    lines = [line_of(_record(number)) for number in range(2 * MOST_RECORDS + 5)]
    files = CommitFiles(root)
    files.write(lines[:7])
    files.write(lines[7:])
    again = CommitFiles(root)
    assert list(again.read()) == lines
    assert list(again.sizes.values()) == [7, MOST_RECORDS, MOST_RECORDS - 2]


@pytest.mark.parametrize("name", ["notes.txt", "00000001-short.jsonl", "sub/00000000-" + "0" * 32 + ".jsonl"])
def test_other_files_in_the_folder_are_no_commit_files(tmp_path: Path, name: str) -> None:
    root = Root(str(tmp_path))
    root.write_atomic(f"{LEDGER}/{name}", line_of(_record(1)).to_bytes())
    assert list(CommitFiles(root).read()) == []
