"""From input files to what each task reads: a function of the files alone. Pure.

    large files  ─▶ cut by their reader (byte ranges, row groups), each cut a group of its own
    small files  ─▶ grouped in path order, at cuts chosen by the hash of a path

Whether a cut comes before a file is decided by that file alone, so a file that is added or removed changes the group it falls
into and no other. Groups are about `target_bytes`, and never more than four times that or `MAX_GROUP_FILES` files; where such a
cap cuts, the groups up to the next cut by hash may move, and no further.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import xxhash

from datapipe.errors import UserError
from datapipe.stage.base import InputFile, Reader, Split

MAX_GROUP_FILES = 4096
_GROUP_CAP = 4
_LEAST_FILE_BYTES = 4096
_UNPACKED = 4
"""What a byte of an archive is taken for: gzip and zstd of text are about a quarter of it."""


def file_hash(source: str, path: str) -> int:
    """The first half of the keys of a file's documents: 64 bits of (source, path)."""
    return xxhash.xxh3_64_intdigest(f"{source}\0{path}".encode())


def check_hashes(paths: Mapping[str, Sequence[str]]) -> None:
    """Raises UserError where two files of a run have one hash, since their documents would have one key.

    Args:
        paths: of every source.
    """
    seen: dict[int, tuple[str, str]] = {}
    for source, listed in paths.items():
        for path in listed:
            other = seen.setdefault(file_hash(source, path), (source, path))
            if other != (source, path):
                raise UserError(
                    f"{source}: {path} and {other[0]}: {other[1]} have the same 64-bit hash, so their documents could not be "
                    f"told apart. Rename one of them, or its source."
                )


def group_splits(files: Iterable[tuple[InputFile, Reader]], target_bytes: int) -> list[tuple[Split, ...]]:
    """What each task of a source reads.

    Args:
        files: in path order, each with its reader.
        target_bytes: of text, about, in each group.
    """
    groups: list[tuple[Split, ...]] = []
    held: list[Split] = []
    held_bytes = 0
    for file, reader in files:
        size = text_bytes(file)
        if size >= target_bytes:
            groups += [(split,) for split in reader.cut(file, target_bytes)]
            continue
        if held and (_begins_group(file, size, target_bytes) or _is_full(held_bytes + size, len(held) + 1, target_bytes)):
            groups.append(tuple(held))
            held, held_bytes = [], 0
        held += reader.cut(file, target_bytes)
        held_bytes += size
    if held:
        groups.append(tuple(held))
    return groups


def text_bytes(file: InputFile) -> int:
    """About how much text a file holds; small ones count for the work of opening them."""
    unpacked = sum(num_bytes for _, num_bytes in file.pieces) or file.num_bytes * (_UNPACKED if file.compression else 1)
    return max(unpacked, _LEAST_FILE_BYTES)


def _begins_group(file: InputFile, size: int, target_bytes: int) -> bool:
    """A coin that lands heads for a share size/target_bytes of files, by the hash of the path."""
    return xxhash.xxh3_64_intdigest(file.path.encode(), seed=1) < size * (1 << 64) // target_bytes


def _is_full(group_bytes: int, num_files: int, target_bytes: int) -> bool:
    return group_bytes > _GROUP_CAP * target_bytes or num_files > MAX_GROUP_FILES
