"""The look-up file: a few columns about every document of an output, which the server maps into memory.

    32 bytes     magic, offset and length of the header, checksum of the header
    columns      one number a document, in the order of the tables of the output
    orders       documents by key, by hash of their id, by hash of their URL
    files        hashes of the input files, 8 bytes each
    batches      where each record batch of each table begins, 12 bytes each
    header       JSON: version, fingerprint of the tables, checksum of all before the header, sections, tables, reasons

| section | bytes a document | |
|---|---|---|
| `file`, `position` | 4 + 8 | the key: number of the input file, position in it |
| `reason` | 2 | number of (source, fate, stage, rule) in the header |
| `value` | 8 | what the rule measured; NaN where it measured nothing |
| `threshold` | 8, or 0 | only where thresholds differ between the documents of one reason |
| `size` | 4 | bytes of the text; `NO_SIZE` where the tables do not hold the text |
| `by_key` | 4 | rows in the order of keys |
| `id_hash`, `id_row` | 12 for a document with an id of its own | ascending hashes, and the row of each |
| `url_hash`, `url_row` | 12 for a document with a URL | the same |

Together at most 62 bytes; files and batches, mostly of thousands of documents, take less than a byte more. The row of a
document in its table follows from its number here, so nothing stores it. The file is written under another name and renamed
(`making.py`): it is whole or absent. Its bytes are read once when it is opened, and a damaged file counts as absent: a flipped
bit would show another document, or none.
"""

from __future__ import annotations

import json
import struct
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import xxhash

from datapipe.explore.output import BrowsedOutput

VERSION = 3
MAGIC = b"dplookup"
PREFIX = struct.Struct("<8sQQQ")
"""Magic, offset and bytes of the header, and its 64-bit checksum."""

_CHUNK_BYTES = 1 << 20

NO_SIZE = 0xFFFFFFFF
COLUMNS = {"file": "<u4", "position": "<u8", "reason": "<u2", "value": "<f8", "threshold": "<f8", "size": "<u4"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """What became of documents, and why.

    Attributes:
        stage, rule: by their names in the run; empty for kept documents, the rule also for quarantined ones.
        threshold: None where there is none, or where it differs between documents.
    """

    source: str
    fate: str
    stage: str
    rule: str
    threshold: float | None
    documents: int


class LookUp:
    """A mapped look-up file.

    Attributes:
        num_docs: documents.
        num_bytes: of the file.
        reasons: by number.
        tables: rows (start, stop) and batches (start, stop) of each table of the output, in order.
    """

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self._path, self._sections = path, header["sections"]
        self.num_docs: int = header["documents"]
        self.num_bytes = path.stat().st_size
        self.reasons = tuple(Reason(**reason) for reason in header["reasons"])
        tables = np.array(header["tables"], np.int64).reshape(-1, 2)
        self.table_rows, self.table_batches = (np.concatenate([[0], np.cumsum(tables[:, number])]) for number in (0, 1))

    @classmethod
    def open(cls, path: Path, output: BrowsedOutput) -> Self | None:
        """Maps the file; None where there is none for exactly these tables, or it is damaged."""
        header = read_header(path)
        if header is None or (header["version"], header["fingerprint"]) != (VERSION, output.fingerprint):
            return None
        return cls(path, header) if content_checksum(path) == header["checksum"] else None

    @cached_property
    def files(self) -> np.ndarray:
        """The hashes of the input files, (num_files,) uint64, ascending."""
        return self.section("file_hash")

    def section(self, name: str) -> np.ndarray:
        """A section, mapped read-only."""
        return self._mapped[name]

    @cached_property
    def _mapped(self) -> dict[str, np.ndarray]:
        whole = np.memmap(self._path, np.uint8, "r")
        return {
            name: whole[offset : offset + length * np.dtype(kind).itemsize].view(kind)
            for name, (offset, length, kind) in self._sections.items()
        }

    def has(self, name: str) -> bool:
        """Whether the section has entries."""
        return name in self._sections and self._sections[name][1] > 0

    def keys(self, rows: np.ndarray) -> list[bytes]:
        """The keys of rows, 16 bytes each."""
        halves = np.empty((len(rows), 2), ">u8")
        halves[:, 0] = self.files[self.section("file")[rows]]
        halves[:, 1] = self.section("position")[rows]
        return [half.tobytes() for half in halves]

    def rows_of_key(self, key: bytes) -> list[int]:
        """The rows of a document: one, or none."""
        number = int(np.searchsorted(self.files, np.frombuffer(key[:8], ">u8")[0]))
        position = int.from_bytes(key[8:], "big")
        if number >= len(self.files) or int(self.files[number]) != int.from_bytes(key[:8], "big"):
            return []
        files, positions, by_key = (self.section(name) for name in ("file", "position", "by_key"))

        def at(index: int) -> tuple[int, int]:
            row = int(by_key[index])
            return int(files[row]), int(positions[row])

        index, rows = bisect_left(range(self.num_docs), (number, position), key=at), []
        while index < self.num_docs and at(index) == (number, position):
            rows.append(int(by_key[index]))
            index += 1
        return rows

    def rows_of_hash(self, kind: str, hashed: int) -> list[int]:
        """The rows whose "id" or "url" has this hash."""
        if not self.has(f"{kind}_hash"):
            return []
        hashes, wanted = self.section(f"{kind}_hash"), np.uint64(hashed)
        start, stop = (int(np.searchsorted(hashes, wanted, side)) for side in ("left", "right"))
        return self.section(f"{kind}_row")[start:stop].tolist()

    def place(self, row: int) -> tuple[int, int, int]:
        """Where a document is stored: number of its table, of the record batch in it, and its row in the batch."""
        table = int(np.searchsorted(self.table_rows, row, "right")) - 1
        first, stop = self.table_batches[table : table + 2]
        starts = self.section("batch_row")[first:stop]
        batch = int(np.searchsorted(starts, row, "right")) - 1
        return table, batch, row - int(starts[batch])

    def batches(self, table: int) -> tuple[np.ndarray, np.ndarray]:
        """The first row of each record batch of a table, and its byte offset in the file: (num_batches,) each."""
        chosen = slice(*self.table_batches[table : table + 2])
        return self.section("batch_row")[chosen], self.section("batch_offset")[chosen]


def content_checksum(path: Path, stop: int | None = None) -> str:
    """The checksum of all between the prefix and the header, read in chunks of a MiB: 0.1 s of CPU for 10 million documents.

    Args:
        stop: where the header begins; None where the prefix tells.
    """
    hasher = xxhash.xxh3_128()
    with open(path, "rb") as stream:
        prefix = stream.read(PREFIX.size)
        left = (PREFIX.unpack(prefix)[1] if stop is None else stop) - PREFIX.size
        while left > 0 and (chunk := stream.read(min(left, _CHUNK_BYTES))):
            hasher.update(chunk)
            left -= len(chunk)
    return hasher.hexdigest()


def read_header(path: Path) -> dict[str, Any] | None:
    """The header of a look-up file; None where the file is absent, damaged or something else."""
    try:
        with open(path, "rb") as stream:
            magic, offset, num_bytes, checksum = PREFIX.unpack(stream.read(PREFIX.size))
            stream.seek(offset)
            content = stream.read(num_bytes)
    except (OSError, struct.error):
        return None
    if magic != MAGIC or len(content) != num_bytes or xxhash.xxh3_64_intdigest(content) != checksum:
        return None
    return json.loads(content)
