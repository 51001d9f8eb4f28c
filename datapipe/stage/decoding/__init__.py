"""From the stored bytes of an input file to its content, and to blocks of whole lines.

archives.py   formats by their first bytes, and decompression
streams.py    bzip2 and xz, which Arrow does not read, or not exactly
stored.py     stored bytes by their offset
frames.py     where Zstandard and LZ4 frames end
members.py    the members of gzip, Zstandard and LZ4 files, of a file or of a range of its stored bytes
lines.py      blocks of whole lines, of a file or of a range of it
"""

from datapipe.stage.decoding.archives import (
    BLOCK_BYTES,
    COMPRESSION_OF_ENDING,
    MAGIC,
    BrokenStreamError,
    check_format,
    decoded,
)
from datapipe.stage.decoding.lines import BOM, EXCERPT_BYTES, Block, byte_ranges, chunks, line_blocks, too_long
from datapipe.stage.decoding.members import HAVE_MEMBERS, OFFSET_BITS, has_members

__all__ = [
    "BLOCK_BYTES",
    "BOM",
    "COMPRESSION_OF_ENDING",
    "EXCERPT_BYTES",
    "HAVE_MEMBERS",
    "MAGIC",
    "OFFSET_BITS",
    "Block",
    "BrokenStreamError",
    "byte_ranges",
    "check_format",
    "chunks",
    "decoded",
    "has_members",
    "line_blocks",
    "too_long",
]
