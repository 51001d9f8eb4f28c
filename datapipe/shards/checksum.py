"""Checksums: xxh3-128, written as "xxh3_128:<32 hex digits>".

file     every byte of it, in the manifest
block    the rows of one record batch or row group, whatever the format, in the shard itself: it comes with the block
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import xxhash

from datapipe import columns
from datapipe.storage import Root

_CHUNK_BYTES, _REMOTE_CHUNK_BYTES = 1 << 20, 8 << 20
"""That are read at a time. On an object store each is a request, and a request takes as long as some MiB do."""


def bytes_checksum(content: bytes | memoryview) -> str:
    return f"xxh3_128:{xxhash.xxh3_128_hexdigest(content)}"


def file_checksum(root: Root, relative: str) -> tuple[str, int]:
    """Checksum and size in bytes of a file, read in chunks. Raises FileNotFoundError or OSError.

    The file is not mapped: its pages would count as memory of the process.
    """
    hasher, size, chunk_bytes = xxhash.xxh3_128(), 0, _CHUNK_BYTES if root.local is not None else _REMOTE_CHUNK_BYTES
    with root.filesystem.open_input_file(root.path(relative)) as stream:
        while chunk := stream.read_buffer(chunk_bytes):
            hasher.update(chunk)
            size += len(chunk)
    return f"xxh3_128:{hasher.hexdigest()}", size


def rows_checksum(rows: pa.RecordBatch) -> str:
    """Checksum of the values of rows of `schemas.sequences`, whatever their layout in a file. A slice counts from its start.

    A damaged file cannot make this read outside the batch.
    """
    hasher = xxhash.xxh3_128()
    hasher.update(np.ascontiguousarray(columns.numbers(rows.column("tokens").flatten())).data)
    for name in ("lengths", "keys", "starts"):
        lists = rows.column(name)
        offsets = columns.numbers(lists.offsets)  # (num_rows + 1,) into the pieces
        pieces = columns.key_matrix(lists.values) if name == "keys" else columns.numbers(lists.values)
        hasher.update((offsets - offsets[0]).data)
        hasher.update(np.ascontiguousarray(pieces[int(offsets[0]) : int(offsets[-1])]).data)
    return f"xxh3_128:{hasher.hexdigest()}"
