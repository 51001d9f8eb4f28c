"""Memory of this process and of the machine."""

import ctypes
import gc
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from datapipe.quantities import size

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's <malloc.h>
_KEPT_BYTES, _LARGEST_KEPT_BYTES = 192 << 20, 32 << 20  # more than 32 MiB is refused for one array


@cache
def keep_freed_memory() -> None:
    """Lets glibc's allocator keep what a batch frees for the next one: up to 192 MiB, of arrays up to 32 MiB. 18 MB of web
    pages make 8,000 page faults, instead of 21,000 with 64 MiB, and words of English take 0.7 of the time."""
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


def peak_bytes() -> int:
    """Peak memory of this process; VmHWM on Linux, where `ru_maxrss` starts from the parent's."""
    if peak := kilobytes("/proc/self/status", "VmHWM"):
        return peak * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def memory_in_words() -> str:
    """The memory of this process, and what is free of the machine; empty without /proc."""
    own = kilobytes("/proc/self/status", "VmRSS")
    free, total = kilobytes("/proc/meminfo", "MemAvailable"), kilobytes("/proc/meminfo", "MemTotal")
    if not own or not total:
        return ""
    return f"the process has {size(own << 10)} of memory, and {size(free << 10)} of the machine's {size(total << 10)} are free"


def kilobytes(path: str, name: str) -> int:
    """The value of a line "NAME: 123 kB"; 0 without one."""
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


@contextmanager
def without_collection() -> Iterator[None]:
    """No garbage collection: of 10^5 records without cycles it takes as long as making them, and a sixth of imports."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
