"""Memory for batches, reused when no batch refers to it: fresh pages from the system cost more than filling them.

    empty((256, 2048), int64)  ->  an array over a buffer that no other array refers to

Every array over a buffer, and every object made from one without a copy (a tensor, a memory view), holds a reference to the
buffer. A buffer is free when the pool holds the last reference, so a batch that the trainer keeps is never overwritten.
"""

from __future__ import annotations

from math import prod
from sys import getrefcount
from threading import Lock

import numpy as np
import numpy.typing as npt

MOST_BYTES = 256 << 20
"""Of all buffers in the pool, in use or free. Arrays past this limit are ordinary ones."""

_LEAST_BYTES = 64 << 10
"""Of an array that is worth a buffer. Smaller arrays come from memory that the process has already."""

_OWN_REFERENCES = 3
"""To a free buffer: the pool's list, the loop's variable, and the argument of `getrefcount`."""


class BufferPool:
    """Arrays over reused buffers. Several threads may call `empty` at once."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = Lock()
        self._buffers: list[np.ndarray] = []

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> np.ndarray:
        """An uninitialised array, like `np.empty`."""
        wanted = np.dtype(dtype)
        num_bytes = prod(shape) * wanted.itemsize
        if num_bytes < _LEAST_BYTES:
            return np.empty(shape, wanted)
        if not self._lock.acquire(blocking=False):  # held by another thread, or by one that a fork did not copy
            return np.empty(shape, wanted)
        try:
            reused = self._reuse(shape, wanted, num_bytes)
            return reused if reused is not None else self._new(shape, wanted, num_bytes)
        finally:
            self._lock.release()

    @property
    def num_bytes(self) -> int:
        """Bytes of all buffers in the pool."""
        return sum(buffer.nbytes for buffer in self._buffers)

    def _reuse(self, shape: tuple[int, ...], dtype: np.dtype, num_bytes: int) -> np.ndarray | None:
        for buffer in self._buffers:
            if buffer.nbytes == num_bytes and getrefcount(buffer) == _OWN_REFERENCES:
                return np.ndarray(shape, dtype, buffer)
        return None

    def _new(self, shape: tuple[int, ...], dtype: np.dtype, num_bytes: int) -> np.ndarray:
        # free buffers of another size belong to earlier, smaller chunks: chunks grow, and then keep their size
        self._buffers = [
            buffer for buffer in self._buffers if buffer.nbytes == num_bytes or getrefcount(buffer) > _OWN_REFERENCES
        ]
        buffer = np.empty(num_bytes, np.uint8)
        if self.num_bytes + num_bytes <= self._most_bytes:
            self._buffers.append(buffer)
        return np.ndarray(shape, dtype, buffer)
