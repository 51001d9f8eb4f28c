"""The order of rows of a source that are shuffled together: the row of its k-th sample, and the samples of each row.

    ordinal k  ->  (epoch, index)  ->  window  ->  keyed permutation of the window  ->  run of rows  ->  address

    epoch      s3 s0 s6 | s1 s5 s4 | s2        the runs of the source, in an order derived from the epoch's key
    windows    ~~~~~~~~ | ~~~~~~~~ | ~~        `window_shards` at a time (3 here), their rows mixed with each other

A run is a shard, or the rows of a shard that belong to the source, which is a cell then.

Windows are a trade. One window over all shards mixes best, but neighbouring samples lie in any
shard, so one row from an object store costs one block of about 4 MiB. With windows of W shards, W
shards are in use at a time and each is fetched once an epoch. Every shard is a random sample of its
source when it is built, so the only cost of a window is that neighbours in one epoch are more
likely to be near each other in the next.

Strata (of a score, or of the size of a document's cluster) are either mixed, or drawn one after the other as a curriculum. A
stratum that is repeated in an epoch has its shards listed as often. Without shuffling, every epoch is one window with the rows
in the order of the shards.

Cells are many and may be tiny, so a cell whose rows lie in at most `window_shards` shards has one window an epoch, with a key
that costs no hash of a name: `epoch_key`. `kernels/tokens/cells.py` computes its samples without anything kept. Only windows of
up to `MOST_SHUFFLED` rows are shuffled tables in a cell; larger ones go through the rounds of `permute.py`.
"""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from datapipe.dataclass import dataclass
from datapipe.kernels.tokens.cells import MOST_SHUFFLED
from datapipe.kernels.tokens.permute import TABLE_SIZE, invert, permutation, permute
from datapipe.loader.order.layout import Repeats, Runs
from datapipe.rng import epoch_key, seed_for
from datapipe.shards.source_entry import Strata

MAX_REPLACEMENTS = 64
"""Replacements of a row of a left-out shard before giving up: with half of the shards left out, 1 row in 2^64 needs more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """Runs of an epoch that are mixed with each other."""

    names: tuple[str | int, ...]  # in the names of its seeds, beside the epoch
    runs: np.ndarray  # (n,) int64, within the source; repeated runs occur several times
    sizes: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """The layout of one epoch. A position counts the rows of its runs end to end; an index counts its samples."""

    runs: np.ndarray  # (n,) int64, numbers of runs within the source, in the order of this epoch
    starts: np.ndarray  # (n + 1,) int64, position of the first row of each run
    window_starts: np.ndarray  # (num_windows + 1,) int64, position (and index) at which each window begins
    window_runs: np.ndarray  # (num_windows + 1,) int64, the window's first entry in `runs`
    # of the permutation of each window; empty where samples are in the order of the rows
    keys: tuple[int, ...]

    def index_of(self, position: int, most_shuffled: int) -> int:
        if not self.keys:
            return position
        window = int(np.searchsorted(self.window_starts, position, side="right")) - 1
        start, stop = int(self.window_starts[window]), int(self.window_starts[window + 1])
        return start + int(invert(self.keys[window], stop - start, np.array([position - start]), most_shuffled)[0])


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The samples that one permutation puts in order, as `kernels/tokens/windows.py` reads them."""

    # first, stop: its ordinals, over all epochs
    first: int
    stop: int
    permutation: np.ndarray  # of its positions, `permute.permutation`; empty where they are in order
    base: int  # the address at position 0, where the rows follow each other; else 0
    # (2 * n,) int64, where they do not: the first position of each of its n runs, then its address minus
    # the position; else empty
    entries: np.ndarray

    @property
    def num_bytes(self) -> int:
        return self.permutation.nbytes + self.entries.nbytes


