"""Zstandard frames whose window is larger than what Arrow takes, as `zstd --long=31` writes them.

A window is how far back a frame refers to its content, so a decompressor holds as much: up to 2 GiB, where a reader allows it.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from datapipe.stage.decoding.frames import Frame
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


class LongWindow:
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
