"""The chunks of a file as a stream, for formats that are read from the beginning to the end."""

from __future__ import annotations

from collections.abc import Iterator


class ByteStream:
    """Chunks as a stream that counts its bytes."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._chunk = memoryview(b"")
        self.position = 0

    def read(self, num_bytes: int) -> bytes:
        """The next bytes; fewer at the end of the file alone."""
        parts = list(self._parts(num_bytes))
        return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)

    def skip(self, num_bytes: int) -> int:
        """Passes over bytes, and returns how many there were."""
        return sum(len(part) for part in self._parts(num_bytes))

    def _parts(self, num_bytes: int) -> Iterator[memoryview]:
        while num_bytes > 0:
            if not self._chunk:
                chunk = next(self._chunks, None)
                if chunk is None:
                    return
                self._chunk = memoryview(chunk)
                continue
            part, self._chunk = self._chunk[:num_bytes], self._chunk[num_bytes:]
            num_bytes -= len(part)
            self.position += len(part)
            yield part