class SourceOrder:
    """The samples of one source in a split; `AddressFinder` maps ordinals to addresses.

    Args:
        names: of the source, in its seeds.
        runs: of the source, ascending. Their groups count where there are `repeats`.
        is_cell: whether the source is a cell, with the keys and permutations of cells.
    """

    def __init__(
        self,
        seed: int,
        names: tuple[str | int, ...],
        runs: Runs,
        repeats: Strata | Repeats | None,
        window_shards: int,
        *,
        shuffle: bool = True,
        is_cell: bool = False,
    ) -> None:
        self._seed, self._names, self._runs, self._is_cell = seed, names, runs, is_cell
        self._sections = _sections(runs, repeats)
        self._most_shuffled = MOST_SHUFFLED if is_cell else TABLE_SIZE
        if is_cell and len(np.unique(runs.shards)) <= window_shards:
            window_shards = 0
        self._window_shards, self._shuffle = window_shards if shuffle else 0, shuffle
        self.size = int(sum(int(section.sizes.sum()) for section in self._sections))
        self._epoch = lru_cache(maxsize=8)(self._lay_out)

    @property
    def key(self) -> int:
        """The seed of a cell, below which its epochs have theirs."""
        return seed_for(self._seed, *self._names)

    def holds(self, address: int) -> bool:
        run = int(np.searchsorted(self._runs.starts, address, side="right")) - 1
        return run >= 0 and address < self._runs.starts[run] + self._runs.rows[run]

    def window_at(self, ordinal: int) -> Window:
        epoch, index = divmod(ordinal, self.size)
        laid_out = self._epoch(epoch)
        number = int(np.searchsorted(laid_out.window_starts, index, side="right")) - 1
        start, stop = laid_out.window_starts[number : number + 2].tolist()
        here = slice(*laid_out.window_runs[number : number + 2].tolist())
        starts = laid_out.starts[here] - start
        offsets = self._runs.starts[laid_out.runs[here]] - starts
        follow = bool((offsets == offsets[0]).all())
        return Window(
            first=epoch * self.size + start,
            stop=epoch * self.size + stop,
            permutation=permutation(laid_out.keys[number], stop - start, self._most_shuffled)
            if self._shuffle
            else np.zeros(0, np.uint16),
            base=int(offsets[0]) if follow else 0,
            entries=np.zeros(0, np.int64) if follow else np.concatenate([starts, offsets]),
        )

    def ordinals_of(self, address: int, epoch: int) -> list[int]:
        """All ordinals of an epoch whose row is at an address of this source."""
        laid_out = self._epoch(epoch)
        run = int(np.searchsorted(self._runs.starts, address, side="right")) - 1
        within = address - int(self._runs.starts[run])
        positions = [int(laid_out.starts[copy]) + within for copy in np.flatnonzero(laid_out.runs == run)]
        return sorted(epoch * self.size + laid_out.index_of(position, self._most_shuffled) for position in positions)

    def windows_from(self, ordinal: int) -> Iterator[tuple[int, list[int]]]:
        """(first ordinal, shards) of the shards in use at a time, from those of `ordinal` on,
        without end: the shards of a window; where rows are not mixed, each shard by itself."""
        epoch, index = divmod(ordinal, self.size)
        while True:
            laid_out = self._epoch(epoch)
            bounds = laid_out.window_runs if self._shuffle else np.arange(len(laid_out.runs) + 1)
            starts = laid_out.starts[bounds]
            for window in range(int(np.searchsorted(starts, index, side="right")) - 1, len(bounds) - 1):
                runs = laid_out.runs[slice(*bounds[window : window + 2].tolist())]
                yield epoch * self.size + int(starts[window]), list(dict.fromkeys(self._runs.shards[runs].tolist()))
            epoch, index = epoch + 1, 0

    def replacement_key(self, epoch: int, attempt: int) -> int:
        """Of the permutation of an epoch's indices that chooses the replacements of an attempt."""
        return seed_for(self._seed, *self._names, epoch, "instead", attempt)

    def _lay_out(self, epoch: int) -> Epoch:
        orders, sizes, bounds, keys = [], [], [0], []
        for section in self._sections:
            names = (*self._names, epoch, *section.names)
            count = len(section.runs)
            width = self._window_shards or count
            num_windows = -(-count // width)
            order = np.arange(count)
            if num_windows > 1 and self._shuffle:
                order = permute(seed_for(self._seed, *names, "shards"), count, order)
            orders.append(section.runs[order])
            sizes.append(section.sizes[order])
            bounds += [bounds[-1] + min(count, (window + 1) * width) for window in range(num_windows)]
            if num_windows > 1:
                keys += [seed_for(self._seed, *names, "window", window) for window in range(num_windows)]
            elif num_windows:
                keys.append(epoch_key(self.key, epoch) if self._is_cell else seed_for(self._seed, *names))
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(sizes))])
        window_runs = np.array(bounds, np.int64)
        return Epoch(
            runs=np.concatenate(orders),
            starts=starts,
            window_starts=starts[window_runs],
            window_runs=window_runs,
            keys=tuple(keys) if self._shuffle else (),
        )


def _sections(runs: Runs, repeats: Strata | Repeats | None) -> list[Section]:
    """The sections of every epoch, in the order in which they are drawn, without empty runs."""
    numbers = np.flatnonzero(runs.rows)
    if repeats is None:
        return [Section(names=(), runs=numbers, sizes=runs.rows[numbers])]
    # by_group: numbers of runs, each as often as its group is repeated
    by_group = [np.tile(numbers[runs.groups[numbers] == group], times) for group, times in enumerate(repeats.repeats)]
    if repeats.order == "shuffled":
        joined = np.concatenate(by_group)
        return [Section(names=(), runs=joined, sizes=runs.rows[joined])]
    sections = [
        Section(names=("stratum", stratum), runs=members, sizes=runs.rows[members]) for stratum, members in enumerate(by_group)
    ]
    return [section for section in (sections if repeats.order == "ascending" else sections[::-1]) if len(section.runs)]
