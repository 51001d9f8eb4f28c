"""Cuts work into tasks: input files into splits, and documents that are written into parts. Pure.

The splits that each map task reads are a function of the files alone:

    large files  ─▶ cut by their reader (byte ranges, row groups), each split a group of its own
    small files  ─▶ grouped with their neighbours, at boundaries chosen by the hash of a path

Groups are in path order, and a group ends where a large file begins, so the documents of all groups come in the order of the
input, however it is cut.

The file alone decides whether a boundary precedes it, so an added or removed file changes the group that it belongs to and no
other. Groups have about `target_bytes`, and at most four times that and `MAX_GROUP_FILES` files. Where such a cap ends a group,
the groups up to the next boundary by hash may change, and no further ones.

In a run without a tokenizer, documents are written to files:

    documents in the order of the input, weighed    0 ──────┬─ d ─┬──┬────────┬───────
    files of `target_bytes`, numbered               │ 0          │ 1          │ 2
    parts of some files, one for each task          │ 0                       │ 1

A document whose weight begins at w goes to file w // `target_bytes`. So the documents of a file depend on the text alone, and
not on how the input was cut into tasks: the committed counts of a task tell what its documents weigh together.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from datapipe.document_name import document_name
from datapipe.errors import UserError
from datapipe.records.outputs import TableFile
from datapipe.records.record import Record
from datapipe.stage.reader import InputFile, Reader, Split

MAX_GROUP_FILES = 4096
_GROUP_CAP = 4


LEAST_DOCUMENT_BYTES = 64
"""What a document weighs beside its text, so that no file has any number of empty ones."""

WRITTEN_BYTES = 64 << 20
"""The least weight of the documents that a task writes, but for the last task of a source."""

Number = TypeVar("Number", int, NDArray[np.int64])


def file_hash(source: str, path: str) -> int:
    """The first half of the keys of a file's documents: a 64-bit hash of (source, path)."""
    return xxhash.xxh3_64_intdigest(f"{source}\0{path}".encode())


def name_of_key(source: str, paths: Iterable[str], key: bytes) -> str:
    """The name of a document of a source, by its key: "web/a.jsonl:120"; without a path where none of these has it."""
    number = int.from_bytes(key[:8], "big")
    path = next((path for path in paths if file_hash(source, path) == number), "")
    return document_name(source, path, int.from_bytes(key[8:], "big"))


def check_hashes(paths: Mapping[str, Sequence[str]]) -> None:
    """Raises UserError when two files of a run have the same hash: their documents would have the same keys.

    Args:
        paths: of every source.
    """
    seen: dict[int, tuple[str, str]] = {}
    for source, listed in paths.items():
        for path in listed:
            other = seen.setdefault(file_hash(source, path), (source, path))
            if other != (source, path):
                raise UserError(
                    f"{source}: {path} and {other[0]}: {other[1]} have the same 64-bit hash, so their documents would "
                    f"have the same keys. Rename one of the files, or its source."
                )


def group_splits(files: Iterable[tuple[InputFile, Reader]], target_bytes: int) -> list[tuple[Split, ...]]:
    """The splits that each task of a source reads.

    Args:
        files: in path order, each with its reader.
        target_bytes: of text in each group, approximately.
    """
    groups: list[tuple[Split, ...]] = []
    group: list[Split] = []
    group_bytes = 0
    for file, reader in files:
        size = file.text_bytes
        if size >= target_bytes:
            groups += [tuple(group)] if group else []
            groups += [(split,) for split in reader.cut(file, target_bytes)]
            group, group_bytes = [], 0
            continue
        if group and (_begins_group(file, size, target_bytes) or _is_full(group_bytes + size, len(group) + 1, target_bytes)):
            groups.append(tuple(group))
            group, group_bytes = [], 0
        group += reader.cut(file, target_bytes)
        group_bytes += size
    if group:
        groups.append(tuple(group))
    return groups


def _begins_group(file: InputFile, size: int, target_bytes: int) -> bool:
    """Whether a boundary precedes this file: true for a share size / target_bytes of files, by the hash of the path."""
    return xxhash.xxh3_64_intdigest(file.path.encode(), seed=1) < size * (1 << 64) // target_bytes


def _is_full(group_bytes: int, num_files: int, target_bytes: int) -> bool:
    return group_bytes > _GROUP_CAP * target_bytes or num_files > MAX_GROUP_FILES


def weight(text_bytes: Number, num_docs: int) -> Number:
    """The weight of some documents together, or of each of many."""
    return text_bytes + LEAST_DOCUMENT_BYTES * num_docs


def documents_by_part(cleaned: Sequence[Record], part_bytes: int) -> list[dict[str, Any]]:
    """The documents of a source in parts of `part_bytes`, by the weights that the committed counts tell.

    A part has the fields `documents`, `begin`, `start` and `stop` of its `WriteTask`.
    """
    counts = [record.metrics.document_counts for record in cleaned]
    ends = list(accumulate((weight(each.kept_bytes, each.kept) for each in counts), initial=0))  # (num_records + 1,)
    parts: list[dict[str, Any]] = []
    for start in range(0, ends[-1], part_bytes):
        first, last = bisect_right(ends, start) - 1, bisect_left(ends, start + part_bytes)
        files = tuple(file for record in cleaned[first:last] for file in record.of("documents", TableFile))
        parts.append({"documents": files, "begin": ends[first], "start": start, "stop": start + part_bytes})
    return parts
