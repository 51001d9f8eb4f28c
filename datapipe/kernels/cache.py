"""Compiled kernels on disk: one file each, named by the code that the kernel is compiled from.

    $XDG_CACHE_HOME/datapipe/kernels/<versions and processor>/<module>.<kernel>-<key>.bin     checksum, then numba's own pickle
                                                              <module>.<kernel>-<key>.lock    of the process that compiles it

Processes that need a kernel wait for the lock of the one that compiles it, then load the result. The system frees the lock
of a dead process. On a file system without locks a kernel may be compiled twice.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from datapipe.dataclass import dataclass
from datapipe.kernels.keys import version_key
from datapipe.machine.cache import LEFT_OVER_S, UNUSED_S, cache_home, remove_older
from datapipe.machine.files import locked


def kernels_folder() -> Path:
    return cache_home() / "kernels"


@dataclass(frozen=True, slots=True)
class Entry:
    """The file of a compiled kernel: its name for display, "words.split_words", and the digest of its code."""

    name: str
    key: str

    @property
    def path(self) -> Path:
        return kernels_folder() / version_key() / f"{self.name}-{self.key}.bin"

    @contextmanager
    def lock(self, *, wait: bool = True) -> Iterator[bool]:
        """Holds the right to compile. Without `wait`, False where another process has it."""
        is_ours = True
        with ExitStack() as stack:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(self.path.with_suffix(".lock"), wait=wait))
            except BlockingIOError:
                is_ours = False
            except OSError:  # a file system without locks, or a cache that cannot be written: each process compiles for itself
                pass
            yield is_ours


def remove_unused(now: float) -> None:
    """Deletes kernels that were not used for `UNUSED_S`, and left-over locks. `now`: seconds since the epoch."""
    for folder in kernels_folder().glob("*"):
        for path in folder.glob("*"):
            remove_older(path, now - (UNUSED_S if path.suffix == ".bin" else LEFT_OVER_S))
        with suppress(OSError):  # the folder is not empty
            folder.rmdir()
