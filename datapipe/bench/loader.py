"""A loader under a simulated trainer: each step takes a given time and leaves the processor idle, as on a GPU."""

import time
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np

from datapipe.errors import UserError
from datapipe.loader.loader import Loader

_PERCENTILES = (50, 95, 99, 100)


def bench_loader(
    open_loader: Callable[[], Loader],
    *,
    step_s: float,
    steps: int,
    compute: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Runs a trainer that computes for `step_s`. Returns the figures of `loader-bench --json`."""
    begun_at = time.perf_counter()
    loader = open_loader()
    open_s = time.perf_counter() - begun_at
    waits: list[float] = []
    asked_at = time.perf_counter()
    for _ in islice(loader, steps):
        waits.append(time.perf_counter() - asked_at)
        compute(step_s)
        asked_at = time.perf_counter()
    if not waits:
        raise UserError("the split holds fewer sequences than a global batch has rows. Give a smaller batch size.")
    stats = loader.stats()
    loader.close()
    later = waits[1:]
    share_waited_for = stats.num_waits / stats.steps
    total_s = stats.wait_s + stats.compute_s
    return {
        "diagnosis": stats.diagnosis,
        "reason": stats.reason,
        "step_s": step_s,
        "steps": stats.steps,
        "open_s": open_s,
        "first_batch_s": waits[0],
        "wait_per_step_s": stats.wait_per_step_s,
        "lost_share": stats.lost_share,
        "wait_percentiles_s": {f"p{each}": float(np.percentile(later, each)) for each in _PERCENTILES} if later else {},
        "compute_rate": stats.compute_rate,
        "pipeline_rate": stats.pipeline_rate,
        "tokens_per_s": stats.tokens * share_waited_for / total_s if total_s else 0.0,
        "bytes_per_s": stats.bytes * share_waited_for / total_s if total_s else 0.0,
        "batch_tokens": stats.tokens / stats.steps,
        "batch_bytes": stats.bytes / stats.steps,
        "buffer_mean": stats.buffer_mean,
        "host_memory_bytes": stats.host_bytes,
        "host_memory": stats.memory,
    }
