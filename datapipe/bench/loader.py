"""A loader under a simulated trainer: each step takes a given time and leaves the processor idle, as a step on a GPU does.

open, first batch    time to start
`steps` steps        measured waits of the trainer
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from datapipe.errors import UserError
from datapipe.loader.loader import Loader
from datapipe.loader.stats import LoaderStats


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderBench:
    """The measurements of one run.

    Attributes:
        step_s: seconds that each step computes.
        open_s: seconds to open the loader.
        first_batch_s: seconds from there to the first batch.
        stats: of the loader, after the run.
        waits_s: seconds waited at each step but the first.
    """

    step_s: float
    open_s: float
    first_batch_s: float
    stats: LoaderStats
    waits_s: tuple[float, ...]


def bench_loader(
    open_loader: Callable[[], Loader],
    *,
    step_s: float,
    steps: int,
    compute: Callable[[float], None] = time.sleep,
) -> LoaderBench:
    """Runs `steps` steps of a trainer that computes for `step_s`, and measures its waits.

    Args:
        compute: called with the seconds of each step.
    """
    begun_at = time.perf_counter()
    loader = open_loader()
    open_s = time.perf_counter() - begun_at
    waits = _train(loader, step_s, steps, compute)
    if not waits:
        raise UserError("the split holds fewer sequences than a global batch has rows. Give a smaller batch size.")
    stats = loader.stats()
    loader.close()
    return LoaderBench(
        step_s=step_s,
        open_s=open_s,
        first_batch_s=waits[0],
        stats=stats,
        waits_s=tuple(waits[1:]),
    )


def _train(loader: Loader, step_s: float, steps: int, compute: Callable[[float], None]) -> list[float]:
    """The seconds waited for each batch."""
    waits: list[float] = []
    asked_at = time.perf_counter()
    for _ in islice(loader, steps):
        waits.append(time.perf_counter() - asked_at)
        compute(step_s)
        asked_at = time.perf_counter()
    return waits
