"""A keyed sample of documents: the same texts on every machine, however files are cut and named.

    documents, batch by batch ─▶ keyed 64-bit hash of each text ─▶ the N smallest hashes     first pass
                              └▶ the first document of each of these hashes ─▶ a file of JSON lines     second pass

Equal texts are annotated once. A smaller sample is a part of a larger one. Memory: a batch and 8
bytes a document of the sample. The file is in the order of the documents.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa

from datapipe.columns import as_large_string, text_buffers
from datapipe.dataclass import dataclass
from datapipe.machine.files import replacing
from datapipe.rng import keyed_hash, seed_for

Documents = Callable[[], Iterable[pa.RecordBatch]]
"""Begins another pass over documents: batches with the columns `id` and `text`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    path: Path
    num_sampled: int

    def documents(self) -> Iterator[tuple[str, str]]:
        with open(self.path, encoding="utf-8", newline="\n") as file:
            for line in file:
                record = json.loads(line)
                yield record["id"], record["text"]


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
    hashes = smallest_hashes(documents, num_documents, seed)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        for name, text in _first_of_each(documents, hashes, seed):
            write_line(file, id=name, text=text)
    return Sample(path=path, num_sampled=len(hashes))


def find_sample(path: Path) -> Sample | None:
    if not path.exists():
        return None
    with open(path, "rb") as file:
        return Sample(path=path, num_sampled=sum(1 for _ in file))


def _first_of_each(documents: Documents, hashes: np.ndarray, seed: int) -> Iterator[tuple[str, str]]:
    is_missing = np.ones(len(hashes), np.bool_)
    for batch in documents():
        distinct, first = np.unique(text_hashes(as_large_string(batch.column("text")), seed), return_index=True)
        is_chosen = np.isin(hashes, distinct) & is_missing
        rows = np.sort(first[np.isin(distinct, hashes[is_chosen])])
        is_missing[is_chosen] = False
        chosen = batch.take(pa.array(rows))
        yield from zip(chosen.column("id").to_pylist(), chosen.column("text").to_pylist(), strict=True)


def write_line(file: IO[bytes], **record: object) -> None:
    file.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
