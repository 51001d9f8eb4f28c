"""Decompressed bytes of an input file, telling a broken archive from a broken disk.

    file ─▶ raw reads ─▶ gzip or zstd (members and frames in a row are one stream) ─▶ pieces of bytes

What storage does to us (OSError) is raised as it is, for the task to be tried again. What is wrong with the archive itself is
`BrokenStreamError`: it ends there every time, and everything before it has been yielded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from datapipe.errors import DatapipeError
from datapipe.stage import OpenInput

PLAIN_PIECE_BYTES = 4 << 20
PACKED_PIECE_BYTES = 64 << 10
"""Small, since what one read had decompressed when it met damage is lost with it."""


class BrokenStreamError(DatapipeError):
    """An archive that is truncated or damaged."""


class _Raw:
    """The raw file as Arrow's decompressor reads it, remembering what storage raised."""

    closed = False

    def __init__(self, stream: pa.NativeFile) -> None:
        self.stream = stream
        self.error: Exception | None = None

    def read(self, num_bytes: int = -1) -> bytes:
        try:
            return self.stream.read(num_bytes)
        except Exception as error:
            self.error = error
            raise

    def close(self) -> None:
        self.stream.close()


def decoded(open_input: OpenInput, url: str, compression: str | None) -> Iterator[bytes]:
    """The decompressed content in pieces; empty for an empty file.

    Raises:
        OSError: from storage.
        BrokenStreamError: the archive is truncated or damaged; what came before has been yielded.
    """
    with open_input(url) as stream:
        if compression is None:
            while piece := stream.read(PLAIN_PIECE_BYTES):
                yield piece
            return
        if stream.size() == 0:
            raise BrokenStreamError(f"an empty file is no {compression} archive")
        raw = _Raw(stream)
        source: Any = pa.PythonFile(raw, mode="r")
        with pa.CompressedInputStream(source, compression) as unpacked:
            while piece := _next_piece(unpacked, raw, compression):
                yield piece


def _next_piece(unpacked: pa.CompressedInputStream, raw: _Raw, compression: str) -> bytes:
    try:
        return unpacked.read(PACKED_PIECE_BYTES)
    except (OSError, pa.ArrowInvalid) as error:
        if raw.error is not None:
            raise raw.error from None
        raise BrokenStreamError(f"the {compression} archive is truncated or damaged: {error}") from error
