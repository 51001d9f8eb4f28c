"""The memory of every kind of task that reads a bucket, with full buckets of 4, 64 and 256 MiB.

    python -m tests.benchmarks.task_memory FOLDER [--only pack] [--mib 4 64]

Each task runs in a process of its own (`tests/support/task_processes.py`). The figures are peaks of resident memory beyond the
imports and compiled kernels, in MiB. No peak may pass twice the bucket and 256 MiB.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

from datapipe.storage import Root
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


def table(settings: Settings) -> Table:
    """The peaks of all kinds of tasks."""
    return _table(settings.folder / "task-memory", SIZES_MIB[:1] if settings.quick else SIZES_MIB, "")


def _table(folder: Path, sizes: Sequence[int], only: str) -> Table:
    rows: list[tuple[str, ...]] = []
    with fresh_tasks() as tasks:
        for case in cases():
            if only in case.name:
                found = [measured(tasks, folder, case, size << 20) for size in sizes]
                cells = [f"{one.peak_bytes / (1 << 20):.0f} ({one.record.metrics.seconds:.1f} s)" for one in found]
                rows.append((case.name, *cells))
                print(*rows[-1], sep=" | ", flush=True)
    rows.append(("limit", *(f"{most_bytes(size << 20) >> 20}" for size in sizes)))
    return Table(
        title="Memory of tasks with full buckets",
        note="Peak resident memory beyond the imports, in MiB, and the seconds of the task, by the size of the bucket; of pack "
        "tasks `shards.target_bytes`. No peak may pass twice the bucket and 256 MiB.",
        header=("task", *(f"{size} MiB" for size in sizes)),
        rows=rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the rows go; up to 1 GB")
    parser.add_argument("--only", default="", help="tasks with this in their names")
    parser.add_argument("--mib", type=int, nargs="*", default=list(SIZES_MIB), help="sizes of buckets")
    given = parser.parse_args()
    print(_table(given.folder / "buckets", given.mib, given.only).to_markdown())


if __name__ == "__main__":
    main()
