"""The order of one source: which of its rows is its k-th sample, and which samples one of its rows is.

    ordinal k  ->  (epoch, index)  ->  window  ->  keyed permutation of the window  ->  (shard, row)

    epoch      s3 s0 s6 | s1 s5 s4 | s2        shards of the source, in an order that the epoch's key gives
    windows    ~~~~~~~~ | ~~~~~~~~ | ~~        `window_shards` of them at a time (3 here), their rows mixed with each other

Every epoch is a permutation of all rows of its own, evaluated per index: nothing is shuffled, nothing remembered.

The trade. One window over all shards mixes best and lets each row be anywhere, so reading one row from an object store costs a
block, some 4 MiB. With windows of W shards, W of them are in use at a time and each is fetched once an epoch: the bytes fetched
per sample are the bytes of a row, and a row meets those of W shards (of 256 MiB by default: 65,536 rows of 2,048 16-bit
tokens each) instead of all. Since every shard is a random sample of its source as it was built, all that a window costs is
that neighbours in one epoch are likelier to be near each other in the next.

Strata (parts of a source by a score, or by the size of a document's cluster) are drawn mixed, or one after the other: a
curriculum. Where a stratum comes up several times in an epoch, its shards stand there as often, and all copies are mixed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from datapipe.errors import SnapshotError
from datapipe.kernels.loader.permute import invert, permute
from datapipe.rng import seed_for
from datapipe.shards.manifest import ShardEntry, Strata

MAX_WALKS = 64
"""How often a row of a left-out shard is replaced before giving up: with half of the shards gone, 1 row in 2^64 gets there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A part of an epoch whose shards are mixed with each other.

    Attributes:
        names: what its seeds are derived from, beside the epoch.
        shards: (n,) int64, numbers of shards within the source; one may stand there several times.
        sizes: (n,) int64, their rows.
    """

    names: tuple[str | int, ...]
    shards: np.ndarray
    sizes: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One epoch, laid out.

    Attributes:
        shards: (n,) int64, numbers of shards within the source in the order of this epoch.
        starts: (n + 1,) int64, where each begins in the epoch.
        window_starts: (num_windows + 1,) int64.
        keys: of each window's permutation.
        window_shards: (num_windows + 1,) int64, where each window begins in `shards`.
    """

    shards: np.ndarray
    starts: np.ndarray
    window_starts: np.ndarray
    window_shards: np.ndarray
    keys: tuple[int, ...]

    def places(self, indices: np.ndarray) -> np.ndarray:
        """Where in the epoch's row of shards each index is drawn from: (n,) int64."""
        if len(self.keys) == 1:
            return permute(self.keys[0], int(self.window_starts[1]), indices)
        windows = np.searchsorted(self.window_starts, indices, side="right") - 1
        out = np.empty(len(indices), np.int64)
        for window in set(windows.tolist()):
            start, stop = int(self.window_starts[window]), int(self.window_starts[window + 1])
            here = windows == window
            out[here] = start + permute(self.keys[window], stop - start, indices[here] - start)
        return out

    def index_of(self, place: int) -> int:
        """The index that is drawn from a place: the inverse of `places`."""
        window = int(np.searchsorted(self.window_starts, place, side="right")) - 1
        start, stop = int(self.window_starts[window]), int(self.window_starts[window + 1])
        return start + int(invert(self.keys[window], stop - start, np.array([place - start]))[0])

    @cached_property
    def by_shard(self) -> np.ndarray:
        """(n,) int64: places in `shards`, sorted by the shard that stands there."""
        return np.argsort(self.shards, kind="stable")

    def copies(self, shard: int) -> list[int]:
        """Where a shard of the source stands in `shards`."""
        numbers = self.shards[self.by_shard]
        first, last = np.searchsorted(numbers, [shard, shard + 1])
        return self.by_shard[first:last].tolist()


