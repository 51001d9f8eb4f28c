"""The memory of a process, as the kernel tells it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.medium


@pytest.mark.slow
def test_peak_memory_of_a_process_is_its_own_and_not_its_parents():
    ballast = np.ones(60_000_000)  # 480 MB in this process, which starts the other
    code = "from datapipe.memory import peak_bytes; print(peak_bytes())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ballast.sum() > 0
    assert 2_000_000 < int(done.stdout) < 400_000_000
