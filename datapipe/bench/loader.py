"""A loader under a simulated trainer: each step takes a given time and leaves the processor idle, as a step on a GPU does.

open, first batch    time to start
`steps` steps        measured waits of the trainer
build times          of the batches that follow, each built alone
forecast             `simulate_waits` of these build times for other prefetch depths
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from datapipe.errors import UserError
from datapipe.loader.loader import Loader
from datapipe.loader.stats import LoaderStats, host_memory

DEPTHS = (0, 1, 2, 4, 8)

MOST_BUILDING_S = 5.0
"""The time limit for measuring build times; the batches built by then are used."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """The expected waits at a prefetch depth.

    Attributes:
        prefetch: the depth.
        wait_s: mean wait for a batch.
        longest_wait_s: longest wait for a batch.
        lost_share: share of the trainer's time that is spent waiting.
        host_bytes: of the batches that exist at a time.
    """

    prefetch: int
    wait_s: float
    longest_wait_s: float
    lost_share: float
    host_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderBench:
    """The measurements of one run, and the forecasts made from them.

    Attributes:
        step_s: seconds that each step computes.
        open_s: seconds to open the loader.
        first_batch_s: seconds from there to the first batch.
        stats: of the loader, after the run.
        waits_s: seconds waited at each step but the first.
        build_s: seconds to build each of the batches built alone.
        forecasts: for other prefetch depths.
    """

    step_s: float
    open_s: float
    first_batch_s: float
    stats: LoaderStats
    waits_s: tuple[float, ...]
    build_s: tuple[float, ...]
    forecasts: tuple[Forecast, ...]


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
    build_s = _build_times(loader, len(waits))
    stats = loader.stats()
    loader.close()
    return LoaderBench(
        step_s=step_s,
        open_s=open_s,
        first_batch_s=waits[0],
        stats=stats,
        waits_s=tuple(waits[1:]),
        build_s=tuple(build_s),
        forecasts=forecast(
            build_s, step_s=step_s, depths=DEPTHS, threads_of=loader.num_threads, batch_bytes=stats.host_memory.batch_bytes
        ),
    )


def forecast(
    build_s: Sequence[float], *, step_s: float, depths: Sequence[int], threads_of: Callable[[int], int], batch_bytes: int
) -> tuple[Forecast, ...]:
    """The forecast for each depth, from the seconds that batches take to build. The wait for the first batch is left out.

    Args:
        threads_of: prefetch depth -> number of building threads.
    """
    forecasts = []
    for depth in depths:
        num_threads = threads_of(depth)
        waits = simulate_waits(build_s, step_s=step_s, depth=depth, num_threads=num_threads)[1:] or [0.0]
        lost, worked = sum(waits), step_s * len(waits)
        forecasts.append(
            Forecast(
                prefetch=depth,
                wait_s=lost / len(waits),
                longest_wait_s=max(waits),
                lost_share=lost / (lost + worked) if lost + worked else 0.0,
                host_bytes=host_memory(
                    depth=depth,
                    num_threads=num_threads,
                    chunk_steps=max(1, depth // (2 * max(1, num_threads))),
                    batch_bytes=batch_bytes,
                ).bytes,
            )
        )
    return tuple(forecasts)


def _train(loader: Loader, step_s: float, steps: int, compute: Callable[[float], None]) -> list[float]:
    """The seconds waited for each batch."""
    waits: list[float] = []
    asked_at = time.perf_counter()
    for _ in islice(loader, steps):
        waits.append(time.perf_counter() - asked_at)
        compute(step_s)
        asked_at = time.perf_counter()
    return waits


def _build_times(loader: Loader, count: int) -> list[float]:
    """Seconds to build each of the next `count` batches, which were not read before; past the end it starts over."""
    seconds: list[float] = []
    begun_at = now = time.perf_counter()
    for step in range(loader.step, loader.step + count):
        loader.batch(step if loader.num_steps is None else step % loader.num_steps)
        seconds.append(time.perf_counter() - now)
        now += seconds[-1]
        if now - begun_at > MOST_BUILDING_S:
            break
    return seconds


def simulate_waits(build_s: Sequence[float], *, step_s: float, depth: int, num_threads: int = 1) -> list[float]:
    """Seconds the trainer waits for each batch.

    Args:
        build_s: seconds to build each batch.
        step_s: seconds the trainer computes on each.
        depth: batches built ahead.
        num_threads: builders; at most `depth` of them have work.
    """
    if depth == 0:
        return list(build_s)
    builders = [0.0] * min(depth, num_threads)  # a heap of the times at which each is free
    asked: list[float] = []  # when each batch was asked for
    waits: list[float] = []
    now = 0.0
    for number, seconds in enumerate(build_s):
        begun = max(asked[number - depth] if number >= depth else 0.0, builders[0])
        heapq.heapreplace(builders, begun + seconds)
        asked.append(now)
        waits.append(max(0.0, begun + seconds - now))
        now += waits[-1] + step_s
    return waits
