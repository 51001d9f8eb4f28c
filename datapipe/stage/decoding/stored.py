"""The stored bytes of an input file by their offset, read in large blocks."""

import errno
import re
from collections.abc import Iterator

import pyarrow as pa

BLOCK_BYTES = 4 << 20
_BLOCK_BYTES_BEHIND = 256 << 10
"""The size of a read from storage, within a range and at first behind it."""


class StoredBytes:
    """The stored bytes of a file. One block is in memory. `stop`: where the range ends; None for the end of the file."""

    def __init__(self, stream: pa.NativeFile, stop: int | None = None) -> None:
        self.num_bytes = stream.size()
        self._stream, self._stop = stream, self.num_bytes if stop is None else min(stop, self.num_bytes)
        self._block, self._block_offset = memoryview(b""), 0
        self._behind_bytes = _BLOCK_BYTES_BEHIND

    def some(self, offset: int, num_bytes: int) -> memoryview:
        """At least one byte at an offset and at most `num_bytes`, as many as are at hand; none at the end of the file."""
        start = offset - self._block_offset
        if not 0 <= start < len(self._block):
            self._fetch(offset)
            start = 0
        return self._block[start : start + num_bytes]

    def all(self, offset: int, num_bytes: int) -> bytes:
        """The bytes [offset, offset + num_bytes), fewer at the end of the file alone."""
        parts: list[bytes] = []
        while num_bytes > 0 and (part := self.some(offset, num_bytes)):
            parts.append(bytes(part))
            offset, num_bytes = offset + len(part), num_bytes - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def header(self, offset: int, num_bytes: int) -> bytes:
        """A few bytes at an offset, fewer at the end of the file alone. The block that is in memory stays."""
        start = offset - self._block_offset
        if start >= 0 and start + num_bytes <= len(self._block):
            return bytes(self._block[start : start + num_bytes])
        return self._stream.read_at(min(num_bytes, self.num_bytes - offset), offset) if offset < self.num_bytes else b""

    def matches(self, pattern: re.Pattern[bytes], num_bytes: int, start: int, stop: int | None = None) -> Iterator[int]:
        """The offsets in [start, stop) at which a pattern of `num_bytes` matches, ascending."""
        stop, offset, tail = self.num_bytes if stop is None else stop, start, b""
        while offset - len(tail) < stop and (block := self.some(offset, BLOCK_BYTES)):
            window, begin = tail + bytes(block), offset - len(tail)
            for match in pattern.finditer(window):
                if begin + match.start() >= stop:
                    return
                yield begin + match.start()
            offset += len(block)
            tail = window[1 - num_bytes :]

    def _fetch(self, offset: int) -> None:
        num_bytes = self._stop - offset
        if num_bytes <= 0:
            num_bytes = self._behind_bytes
            self._behind_bytes = min(2 * num_bytes, BLOCK_BYTES)
        num_bytes = min(max(num_bytes, _BLOCK_BYTES_BEHIND), BLOCK_BYTES, self.num_bytes - offset)
        block = self._stream.read_at(num_bytes, offset) if num_bytes > 0 else b""
        if num_bytes > 0 and not block:
            raise OSError(errno.EIO, f"the file ends at byte {offset}, expected {self.num_bytes} bytes")
        self._block, self._block_offset = memoryview(block), offset
