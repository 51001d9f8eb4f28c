import platform
import subprocess
import sys

import pytest

_FAULTS = """
import resource
import numpy as np
from datapipe.machine.memory import keep_freed_memory

keep_freed_memory()
for number in range(4):
    arrays = [np.ones(3 << 20, np.uint8) for _ in range(16)]
    del arrays
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators keep what they like")
def test_memory_that_a_batch_has_freed_serves_the_next_one():
    printed = subprocess.run([sys.executable, "-c", _FAULTS], capture_output=True, text=True, check=True).stdout
    *_, before_last, last = map(int, printed.split())
    assert last - before_last < 100  # 48 MiB have 12,288 pages of 4 KiB
