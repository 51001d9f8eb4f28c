"""Compressed files of many members, and where their lines begin."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import lz4.frame
import zstandard

from datapipe.errors import UnsplittableInputError
from datapipe.stage import FieldNames, InputFile, OpenInput, Rejected, Split
from datapipe.storage import open_input
from stages.read.jsonl import Jsonl
from tests.support.reader_results import input_file

Books = tuple[list[tuple[int, str, str | None]], list[Rejected], int]


def _gzip(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


def _stored_blocks(content: bytes) -> bytes:
    """A gzip member whose content stands in it as it is."""
    return gzip.compress(content, 0, mtime=0)


def _streamed(content: bytes) -> bytes:
    """A frame that does not tell the size of its content."""
    packer = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    return packer.compress(content) + packer.flush()


def _blocks(content: bytes) -> bytes:
    """An LZ4 frame with checksums of blocks, that does not tell the size of its content."""
    return lz4.frame.compress(content, store_size=False, block_checksum=True, content_checksum=True)


PACKERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": (".gz", _gzip),
    "gzip, stored blocks": (".gz", _stored_blocks),
    "zstd": (".zst", zstandard.ZstdCompressor(write_checksum=True).compress),
    "zstd, streamed": (".zst", _streamed),
    "lz4": (".lz4", lambda content: lz4.frame.compress(content, content_checksum=True)),
    "lz4, streamed": (".lz4", _blocks),
}
"""Endings of files, and what makes a member, by name."""


def write(folder: Path, packing: str, contents: Sequence[bytes], between: bytes = b"") -> InputFile:
    """A file of members with these contents."""
    ending, pack = PACKERS[packing]
    return input_file(folder / f"a.jsonl{ending}", between.join(map(pack, contents)))


def line_positions(packing: str, contents: Sequence[bytes]) -> list[int]:
    """Where lines begin that are not empty, by members and bytes, one at a time."""
    pack = PACKERS[packing][1]
    offsets = accumulate((len(pack(content)) for content in contents), initial=0)
    places = [(offset << 24) + byte for offset, content in zip(offsets, contents) for byte in range(len(content))]
    text = b"".join(contents)
    begins = [0, *(byte + 1 for byte in range(len(text)) if text[byte : byte + 1] == b"\n")]
    return [places[begin] for begin, end in pairwise([*begins, len(text) + 1]) if text[begin : end - 1].strip()]


def books(reader: Jsonl, splits: Sequence[Split], opened: OpenInput = open_input) -> Books:
    """All that a reading finds: documents with their positions, rejected lines and damage, and bytes of lines."""
    documents: list[tuple[int, str, str | None]] = []
    rejected: list[Rejected] = []
    num_bytes = 0
    for split in splits:
        for batch in reader.read(split, FieldNames(), opened):
            documents += zip(batch.positions.tolist(), batch.content.to_pylist(), batch.ids.to_pylist())
            rejected += batch.rejected
            num_bytes += batch.input_bytes
    positions = [position for position, *_ in documents]
    assert positions == sorted(set(positions))
    assert [reject.position for reject in rejected] == sorted({reject.position for reject in rejected})
    return documents, rejected, num_bytes


def in_ranges(reader: Jsonl, file: InputFile, borders: Sequence[int]) -> Books | None:
    """What is found by ranges with these borders; None where one says that the file cannot be cut there."""
    ends = [0, *borders, file.num_bytes]
    try:
        return books(reader, [Split(file=file, start=start, stop=stop) for start, stop in pairwise(ends)])
    except UnsplittableInputError:
        return None
