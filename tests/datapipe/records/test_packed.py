"""Records in memory are those of the ledger, in a fraction of their size, whatever they hold and from any thread."""

import random
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.metrics import DocumentCounts, TaskMetrics
from datapipe.records.commit_files import line_of
from datapipe.records.names import ATTEMPTS
from datapipe.records.outputs import Content, Record, TableFile
from datapipe.records.packed import Hashes, Packer

pytestmark = pytest.mark.hypothesis
_NAMES = ("documents.arrow", "drops.parquet", "measured.arrow", "bands.exchange")


def _record(number: int, kept: int = 7, seconds: float = 1.25, step: str = "web/read") -> Record:
    folder = f"{ATTEMPTS}/{step.replace('/', '.')}/{number:016x}-{number:012x}"
    checksum = f"xxh3_128:{random.Random(number).getrandbits(128):032x}"
    files = [TableFile(path=f"{folder}/{name}", rows=kept, bytes=9, checksum=checksum, row_bytes=number) for name in _NAMES]
    metrics = TaskMetrics(document_counts=DocumentCounts(read=kept, kept=kept), seconds=seconds)
    for name in ("read", "filter.length", "write documents"):
        metrics.spent(name, seconds, number, kept)
    return Record(step, f"{number:064x}", Content({file.path.rpartition("/")[2]: (file,) for file in files}, metrics), "a=1")


@given(
    st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**50), st.sampled_from(["web/read", "é x/read", "code/read"])))
)
def test_packed_lines_and_records_are_those_that_were_packed(numbers: list[tuple[int, int, str]]) -> None:
    packer, records = Packer(), [_record(number, kept, step=step) for number, kept, step in numbers]
    packed = [packer.packed(line_of(record)) for record in records]
    assert [each.line for each in packed] == list(map(line_of, records))
    assert [each.record() for each in packed] == records
    assert [each.attempt for each in packed] == [line_of(record).attempt for record in records]


def test_record_without_files_is_packed_beside_others() -> None:
    packer, empty = Packer(), Record("web/narrow", "0" * 64, Content({}, TaskMetrics(seconds=0.5)))
    for record in (empty, _record(1), empty):
        assert packer.packed(line_of(record)).record() == record


@pytest.mark.parametrize("first", [_record(1), Record("web/read", "1" * 64, Content({}, TaskMetrics()))])
def test_packed_records_take_a_third_of_their_lines_whatever_the_first_of_the_step_is_like(first: Record) -> None:
    packer, lines = Packer(), [line_of(_record(number)) for number in range(100)]
    packer.packed(line_of(first))
    packed = [packer.packed(line).packed for line in lines]
    assert sum(map(len, packed)) < sum(len(line.content) for line in lines) / 3


def test_threads_decode_records_of_one_step_at_once() -> None:
    packer, records = Packer(), [_record(number) for number in range(200)]
    packed = [packer.packed(line_of(record)) for record in records]
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(lambda _: [each.record() for each in packed], range(8)):
            assert found == records


@given(st.sets(st.text()), st.sets(st.text()))
def test_hashes_know_the_texts_that_they_were_made_of(texts: set[str], others: set[str]) -> None:
    hashes = Hashes(texts)
    assert all(text in hashes for text in texts)
    assert not any(text in hashes for text in others - texts)


def test_a_plan_of_many_steps_keeps_little_for_each() -> None:
    packer, lines = Packer(), [line_of(_record(number, step=f"source-{number}/read")) for number in range(1000)]
    before = _resident_bytes()
    packed = [packer.packed(line) for line in lines]
    assert [each.line for each in packed[:3]] == lines[:3]
    assert _resident_bytes() - before < 1000 * 50_000


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
