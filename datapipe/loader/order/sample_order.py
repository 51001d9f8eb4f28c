"""The sequence of sample g: the order of a run as a function of the snapshot, a seed and the lineage.

    train        g -> mixture era that holds g -> (source, ordinal) -> (epoch, keyed permutation of the source) -> address
    validation   g -> address g: every validation sequence once, by source, shard and row; weights do not count

Any sample is computed in constant time and memory. Where the mixture changed, each era continues after the samples that the era
before had drawn. The inverse, `samples_of`, gives every occurrence of a sequence in the run.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, overload

import numpy as np

from datapipe.dataclass import dataclass
from datapipe.errors import SnapshotError
from datapipe.kernels.tokens.cells import SIZE
from datapipe.loader.order.cell_finder import CellFinder, cell_finder
from datapipe.loader.order.grown_order import AddressFinder, Generations, GrownOrder, source_eras
from datapipe.loader.order.layout import Layout, Repeats, Split, plan_layout
from datapipe.loader.order.lineage import MixtureEra, digest_sources
from datapipe.loader.order.mixing import Mixture
from datapipe.loader.order.source_order import MAX_REPLACEMENTS, SourceOrder
from datapipe.rng import seed_for
from datapipe.shards.manifest import Snapshot
from datapipe.shards.source_entry import Strata


@dataclass(kw_only=True, eq=False)
class OrderKey:
    """What decides the order of each source, but for its rows."""

    snapshot: Snapshot
    split: Split
    seed: int
    window_shards: int  # shards of a source that are mixed at a time; 0 for all
    shuffle: bool  # whether the rows of a source are mixed; otherwise they come in the order of its shards


class SourceOrders(Sequence[GrownOrder]):
    """The order of each source, made when it is first asked for. `given`: those of sources that have moved to more generations;
    the others are those of a new run."""

    def __init__(self, key: OrderKey, layout: Layout, given: Mapping[int, GrownOrder] = {}) -> None:
        self._key, self._layout = key, layout
        self._made: dict[int, GrownOrder] = {**given}

    def __len__(self) -> int:
        return len(self._layout.sources)

    @overload
    def __getitem__(self, index: int) -> GrownOrder: ...
    @overload
    def __getitem__(self, index: slice) -> list[GrownOrder]: ...
    def __getitem__(self, index: int | slice) -> GrownOrder | list[GrownOrder]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if index not in self._made:
            self._made[index] = self.moving(index, [(0, Generations(count=len(self._layout.generations_of(index))))])
        return self._made[index]

    def moving(self, source: int, moves: Sequence[tuple[int, Generations]]) -> GrownOrder:
        """The order of a source in a run with these moves. Raises SnapshotError for moves that no run makes."""
        key, name, repeats = self._key, self._layout.sources[source], self._repeats_of(source)
        common: dict[str, Any] = {"shuffle": key.shuffle, "is_cell": bool(self._layout.is_cell[source])}
        orders = [
            SourceOrder(
                key.seed, names_of(key, name, number), self._layout.runs.part(part), repeats, key.window_shards, **common
            )
            for number, part in enumerate(self._layout.generations_of(source))
        ]
        return GrownOrder(orders, source_eras(moves, [order.size for order in orders]))

    def _repeats_of(self, source: int) -> Strata | Repeats | None:
        if self._key.split == "validation":
            return None
        name, _, cell = self._layout.sources[source].partition("/")
        entry = self._key.snapshot.sources[name]
        if entry.cells is None:
            return entry.strata
        least = entry.cells.least_times[entry.cells.numbers[cell]]
        return Repeats((least, least + 1))


def names_of(key: OrderKey, source: str, part: int) -> tuple[str | int, ...]:
    """Of a generation of a source, in its seeds."""
    return ("loader", key.split, source, *(("part", part) if part else ()))


class Inventory(OrderKey):
    """The rows of one split of a snapshot, and the order of each source. The mixture is no part of it. By source: `digests` of
    the rows of its first generation, of the first two, and so on; `data`, a digest of all its rows; in a new run,
    `generations`, where there are several, and `orders`. `removed`: digest of the list of documents that were taken down; ""
    where there are none. Raises SnapshotError for a shard of an unknown stratum."""

    def __init__(self, snapshot: Snapshot, split: Split, seed: int, window_shards: int, *, shuffle: bool = True) -> None:
        super().__init__(snapshot=snapshot, split=split, seed=seed, window_shards=window_shards, shuffle=shuffle)
        self.layout: Layout = plan_layout(snapshot, split)
        self._check_strata()
        self.removed = "" if snapshot.removed is None else snapshot.removed.digest
        self.digests = digest_sources(snapshot, self.layout)
        self.data = {name: digests[-1] for name, digests in self.digests.items()}
        counts = {name: len(digests) for name, digests in self.digests.items()}
        self.generations = {name: Generations(count=count) for name, count in counts.items() if count > 1}
        self.orders = SourceOrders(
            OrderKey(snapshot=snapshot, split=split, seed=seed, window_shards=window_shards, shuffle=shuffle), self.layout
        )
        self.cells = self._find_cells() if self.layout.is_cell.any() else None
        self.addresses = AddressFinder(self.orders, self.cells)
        self.sizes = dict(zip(self.layout.sources, self.layout.sizes))

    def holds(self, name: str, era: MixtureEra) -> bool:
        """Whether an era drew from rows of a source that are here."""
        digests, count = self.digests.get(name, ()), era.generations_of(name).count
        return count <= len(digests) and digests[count - 1] == era.data.get(name)

    def moved_orders(self, eras: Sequence[MixtureEra]) -> dict[int, GrownOrder]:
        """By number, the order of each source that has moved to more generations in a run whose mixtures these are. Raises
        SnapshotError for a history that no run has."""
        first = eras[0]
        if len(eras) == 1 and not first.num_drawn and (first.data, first.generations) == (self.data, self.generations):
            return {}
        orders: dict[int, GrownOrder] = {}
        for number, name in enumerate(self.layout.sources):
            moves: list[tuple[int, Generations]] = []
            for era in eras:
                generations, num_drawn = era.generations_of(name), era.num_drawn.get(name, 0)
                if not num_drawn:  # the source begins, or starts over
                    moves.clear()
                if self.holds(name, era) and not (moves and moves[-1][1] == generations):
                    moves.append((num_drawn, generations))
            is_new = len(moves) < 2 and (not moves or moves[0] == (0, Generations(count=len(self.digests[name]))))
            if not is_new:
                orders[number] = self.orders.moving(number, moves)
        return orders

    def _find_cells(self) -> CellFinder:
        keys = {
            (number, part): seed_for(self.seed, *names_of(self, name, part))
            for number, name in enumerate(self.layout.sources)
            if self.layout.is_cell[number]
            for part in range(len(self.digests[name]))
        }
        return cell_finder(self.layout, self.window_shards, self.shuffle, keys)

    def _check_strata(self) -> None:
        for number, name in enumerate(self.layout.sources) if self.split == "train" else ():
            strata = None if self.layout.is_cell[number] else self.snapshot.sources[name].strata
            if strata is not None:
                runs = self.layout.runs.part(slice(*self.layout.source_runs[number : number + 2]))
                wrong = np.flatnonzero((runs.groups < 0) | (runs.groups >= len(strata.repeats)))
                if len(wrong):
                    raise SnapshotError(
                        f"{self.layout.shards[int(runs.shards[wrong[0]])].path}: its stratum is not one of the "
                        f"{len(strata.repeats)} of its source. Run the mixture again."
                    )


class SampleOrder:
    """The order of one split. `eras`: the mixtures of the run, ascending, the first from sample 0; only the last must fit the
    inventory. Raises SnapshotError for a source with weight and no sequences."""

    def __init__(self, inventory: Inventory, eras: Sequence[MixtureEra]) -> None:
        self.inventory, self.layout, self.split = inventory, inventory.layout, inventory.split
        self._eras = tuple(eras)
        self._starts = [era.sample for era in eras]
        self._mixtures: dict[int, Mixture] = {}
        self._orders, self._addresses, self._cells = inventory.orders, inventory.addresses, inventory.cells
        if moved := {} if self.split == "validation" else inventory.moved_orders(self._eras):
            self._orders = SourceOrders(inventory, self.layout, moved)
            eras_of = {source: order.last_era for source, order in moved.items()}
            self._cells = None if self._cells is None else self._cells.moved(eras_of)
            self._addresses = AddressFinder(self._orders, self._cells)
        self._check_split()

    def addresses_of(self, samples: np.ndarray, attempt: int = 0) -> np.ndarray:
        """The address of each sample, or of its k-th replacement, from the same source and epoch: (n,) int64."""
        if self.split == "validation":
            return samples.astype(np.int64)
        if len(self._eras) == 1 or (len(samples) and int(samples.min()) >= self._starts[-1]):
            return self._addresses_in(len(self._eras) - 1, samples, attempt)
        number_of = np.searchsorted(self._starts, samples, side="right") - 1
        out = np.empty(len(samples), np.int64)
        for number in set(number_of.tolist()):
            here = number_of == number
            out[here] = self._addresses_in(number, samples[here], attempt)
        return out

    def addresses_without(self, samples: np.ndarray, shards: Mapping[int, int], attempt: int = 0) -> np.ndarray:
        """`addresses_of`, with rows of left-out shards (number -> the first sample that must not
        read it) replaced by other rows of the same source and epoch."""
        addresses = self.addresses_of(samples, attempt)
        if not shards or self.split == "validation":
            return addresses
        since = np.full(len(self.layout.shards), np.iinfo(np.int64).max)
        since[list(shards)] = list(shards.values())
        hit = np.zeros(0, np.int64)
        for further in range(attempt + 1, attempt + MAX_REPLACEMENTS + 1):
            hit = np.flatnonzero(since[self.layout.find(addresses)[0]] <= samples)
            if len(hit) == 0:
                return addresses
            addresses[hit] = self.addresses_of(samples[hit], further)
        source = self.layout.sources[int(self.layout.source_of(addresses[hit[:1]])[0])]
        raise SnapshotError(
            f"source '{source}': nearly all of its shards are left out, and no replacement row was found in "
            f"{MAX_REPLACEMENTS} attempts. Leave out fewer shards, or set the weight of the source to 0."
        )

    def samples_of(self, address: int, num_epochs: int, without: Mapping[int, int] = {}) -> list[tuple[int, int]]:
        """(epoch, sample) of every occurrence of the sequence at `address` in its source's first
        `num_epochs` epochs, also as a replacement of rows `without` shards (`addresses_without`).
        The samples are those of an endless run; the caller drops those past the end of its run."""
        if self.split == "validation":
            return [(0, address)]
        source = int(self.layout.source_of(np.array([address]))[0])
        order = self._orders[source]
        candidates = {
            (epoch, sample)
            for epoch in range(num_epochs)
            for attempt in range(MAX_REPLACEMENTS + 1 if without else 1)
            for ordinal in order.ordinals_of(address, epoch, attempt)
            for sample in self._samples_of_ordinal(source, ordinal)
        }
        in_order = sorted(candidates, key=lambda occurrence: (occurrence[1], occurrence[0]))
        addresses = self.addresses_without(np.array([sample for _, sample in in_order], np.int64), without)
        return [occurrence for occurrence, actual in zip(in_order, addresses.tolist()) if actual == address]

    def epochs_until(self, source: int, stop: int) -> int:
        """Epochs of a source that begin before sample `stop`, over all eras."""
        ends = [min(stop, later) for later in [*self._starts[1:], stop]]
        return max(
            self._orders[source].epochs_until(self._mixture(number).counts(max(end, start))[source])
            for number, (start, end) in enumerate(zip(self._starts, ends))
        )

    def drawn_elsewhere(self) -> list[tuple[int, int, str, str]]:
        """(start step, stop step, source, snapshot) of earlier eras that drew rows which the inventory does not hold."""
        elsewhere: list[tuple[int, int, str, str]] = []
        for era, later in zip(self._eras, self._eras[1:]):
            changed = [name for name in sorted(era.recipe.drawn) if not self.inventory.holds(name, era)]
            elsewhere += [(era.step, later.step, name, era.snapshot) for name in changed]
        return elsewhere

    def windows_ahead(self, sample: int, per_source: int = 2) -> list[int]:
        """Numbers of the shards that are read from `sample` on, by first use: `per_source` windows of each source."""
        if self.split == "validation":
            return list(range(int(self.layout.find(np.array([sample]))[0][0]), len(self.layout.shards)))
        mixture, uses = self.mixture, [(sample, shard) for shard in self._shards_of_cells]  # (first sample, number)
        counts = mixture.counts(max(sample, mixture.start))
        for source in self._drawn_by_windows:
            num_drawn = counts[source]
            for _, (ordinal, shards) in zip(range(per_source), self._orders[source].windows_from(num_drawn)):
                first_sample = sample if ordinal <= num_drawn else mixture.sample_of(source, ordinal)
                if first_sample is not None:
                    uses += [(first_sample, shard) for shard in shards]
        return list(dict.fromkeys(shard for _, shard in sorted(uses)))

    @cached_property
    def _drawn_by_windows(self) -> list[int]:
        """The sources that are drawn, without the cells that have one window an epoch."""
        of_cells = np.zeros(len(self.layout.sources)) if self._cells is None else self._cells.cells[:, SIZE]
        return [source for source in np.flatnonzero(of_cells == 0).tolist() if self.mixture.is_drawn(source)]

    @cached_property
    def _shards_of_cells(self) -> list[int]:
        """The shards of the cells that are drawn and have one window an epoch: they are in use all the time."""
        if self._cells is None:
            return []
        is_used = self._cells.cells[:, SIZE] > 0
        is_used[[source for source in np.flatnonzero(is_used).tolist() if not self.mixture.is_drawn(source)]] = False
        return np.unique(self.layout.runs.shards[np.repeat(is_used, np.diff(self.layout.source_runs))]).tolist()

    @property
    def mixture(self) -> Mixture:
        return self._mixture(len(self._eras) - 1)

    @cached_property
    def num_samples(self) -> int | None:
        if self.split == "validation":
            return self.layout.num_sequences
        return _first_end(self._eras[-1], self.mixture)

    def _addresses_in(self, number: int, samples: np.ndarray, attempt: int) -> np.ndarray:
        sources, ordinals = self._mixture(number).assign(samples)
        if number + 1 < len(self._eras):
            for source in np.unique(sources).tolist():
                self._check_era(number, source)
        return self._addresses.find(sources, ordinals, attempt)

    def _samples_of_ordinal(self, source: int, ordinal: int) -> Iterator[int]:
        for number, start in enumerate(self._starts):
            stop = self._starts[number + 1] if number + 1 < len(self._starts) else None
            sample = self._mixture(number).sample_of(source, ordinal)
            if sample is not None and sample >= start and (stop is None or sample < stop) and self._fits(number, source):
                yield sample

    def _mixture(self, number: int) -> Mixture:
        if number not in self._mixtures:
            self._mixtures[number] = mixture_of(self._eras[number], self.layout.sources)
        return self._mixtures[number]

    def _fits(self, number: int, source: int) -> bool:
        return self.inventory.holds(self._mixture(number).sources[source], self._eras[number])

    def _check_era(self, number: int, source: int) -> None:
        if not self._fits(number, source):
            era, name = self._eras[number], self._mixture(number).sources[source]
            raise SnapshotError(
                f"before step {self._eras[number + 1].step}, this run drew source '{name}' from rows that this snapshot does "
                f"not hold. Open the output of snapshot {era.snapshot} to read those batches."
            )

    def _check_split(self) -> None:
        if self.split == "validation":
            if self.layout.num_sequences == 0:
                raise SnapshotError(
                    "the snapshot holds no validation sequences. Set `validation: 0.1%` or more in the mixture, and run it "
                    "again."
                )
            return
        for source, size in enumerate(self.layout.sizes):
            if size == 0 and self.mixture.is_drawn(source):
                name, rows = self.layout.sources[source], "rows" if self.layout.is_cell[source] else "strata with rows"
                reason = f"all its {rows} are repeated 0 times"
                raise SnapshotError(
                    f"source '{name}' has weight in the mixture, but "
                    f"{reason if self.layout.num_rows[source] else 'the snapshot holds no training sequence of it'}. "
                    f"Set its weight to 0, or check in report.json why its documents were dropped, and run the mixture again."
                )


def mixture_of(era: MixtureEra, first: tuple[str, ...] = ()) -> Mixture:
    drawn = {name for phase in era.recipe.phases for name in phase.weights}
    sources = (*first, *sorted(drawn - set(first)))
    sizes = [era.sizes.get(name, 0) for name in sources]
    num_drawn = [era.num_drawn.get(name, 0) for name in sources]
    return Mixture(era.recipe, sources, sizes, era.sample, num_drawn, era.generations)


def num_samples_of(era: MixtureEra) -> int | None:
    """Samples of a run whose last mixture is that of `era`; None for a run without end."""
    is_endless = era.recipe.total_tokens is None and not era.recipe.max_epochs
    return None if is_endless else _first_end(era, mixture_of(era))


def _first_end(era: MixtureEra, mixture: Mixture) -> int | None:
    return min((end for end in (era.recipe.num_samples, mixture.end) if end is not None), default=None)


def num_drawn_at(era: MixtureEra, sample: int) -> dict[str, int]:
    """By source, samples of the whole run before `sample`, which lies in `era` or right after it."""
    mixture = mixture_of(era)
    return {**era.num_drawn, **dict(zip(mixture.sources, mixture.counts(sample)))}
