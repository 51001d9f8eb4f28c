"""Corpora made to hurt deduplication, through the tasks of a run, each in a process of its own: what stays, and what it took.

In memory, stage by stage: `tests/stages/dedup/`. Chains of 100,000 documents: `tests/datapipe/stage/test_clusters.py`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe.exchange.files import RUN_BYTES
from datapipe.exchange.partitions import read_documents
from datapipe.metrics import TaskMetrics
from datapipe.storage import Root
from tests.support import scale_corpus
from tests.support.task_processes import FreshTasks, run_to_decisions

pytestmark = pytest.mark.slow

_EXECUTION = {"split_bytes": "16MiB", "bucket_bytes": "4MiB"}
_STAGES: dict[str, dict[str, object]] = {
    "dedup.exact": {},
    "dedup.minhash": {"components_bytes": 0},
    "dedup.lines": {},
    "dedup.substring": {},
}


_MOST_BYTES = 9 * RUN_BYTES
"""A run of rows that waits to be written, and its sorting; all rows of the 100,000 copies would take more than 1 GB so."""


def _left(
    tasks: FreshTasks, folder: Path, texts: Sequence[str], stage: str, **options: object
) -> tuple[list[str], dict[str, int]]:
    """The documents that stay, as they are left, and the greatest peak of each kind of task in bytes."""
    (folder / "corpus").mkdir()
    table = pa.table({"text": pa.array(texts, pa.large_string())})
    pq.write_table(table, folder / "corpus/all.parquet", row_group_size=10_000)
    mixture = scale_corpus.write_mixture(folder, folder / "corpus", stage, _STAGES[stage] | options, _EXECUTION)
    peaks: dict[str, int] = {}
    left: list[str] = []
    for one in run_to_decisions(mixture, tasks):
        peaks[one.kind] = max(peaks.get(one.kind, 0), one.peak_bytes)
        if one.kind == f"apply-{stage}":
            for batch in read_documents(Root(str(folder / "out")), one.record.of("documents"), TaskMetrics()):
                left += batch.texts.to_pylist()
    return left, peaks


@pytest.mark.parametrize("stage", _STAGES)
def test_hundred_thousand_copies_of_a_page_leave_one_in_bounded_memory(tasks: FreshTasks, tmp_path: Path, stage: str) -> None:
    """Every row of an exchange then has one of a few hashes, and every edge one document in its middle."""
    page = "\n".join(
        f"{letter * 3} is how a line begins of a page that everybody has copied" for letter in "abcdefghijklmnopqrst"
    )
    left, peaks = _left(tasks, tmp_path, [page] * 100_000, stage)
    assert left == [page]
    assert max(peaks.values()) < _MOST_BYTES, peaks


@pytest.mark.parametrize("stage", ["dedup.minhash", "dedup.substring"])
def test_one_document_of_50_mb_stays_beside_its_copy_in_part(tasks: FreshTasks, tmp_path: Path, stage: str) -> None:
    rng = random.Random(5)
    words = [f"w{number}" for number in range(5000)]
    lines = [" ".join(rng.choices(words, k=100)) for _ in range(85_000)]
    large, part = "\n".join(lines), "\n".join([*lines[500:520], "and a line of its own"])
    assert len(large) > 49_000_000
    is_cut = stage == "dedup.substring"
    options: dict[str, object] = {"max_removed_share": 1.0} if is_cut else {}
    left, _ = _left(tasks, tmp_path, [large, part], stage, **options)
    assert left == [large, "and a line of its own" if is_cut else part]
