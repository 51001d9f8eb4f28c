"""The order of a source whose rows are in one generation, or in several.

    generation  0 ──── the first snapshot            1 ──── files added later    2 ──── added after them
    epoch       all generations, one after another; rows are mixed within a generation
    ordinal     0 ── 0 ── | 0 ──▲── 0 | 1 | 0 ── 1 | 0 ── 1 | …
                                └ the run moves to a snapshot that has generation 1

A run that moves to a snapshot with more generations finishes its epoch with unchanged samples,
draws the new generations, and then begins epochs over all of them, so the later snapshot still
gives all earlier batches. A source era is the range of samples between two moves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from datapipe.dataclass import dataclass, replace
from datapipe.errors import SnapshotError
from datapipe.kernels.tokens import windows as kernels
from datapipe.kernels.tokens.permute import invert, permute
from datapipe.loader.order.cell_finder import CellFinder
from datapipe.loader.order.source_order import SourceOrder, Window


@dataclass(frozen=True, slots=True)
class Generations:
    """How many generations of a source a mixture draws from, and where their order begins."""

    count: int = 1  # of the generations, from the first
    origin: int = 0  # ordinal at which the epoch begins that ends with the newest generation
    epochs: int = 0  # of the first generation, before `origin`

    def grown(self, count: int, size: int, num_drawn: int) -> Generations:
        """The generations after a move to a snapshot with `count` of them."""
        whole = max(0, -(-(num_drawn - self.origin) // size) - 1) if size else 0
        return Generations(count=count, origin=self.origin + whole * size, epochs=self.epochs + whole)


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceEra:
    """The samples of a source that are drawn from the same generations."""

    start: int  # first ordinal of the era. From `origin` on, the eras before it have the same samples.
    origin: int  # as in `Generations`
    first_epoch: int  # number of the source's epoch that begins at `origin`
    epochs: tuple[int, ...]  # of each generation, before `origin`
    starts: tuple[int, ...]  # (count + 1,) indices in an epoch at which the generations begin

    @property
    def size(self) -> int:
        return self.starts[-1]

    def split(self, ordinal: int) -> tuple[int, int]:
        """The generation of an ordinal, and the ordinal within the generation."""
        epoch, index = divmod(ordinal - self.origin, self.size)
        number = bisect_right(self.starts, index) - 1  # generations without samples share their start with the next
        size = self.starts[number + 1] - self.starts[number]
        return number, (self.epochs[number] + epoch) * size + index - self.starts[number]


def source_eras(moves: Sequence[tuple[int, Generations]], sizes: Sequence[int]) -> tuple[SourceEra, ...]:
    """The eras of a source, from the samples drawn before each move and its generations. Raises
    SnapshotError for moves that no run makes: they are read from states."""
    eras: list[SourceEra] = []
    for start, generations in moves:
        era = _next_era(eras[-1] if eras else None, start, generations, sizes)
        if era is None:
            raise SnapshotError(
                f"the loader state has {generations} after {start} samples of a source, which no run comes to. Give a state "
                f"as a loader saved it."
            )
        eras.append(era)
    return tuple(eras)


def _next_era(before: SourceEra | None, start: int, generations: Generations, sizes: Sequence[int]) -> SourceEra | None:
    """The era that follows another; None for an impossible one."""
    count, origin = generations.count, generations.origin
    if not 0 < count <= len(sizes):
        return None
    starts = tuple(np.cumsum([0, *sizes[:count]]).tolist())
    if before is None:
        epochs, first = (0,) * count, 0
        fits = origin == start == 0
    else:
        whole, rest = divmod(origin - before.origin, before.size) if before.size else (0, origin - before.origin)
        epochs = (*(passed + whole for passed in before.epochs), *(0,) * (count - len(before.epochs)))
        fits = rest == 0 <= whole and count > len(before.epochs) and max(before.start, origin) <= start <= origin + before.size
        first = before.first_epoch + whole
    if not fits or epochs[0] != generations.epochs:
        return None
    return SourceEra(start=start, origin=origin, first_epoch=first, epochs=epochs, starts=starts)


class GrownOrder:
    """The samples of one source: the order of each generation, and the eras."""

    def __init__(self, generations: Sequence[SourceOrder], eras: Sequence[SourceEra]) -> None:
        self._generations, self._eras, self.size = tuple(generations), tuple(eras), eras[-1].size
        self._starts = [era.start for era in self._eras]
        self._origins = [era.origin for era in self._eras]

    @property
    def last_era(self) -> SourceEra:
        return self._eras[-1]

    def window_at(self, ordinal: int) -> Window:
        number, within = self._eras[bisect_right(self._origins, ordinal) - 1].split(ordinal)
        window, shift = self._generations[number].window_at(within), ordinal - within
        return replace(window, first=window.first + shift, stop=window.stop + shift)

    def replaced(self, ordinals: np.ndarray, attempt: int) -> np.ndarray:
        """The ordinals, of the same epochs, whose rows are the k-th replacements of unreadable rows: (n,) int64."""
        out = np.empty(len(ordinals), np.int64)
        era_of = np.searchsorted(self._starts, ordinals, side="right") - 1
        for number in np.unique(era_of).tolist():
            era = self._eras[number]
            epoch_of = (ordinals - era.origin) // era.size
            for epoch in np.unique(epoch_of[era_of == number]).tolist():
                here = (era_of == number) & (epoch_of == epoch)
                start = era.origin + epoch * era.size
                key = self._generations[0].replacement_key(era.first_epoch + epoch, attempt)
                out[here] = start + permute(key, era.size, ordinals[here] - start)
        return out

    def epochs_until(self, count: int) -> int:
        """Epochs that begin before ordinal `count`."""
        era = self._eras[max(0, bisect_right(self._starts, count - 1) - 1)]
        return era.first_epoch + -(-(count - era.origin) // max(1, era.size))

    def ordinals_of(self, address: int, epoch: int, attempt: int = 0) -> list[int]:
        """All ordinals of an epoch of the source whose row, or whose replacement at this `attempt`, is at an address."""
        number = next(number for number, order in enumerate(self._generations) if order.holds(address))
        order, of_row = self._generations[number], set[int]()
        for era, stop in zip(self._eras, [*self._starts[1:], None]):
            whole = epoch - era.first_epoch
            if number >= len(era.epochs) or whole < 0:
                continue
            own_epoch = era.epochs[number] + whole
            within = order.ordinals_of(address, own_epoch)
            indices = np.array(within, np.int64) - own_epoch * order.size + era.starts[number]
            if attempt:
                indices = invert(self._generations[0].replacement_key(epoch, attempt), era.size, indices)
            ordinals = (era.origin + whole * era.size + indices).tolist()
            of_row |= {ordinal for ordinal in ordinals if era.start <= ordinal and (stop is None or ordinal < stop)}
        return sorted(of_row)

    def windows_from(self, ordinal: int) -> Iterator[tuple[int, list[int]]]:
        while True:
            era = self._eras[bisect_right(self._origins, ordinal) - 1]
            number, within = era.split(ordinal)
            size = era.starts[number + 1] - era.starts[number]
            end = ordinal + size - within % size
            for first, shards in self._generations[number].windows_from(within):
                if first - within + ordinal >= end:
                    break
                yield first - within + ordinal, shards
            ordinal = end


MOST_BYTES = 64 << 20  # of the windows in the tables; past it, the tables start over


class _Tables(NamedTuple):
    """Windows as kernels read them, (num_sources * WINDOWS_PER_SOURCE, WINDOW_WIDTH) int64; by line, the memory's owner."""

    windows: np.ndarray
    kept: Mapping[int, Window]
    num_bytes: int


