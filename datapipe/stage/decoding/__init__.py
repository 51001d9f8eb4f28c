"""From the stored bytes of an input file to its content, and to blocks of whole lines.

archives.py   formats by their first bytes
content.py    decompression, and UTF-16 and UTF-32 as UTF-8
streams.py    bzip2 and xz, which Arrow does not read, or not exactly
stored.py     stored bytes by their offset
frames.py     where Zstandard and LZ4 frames end
windows.py    the content of Zstandard and LZ4 frames
members.py    the members of gzip, Zstandard and LZ4 files, of a file or of a range of its stored bytes
lines.py      blocks of whole lines, of a file or of a range of it
json_values.py JSON arrays, and objects over several lines, as JSON lines
"""

from datapipe.stage.decoding.archives import (
    COMPRESSION_OF_ENDING,
    HEAD_BYTES,
    MAGIC,
    BrokenStreamError,
    check_format,
    lfs_pointer,
)
from datapipe.stage.decoding.content import BLOCK_BYTES, as_utf8, decoded
from datapipe.stage.decoding.lines import BOM, EXCERPT_BYTES, Block, byte_ranges, chunks, is_one_text, line_blocks, too_long
from datapipe.stage.decoding.members import HAVE_MEMBERS, OFFSET_BITS, has_members
from datapipe.stage.decoding.streams import is_padding
from datapipe.stage.decoding.windows import MOST_WINDOW_BYTES

__all__ = [
    "BLOCK_BYTES",
    "BOM",
    "COMPRESSION_OF_ENDING",
    "EXCERPT_BYTES",
    "HAVE_MEMBERS",
    "HEAD_BYTES",
    "MAGIC",
    "MOST_WINDOW_BYTES",
    "OFFSET_BITS",
    "Block",
    "BrokenStreamError",
    "as_utf8",
    "byte_ranges",
    "check_format",
    "chunks",
    "decoded",
    "has_members",
    "is_one_text",
    "is_padding",
    "lfs_pointer",
    "line_blocks",
    "too_long",
]
