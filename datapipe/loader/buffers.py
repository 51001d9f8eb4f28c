"""Memory for batches, reused when no batch refers to it: fresh pages from the system cost more than filling them.

Arrays begin at a multiple of 64 bytes, since JAX copies other memory. Every array over a buffer, and every object made from one
without a copy (a tensor, a memory view), holds a reference to the buffer. A buffer is free when the pool holds the last
reference, so a batch that the trainer keeps is never overwritten.
"""

from math import prod
from sys import getrefcount
from threading import Lock

import numpy as np
import numpy.typing as npt

MOST_BYTES = 256 << 20
"""Of all buffers in the pool, in use or free. Arrays past this limit are ordinary ones."""

_LEAST_BYTES = 64 << 10
"""Of an array that is worth a buffer. Smaller arrays come from memory that the process has already."""

_ALIGNMENT = 64


def aligned_empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> np.ndarray:
    """As `np.empty`; an array of 64 bytes or more begins at a multiple of 64."""
    wanted = np.dtype(dtype)
    num_bytes = prod(shape) * wanted.itemsize
    if num_bytes < _ALIGNMENT:
        return np.empty(shape, wanted)
    buffer, start = _buffer(num_bytes)
    return np.ndarray(shape, wanted, buffer, start)


def _buffer(num_bytes: int) -> tuple[np.ndarray, int]:
    buffer = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    return buffer, -buffer.ctypes.data % _ALIGNMENT


def _own_references() -> int:
    """The `getrefcount` of a free buffer, which depends on Python's version."""
    buffers = [_buffer(0)]
    for buffer, _ in buffers:
        return getrefcount(buffer)
    raise AssertionError


_OWN_REFERENCES = _own_references()


class BufferPool:
    """Arrays over reused buffers. Several threads may call `empty` at once."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = Lock()
        self._buffers: list[tuple[np.ndarray, int]] = []

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> np.ndarray:
        wanted = np.dtype(dtype)
        num_bytes = prod(shape) * wanted.itemsize
        if num_bytes < _LEAST_BYTES:
            return aligned_empty(shape, wanted)
        if not self._lock.acquire(blocking=False):  # held by another thread, or by one that a fork did not copy
            return aligned_empty(shape, wanted)
        try:
            reused = self._reuse(shape, wanted, num_bytes)
            return reused if reused is not None else self._new(shape, wanted, num_bytes)
        finally:
            self._lock.release()

    @property
    def num_bytes(self) -> int:
        return sum(buffer.nbytes - _ALIGNMENT for buffer, _ in self._buffers)

    def _reuse(self, shape: tuple[int, ...], dtype: np.dtype, num_bytes: int) -> np.ndarray | None:
        for buffer, start in self._buffers:
            if buffer.nbytes == num_bytes + _ALIGNMENT and getrefcount(buffer) == _OWN_REFERENCES:
                return np.ndarray(shape, dtype, buffer, start)
        return None

    def _new(self, shape: tuple[int, ...], dtype: np.dtype, num_bytes: int) -> np.ndarray:
        # free buffers of another size belong to earlier, smaller chunks: chunks grow, and then keep their size
        self._buffers = [
            (buffer, start)
            for buffer, start in self._buffers
            if buffer.nbytes == num_bytes + _ALIGNMENT or getrefcount(buffer) > _OWN_REFERENCES
        ]
        buffer, start = _buffer(num_bytes)
        if self.num_bytes + num_bytes <= self._most_bytes:
            self._buffers.append((buffer, start))
        return np.ndarray(shape, dtype, buffer, start)
