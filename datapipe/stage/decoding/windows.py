"""The content of a Zstandard or LZ4 frame: by Arrow, or by zstandard where its window is larger than what Arrow takes, as
`zstd --long=31` writes it.

A window is how far back a frame refers to its content, so a decompressor holds as much: up to 2 GiB, where a reader allows it.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from datapipe.stage.decoding.frames import FRAMES, Frame
from datapipe.stage.decoding.stored import StoredBytes
from datapipe.stage.decoding.streams import TRUNCATED, RawFile

MOST_WINDOW_BYTES = 128 << 20
"""What Arrow takes, which is the default of Zstandard."""

_FEED_BYTES = 64 << 10


def too_large_window(window_bytes: int, most_bytes: int) -> str:
    """The error of a frame with a window that is not allowed."""
    return (
        f"{TOO_LARGE_WINDOW} of {window_bytes:,} bytes, and at most {most_bytes:,} are allowed. Set max_window_bytes: "
        f"{window_bytes} among the options of the source's format: a worker holds as much while it reads the file"
    )


TOO_LARGE_WINDOW = "asks for a window"


class FrameFile:
    """The stored bytes of one frame as the file that Arrow reads.

    Args:
        window_bytes: its window, if it has one.
        step_from: the offset from which reads return one byte each.

    Attributes:
        offset: behind the last read.
        last_offset: of the last read.
        failure: the error of the storage.
    """

    closed = False

    def __init__(self, stored: StoredBytes, compression: str, offset: int, window_bytes: int, step_from: int | None) -> None:
        self.frame: Frame = FRAMES[compression]()
        self.failure: Exception | None = None
        self.offset = self.last_offset = offset
        self._stored, self._compression, self._step_from = stored, compression, step_from
        self._window_bytes = window_bytes

    def unpacked(self) -> Any:
        if self._window_bytes > MOST_WINDOW_BYTES:
            return _LongWindow(self, self.frame, self._window_bytes)
        source: Any = pa.PythonFile(self, mode="r")
        return pa.CompressedInputStream(source, self._compression)

    def read(self, num_bytes: int = -1, /) -> bytes:
        if self.frame.is_ended or self.frame.is_broken:
            return b""
        if self._step_from is not None:
            num_bytes = min(num_bytes, self._step_from - self.offset) if self.offset < self._step_from else 1
        try:
            stored = self._stored.some(self.offset, num_bytes)
        except Exception as error:
            self.failure = error
            raise
        stored = bytes(stored[: self.frame.take(stored)])
        self.last_offset = self.offset
        self.offset += len(stored)
        return stored

    def close(self) -> None:
        """Does nothing: the caller who opened the stream closes it."""


class _LongWindow:
    """The content of one frame, as Arrow's CompressedInputStream gives it. `read` raises OSError for damage.

    Args:
        file: gives the stored bytes of the frame, and none behind it.
    """

    def __init__(self, file: RawFile, frame: Frame, window_bytes: int) -> None:
        import zstandard

        self._frame, self._error = frame, zstandard.ZstdError
        decompressor = zstandard.ZstdDecompressor(max_window_size=window_bytes)
        source: Any = file
        self._reader: Any = decompressor.stream_reader(source, read_size=_FEED_BYTES, closefd=False)

    def read(self, num_bytes: int) -> bytes:
        try:
            content = self._reader.read(num_bytes)
        except self._error as error:
            raise OSError(str(error)) from error
        if not content and not self._frame.is_ended:
            raise OSError(TRUNCATED)
        return content

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._reader.close()
