"""Makes the look-up file of an output (`file.py` has its layout), at the first start and when the output has changed.

    tables, batch by batch  ─▶  columns, written at their place  ─┐
                            ─▶  hashes of ids and URLs  ─▶ sorted ┼─▶  header ─▶ renamed to its name
                                keys                    ─▶ sorted ┘

Memory holds one record batch and one bucket of `orders.py`, whatever the number of documents. A killed making leaves files with
other names, which the next one deletes. Two servers of one output wait for each other.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import xxhash

from datapipe.columns import as_large_string, compute, key_halves, numbers, text_lengths
from datapipe.errors import DatapipeError, UserError
from datapipe.exchange.partitions import read_table
from datapipe.explore.lookup.file import COLUMNS, MAGIC, NO_SIZE, PREFIX, VERSION, LookUp, content_checksum
from datapipe.explore.lookup.orders import CHUNK_ROWS, Words, sorted_rows
from datapipe.explore.output import URL_COLUMNS, BrowsedOutput, Table
from datapipe.explore.stored import batch_offsets
from datapipe.ledger.names import WORK
from datapipe.machine_cache import cache_home

FOLDER = f"{WORK}/browse"
FILE = "documents.lookup"
_ALIGNED = 64
_MOST_DOCUMENTS = 0xFFFFFFFF
_PAIR = np.dtype([("hash", "<u8"), ("row", "<u4")])

Tell = Callable[[int, int, float], None]
"""Called with documents done, documents in all, and seconds."""


def look_up(output: BrowsedOutput, tell: Tell) -> LookUp:
    """The look-up file of an output, made where there is none for its tables. Raises UserError where it cannot be written."""
    folder = _folder(output)
    path = folder / FILE
    found = LookUp.open(path, output)
    if found is not None:
        return found
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(folder):
            found = LookUp.open(path, output)
            if found is None:
                _make(output, folder, path, tell)
                found = LookUp.open(path, output)
    except OSError as error:
        raise UserError(
            f"{folder}: the look-up file cannot be written: {error.strerror or error}. It takes up to 64 bytes a document. "
            f"Make room, or the folder writable, and start again."
        ) from error
    if found is None:
        raise DatapipeError(f"{path}: the look-up file is not readable after it was written. This is a defect of datapipe.")
    return found


def _folder(output: BrowsedOutput) -> Path:
    """Where the look-up file is: under the output, or in the cache of this machine for one that cannot be written or mapped."""
    local = output.root.local
    if local is not None and os.access(local / WORK, os.W_OK):
        return local / FOLDER
    return cache_home() / "browse" / xxhash.xxh3_128_hexdigest(output.root.url.encode())


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    with open(folder / "lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(output: BrowsedOutput, folder: Path, path: Path, tell: Tell) -> None:
    if output.num_documents > _MOST_DOCUMENTS:
        raise UserError(f"{output.num_documents:,} documents: a look-up file holds at most {_MOST_DOCUMENTS:,}.")
    for left in folder.glob("*.making"):
        shutil.rmtree(left)
    scratch = folder / f"{os.getpid()}.making"
    scratch.mkdir()
    try:
        _Making(output, scratch, tell).write(scratch / FILE)
        os.replace(scratch / FILE, path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


class _Making:
    """One look-up file on its way.

    Attributes:
        num_batches: by table.
        thresholds: by reason, the only threshold so far; None once there are several.
    """

    def __init__(self, output: BrowsedOutput, scratch: Path, tell: Tell) -> None:
        self.output, self.scratch, self.tell = output, scratch, tell
        self.num_docs = output.num_documents
        self.files = np.sort(np.array(list(output.inspector.locator.files), np.uint64))
        self.last_positions = np.zeros(len(self.files), np.uint64)
        self.reasons: dict[tuple[str, str, str, str], int] = {}
        self.counts: list[int] = []
        self.thresholds: list[float | None] = []
        self.num_batches: list[int] = []
        self.sections: dict[str, tuple[int, int, str]] = {}
        self.batch_rows: list[np.ndarray] = []
        self.batch_offsets: list[np.ndarray] = []
        self.started = monotonic()

    def write(self, path: Path) -> None:
        with open(path, "w+b") as stream:
            columns = self._columns(stream)
            with open(self.scratch / "id", "w+b") as ids, open(self.scratch / "url", "w+b") as urls:
                self._fill(columns, {"id": ids, "url": urls})
                if all(threshold is not None for threshold in self.thresholds):
                    del self.sections["threshold"]  # it is the last column, and overwritten by what follows
                    stream.seek(self._end())
                    stream.truncate()
                for kind, pairs in (("id", ids), ("url", urls)):
                    self._write_hashes(stream, kind, pairs)
            position = columns["position"]
            rows = sorted_rows(self._key_words(columns), self.num_docs, lambda rows: position[rows])
            self._append(stream, "by_key", "<u4", rows)
            self._append(stream, "file_hash", "<u8", [self.files])
            self._append(stream, "batch_row", "<u4", self.batch_rows)
            self._append(stream, "batch_offset", "<u8", self.batch_offsets)
            self._write_header(stream, path)
            stream.flush()
            os.fsync(stream.fileno())

    # ---------------------------------------------------------------------------------------------- columns

    def _columns(self, stream: BinaryIO) -> dict[str, np.ndarray]:
        """The columns of documents, mapped for writing. `threshold` comes last."""
        names = [*(name for name in COLUMNS if name != "threshold"), "threshold"]
        for name in names:
            self.sections[name] = (self._end(), self.num_docs, COLUMNS[name])
        stream.truncate(self._end())
        whole = np.memmap(stream, np.uint8, "r+")
        return {
            name: whole[offset : offset + length * np.dtype(kind).itemsize].view(kind)
            for name, (offset, length, kind) in self.sections.items()
        }

    def _end(self) -> int:
        """Where the next section begins."""
        ends = [offset + length * np.dtype(kind).itemsize for offset, length, kind in self.sections.values()]
        return -(-max([PREFIX.size, *ends]) // _ALIGNED) * _ALIGNED

    def _fill(self, columns: dict[str, np.ndarray], pairs: dict[str, BinaryIO]) -> None:
        row = 0
        for table in self.output.tables:
            with self.output.root.open_input(table.file.path) as stream:
                offsets = batch_offsets(stream)[:-1]
            starts = [row]
            for batch in read_table(self.output.root, table.file, _wanted(table)):
                self._fill_batch(columns, pairs, table, batch, row)
                row += batch.num_rows
                starts.append(row)
                self.tell(row, self.num_docs, monotonic() - self.started)
            self.num_batches.append(len(offsets))
            self.batch_rows.append(np.array(starts[:-1], "<u4"))
            self.batch_offsets.append(np.array(offsets, "<u8"))

    def _fill_batch(
        self, columns: dict[str, np.ndarray], pairs: dict[str, BinaryIO], table: Table, batch: pa.RecordBatch, row: int
    ) -> None:
        chosen = slice(row, row + batch.num_rows)
        hashes, positions = key_halves(batch.column("key"))
        files = np.searchsorted(self.files, hashes)
        if (self.files[np.minimum(files, len(self.files) - 1)] != hashes).any():
            raise DatapipeError(f"{table.file.path}: documents of a file that is no input of this run. Run its mixture again.")
        np.maximum.at(self.last_positions, files, positions)
        columns["file"][chosen], columns["position"][chosen] = files, positions
        values, thresholds = _measured(batch)
        columns["value"][chosen], columns["threshold"][chosen] = values, thresholds
        columns["size"][chosen] = _sizes(batch)
        columns["reason"][chosen] = self._reasons(table, batch, thresholds)
        self._add_hashes(pairs, table, batch, files, row)

    def _reasons(self, table: Table, batch: pa.RecordBatch, thresholds: np.ndarray) -> np.ndarray:
        """The number of the reason of each row, (num_rows,) uint16."""
        if table.fate == "kept":
            return np.full(batch.num_rows, self._reason((table.source, table.fate, "", ""), thresholds), np.uint16)
        stages = batch.column("stage")
        rules = batch.column("rule") if table.fate == "dropped" else pa.array([""] * batch.num_rows)
        encoded = compute.binary_join_element_wise(stages, rules, "\0").dictionary_encode()
        indices, out = numbers(encoded.indices), np.empty(batch.num_rows, np.uint16)
        for index, name in enumerate(encoded.dictionary.to_pylist()):
            stage, _, rule = name.partition("\0")
            of_reason = indices == index
            out[of_reason] = self._reason((table.source, table.fate, stage, rule), thresholds[of_reason])
        return out

    def _reason(self, name: tuple[str, str, str, str], thresholds: np.ndarray) -> int:
        if name not in self.reasons:
            if len(self.reasons) > np.iinfo(np.uint16).max:
                raise UserError("more than 65,536 reasons for which documents were dropped. Expected filters with fewer rules.")
            self.reasons[name] = len(self.reasons)
            self.counts.append(0)
            self.thresholds.append(float(thresholds[0]) if len(thresholds) else np.nan)
        number = self.reasons[name]
        self.counts[number] += len(thresholds)
        known = self.thresholds[number]
        if known is not None and not np.array_equal(thresholds, np.full(len(thresholds), known), equal_nan=True):
            self.thresholds[number] = None
        return number

    # ---------------------------------------------------------------------------------------------- hashes

    def _add_hashes(self, pairs: dict[str, BinaryIO], table: Table, batch: pa.RecordBatch, files: np.ndarray, row: int) -> None:
        names = batch.schema.names
        if "id" in names:
            ids = as_large_string(batch.column("id"))
            is_own = compute.and_(ids.is_valid(), compute.not_equal(ids, self._names(table, batch, files)))
            _write_pairs(pairs["id"], ids, is_own.fill_null(False), row)
        url = next((name for name in URL_COLUMNS if name in names), None)
        if url is not None and (pa.types.is_string(batch.column(url).type) or pa.types.is_large_string(batch.column(url).type)):
            urls = as_large_string(batch.column(url))
            _write_pairs(pairs["url"], urls, urls.is_valid(), row)

    def _names(self, table: Table, batch: pa.RecordBatch, files: np.ndarray) -> pa.Array:
        """The names of documents, which are the ids of those that have none of their own."""
        found, indices = np.unique(files, return_inverse=True)
        paths = [self.output.inspector.locator.files[int(self.files[number])][1].path for number in found]
        prefixes = pa.array([f"{table.source}/{path}:" for path in paths], pa.large_string()).take(pa.array(indices))
        positions = pa.array(key_halves(batch.column("key"))[1]).cast(pa.large_string())
        return compute.binary_join_element_wise(prefixes, positions, pa.scalar("", pa.large_string()))

    def _write_hashes(self, stream: BinaryIO, kind: str, pairs: BinaryIO) -> None:
        """The hashes of a kind in ascending order, and their rows."""
        pairs.flush()
        count = os.fstat(pairs.fileno()).st_size // _PAIR.itemsize
        if not count:
            return
        mapped = np.memmap(pairs, _PAIR, "r")

        def words(start: int, stop: int) -> np.ndarray:
            return mapped["hash"][start:stop].copy()

        self._append(stream, f"{kind}_hash", "<u8", (mapped["hash"][part] for part in sorted_rows(words, count)))
        self._append(stream, f"{kind}_row", "<u4", (mapped["row"][part] for part in sorted_rows(words, count)))

    # ---------------------------------------------------------------------------------------------- orders, header

    def _key_words(self, columns: dict[str, np.ndarray]) -> Words:
        """Words in the order of keys: the position of each document as if all files stood one behind the other. Where it takes
        more than 63 bits, the last bits of the positions are left out, and decide between equal words."""
        sizes = [int(last) + 1 for last in self.last_positions]
        shift = max(0, sum(sizes).bit_length() - 63)  # positions in compressed archives have 24 bits for the record in a member
        begins = np.cumsum([0, *((size >> shift) + 1 for size in sizes[:-1])], dtype=np.uint64)

        def words(start: int, stop: int) -> np.ndarray:
            return begins[columns["file"][start:stop]] + (columns["position"][start:stop] >> np.uint64(shift))

        return words

    def _append(self, stream: BinaryIO, name: str, kind: str, parts: Any) -> None:
        begin, count = self._end(), 0
        stream.seek(begin)
        for part in parts:
            for start in range(0, len(part), CHUNK_ROWS):
                stream.write(part[start : start + CHUNK_ROWS].astype(kind).tobytes())
            count += len(part)
        self.sections[name] = (begin, count, kind)

    def _write_header(self, stream: BinaryIO, path: Path) -> None:
        stream.seek(begin := self._end())
        stream.truncate()
        stream.flush()
        reasons = [
            {
                **dict(zip(("source", "fate", "stage", "rule"), name)),
                "threshold": None if threshold is None or np.isnan(threshold) else threshold,
                "documents": count,
            }
            for name, threshold, count in zip(self.reasons, self.thresholds, self.counts)
        ]
        header = {
            "version": VERSION,
            "fingerprint": self.output.fingerprint,
            "checksum": content_checksum(path, begin),
            "documents": self.num_docs,
            "sections": {name: list(section) for name, section in self.sections.items()},
            "reasons": reasons,
            "tables": [[table.file.rows, count] for table, count in zip(self.output.tables, self.num_batches)],
        }
        content = json.dumps(header).encode()
        stream.write(content)
        stream.seek(0)
        stream.write(PREFIX.pack(MAGIC, begin, len(content), xxhash.xxh3_64_intdigest(content)))


def _wanted(table: Table) -> tuple[str, ...]:
    if table.fate == "kept":
        return ("key", "id", "text", *URL_COLUMNS)
    return ("key", "id", "stage", "rule", "value", "threshold")


def _measured(batch: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
    """What the rule measured, and its threshold: (num_rows,) float64 each, NaN where there is none."""
    if "threshold" not in batch.schema.names:
        nothing = np.full(batch.num_rows, np.nan)
        return nothing, nothing
    values, thresholds = (batch.column(name).fill_null(np.nan) for name in ("value", "threshold"))
    return numbers(values), numbers(thresholds)


def _sizes(batch: pa.RecordBatch) -> np.ndarray:
    if "text" not in batch.schema.names:
        return np.full(batch.num_rows, NO_SIZE, np.uint32)
    return np.minimum(text_lengths(batch.column("text")), NO_SIZE - 1).astype(np.uint32)


def _write_pairs(stream: BinaryIO, texts: pa.Array, chosen: pa.Array, row: int) -> None:
    """Appends the hash and the number of each chosen row."""
    numbers_of_rows = np.flatnonzero(numbers(chosen))
    if len(numbers_of_rows):
        pairs = np.empty(len(numbers_of_rows), _PAIR)
        pairs["hash"] = hashes_of(texts.filter(chosen))
        pairs["row"] = numbers_of_rows + row
        stream.write(pairs.tobytes())


def hashes_of(texts: pa.Array) -> np.ndarray:
    """The 64-bit hashes of texts, (num_texts,) large_string without nulls."""
    from datapipe.columns import text_buffers
    from datapipe.kernels.dedup.text_hashes import hash_texts  # imported on first use: it loads numba

    offsets, data = text_buffers(texts)
    hashes, digests = np.empty(len(texts), np.uint64), np.empty(len(texts), np.uint64)
    hash_texts(offsets, data, hashes, digests)
    return hashes
