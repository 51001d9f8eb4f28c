"""Cuts input files into the splits that tasks read. Pure.

    large files  ─▶ cut by their reader (byte ranges, row groups), each split its own group
    small files  ─▶ grouped with their neighbours, at boundaries chosen by the hash of a path

Groups are in path order, and a group ends where a large file begins, so the documents of all groups
come in the order of the input, however it is cut. The file alone decides whether a boundary
precedes it, so an added or removed file changes its group and no other. Groups have about
`target_bytes`, and at most four times that and `MAX_GROUP_FILES` files. Where such a cap ends a
group, the groups up to the next boundary by hash may change."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import xxhash

from datapipe.dataclass import replace
from datapipe.document_name import document_name
from datapipe.stage.reader import InputFile, Reader, Split

MAX_GROUP_FILES = 4096
_GROUP_CAP = 4
_MOST_MADE = 8192  # files that are grouped to count the groups of many


def file_hash(source: str, path: str) -> int:
    """The first half of the keys of a file's documents: a 64-bit hash of (source, path)."""
    return xxhash.xxh3_64_intdigest(f"{source}\0{path}".encode())


def names_of_keys(paths: Mapping[str, Iterable[str]]) -> Callable[[bytes], str]:
    """Names documents by their keys: "web/a.jsonl:120"; of the first source without a path, where
    none of these has it. `paths`: of input files, by source."""
    files = {file_hash(source, path): (source, path) for source, listed in paths.items() for path in listed}

    def name_of(key: bytes) -> str:
        source, path = files.get(int.from_bytes(key[:8], "big")) or (next(iter(paths)), "")
        return document_name(source, path, int.from_bytes(key[8:], "big"))

    return name_of


def num_groups(groups: Sequence[Sequence[Split]], readers: Mapping[str, Reader], target_bytes: int, ratio: float) -> int:
    """About how many groups a source would have with so many times its files, each as large as one of them."""
    files = [split.file for group in groups for split in group]
    small = [file for file in files if file.text_bytes < target_bytes]
    copies = max(1, min(math.ceil(ratio), _MOST_MADE // max(1, len(small))))
    made = ((replace(file, path=f"{file.path}~{copy}"), readers[file.path]) for copy in range(copies) for file in small)
    return math.ceil(ratio * (len(files) - len(small) + len(group_splits(made, target_bytes)) / copies) - 1e-6)


def group_splits(files: Iterable[tuple[InputFile, Reader]], target_bytes: int) -> list[tuple[Split, ...]]:
    """The splits that each task of a source reads, of files in path order: about `target_bytes` of text in each."""
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
        is_full = group_bytes + size > _GROUP_CAP * target_bytes or len(group) >= MAX_GROUP_FILES
        # a boundary precedes a share of size / target_bytes of the files, by the hash of the path
        begins_group = xxhash.xxh3_64_intdigest(file.path.encode(), seed=1) < size * (1 << 64) // target_bytes
        if group and (is_full or begins_group):
            groups.append(tuple(group))
            group, group_bytes = [], 0
        group += reader.cut(file, target_bytes)
        group_bytes += size
    if group:
        groups.append(tuple(group))
    return groups
