"""The order of a source: of one part, or of several that were packed one after another, each with an order of its own.

    part        0 ──────────── rows of the first snapshot      1 ──── an addition      2 ── a later one
    epoch       all parts, one after another, each mixed in itself
    ordinal     0 ──────── part 0 ──────── | part 0 ─────▲ part 0 | part 1 | part 0 ──────── part 1 ──── …
                                                         └ here the run moved to a snapshot with part 1

A run that moves to a snapshot with more parts finishes the epoch that it is in, whose samples do not change, draws the new
parts, and then begins epochs over all of them. So no row comes again before its epoch has ended, and whatever was handed out
before can be computed again from the later snapshot. A leg is what lies between two such moves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from datapipe.errors import SnapshotError
from datapipe.kernels.tokens.permute import invert, permute
from datapipe.loader.order.source_order import SourceOrder, Window


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """How many parts of a source a mixture draws from, and where their order began.

    Attributes:
        count: of the parts, from the first one on.
        origin: ordinal at which the epoch began that ends with the newest of them.
        epochs: of the first part, before `origin`.
    """

    count: int = 1
    origin: int = 0
    epochs: int = 0

    def grown(self, count: int, size: int, num_drawn: int) -> Parts:
        """The parts after a move to a snapshot with `count` of them.

        Args:
            size: samples of an epoch of these.
            num_drawn: samples drawn before the move.
        """
        whole = max(0, -(-(num_drawn - self.origin) // size) - 1) if size else 0
        return Parts(count=count, origin=self.origin + whole * size, epochs=self.epochs + whole)


@dataclass(frozen=True, kw_only=True, slots=True)
class Leg:
    """The samples that were drawn, or will be, of as many parts.

    Attributes:
        start: first ordinal drawn of these parts. From `origin` on, legs before it have the same samples.
        origin: as in `Parts`.
        first_epoch: number of the source's epoch that begins at `origin`.
        epochs: of each part, before `origin`.
        starts: (count + 1,) indices in an epoch at which the parts begin.
    """

    start: int
    origin: int
    first_epoch: int
    epochs: tuple[int, ...]
    starts: tuple[int, ...]

    @property
    def size(self) -> int:
        """Samples of an epoch."""
        return self.starts[-1]

    @property
    def count(self) -> int:
        return len(self.epochs)

    def place(self, ordinal: int) -> tuple[int, int, int]:
        """(epoch of the source, part, ordinal within the part) of an ordinal."""
        whole, index = divmod(ordinal - self.origin, self.size)
        part = bisect_right(self.starts, index) - 1  # parts without samples share their start with the next
        of_part = self.starts[part + 1] - self.starts[part]
        return self.first_epoch + whole, part, (self.epochs[part] + whole) * of_part + index - self.starts[part]


def legs_of(moves: Sequence[tuple[int, Parts]], sizes: Sequence[int]) -> tuple[Leg, ...]:
    """The legs of a source.

    Args:
        moves: for each leg, the samples drawn before it, and its parts.
        sizes: samples of one epoch of each part.

    Raises SnapshotError for moves that no run makes: they are read from states.
    """
    legs: list[Leg] = []
    for start, parts in moves:
        leg = _leg(legs[-1] if legs else None, start, parts, sizes)
        if leg is None:
            raise SnapshotError(
                f"the loader state has {parts} after {start} samples of a source, which no run comes to. Give a state as a "
                f"loader saved it."
            )
        legs.append(leg)
    return tuple(legs)


def _leg(before: Leg | None, start: int, parts: Parts, sizes: Sequence[int]) -> Leg | None:
    """The leg that follows another one; None for one that cannot."""
    if not 0 < parts.count <= len(sizes):
        return None
    starts = tuple(np.cumsum([0, *sizes[: parts.count]]).tolist())
    if before is None:
        epochs, whole = (0,) * parts.count, 0
        fits = parts.origin == start == 0
    else:
        whole, rest = divmod(parts.origin - before.origin, before.size) if before.size else (0, parts.origin - before.origin)
        epochs = (*(count + whole for count in before.epochs), *(0,) * (parts.count - before.count))
        fits = rest == 0 <= whole and parts.count > before.count and max(before.start, parts.origin) <= start
        fits = fits and start <= parts.origin + before.size
    if not fits or epochs[0] != parts.epochs:
        return None
    first = 0 if before is None else before.first_epoch + whole
    return Leg(start=start, origin=parts.origin, first_epoch=first, epochs=epochs, starts=starts)


class GrownOrder:
    """The samples of one source.

    Args:
        parts: the orders of the parts.
        legs: as `legs_of` makes them.
    """

    def __init__(self, parts: Sequence[SourceOrder], legs: Sequence[Leg]) -> None:
        self._parts, self._legs = tuple(parts), tuple(legs)
        self._starts = [leg.start for leg in self._legs]
        self._origins = [leg.origin for leg in self._legs]
        self._first_rows = np.cumsum([0, *(part.num_rows for part in self._parts)]).tolist()
        self._first_shards = np.cumsum([0, *(part.num_shards for part in self._parts)]).tolist()

    @cached_property
    def size(self) -> int:
        """Samples of an epoch, of the last leg."""
        return self._legs[-1].size

    def window_at(self, ordinal: int) -> Window:
        """As `SourceOrder.window_at`."""
        leg = self._legs[bisect_right(self._origins, ordinal) - 1]
        _, part, within = leg.place(ordinal)
        window, row, shift = self._parts[part].window_at(within), self._first_rows[part], ordinal - within
        entries = window.entries.copy()
        entries[len(entries) // 2 :] += row
        base = window.base if len(entries) else window.base + row
        return replace(window, first=window.first + shift, stop=window.stop + shift, base=base, entries=entries)

    def replaced(self, ordinals: np.ndarray, attempt: int) -> np.ndarray:
        """The ordinals, of the same epochs, whose rows are the replacements of unreadable rows: (n,) int64.

        Args:
            ordinals: (n,) int64, samples of the source, counted over all epochs.
            attempt: k for the k-th replacement; at least 1.
        """
        out = np.empty(len(ordinals), np.int64)
        number_of = np.searchsorted(self._starts, ordinals, side="right") - 1
        for number in np.unique(number_of).tolist():
            leg = self._legs[number]
            wholes = (ordinals - leg.origin) // leg.size
            for whole in np.unique(wholes[number_of == number]).tolist():
                here = (number_of == number) & (wholes == whole)
                start = leg.origin + whole * leg.size
                key = self._parts[0].replacement_key(leg.first_epoch + whole, attempt)
                out[here] = start + permute(key, leg.size, ordinals[here] - start)
        return out

    def epochs_until(self, count: int) -> int:
        """Epochs that begin before ordinal `count`."""
        leg = self._legs[max(0, bisect_right(self._starts, count - 1) - 1)]
        return leg.first_epoch + -(-(count - leg.origin) // max(1, leg.size))

    def ordinals_of(self, row: int, epoch: int, attempt: int = 0) -> list[int]:
        """All ordinals of an epoch of the source whose row, or whose replacement at this `attempt`, is `row`."""
        part = bisect_right(self._first_rows, row) - 1
        found: set[int] = set()
        for leg, stop in zip(self._legs, [*self._starts[1:], None]):
            whole = epoch - leg.first_epoch
            if part >= leg.count or whole < 0:
                continue
            start, own, of_part = leg.origin + whole * leg.size, leg.epochs[part] + whole, self._parts[part].size
            within = self._parts[part].ordinals_of(row - self._first_rows[part], own)
            indices = np.array(within, np.int64) - own * of_part + leg.starts[part]
            if attempt:
                indices = invert(self._parts[0].replacement_key(epoch, attempt), leg.size, indices)
            ordinals = (start + indices).tolist()
            found |= {ordinal for ordinal in ordinals if leg.start <= ordinal and (stop is None or ordinal < stop)}
        return sorted(found)

    def windows_from(self, ordinal: int) -> Iterator[tuple[int, list[int]]]:
        """As `SourceOrder.windows_from`."""
        while True:
            number = bisect_right(self._origins, ordinal) - 1
            leg = self._legs[number]
            _, part, within = leg.place(ordinal)
            of_part = leg.starts[part + 1] - leg.starts[part]
            end = ordinal + of_part - within % of_part
            for first, shards in self._parts[part].windows_from(within):
                if first - within + ordinal >= end:
                    break
                yield first - within + ordinal, [self._first_shards[part] + shard for shard in shards]
            ordinal = end
