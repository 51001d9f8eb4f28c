"""The effect of another prefetch depth, from measured build times: a simulated queue.

The trainer asks for batch i, waits until it is built, then computes for `step_s`. Builders take batches in order. Batch j may
be started once batch j - depth is asked for, since at most `depth` batches lie ahead. Depth 0 builds while the trainer waits.

    build times 3 1 1 5 1, a step of 2, depth 1, one thread          time  0 1 2 3 4 5 6 7 8 9 …
    batch that the builder builds                                          0 0 0 1 . 2 . 3 3 3 3 3 4
    batch that the trainer computes on                                     . . . 0 0 1 1 2 2 . . . 3 3 4 4
    waits                                                                  3 for batch 0, 3 for batch 3

The result depends on the given times only, so it is the same on any machine.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence


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
