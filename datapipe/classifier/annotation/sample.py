"""A keyed sample of documents: the same texts on every machine, however files are cut and named.

    documents, batch by batch ─▶ keyed 64-bit hash of each text ─▶ the N smallest hashes     first pass
                              └▶ the first document of each of these hashes ─▶ a Parquet file     second pass

A text that stands in several documents is one text, and is annotated once. The sample of fewer documents is a part of that of
more. Memory is one batch and 8 bytes a document of the sample. The file is in the order of the documents.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datapipe.columns import as_large_string, text_buffers
from datapipe.rng import keyed_hash, seed_for
from datapipe.storage import sync_file, sync_folder

SCHEMA = pa.schema([pa.field("id", pa.large_string(), nullable=False), pa.field("text", pa.large_string(), nullable=False)])

Documents = Callable[[], Iterable[pa.RecordBatch]]
"""Begins another pass over documents: batches with the columns `id` and `text`."""

_GROUP_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """The documents of a sample, on disk.

    Attributes:
        num_sampled: documents in the sample.
    """

    path: Path
    num_sampled: int

    def documents(self) -> Iterator[tuple[str, str]]:
        """(id, text) of every document, some MiB in memory."""
        with pq.ParquetFile(self.path) as file:
            for number in range(file.num_row_groups):
                for batch in file.read_row_group(number, use_threads=False).to_batches():
                    yield from zip(batch.column("id").to_pylist(), batch.column("text").to_pylist(), strict=True)


def text_hashes(texts: pa.Array, seed: int) -> np.ndarray:
    """The keyed hash of each text: (num_docs,) uint64."""
    from datapipe.kernels.dedup.text_hashes import hash_texts

    offsets, data = text_buffers(texts)
    halves = np.empty((2, len(texts)), np.uint64)
    hash_texts(offsets, data, halves[0], halves[1])
    return keyed_hash((halves[0], halves[1]), seed_for(seed, "annotate", "sample"))


def smallest_hashes(documents: Documents, num_documents: int, seed: int) -> np.ndarray:
    """The smallest distinct hashes, sorted: (at most num_documents,) uint64."""
    smallest = np.zeros(0, np.uint64)
    for batch in documents():
        hashes = text_hashes(as_large_string(batch.column("text")), seed)
        if len(smallest) == num_documents:
            hashes = hashes[hashes < smallest[-1]]
        smallest = np.unique(np.concatenate([smallest, hashes]))[:num_documents] if len(hashes) else smallest
    return smallest


def draw_sample(documents: Documents, num_documents: int, seed: int, path: Path) -> Sample:
    """Writes the sample of some documents to a file, which appears when it is whole."""
    hashes = smallest_hashes(documents, num_documents, seed)
    temporary = path.with_name(f".{path.name}.tmp")
    with pq.ParquetWriter(temporary, SCHEMA, compression="zstd") as writer:
        for group in _groups(_first_of_each(documents, hashes, seed)):
            writer.write_table(group, row_group_size=group.num_rows)
    sync_file(temporary)
    os.replace(temporary, path)
    sync_folder(path.parent)
    return Sample(path=path, num_sampled=len(hashes))


def find_sample(path: Path) -> Sample | None:
    """The sample that an earlier command wrote to a file, if it did."""
    if not path.exists():
        return None
    return Sample(path=path, num_sampled=pq.read_metadata(path).num_rows)


def _first_of_each(documents: Documents, hashes: np.ndarray, seed: int) -> Iterator[pa.RecordBatch]:
    """The first document of each of the sorted `hashes` (num_sampled,)."""
    is_missing = np.ones(len(hashes), np.bool_)
    for batch in documents():
        found = text_hashes(as_large_string(batch.column("text")), seed)
        places = np.minimum(np.searchsorted(hashes, found), max(len(hashes) - 1, 0))  # (num_docs,)
        rows = np.flatnonzero(hashes[places] == found) if len(hashes) else np.zeros(0, np.int64)
        _, first = np.unique(places[rows], return_index=True)
        rows = np.sort(rows[first])
        rows = rows[is_missing[places[rows]]]
        is_missing[places[rows]] = False
        if len(rows):
            chosen = batch.select(["id", "text"]).take(pa.array(rows))
            yield pa.RecordBatch.from_arrays([as_large_string(column) for column in chosen.columns], schema=SCHEMA)


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows in tables of some MiB, each a row group."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(each.nbytes for each in held) >= _GROUP_BYTES:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)
