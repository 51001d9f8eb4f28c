"""How many sorted runs a bucket reads of, and which files are merged so that there are fewer. Pure.

    files of a table ─▶ more runs at a hash than `MOST_RUNS`? ─▶ groups by their content ─▶ one run each ─▶ still more? ─▶ …

A bucket reads at least one block, about 1 MiB, of every sorted run that its hashes may be in, so that every bucket pays for
every run, and reading grows with the square of the corpus. Files that were merged are in order, and pay as one run.

Every file has a place: a hash of its checksum. A group is the files whose places have their first bits in common: all of them,
or where these have too many runs those that begin with 0 and those that begin with 1, and so on. What comes of a group has one
place, made of these bits. So a file more changes the group that it falls into and no other, as long as the number of runs stays
below the next power of four; and on the next level it changes one group again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import xxhash

from datapipe.plan.work import OutputRef

MOST_RUNS = 256
"""That a bucket reads of. A block of each is 256 MiB, as much as a bucket itself has by default. Where a merge pays depends on
what is scarce: a run costs a bucket four requests (end, index, schema, block), a block of 1 MiB, and 0.5 to 1 ms of a core; a
merge reads and writes the bucket once more, at 100 MB/s (measured). So requests of an object store are fewer from here on,
bytes from about 770 runs, and core time from about 2,500."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """A file and its place, 64 bits; those of one place follow each other, or have the same content."""

    place: int
    file: OutputRef


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Files that are merged, and the place of what comes of them."""

    place: int
    files: tuple[OutputRef, ...]


def placed(files: Sequence[OutputRef]) -> list[Placed]:
    """Files that were not merged yet."""
    return [Placed(place=_hash(one.checksum), file=one) for one in files]


def fan_in(files: Sequence[OutputRef]) -> int:
    """The most sorted runs that a hash may be in: into so many lanes files can be put that none in a lane overlap."""
    return _fan_in(_ends(files))


def merge_groups(files: Sequence[Placed]) -> tuple[list[Group], list[Placed]]:
    """The groups that are merged, and the files that stay as they are, since they overlap with none of their group.

    Where a group has the root of all runs, merging it costs about as many blocks as what comes of it, and the two together are
    the fewest. Sizes are powers of two, so that they change seldom; no group has more than `MOST_RUNS`, one file apart.
    """
    ends, places = _ends([one.file for one in files]), np.array([one.place for one in files], np.uint64)
    root = 1 << ((_fan_in(ends) - 1).bit_length() + 1) // 2
    order = np.argsort(places, kind="stable")
    groups: list[Group] = []
    left: list[Placed] = []
    for start, stop, bit in _parts(places[order], ends[:, order], 63, min(root, MOST_RUNS)):
        part = order[start:stop]
        if _fan_in(ends[:, part]) > 1:
            place = _hash(f"{bit} {files[part[0]].place >> (bit + 1)}")
            groups.append(Group(place=place, files=tuple(files[at].file for at in part)))
        else:
            left += [files[at] for at in part]
    return groups, left


def _hash(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode())


def _ends(files: Sequence[OutputRef]) -> np.ndarray:
    """(3, num_files) uint64: the first hash, the last, and the number of sorted runs."""
    facts = [one.facts or {} for one in files]
    return np.array([[int(one[name]) for one in facts] for name in ("first", "last", "runs")], np.uint64)


def _fan_in(ends: np.ndarray) -> int:
    firsts, lasts, runs = ends
    by_first, by_last = np.argsort(firsts), np.argsort(lasts)
    begun = np.cumsum(runs[by_first])  # (num_files,) where each file begins
    ended = np.concatenate([np.zeros(1, np.uint64), np.cumsum(runs[by_last])])
    return int((begun - ended[np.searchsorted(lasts[by_last], firsts[by_first], "left")]).max(initial=0))


def _parts(places: np.ndarray, ends: np.ndarray, bit: int, limit: int, start: int = 0) -> Iterator[tuple[int, int, int]]:
    """Ranges of the sorted places that have their bits above one in common, and that bit: as few as have at most so many runs.

    Args:
        places: (num_files,) uint64, all bits above `bit` the same; ends likewise.
        start: of the range that they are.
    """
    if bit < 0 or len(places) == 1 or _fan_in(ends) <= limit:
        yield start, start + len(places), bit
        return
    half = int(np.count_nonzero(places >> np.uint64(bit) & np.uint64(1) == 0))
    for part in (slice(0, half), slice(half, None)):
        if len(places[part]):
            yield from _parts(places[part], ends[:, part], bit - 1, limit, start + (part.start or 0))
