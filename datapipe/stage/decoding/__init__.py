"""From the stored bytes of an input file to its content, and to blocks of whole lines.

archives.py   formats by their first bytes, and decompression
streams.py    bzip2 and xz, which Arrow does not read, or not exactly
lines.py      blocks of whole lines, of a file or of a byte range of it
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

__all__ = [
    "BLOCK_BYTES",
    "BOM",
    "COMPRESSION_OF_ENDING",
    "EXCERPT_BYTES",
    "MAGIC",
    "Block",
    "BrokenStreamError",
    "byte_ranges",
    "check_format",
    "chunks",
    "decoded",
    "line_blocks",
    "too_long",
]