class AddressFinder:
    """Addresses of the samples of each source, by one kernel call for all. Several threads may call `find` at once.

    Samples of `cells` are computed. Of other sources, tables hold the two windows that each used last. They are replaced, never
    changed: a call works with the tables that it took, so the memory that a kernel reads lives until it returns.
    """

    def __init__(self, orders: Sequence[GrownOrder], cells: CellFinder | None = None) -> None:
        self._orders, self._cells = orders, cells
        self._tables = self._empty()

    def __reduce__(self) -> tuple[type[AddressFinder], tuple[Sequence[GrownOrder], CellFinder | None]]:
        """A copy begins with empty tables: those of the original hold addresses of its memory."""
        return AddressFinder, (self._orders, self._cells)

    def find(self, sources: np.ndarray, ordinals: np.ndarray, attempt: int = 0) -> np.ndarray:
        """The address of each sample: (n,) int64. Ordinals, (n,) int64, count over all epochs of the source. With `attempt` k
        above 0: of the k-th replacement, from the same source and epoch."""
        if attempt:
            ordinals = self._replaced(sources, ordinals, attempt)
        addresses = np.full(len(sources), -1, np.int64)
        if self._cells is not None and self._cells.find(sources, ordinals, addresses) == 0:
            return addresses
        tables = self._tables
        while kernels.find_addresses(sources, ordinals, tables.windows, addresses):
            tables = self._with_windows(tables, sources, ordinals, np.flatnonzero(addresses < 0))
            if not attempt:  # replacements lie anywhere in their epoch: their windows would push out those in use
                self._tables = tables
        return addresses

    def _replaced(self, sources: np.ndarray, ordinals: np.ndarray, attempt: int) -> np.ndarray:
        out = np.empty_like(ordinals)
        for source in np.unique(sources).tolist():
            here = sources == source
            out[here] = self._orders[source].replaced(ordinals[here], attempt)
        return out

    def _with_windows(self, tables: _Tables, sources: np.ndarray, ordinals: np.ndarray, missing: np.ndarray) -> _Tables:
        """`tables` with the window of the first missing sample of each source instead of the older of its windows."""
        of_missing, first_of = np.unique(sources[missing], return_index=True)
        new = [
            (source, self._orders[source].window_at(ordinal))
            for source, ordinal in zip(of_missing.tolist(), ordinals[missing[first_of]].tolist())
        ]
        added = sum(window.num_bytes for _, window in new)
        if tables.num_bytes + added > MOST_BYTES:
            tables = self._empty()
        windows, kept, num_bytes = tables.windows.copy(), dict(tables.kept), tables.num_bytes + added
        for source, window in new:
            older, newer = source * kernels.WINDOWS_PER_SOURCE, source * kernels.WINDOWS_PER_SOURCE + 1
            if newer in kept:
                num_bytes -= kept[older].num_bytes if older in kept else 0
                windows[older], kept[older] = windows[newer], kept[newer]
            table, entries = window.permutation, window.entries
            permutation, is_table = table.ctypes.data if len(table) else 0, table.dtype == np.uint16
            memory = permutation, is_table, window.base, len(entries) // 2, entries.ctypes.data
            windows[newer] = [window.first, window.stop, *memory]
            kept[newer] = window
        return _Tables(windows, kept, num_bytes)

    def _empty(self) -> _Tables:
        num_lines = len(self._orders) * kernels.WINDOWS_PER_SOURCE
        return _Tables(np.zeros((num_lines, kernels.WINDOW_WIDTH), np.int64), {}, 0)
