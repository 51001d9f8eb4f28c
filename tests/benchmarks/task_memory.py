"""The memory of every kind of task that reads a bucket, with full buckets of 4, 64 and 256 MiB.

Each task runs in its own process (`tests/support/task_processes.py`). The figures are peaks of resident memory beyond
the imports and compiled kernels, in MiB. No peak may pass twice the bucket and 256 MiB.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

from datapipe.storage.root import Root
from tests.benchmarks.tables import Settings, Table
from tests.support.full_buckets import Case, cases
from tests.support.task_processes import FreshTasks, Measured, fresh_tasks

SIZES_MIB = 4, 64, 256


def most_bytes(bucket_bytes: int) -> int:
    """What a task may take beyond the imports."""
    return 2 * bucket_bytes + (256 << 20)


def measured(tasks: FreshTasks, folder: Path, case: Case, bucket_bytes: int) -> Measured:
    """A task with a full bucket; removes its files."""
    root = Root(str(folder))
    try:
        return tasks.run(case.task(case.write(root, bucket_bytes), bucket_bytes), root.url)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def tables(settings: Settings) -> Iterator[Table]:
    sizes, rows = SIZES_MIB[:1] if settings.quick else SIZES_MIB, []
    with fresh_tasks() as tasks:
        for case in cases():
            if settings.only in case.name:
                found = [measured(tasks, settings.folder / "buckets", case, size << 20) for size in sizes]
                cells = [f"{one.peak_bytes / (1 << 20):.0f} ({one.record.metrics.seconds:.1f} s)" for one in found]
                rows.append((case.name, *cells))
    rows.append(("limit", *(f"{most_bytes(size << 20) >> 20}" for size in sizes)))
    yield Table(
        title="Memory of tasks with full buckets",
        note="Peak resident memory beyond the imports, in MiB, and the seconds of the task, by the size of the bucket; of pack "
        "tasks `shards.target_bytes`. No peak may pass twice the bucket and 256 MiB.",
        header=("task", *(f"{size} MiB" for size in sizes)),
        rows=rows,
        kept_in="datapipe/DECISIONS.md",
    )
