"""What a task of a global stage holds does not grow with the corpus: the peaks of real tasks, each in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from datapipe.plan.outputs import ExchangeFile
from tests.support import scale_corpus
from tests.support.task_processes import FreshTasks, run_to_decisions

pytestmark = pytest.mark.slow

_EXECUTION = {"split_bytes": "1MiB", "bucket_bytes": "1MiB"}
_NUM_DOCS, _TIMES = 4_000, 10
_ROOM_BYTES, _WRITTEN_ROOM_BYTES = 24 << 20, 64 << 20
"""What allocators keep, and where the rows of a task are not bounded by its bucket: of decisions, those on the documents of one
file come together, and rows wait until `exchange.RUN_BYTES` of them are there."""


def _peaks(
    tasks: FreshTasks, folder: Path, num_docs: int, stage: str, options: dict[str, object]
) -> tuple[dict[str, int], int]:
    """The greatest peak of each kind of task, and the bytes of all rows that were exchanged."""
    corpus = scale_corpus.write(folder / "corpus", num_docs, docs_per_file=_NUM_DOCS)
    mixture = scale_corpus.write_mixture(folder, corpus, stage, options, _EXECUTION)
    peaks: dict[str, int] = {}
    exchanged = 0
    for one in run_to_decisions(mixture, tasks):
        peaks[one.kind] = max(peaks.get(one.kind, 0), one.peak_bytes)
        outputs = (output for files in one.record.outputs.values() for output in files)
        exchanged += sum(output.row_bytes for output in outputs if isinstance(output, ExchangeFile))
    return peaks, exchanged


@pytest.mark.parametrize(
    ("stage", "options", "kinds"),
    [
        ("dedup.minhash", {"components_bytes": 0}, {"match-bands", "fetch-signatures", "compare", "cluster", "decide"}),
        ("dedup.lines", {}, {"match"}),
        ("dedup.substring", {"length": 20}, {"match", "extend", "verify"}),
    ],
)
def test_task_memory_does_not_grow_with_the_corpus(
    tasks: FreshTasks, tmp_path: Path, stage: str, options: dict[str, object], kinds: set[str]
) -> None:
    small, _ = _peaks(tasks, tmp_path / "small", _NUM_DOCS, stage, options)
    large, exchanged = _peaks(tasks, tmp_path / "large", _NUM_DOCS * _TIMES, stage, options)
    assert set(large) == kinds | {"read", "decisions", f"apply-{stage}"}
    rooms = {kind: _ROOM_BYTES if kind in kinds else _WRITTEN_ROOM_BYTES for kind in large}
    assert exchanged > 16 << 20  # sixteen buckets and more
    # Allocators give back by the clock, so a peak counts that comes twice.
    if any(large[kind] > small[kind] + rooms[kind] for kind in large):
        again, _ = _peaks(tasks, tmp_path / "again", _NUM_DOCS * _TIMES, stage, options)
        large = {kind: min(peak, again[kind]) for kind, peak in large.items()}
    assert all(large[kind] <= small[kind] + rooms[kind] for kind in large), f"small: {small}, large: {large}"
