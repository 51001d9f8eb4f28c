"""What the readers of Parquet and Arrow have in common: damage of the content, told apart from failures of the storage."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa

from datapipe.stage import ReadBatch, Rejected
from datapipe.stage.decoding import HEAD_BYTES, lfs_pointer

BROKEN = (pa.ArrowException, ValueError, OSError)
"""What Arrow raises for damaged content, each seen with random bytes flipped: thrift and IPC errors are OSErrors."""


_IMPOSSIBLE_BYTES = 1 << 40
"""A size that no row group or record batch has: where Arrow asks for more memory at once, a length in the file is damaged."""


_LARGE_BYTES = 64 << 20
"""The size of a read from which on it is held against that of the file: memory for it is taken first."""


class WatchedStream:
    """A file that records what storage raised while Arrow read it, since Arrow raises OSErrors for damaged content too."""

    closed = False

    def __init__(self, stream: pa.NativeFile) -> None:
        self.stream = stream
        self.error: Exception | None = None

    def raise_storage_error(self, error: BaseException) -> None:
        """Raises the error of storage or memory; returns if the content is at fault."""
        if self.error is not None:
            raise self.error
        if isinstance(error, MemoryError) and _asked_bytes(error) < _IMPOSSIBLE_BYTES:
            raise error

    def read(self, num_bytes: int = -1) -> bytes:
        """The next bytes; fewer where the file has fewer, whatever a damaged length asks for."""
        if num_bytes > _LARGE_BYTES:
            num_bytes = min(num_bytes, max(0, self.stream.size() - self.stream.tell()))
        try:
            return self.stream.read(None if num_bytes < 0 else num_bytes)
        except Exception as error:
            self.error = error
            raise

    def seek(self, position: int, whence: int = 0) -> int:
        return self.stream.seek(position, whence)

    def tell(self) -> int:
        return self.stream.tell()

    def close(self) -> None:
        """Does nothing: the caller closes the stream that it opened."""


def _asked_bytes(error: MemoryError) -> int:
    """The size in Arrow's message, "malloc of size 218802813927552 failed"; 0 where there is none."""
    size = re.search(r"\bof size (\d+)", str(error))
    return int(size[1]) if size else 0


def damaged(position: int, error: str) -> ReadBatch:
    """No document, and the reject for all that is lost from a position on."""
    nothing, rejected = pa.array([], pa.large_string()), Rejected(position=position, error=error, is_file_damage=True)
    return ReadBatch(positions=np.zeros(0, np.uint64), texts=nothing, ids=nothing, rejected=(rejected,))


def on_one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")


def unreadable(kind: str, error: Exception, stream: pa.NativeFile) -> str:
    """Why nothing of a file can be read, by the error of its reader and the file's first bytes.

    Args:
        kind: what the file is by its name: "Parquet file".
    """
    pointer = lfs_pointer(stream.read_at(min(HEAD_BYTES, stream.size()), 0))
    return pointer or f"the {kind} is damaged: {on_one_line(error)}"