class SourceOrder:
    """The samples of one source in a split.

    Args:
        names: root of the seeds: the loader's seed, and what for.
        shards: of the source, by path.
        strata: how they are drawn, if the source is cut into strata.
        window_shards: 0 for all of them.
    """

    def __init__(
        self, seed: int, names: tuple[str | int, ...], shards: Sequence[ShardEntry], strata: Strata | None, window_shards: int
    ) -> None:
        self._seed, self._names = seed, names
        sizes = np.array([shard.sequences for shard in shards], np.int64)
        self._shard_starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        self._sections = _sections(shards, sizes, strata)
        self._window_shards = window_shards
        self._is_plain = strata is None
        self.size = int(sum(int(section.sizes.sum()) for section in self._sections))
        self._epoch = lru_cache(maxsize=8)(self._lay_out)

    @property
    def num_rows(self) -> int:
        """Rows of the source, each counted once."""
        return int(self._shard_starts[-1])

    def locate(self, ordinals: np.ndarray, attempt: int = 0) -> np.ndarray:
        """The row of the source, counted over its shards by path, of each ordinal: (n,) int64.

        Args:
            ordinals: (n,) int64, the source's samples, over all epochs.
            attempt: above 0, the row that takes the place of the one before, which cannot be had; one of the same epoch.
        """
        epochs, indices = np.divmod(ordinals, self.size)
        first = int(epochs[0]) if len(epochs) else 0
        if (epochs == first).all():
            return self._locate_in(first, indices, attempt)
        out = np.empty(len(ordinals), np.int64)
        for epoch in set(epochs.tolist()):
            here = epochs == epoch
            out[here] = self._locate_in(epoch, indices[here], attempt)
        return out

    def ordinals_of(self, row: int, epoch: int, attempt: int = 0) -> list[int]:
        """Every ordinal of an epoch at which a row of the source comes up, or would in the place of another: see `locate`."""
        laid_out = self._epoch(epoch)
        shard = int(np.searchsorted(self._shard_starts, row, side="right")) - 1
        within = row - int(self._shard_starts[shard])
        places = [int(laid_out.starts[copy]) + within for copy in laid_out.copies(shard)]
        indices = np.array([laid_out.index_of(place) for place in places], np.int64)
        if attempt:
            indices = invert(self._instead(epoch, attempt), self.size, indices)
        return sorted((epoch * self.size + indices).tolist())

    def windows_from(self, ordinal: int) -> Iterator[tuple[int, list[int]]]:
        """The first ordinal of each window from the one that holds `ordinal` on, and its shards, without end."""
        epoch, index = divmod(ordinal, self.size)
        while True:
            laid_out = self._epoch(epoch)
            first = int(np.searchsorted(laid_out.window_starts, index, side="right")) - 1
            for window in range(first, len(laid_out.keys)):
                start, stop = laid_out.window_shards[window : window + 2].tolist()
                yield epoch * self.size + int(laid_out.window_starts[window]), laid_out.shards[start:stop].tolist()
            epoch, index = epoch + 1, 0

    def _locate_in(self, epoch: int, indices: np.ndarray, attempt: int) -> np.ndarray:
        laid_out = self._epoch(epoch)
        if attempt:
            indices = permute(self._instead(epoch, attempt), self.size, indices)
        places = laid_out.places(indices)
        if self._is_plain and len(laid_out.keys) == 1:
            return places
        at = np.searchsorted(laid_out.starts, places, side="right") - 1
        return self._shard_starts[laid_out.shards[at]] + places - laid_out.starts[at]

    def _instead(self, epoch: int, attempt: int) -> int:
        return seed_for(self._seed, *self._names, epoch, "instead", attempt)

    def _lay_out(self, epoch: int) -> Epoch:
        orders, sizes, bounds, keys = [], [], [0], []
        for section in self._sections:
            names = (*self._names, epoch, *section.names)
            count = len(section.shards)
            width = self._window_shards or count
            num_windows = -(-count // width)
            order = np.arange(count)
            if num_windows > 1:
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
            keys=tuple(keys),
        )


def _sections(shards: Sequence[ShardEntry], sizes: np.ndarray, strata: Strata | None) -> list[Section]:
    """What is mixed with what, in the order in which it is drawn; shards without a row are left out."""
    numbers = np.flatnonzero(sizes)
    if strata is None:
        return [Section(names=(), shards=numbers, sizes=sizes[numbers])]
    wrong = [shard.path for shard in shards if shard.stratum is None or shard.stratum >= len(strata.repeats)]
    if wrong:
        raise SnapshotError(f"{wrong[0]}: in no stratum of its source, which has {len(strata.repeats)}. Run the mixture again.")
    of = np.array([shards[number].stratum for number in numbers.tolist()], np.int64)
    # by_stratum: numbers of shards, each as often as its stratum is repeated
    by_stratum = [np.tile(numbers[of == stratum], times) for stratum, times in enumerate(strata.repeats)]
    if strata.order == "shuffled":
        joined = np.concatenate(by_stratum)
        return [Section(names=(), shards=joined, sizes=sizes[joined])]
    named = [Section(names=("stratum", number), shards=one, sizes=sizes[one]) for number, one in enumerate(by_stratum)]
    return [section for section in (named if strata.order == "ascending" else named[::-1]) if len(section.shards)]
