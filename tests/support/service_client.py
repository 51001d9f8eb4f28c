"""A client of a service in a process of its own: python -m tests.support.service_client URL OUTPUT RANK WORLD STOP [PAUSE]

It compares every batch with that of a loader of the files until the file STOP exists, a step each PAUSE seconds. A line a
second tells its steps, the megabytes of malloc that are in use, and those that were freed and are kept for the next call. The
last line has the number of steps and the longest time that it waited for one.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np

from datapipe.loader import Loader


class _Heap(ctypes.Structure):
    """`struct mallinfo2` of glibc: `uordblks` and `fordblks` are the bytes in use and free, `hblkhd` those of large blocks."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ["arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"]
    ]


def _heap_mb() -> tuple[float, float]:
    """Megabytes of malloc in use, and free; zeros where the C library does not tell."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return 0.0, 0.0
    libc.mallinfo2.restype = _Heap
    heap = libc.mallinfo2()
    return (heap.uordblks + heap.hblkhd) / 1e6, heap.fordblks / 1e6


def main(url: str, output: str, rank: str, world: str, stop: str, pause_s: str = "0.02") -> None:
    warnings.simplefilter("ignore")
    options = {"global_batch_size": 12, "rank": int(rank), "world_size": int(world), "fields": ("input_ids", "labels", "step")}
    there, here = Loader(url, **options), Loader(output, **options)
    step_time = threading.Event()
    steps, longest_s, told_at = 0, 0.0, time.monotonic()
    while not Path(stop).exists():
        asked_at = time.monotonic()
        batch, expected = next(there), next(here)
        longest_s = max(longest_s, time.monotonic() - asked_at)
        assert batch["step"] == expected["step"] == steps
        np.testing.assert_array_equal(batch["input_ids"], expected["input_ids"])
        np.testing.assert_array_equal(batch["labels"], expected["labels"])
        assert there.state_dict() == here.state_dict()
        steps += 1
        step_time.wait(float(pause_s))
        if time.monotonic() - told_at > 1:
            told_at = time.monotonic()
            print("at", steps, *(f"{each:.1f}" for each in _heap_mb()), flush=True)
    print("steps", steps, f"{longest_s:.3f}", flush=True)
    there.close()
    here.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
