"""What tasks hold, each in its own process: neither a corpus made to hurt nor full buckets make it grow.

In memory, stage by stage: `tests/stages/dedup/`. Chains of 100,000 documents: `tests/datapipe/stage/test_clusters.py`.
Steps without a comparison, as a corpus grows: `tests/conformance/test_steps.py`.
"""

import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe.exchange.files import RUN_BYTES
from datapipe.exchange.tables import read_documents
from datapipe.metrics import TaskMetrics
from datapipe.storage.root import Root
from tests.benchmarks.task_memory import measured, most_bytes
from tests.support import scale_corpus
from tests.support.full_buckets import Case, cases
from tests.support.task_processes import FreshTasks, run_to_decisions

pytestmark = pytest.mark.slow


def _left(
    tasks: FreshTasks, folder: Path, texts: Sequence[str], stage: str, **options: object
) -> tuple[list[str], dict[str, int]]:
    """The documents that stay, as they are left, and the greatest peak of each kind of task in bytes."""
    (folder / "corpus").mkdir()
    table = pa.table({"text": pa.array(texts, pa.large_string())})
    pq.write_table(table, folder / "corpus/all.parquet", row_group_size=10_000)
    execution = {"split_bytes": "16MiB", "bucket_bytes": "4MiB"}
    mixture = scale_corpus.write_mixture(folder, folder / "corpus", stage, options, execution)
    left, peaks = list[str](), dict[str, int]()
    for one in run_to_decisions(mixture, tasks):
        peaks[one.kind] = max(peaks.get(one.kind, 0), one.peak_bytes)
        if one.kind == f"apply-{stage}":
            documents = read_documents(Root(str(folder / "out")), one.record.of("documents"), TaskMetrics())
            left += [text for batch in documents for text in batch.texts.to_pylist()]
    return left, peaks


@pytest.mark.parametrize(
    ("stage", "options"),
    [("dedup.exact", {}), ("dedup.minhash", {"components_bytes": 0}), ("dedup.lines", {}), ("dedup.substring", {})],
)
def test_hundred_thousand_copies_of_a_page_leave_one_in_bounded_memory(tasks, tmp_path, stage, options):
    """Every row of an exchange then has one of a few hashes, and every edge one document in its middle."""
    lines = (f"{letter * 3} is how a line begins of a page that everybody has copied" for letter in "abcdefghijklmnopqrst")
    page = "\n".join(lines)
    left, peaks = _left(tasks, tmp_path, [page] * 100_000, stage, **options)
    assert left == [page]
    # A run of rows that waits to be written, and its sorting; all rows of the copies would take more than 1 GB so.
    assert max(peaks.values()) < 9 * RUN_BYTES, peaks


@pytest.mark.parametrize(
    ("stage", "options", "own_line_alone"),
    [("dedup.minhash", {"components_bytes": 0}, False), ("dedup.substring", {"max_removed_share": 1.0}, True)],
)
def test_one_document_of_50_mb_stays_beside_its_copy_in_part(tasks, tmp_path, stage, options, own_line_alone):
    rng = random.Random(5)
    words = [f"w{number}" for number in range(5000)]
    lines = [" ".join(rng.choices(words, k=100)) for _ in range(85_000)]
    large, part = "\n".join(lines), "\n".join([*lines[500:520], "and a line of its own"])
    assert len(large) > 49_000_000
    left, _ = _left(tasks, tmp_path, [large, part], stage, **options)
    assert left == [large, "and a line of its own" if own_line_alone else part]


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.name)
def test_task_with_a_full_bucket_stays_below_its_limit(tasks: FreshTasks, tmp_path: Path, case: Case) -> None:
    for bucket_bytes in (4 << 20, 64 << 20):
        peaks = [measured(tasks, tmp_path / "rows", case, bucket_bytes).peak_bytes]
        if peaks[0] > most_bytes(bucket_bytes):  # allocators give back by the clock, so a peak counts that comes twice
            peaks.append(measured(tasks, tmp_path / "rows", case, bucket_bytes).peak_bytes)
        assert min(peaks) <= most_bytes(bucket_bytes), peaks


def _peaks(tasks: FreshTasks, folder: Path, num_docs: int, stage: str, options: dict[str, object]) -> dict[str, int]:
    """The greatest peak of each kind of task."""
    corpus = scale_corpus.write(folder / "corpus", num_docs, docs_per_file=4_000)
    mixture = scale_corpus.write_mixture(folder, corpus, stage, options, {"split_bytes": "1MiB", "bucket_bytes": "1MiB"})
    peaks: dict[str, int] = {}
    for one in run_to_decisions(mixture, tasks):
        peaks[one.kind] = max(peaks.get(one.kind, 0), one.peak_bytes)
    return peaks


@pytest.mark.parametrize(
    ("stage", "options", "kinds"),
    [
        ("dedup.minhash", {"components_bytes": 0}, {"match-bands", "fetch-signatures", "compare", "cluster", "decide"}),
        ("dedup.lines", {}, {"match"}),
        ("dedup.substring", {"length": 20}, {"match", "extend", "verify"}),
    ],
)
def test_steps_memory_does_not_grow_with_the_corpus(tasks, tmp_path, stage, options, kinds):
    """The fewer documents fill buckets already. Rows that are written wait until `RUN_BYTES` of them are there."""
    small = _peaks(tasks, tmp_path / "small", 16_000, stage, options)
    large = _peaks(tasks, tmp_path / "large", 80_000, stage, options)
    assert set(small) == set(large) - {"merge"} == kinds | {"read", "decisions", f"apply-{stage}"}
    limits = {kind: peak + ((32 if kind in kinds else 64) << 20) for kind, peak in small.items()}
    limits["merge"] = most_bytes(1 << 20)  # the fewer documents are in so few files that none are merged
    if any(peak > limits[kind] for kind, peak in large.items()):  # a peak counts that comes twice, as above
        again = _peaks(tasks, tmp_path / "again", 80_000, stage, options)
        large = {kind: min(peak, again[kind]) for kind, peak in large.items()}
    assert all(peak <= limits[kind] for kind, peak in large.items()), f"small: {small}, large: {large}"
