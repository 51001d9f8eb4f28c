"""Checksums of files and buffers: xxh3-128, written as "xxh3_128:<32 hex digits>"."""

from __future__ import annotations

import xxhash

from datapipe.storage import Root

_CHUNK_BYTES = 8 << 20


def bytes_checksum(content: bytes | memoryview) -> str:
    return f"xxh3_128:{xxhash.xxh3_128_hexdigest(content)}"


def file_checksum(root: Root, relative: str) -> tuple[str, int]:
    """Checksum and size in bytes of a file, read in pieces of 8 MiB. Raises FileNotFoundError or OSError."""
    hasher, size = xxhash.xxh3_128(), 0
    with root.open_input(relative) as stream:
        while chunk := stream.read_buffer(_CHUNK_BYTES):
            hasher.update(chunk)
            size += len(chunk)
    return f"xxh3_128:{hasher.hexdigest()}", size
