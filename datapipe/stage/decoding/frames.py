"""Where Zstandard and LZ4 frames end, by the sizes of their blocks. Nothing is decompressed.

    magic, header   block size, block   block size, block   …   last block or end mark   checksum

RFC 8878 (section 3.1.1) and the LZ4 frame format (lz4_Frame_format.md, 1.6.4). Arrow decompresses frames in a row as one stream
and does not tell where one ends. A frame is passed over in one step for each block, which holds up to 128 KiB or 4 MiB.
"""

from __future__ import annotations

from collections.abc import Callable

SKIPPABLE_BYTES = 8
"""The header of a skippable frame, which both formats have: its magic number, and the size of what follows."""

_ZSTD_BLOCK_BYTES = 128 << 10
_LZ4_BLOCK_BYTES = 4 << 20
_RESERVED, _RLE = 3, 1


def is_skippable(header: bytes) -> bool:
    """Whether a frame without content begins with these bytes: 0x184D2A50 to 0x184D2A5F, in little endian."""
    return header[1:4] == b"\x2a\x4d\x18" and header[0] >> 4 == 5


class Frame:
    """A frame, whose stored bytes are given from its beginning on, in parts of any size.

    Attributes:
        content_bytes: the size of its content, if the header tells it.
        window_bytes: how far back it refers to its content, once its header was given; 0 for LZ4.
        is_ended: whether its last byte was given.
        is_broken: whether the bytes given are not the beginning of a frame. The header at fault counts as given.
    """

    _MAGIC_AND_FLAGS = 5

    def __init__(self) -> None:
        self.content_bytes: int | None = None
        self.window_bytes = 0
        self.is_ended = self.is_broken = False
        self._held = b""
        self._wanted, self._on_header = self._MAGIC_AND_FLAGS, self._begin
        self._to_skip = 0
        self._is_last = False

    def take(self, stored: bytes | memoryview) -> int:
        """How many of the next stored bytes are of this frame, or end at the header at fault."""
        offset, num_bytes = 0, len(stored)
        while not (self.is_ended or self.is_broken):
            if self._to_skip:
                step = min(self._to_skip, num_bytes - offset)
                offset, self._to_skip = offset + step, self._to_skip - step
                if self._to_skip:
                    break
            if self._is_last:
                self.is_ended = True
                break
            header = self._held + bytes(stored[offset : offset + self._wanted - len(self._held)])
            offset += len(header) - len(self._held)
            if len(header) < self._wanted:
                self._held = header
                break
            self._held = b""
            self._on_header(header)
        return offset

    def _begin(self, header: bytes) -> None:
        """The magic number and the flags."""
        raise NotImplementedError

    def _expect(self, num_bytes: int, on_header: Callable[[bytes], None]) -> None:
        self._wanted, self._on_header = num_bytes, on_header

    def _skip(self, num_bytes: int, *, is_last: bool = False) -> None:
        self._to_skip, self._is_last = num_bytes, is_last


class ZstdFrame(Frame):
    """A Zstandard frame."""

    def _begin(self, header: bytes) -> None:
        flags = header[4]
        if header[:4] != b"\x28\xb5\x2f\xfd" or flags & 0b1000:
            self.is_broken = True
            return
        is_single_segment = flags >> 5 & 1
        self._checksum_bytes = 4 * (flags >> 2 & 1)
        self._size_bytes = (is_single_segment, 2, 4, 8)[flags >> 6]
        self._has_window = not is_single_segment
        rest = 1 - is_single_segment + (0, 1, 2, 4)[flags & 3] + self._size_bytes
        self._expect(rest, self._sizes)

    def _sizes(self, header: bytes) -> None:
        if self._size_bytes:
            size = int.from_bytes(header[-self._size_bytes :], "little")
            self.content_bytes = size + (256 if self._size_bytes == 2 else 0)
        base = 1 << 10 + (header[0] >> 3)
        self.window_bytes = base + (base >> 3) * (header[0] & 7) if self._has_window else self.content_bytes or 0
        self._expect(3, self._block)

    def _block(self, header: bytes) -> None:
        number = int.from_bytes(header, "little")
        kind, size = number >> 1 & 3, number >> 3
        if kind == _RESERVED or size > _ZSTD_BLOCK_BYTES:
            self.is_broken = True
            return
        is_last = bool(number & 1)
        self._skip((1 if kind == _RLE else size) + (self._checksum_bytes if is_last else 0), is_last=is_last)


class Lz4Frame(Frame):
    """An LZ4 frame."""

    def _begin(self, header: bytes) -> None:
        flags = header[4]
        if header[:4] != b"\x04\x22\x4d\x18" or flags >> 6 != 1:
            self.is_broken = True
            return
        self._block_checksum_bytes = 4 * (flags >> 4 & 1)
        self._size_bytes = 8 * (flags >> 3 & 1)
        self._checksum_bytes = 4 * (flags >> 2 & 1)
        self._expect(1 + self._size_bytes + 4 * (flags & 1) + 1, self._sizes)

    def _sizes(self, header: bytes) -> None:
        if self._size_bytes:
            self.content_bytes = int.from_bytes(header[1 : 1 + self._size_bytes], "little")
        self._expect(4, self._block)

    def _block(self, header: bytes) -> None:
        size = int.from_bytes(header, "little") & 0x7FFFFFFF
        if header == b"\0\0\0\0":
            self._skip(self._checksum_bytes, is_last=True)
        elif size > _LZ4_BLOCK_BYTES:
            self.is_broken = True
        else:
            self._skip(size + self._block_checksum_bytes)


FRAMES: dict[str, Callable[[], Frame]] = {"zstd": ZstdFrame, "lz4": Lz4Frame}
