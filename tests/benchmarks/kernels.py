"""MB/s of every kernel of the table on one batch of prose: `python -m tests.benchmarks.kernels [NAME …]`.

MB are 10^6 bytes of the batch's text; a kernel that works on something else than text is measured on what its row makes of it,
so compare a kernel with itself, in one run on one machine.
"""

from __future__ import annotations

import sys
import time

from tests.benchmarks.tables import Settings, Table
from tests.support.kernel_table import Case, Row, all_rows, prose

_TEXT = Case(texts=tuple(prose(seed, 2_000).encode() for seed in range(40)), seed=1)
_RUNS = 5


def rate(row: Row, num_runs: int = _RUNS) -> float:
    """MB of text a second, the best of `num_runs` after one to warm up."""
    row.run(_TEXT)
    best = float("inf")
    for _ in range(num_runs):
        arguments = list(row.arguments(_TEXT))
        started = time.perf_counter()
        row.kernel(*arguments)
        best = min(best, time.perf_counter() - started)
    return len(_TEXT.data) / 1e6 / best


def table(settings: Settings) -> Table:
    """The kernels by name."""
    num_runs = 1 if settings.quick else _RUNS - 2
    return Table(
        title="Kernels",
        note=f"Every kernel of the table on {len(_TEXT.data) / 1e6:.1f} MB of made-up prose, the best of {num_runs}. A kernel "
        "that takes something else than text is measured on what its row of the table makes of it, so compare a kernel with "
        "itself.",
        header=("kernel", "MB/s"),
        rows=[(f"`{row.name}`", f"{rate(row, num_runs):,.0f}") for row in all_rows()],
    )


def main() -> None:
    for row in all_rows():
        if not sys.argv[1:] or any(name in row.name for name in sys.argv[1:]):
            print(f"{row.name:<50}{rate(row):>12,.0f} MB/s")


if __name__ == "__main__":
    main()
