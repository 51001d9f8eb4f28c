"""A local file that its readers map, written so that Linux caches it in large pages.

The cache holds a file in pages as large as the writes that made it, up to 2 MiB, where a write begins at a multiple of the
size. A page of 2 MiB is mapped at once, and is one entry of the processor's table of pages: to map a shard that a run has
just written takes 0.4 µs for 64 KiB instead of 5.6 (ext4, Linux 6.18, 2026-11-30).
"""

from typing import Any

LARGE_PAGE_BYTES = 2 << 20


class LargePageFile:
    """A new file, written a large page or several at a time. Holds less than one."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115 - `close` closes it
        self._pending = bytearray()  # begins at a multiple of a large page

    @property
    def closed(self) -> bool:
        return self._file.closed

    def write(self, content: Any) -> None:
        view = memoryview(content).cast("B")
        if self._pending:
            room = LARGE_PAGE_BYTES - len(self._pending)
            self._pending += view[:room]
            view = view[room:]
            if len(self._pending) < LARGE_PAGE_BYTES:
                return
            pending, self._pending = self._pending, bytearray()  # after an error nothing is written twice
            self._write_all(memoryview(pending))
        whole = len(view) - len(view) % LARGE_PAGE_BYTES
        self._write_all(view[:whole])
        self._pending += view[whole:]

    def flush(self) -> None:
        """Nothing: no reader opens a file that is not closed."""

    def abandon(self) -> None:
        """A file without its end stays, without a reader."""
        self._pending = bytearray()

    def close(self) -> None:
        if not self._file.closed:
            pending, self._pending = self._pending, bytearray()
            with self._file:
                self._write_all(memoryview(pending))

    def _write_all(self, view: memoryview) -> None:
        while len(view):
            view = view[self._file.write(view) :]
