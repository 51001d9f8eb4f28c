"""The decompressors of one member: gzip by ISA-L, frames of Zstandard and LZ4, streams of bzip2 and xz.

All are called as those of the standard library, but Zstandard's knows no limit of content. Memory is the window of Zstandard, a
block of 4 MiB of LZ4, 8 MB of bzip2, and at most `_MOST_XZ_MEMORY` of xz.

A Zstandard file may begin with a dictionary, in a frame without content (iipc warc-specifications, "WARC and Zstandard").
"""

from collections.abc import Callable
from typing import Any

from datapipe.stage.decoding.formats import MAGIC, BrokenStreamError
from datapipe.stage.decoding.stored import StoredBytes

MOST_WINDOW_BYTES = 128 << 20  # the default of Zstandard
_MOST_XZ_MEMORY = 256 << 20
"""`xz -9` takes 65 MiB to unpack. A file of a few bytes may ask for 4 GiB."""

_DICTIONARY = b"\x5d\x2a\x4d\x18"
_MOST_DICTIONARY_BYTES = 16 << 20
_MOST_HEADER_BYTES = 18  # the longest header of a Zstandard frame (RFC 8878, 3.1.1.1)


def decompressors(compression: str, dictionary: bytes, max_window_bytes: int) -> Callable[[], Any]:
    """Makes the decompressors of a file. Once `eof` is true, `unused_data` are the bytes behind the member."""
    if compression == "gzip":
        from isal.igzip_lib import DECOMP_GZIP, IgzipDecompressor

        return lambda: IgzipDecompressor(flag=DECOMP_GZIP)
    if compression == "zstd":
        return _zstd(dictionary, max_window_bytes).decompressobj
    if compression == "lz4":
        from lz4 import frame

        make: Any = frame.LZ4FrameDecompressor
        return make
    if compression == "bzip2":
        from bz2 import BZ2Decompressor

        return BZ2Decompressor
    from lzma import FORMAT_XZ, LZMADecompressor

    return lambda: LZMADecompressor(format=FORMAT_XZ, memlimit=_MOST_XZ_MEMORY)


def _zstd(dictionary: bytes, max_window_bytes: int) -> Any:
    import zstandard

    content = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
    return zstandard.ZstdDecompressor(dict_data=content, max_window_size=max_window_bytes)


def window_bytes(stored: StoredBytes, offset: int) -> int:
    """How far back the Zstandard frame at an offset refers to its content; 0 where no header of a frame is there."""
    import zstandard

    try:
        return zstandard.get_frame_parameters(stored.header(offset, _MOST_HEADER_BYTES)).window_size
    except zstandard.ZstdError:
        return 0


def dictionary_of(stored: StoredBytes) -> bytes:
    """The dictionary in the first frame of a Zstandard file; nothing where there is none. Raises BrokenStreamError."""
    head = stored.header(0, len(_DICTIONARY) + 4)
    if not head.startswith(_DICTIONARY):
        return b""
    num_bytes = int.from_bytes(head[len(_DICTIONARY) :], "little")
    content = stored.header(len(head), min(num_bytes, _MOST_DICTIONARY_BYTES + 1))
    if len(head) < len(_DICTIONARY) + 4 or len(content) < min(num_bytes, _MOST_DICTIONARY_BYTES + 1):
        raise BrokenStreamError("the zstd archive is cut off: the file ends within the dictionary at its beginning")
    if content.startswith(MAGIC["zstd"]) and len(content) <= _MOST_DICTIONARY_BYTES:
        try:
            with _zstd(b"", MOST_WINDOW_BYTES).stream_reader(content) as unpacked:
                content = unpacked.read(_MOST_DICTIONARY_BYTES + 1)
        except Exception as error:
            raise BrokenStreamError(f"the dictionary at the beginning of the zstd archive is damaged: {error}") from None
    if len(content) > _MOST_DICTIONARY_BYTES:
        raise BrokenStreamError(f"the file begins with a dictionary of more than {_MOST_DICTIONARY_BYTES:,} bytes")
    return content
