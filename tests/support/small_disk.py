"""A disk of a few MiB, which fills up: a tmpfs that this process mounts. Skips where mounting is not permitted."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

Resize = Callable[[int], None]


@contextmanager
def small_disk(folder: Path, num_bytes: int) -> Iterator[Resize]:
    """Mounts a disk at `folder`; yields a function that gives it another size."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        mounted = _mount("-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs", str(folder))
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if mounted.returncode:
        pytest.skip(f"mounting is not permitted: {mounted.stderr.strip()}")
    try:
        yield lambda size: _mount("-o", f"remount,size={size}", str(folder)).check_returncode()
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)


def _mount(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
