"""MB/s of every kernel of the table on one batch of prose.

MB are 10^6 bytes of the batch's text; a kernel that works on something else than text is measured on what its row makes of
it, so compare a kernel with itself, in one run on one machine. The bound: twice the text takes at most about twice the
time.
"""

import time
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.tables import Bound, Settings, Table
from tests.support.kernel_table import Case, Row, all_rows, prose

_TEXTS = tuple(prose(seed, 2_000).encode() for seed in range(40))
_WHOLE, _ONCE, _TWICE = (Case(texts=_TEXTS[:count], seed=1) for count in (40, 6, 12))
_RUNS = 5
_LEAST_S = 0.0005
"""Kernels that take less are too fast for the clock."""


def seconds(row: Row, case: Case = _WHOLE, num_runs: int = _RUNS) -> float:
    """CPU seconds, the best of `num_runs` after one to warm up."""
    row.run(case)
    best = float("inf")
    for _ in range(num_runs):
        arguments = list(row.arguments(case))
        started = time.process_time()
        row.kernel(*arguments)
        best = min(best, time.process_time() - started)
    return best


def tables(settings: Settings) -> Iterator[Table]:
    mb, num_runs = len(_WHOLE.data) / 1e6, 1 if settings.quick else _RUNS
    yield Table(
        title="Kernels",
        note=f"Every kernel of the table on {mb:.1f} MB of made-up prose, the best of {num_runs}.",
        header=("kernel", "MB/s"),
        rows=[
            (f"`{row.name}`", f"{mb / seconds(row, num_runs=num_runs):,.0f}") for row in all_rows() if settings.only in row.name
        ],
        kept_in="print",
    )


def bounds(folder: Path) -> Iterator[Bound]:
    growth = {}
    for row in all_rows():
        twice_s = seconds(row, _TWICE, num_runs=3)
        if twice_s > _LEAST_S:
            growth[row.name] = twice_s / seconds(row, _ONCE, num_runs=3)
    worst = max(growth, key=growth.__getitem__)
    yield Bound(name="kernels, twice the text, the worst", of=f"{worst}, of {len(growth)}", ratio=growth[worst], most=3.5)
