"""A client of a service in a process of its own: python -m tests.support.service_client URL OUTPUT RANK WORLD STOP

It compares every batch with that of a loader of the files until the file STOP exists, prints a line a second, and at the end
the number of steps and the longest time that it waited for one.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np

from datapipe.loader import Loader


def main(url: str, output: str, rank: str, world: str, stop: str) -> None:
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
        step_time.wait(0.02)
        if time.monotonic() - told_at > 1:
            told_at = time.monotonic()
            print("at", steps, flush=True)
    print("steps", steps, f"{longest_s:.3f}", flush=True)
    there.close()
    here.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
