"""Counts the sorted runs that a bucket reads, and chooses files to merge where there are too many. Pure.

    files of a table ─▶ more runs at a hash than `most_runs`? ─▶ groups by content ─▶ one run each ─▶ still more? ─▶ …

A bucket reads at least one block, about 256 KiB, of every sorted run that may hold its hashes, so
reading grows with the square of the corpus. A merged file counts as one run.

Every file has a group key: a hash of its checksum. Files are grouped by the first bits of their
keys: all of them together, or, where these have too many runs, those that begin with 0 and those
that begin with 1, and so on. A merged group gets a key made of these bits. So an added file changes
its group on each level and no other, as long as the number of runs stays below the next power of
four."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import xxhash

from datapipe.dataclass import dataclass
from datapipe.exchange.files import BLOCK_BYTES
from datapipe.records.outputs import ExchangeFile
from datapipe.rng import mix64

MOST_RUNS = 256
"""Sorted runs that a bucket reads at most. A block of each is 64 MiB, a quarter of the default size of a bucket. Measured with
blocks of 1 MiB, merging pays from 256 runs in requests to an object store."""

_MOST_GROUPED = 4096  # files whose groups are counted one by one
_SMALL_BYTES = 16 << 20  # a table that is read as it is, however small its buckets are


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyedFile:
    """A file and its 64-bit group key. Files of one key follow each other by hash, or have the same content."""

    group_key: int
    file: ExchangeFile


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Files that are merged, and the group key of the merged files."""

    group_key: int
    files: tuple[ExchangeFile, ...]


def with_group_keys(files: Sequence[ExchangeFile]) -> list[KeyedFile]:
    return [KeyedFile(group_key=_hash(file.checksum), file=file) for file in files]


def most_runs(total_bytes: int, num_buckets: int) -> int:
    """Sorted runs that each bucket should read of a table: blocks of them are a quarter of its rows in a bucket, at most."""
    if total_bytes <= _SMALL_BYTES:
        return MOST_RUNS
    return min(MOST_RUNS, max(1, total_bytes // (4 * BLOCK_BYTES * num_buckets)))


def fan_in(files: Sequence[ExchangeFile]) -> int:
    """The most sorted runs that one hash may be in: the fewest lanes such that the files of each lane do not overlap."""
    return _fan_in(_ends(files))


def merge_groups(files: Sequence[KeyedFile], wanted_runs: int) -> tuple[list[Group], list[KeyedFile]]:
    """The groups to merge, and the files that stay, since they overlap with no file of their group. A group has about the
    square root of all runs: then reading the groups and reading the merged files take the fewest blocks together. It has more
    where else a level would leave more than `wanted_runs`. Sizes are powers of two, so that they change seldom; a group
    exceeds `MOST_RUNS` only if it is a single file."""
    ends, keys = _ends([file.file for file in files]), np.array([file.group_key for file in files], np.uint64)
    limit, order = _most_in_group(_fan_in(ends), wanted_runs), np.argsort(keys, kind="stable")
    groups: list[Group] = []
    left: list[KeyedFile] = []
    for start, stop, bit in _parts(keys[order], ends[:, order], 63, limit):
        part = order[start:stop]
        if _fan_in(ends[:, part]) > 1:
            key = _hash(f"{bit} {files[part[0]].group_key >> (bit + 1)}")
            groups.append(Group(group_key=key, files=tuple(files[number].file for number in part)))
        else:
            left += [files[number] for number in part]
    return groups, left


def group_sizes(num_files: float, num_runs: float, wanted_runs: int) -> tuple[np.ndarray, float]:
    """How many files each group would have, (num_groups,), of so many files of random keys that all overlap; and how many
    groups each stands for. Of many files those of a part of all keys are grouped, as a group has equal first bits."""
    copies = 1 << max(0, math.ceil(num_files / _MOST_GROUPED) - 1).bit_length()
    count = max(1, round(num_files / copies))
    keys = np.sort(mix64(np.arange(1, count + 1, dtype=np.uint64)))
    runs = np.diff(np.floor(np.arange(count + 1) * (num_runs / num_files))).astype(np.uint64)
    ends = np.stack([np.zeros(count, np.uint64), np.full(count, ~np.uint64(0)), runs])
    limit = _most_in_group(round(num_runs), wanted_runs)
    return np.array([stop - start for start, stop, _ in _parts(keys, ends, 63, limit)]), copies


def _most_in_group(num_runs: int, wanted_runs: int) -> int:
    """The most sorted runs of a group."""
    root = 1 << ((num_runs - 1).bit_length() + 1) // 2
    enough = 1 << (2 * num_runs // wanted_runs).bit_length()  # groups are half full
    return min(max(root, enough), MOST_RUNS)


def _hash(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode())


def _ends(files: Sequence[ExchangeFile]) -> np.ndarray:
    """(3, num_files) uint64: the first hash, the last, and the number of sorted runs."""
    ends = [(file.first, file.last, file.runs) for file in files]
    return np.array(ends, np.uint64).reshape(-1, 3).T


def _fan_in(ends: np.ndarray) -> int:
    firsts, lasts, runs = ends
    by_first, by_last = np.argsort(firsts), np.argsort(lasts)
    begun = np.cumsum(runs[by_first])  # (num_files,) where each file begins
    ended = np.concatenate([np.zeros(1, np.uint64), np.cumsum(runs[by_last])])
    return int((begun - ended[np.searchsorted(lasts[by_last], firsts[by_first], "left")]).max(initial=0))


def _parts(keys: np.ndarray, ends: np.ndarray, bit: int, limit: int, start: int = 0) -> Iterator[tuple[int, int, int]]:
    """Ranges of the sorted keys with equal bits above some bit, and that bit: the fewest with at most `limit` runs each.
    `keys`, (num_files,) uint64, begin at `start`, and have the same bits above `bit`."""
    if bit < 0 or len(keys) == 1 or _fan_in(ends) <= limit:
        yield start, start + len(keys), bit
        return
    half = int(np.count_nonzero(keys >> np.uint64(bit) & np.uint64(1) == 0))
    for part in (slice(0, half), slice(half, None)):
        if len(keys[part]):
            yield from _parts(keys[part], ends[:, part], bit - 1, limit, start + (part.start or 0))
