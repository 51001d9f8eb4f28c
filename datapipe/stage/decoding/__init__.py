"""From the stored bytes of an input file to its content, and to blocks of whole lines."""

from datapipe.stage.decoding.content import ByteStream, as_utf8, decoded
from datapipe.stage.decoding.decompressors import MOST_WINDOW_BYTES, decompressors
from datapipe.stage.decoding.formats import COMPRESSION_OF_ENDING, HEAD_BYTES, MAGIC, BrokenStreamError, lfs_pointer
from datapipe.stage.decoding.lines import BOM, EXCERPT_BYTES, Block, byte_ranges, chunks, is_one_text, line_blocks, too_long
from datapipe.stage.decoding.members import HAVE_MEMBERS, Beginning, Member, Members, has_members, opened_members
from datapipe.stage.decoding.stored import BLOCK_BYTES, StoredBytes
from datapipe.stage.reader import OFFSET_BITS
