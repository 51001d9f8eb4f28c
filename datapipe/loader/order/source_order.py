"""The order of rows of a source that are shuffled together: the row of its k-th sample, and the samples of each row.

    ordinal k  ->  (epoch, index)  ->  window  ->  keyed permutation of the window  ->  (shard, row)

    epoch      s3 s0 s6 | s1 s5 s4 | s2        the shards of the source, in an order derived from the epoch's key
    windows    ~~~~~~~~ | ~~~~~~~~ | ~~        `window_shards` at a time (3 here), their rows mixed with each other

Windows are a trade. One window over all shards mixes best, but neighbouring samples lie in any
shard, so one row from an object store costs one block of about 4 MiB. With windows of W shards, W
shards are in use at a time and each is fetched once an epoch. Every shard is a random sample of its
source when it is built, so the only cost of a window is that neighbours in one epoch are more
likely to be near each other in the next.

Strata (of a score, or of the size of a document's cluster) are either mixed, or drawn one after the other as a curriculum. A
stratum that is repeated in an epoch has its shards listed as often. Without shuffling, every epoch is one window with the rows
in the order of the shards.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from datapipe.kernels.tokens.permute import invert, permutation, permute
from datapipe.rng import seed_for
from datapipe.shards.source_entry import Strata

MAX_REPLACEMENTS = 64
"""Replacements of a row of a left-out shard before giving up: with half of the shards left out, 1 row in 2^64 needs more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """Shards of an epoch that are mixed with each other."""

    names: tuple[str | int, ...]  # in the names of its seeds, beside the epoch
    shards: np.ndarray  # (n,) int64, within the source; repeated shards occur several times
    sizes: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """The layout of one epoch. A position counts the rows of its shards end to end; an index counts its samples."""

    shards: np.ndarray  # (n,) int64, numbers of shards within the source, in the order of this epoch
    starts: np.ndarray  # (n + 1,) int64, position of the first row of each shard
    window_starts: np.ndarray  # (num_windows + 1,) int64, position (and index) at which each window begins
    window_shards: np.ndarray  # (num_windows + 1,) int64, the window's first entry in `shards`
    # of the permutation of each window; empty where samples are in the order of the rows
    keys: tuple[int, ...]

    def index_of(self, position: int) -> int:
        if not self.keys:
            return position
        window = int(np.searchsorted(self.window_starts, position, side="right")) - 1
        start, stop = int(self.window_starts[window]), int(self.window_starts[window + 1])
        return start + int(invert(self.keys[window], stop - start, np.array([position - start]))[0])


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The samples that one permutation puts in order, as `kernels/tokens/windows.py` reads them."""

    # first, stop: its ordinals, over all epochs
    first: int
    stop: int
    permutation: np.ndarray  # of its positions, `permute.permutation`; empty where they are in order
    base: int  # the row in the source at position 0, where the rows follow each other; else 0
    # (2 * n,) int64, where they do not: the first position of each of its n shards, then the row in the
    # source minus the position; else empty
    entries: np.ndarray

    @property
    def num_bytes(self) -> int:
        return self.permutation.nbytes + self.entries.nbytes


class SourceOrder:
    """The samples of one source in a split; `AddressFinder` maps ordinals to rows. `sizes`:
    (num_shards,) int64, rows of each shard of the source, sorted by path. `stratum_of`:
    (num_shards,) int64, where the source has strata."""

    def __init__(
        self,
        seed: int,
        names: tuple[str | int, ...],
        sizes: np.ndarray,
        stratum_of: np.ndarray,
        strata: Strata | None,
        window_shards: int,
        *,
        shuffle: bool = True,
    ) -> None:
        self._seed, self._names = seed, names
        self._shard_starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        self.num_shards, self.num_rows = len(sizes), int(sizes.sum())  # repeated rows count once
        self._sections = _sections(sizes, stratum_of, strata)
        self._window_shards, self._shuffle = window_shards if shuffle else 0, shuffle
        self.size = int(sum(int(section.sizes.sum()) for section in self._sections))
        self._epoch = lru_cache(maxsize=8)(self._lay_out)

    def window_at(self, ordinal: int) -> Window:
        epoch, index = divmod(ordinal, self.size)
        laid_out = self._epoch(epoch)
        number = int(np.searchsorted(laid_out.window_starts, index, side="right")) - 1
        start, stop = laid_out.window_starts[number : number + 2].tolist()
        here = slice(*laid_out.window_shards[number : number + 2].tolist())
        starts = laid_out.starts[here] - start
        offsets = self._shard_starts[laid_out.shards[here]] - starts
        follow = bool((offsets == offsets[0]).all())
        return Window(
            first=epoch * self.size + start,
            stop=epoch * self.size + stop,
            permutation=permutation(laid_out.keys[number], stop - start) if self._shuffle else np.zeros(0, np.uint16),
            base=int(offsets[0]) if follow else 0,
            entries=np.zeros(0, np.int64) if follow else np.concatenate([starts, offsets]),
        )

    def ordinals_of(self, row: int, epoch: int) -> list[int]:
        laid_out = self._epoch(epoch)
        shard = int(np.searchsorted(self._shard_starts, row, side="right")) - 1
        within = row - int(self._shard_starts[shard])
        positions = [int(laid_out.starts[copy]) + within for copy in np.flatnonzero(laid_out.shards == shard)]
        return sorted(epoch * self.size + laid_out.index_of(position) for position in positions)

    def windows_from(self, ordinal: int) -> Iterator[tuple[int, list[int]]]:
        """(first ordinal, shards) of the shards in use at a time, from those of `ordinal` on,
        without end: the shards of a window; where rows are not mixed, each shard by itself."""
        epoch, index = divmod(ordinal, self.size)
        while True:
            laid_out = self._epoch(epoch)
            bounds = laid_out.window_shards if self._shuffle else np.arange(len(laid_out.shards) + 1)
            starts = laid_out.starts[bounds]
            for window in range(int(np.searchsorted(starts, index, side="right")) - 1, len(bounds) - 1):
                start, stop = bounds[window : window + 2].tolist()
                yield epoch * self.size + int(starts[window]), laid_out.shards[start:stop].tolist()
            epoch, index = epoch + 1, 0

    def replacement_key(self, epoch: int, attempt: int) -> int:
        """Of the permutation of an epoch's indices that chooses the replacements of an attempt."""
        return seed_for(self._seed, *self._names, epoch, "instead", attempt)

    def _lay_out(self, epoch: int) -> Epoch:
        orders, sizes, bounds, keys = [], [], [0], []
        for section in self._sections:
            names = (*self._names, epoch, *section.names)
            count = len(section.shards)
            width = self._window_shards or count
            num_windows = -(-count // width)
            order = np.arange(count)
            if num_windows > 1 and self._shuffle:
                order = permute(seed_for(self._seed, *names, "shards"), count, order)
            orders.append(section.shards[order])
            sizes.append(section.sizes[order])
            bounds += [bounds[-1] + min(count, (window + 1) * width) for window in range(num_windows)]
            keys += [
                seed_for(self._seed, *names, *(("window", window) if num_windows > 1 else ())) for window in range(num_windows)
            ]
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(sizes))])
        window_shards = np.array(bounds, np.int64)
        return Epoch(
            shards=np.concatenate(orders),
            starts=starts,
            window_starts=starts[window_shards],
            window_shards=window_shards,
            keys=tuple(keys) if self._shuffle else (),
        )


def _sections(sizes: np.ndarray, stratum_of: np.ndarray, strata: Strata | None) -> list[Section]:
    """The sections of every epoch, in the order in which they are drawn, without empty shards."""
    numbers = np.flatnonzero(sizes)
    if strata is None:
        return [Section(names=(), shards=numbers, sizes=sizes[numbers])]
    # by_stratum: numbers of shards, each as often as its stratum is repeated
    by_stratum = [np.tile(numbers[stratum_of[numbers] == stratum], times) for stratum, times in enumerate(strata.repeats)]
    if strata.order == "shuffled":
        joined = np.concatenate(by_stratum)
        return [Section(names=(), shards=joined, sizes=sizes[joined])]
    sections = [
        Section(names=("stratum", stratum), shards=members, sizes=sizes[members]) for stratum, members in enumerate(by_stratum)
    ]
    return [section for section in (sections if strata.order == "ascending" else sections[::-1]) if len(section.shards)]
