"""A client of a service in its own process: python -m tests.support.service_client URL OUTPUT RANK WORLD STOP [PAUSE]

It compares every batch with that of a loader of the files until the file STOP exists, a step each PAUSE seconds. The first line
tells that it has begun, the last one its steps and the longest time that it waited for one.
"""

import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np

from datapipe.loader import Loader


def main(url: str, output: str, rank: str, world: str, stop: str, pause_s: str = "0.02") -> None:
    warnings.simplefilter("ignore")
    options = {"global_batch_size": 12, "rank": int(rank), "world_size": int(world), "fields": ("input_ids", "labels", "step")}
    there, here = Loader(url, **options), Loader(output, **options)
    step_time = threading.Event()
    steps, longest_s = 0, 0.0
    while not Path(stop).exists():
        asked_at = time.monotonic()
        batch, expected = next(there), next(here)
        longest_s = max(longest_s, time.monotonic() - asked_at)
        assert batch["step"] == expected["step"] == steps
        np.testing.assert_array_equal(batch["input_ids"], expected["input_ids"])
        np.testing.assert_array_equal(batch["labels"], expected["labels"])
        assert there.state_dict() == here.state_dict()
        steps += 1
        if steps == 1:
            print("at", steps, flush=True)
        step_time.wait(float(pause_s))
    print("steps", steps, f"{longest_s:.3f}", flush=True)
    there.close()
    here.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
