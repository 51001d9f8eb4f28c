"""bzip2 and xz streams in a row as one stream.

    stored bytes ─▶ decompressors of the standard library, one a stream ─▶ content, as much as is asked for

Arrow has no xz, and its bzip2 loses what it has unpacked before damage. An xz file may be padded with zeros in groups of four
behind each stream (.xz file format 1.2.1, section 2.2), and any file as tapes are (`is_padding`). Memory is a read of either
side and what the decompressor takes: 8 MB for bzip2, and for xz the dictionary that the file asks for, at most
`_MOST_XZ_MEMORY`.
"""

from __future__ import annotations

from typing import Any, Protocol

NO_STREAM = "no stream begins where the one before ends"
TRUNCATED = "Truncated stream"
TOO_LARGE = "Memory usage limit exceeded"
"""What liblzma says of a dictionary beyond the limit."""

_MOST_XZ_MEMORY = 256 << 20
"""`xz -9` takes 65 MiB to unpack. A file of a few bytes may ask for 4 GiB."""

_FEED_BYTES = 64 << 10
_BLOCK_BYTES, _XZ_PADDING = 512, 4
_FIRST_BYTES = {"bzip2": b"BZh", "xz": b"\xfd7zXZ\x00"}


def is_padding(stop: int, file_bytes: int) -> bool:
    """Whether zeros behind a member or stream, up to an offset, are padding and no damage: those at the end of the file, and
    those up to a whole block, as tapes and block devices have them. Other zeros are a hole in the file."""
    return stop == file_bytes or stop % _BLOCK_BYTES == 0


class RawFile(Protocol):
    """Stored bytes in their order: at most `num_bytes` of them, none at the end of the file."""

    def read(self, num_bytes: int = -1, /) -> bytes: ...


class StreamReader:
    """The content of a file of bzip2 or xz streams. `read` raises OSError for damage."""

    def __init__(self, raw: RawFile, compression: str) -> None:
        self._raw, self._compression = raw, compression
        self._decompressor: Any = None
        self._stored = b""
        self._offset = 0  # of the first byte that no stream has taken
        self._num_streams = 0

    def read(self, num_bytes: int) -> bytes:
        """The next bytes of the content, at least one and at most `num_bytes`; none at its end."""
        while self._decompressor is not None or self._begins_stream():
            if content := self._unpacked(num_bytes):
                return content
        return b""

    def _unpacked(self, num_bytes: int) -> bytes:
        stored = b""
        if self._decompressor.needs_input:
            stored, self._stored = self._stored or self._raw.read(_FEED_BYTES), b""
            self._offset += len(stored)
            if not stored:
                raise OSError(TRUNCATED)
        try:
            content = self._decompressor.decompress(stored, num_bytes)
        except Exception as error:  # lzma has an error of its own
            raise OSError(str(error)) from error
        if self._decompressor.eof:
            self._stored, self._decompressor = self._decompressor.unused_data, None
            self._offset -= len(self._stored)
        return content

    def _begins_stream(self) -> bool:
        """Whether another stream begins, for which it makes a decompressor. Raises OSError for bytes that begin none."""
        if self._num_streams:
            self._skip_padding()
        first_bytes = _FIRST_BYTES[self._compression]
        self._fill(len(first_bytes))
        if self._num_streams and not self._stored:
            return False
        if self._num_streams and not first_bytes.startswith(self._stored[: len(first_bytes)]):
            raise OSError(NO_STREAM)
        self._num_streams += 1
        self._decompressor = _decompressor(self._compression)
        return True

    def _skip_padding(self) -> None:
        begin = self._offset
        while self._fill(1):
            rest = self._stored.lstrip(b"\0")
            self._offset += len(self._stored) - len(rest)
            self._stored = rest
            if rest:
                break
        is_of_xz = self._compression == "xz" and (self._offset - begin) % _XZ_PADDING == 0
        end = self._offset if not self._stored else -1
        if self._offset > begin and not is_of_xz and not is_padding(self._offset, end):
            raise OSError(NO_STREAM)

    def _fill(self, num_bytes: int) -> bool:
        """Reads until so many stored bytes are there; false at the end of the file before."""
        while len(self._stored) < num_bytes:
            more = self._raw.read(_FEED_BYTES)
            if not more:
                return False
            self._stored += more
        return True


def _decompressor(compression: str) -> Any:
    if compression == "bzip2":
        from bz2 import BZ2Decompressor

        return BZ2Decompressor()
    from lzma import FORMAT_XZ, LZMADecompressor

    return LZMADecompressor(format=FORMAT_XZ, memlimit=_MOST_XZ_MEMORY)
