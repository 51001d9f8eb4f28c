"""The sequence of sample g: the order of a run as a function of the snapshot, a seed and the lineage.

    train        g -> mixture era that holds g -> (source, ordinal) -> (epoch, keyed permutation of the source) -> address
    validation   g -> address g: every validation sequence once, by source, shard and row; weights do not count

Any sample is computed in constant time and memory. Where the mixture changed, each era continues after the samples that the era
before had drawn. The inverse, `samples_of`, gives every occurrence of a sequence in the run.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, starmap

import numpy as np

from datapipe.errors import SnapshotError
from datapipe.loader.order.grown_order import AddressFinder, Generations, GrownOrder, source_eras
from datapipe.loader.order.layout import Layout, Split, plan_layout
from datapipe.loader.order.lineage import MixtureEra, digest_sources
from datapipe.loader.order.mixing import Mixture
from datapipe.loader.order.source_order import MAX_REPLACEMENTS, SourceOrder
from datapipe.shards.manifest import Snapshot


@dataclass(kw_only=True, eq=False)
class OrderKey:
    """What decides the order of each source, but for its rows."""

    snapshot: Snapshot
    split: Split
    seed: int
    window_shards: int  # shards of a source that are mixed at a time; 0 for all
    shuffle: bool  # whether the rows of a source are mixed; otherwise they come in the order of its shards


class Inventory(OrderKey):
    """The rows of one split of a snapshot, and the order of each source. The mixture is no part of
    it. By source: `digests` of the rows of its first generation, of the first two, and so on;
    `data`, a digest of all its rows; in a new run, `generations`, where there are several, and
    `orders`. `removed`: digest of the list of documents that were taken down; "" where there are
    none."""

    def __init__(self, snapshot: Snapshot, split: Split, seed: int, window_shards: int, *, shuffle: bool = True) -> None:
        super().__init__(snapshot=snapshot, split=split, seed=seed, window_shards=window_shards, shuffle=shuffle)
        self.layout: Layout = plan_layout(snapshot, split)
        self.removed = "" if snapshot.removed is None else snapshot.removed.digest
        self.digests = digest_sources(snapshot, self.layout)
        self.data = {name: digests[-1] for name, digests in self.digests.items()}
        counts = {name: len(digests) for name, digests in self.digests.items()}
        self.generations = {name: Generations(count=count) for name, count in counts.items() if count > 1}
        self._orders_of_each = tuple(self._orders_of_generations())
        self.orders = tuple(
            self._order(number, [(0, Generations(count=counts[name]))]) for number, name in enumerate(self.layout.sources)
        )
        self.addresses = AddressFinder(self.orders, self.layout.source_starts)
        self.sizes = {name: order.size for name, order in zip(self.layout.sources, self.orders)}

    def holds(self, name: str, era: MixtureEra) -> bool:
        """Whether an era drew from rows of a source that are here."""
        digests, count = self.digests.get(name, ()), era.generations_of(name).count
        return count <= len(digests) and digests[count - 1] == era.data.get(name)

    def orders_of(self, eras: Sequence[MixtureEra]) -> tuple[GrownOrder, ...]:
        """The order of each source in a run whose mixtures these are. Raises SnapshotError for a history that no run has."""
        orders: list[GrownOrder] = []
        for number, name in enumerate(self.layout.sources):
            moves: list[tuple[int, Generations]] = []
            for era in eras:
                generations, num_drawn = era.generations_of(name), era.num_drawn.get(name, 0)
                if not num_drawn:  # the source begins, or starts over
                    moves.clear()
                if self.holds(name, era) and not (moves and moves[-1][1] == generations):
                    moves.append((num_drawn, generations))
            is_new = len(moves) < 2 and (not moves or moves[0] == (0, Generations(count=len(self.digests[name]))))
            orders.append(self.orders[number] if is_new else self._order(number, moves))
        return tuple(orders)

    def _order(self, source: int, moves: Sequence[tuple[int, Generations]]) -> GrownOrder:
        orders = self._orders_of_each[source]
        return GrownOrder(orders, source_eras(moves, [order.size for order in orders]))

    def _orders_of_generations(self) -> Iterator[tuple[SourceOrder, ...]]:
        """The order of each generation, by source. Raises SnapshotError for a shard of an unknown stratum."""
        shards = self.layout.shards
        sizes, stratum_of = shards.sequences, shards.strata
        for name, borders in zip(self.layout.sources, self.layout.generation_shards):
            strata, orders = self.snapshot.sources[name].strata if self.split == "train" else None, list[SourceOrder]()
            here, start = slice(borders[0], borders[-1]), borders[0]
            if strata is not None:
                wrong = np.flatnonzero((stratum_of[here] < 0) | (stratum_of[here] >= len(strata.repeats)))
                if len(wrong):
                    raise SnapshotError(
                        f"{shards[start + int(wrong[0])].path}: its stratum is not one of the {len(strata.repeats)} of its "
                        f"source. Run the mixture again."
                    )
            for number, of_generation in enumerate(starmap(slice, pairwise(borders))):
                names = ("loader", self.split, name, *(("part", number) if number else ()))
                arguments = (self.seed, names, sizes[of_generation], stratum_of[of_generation], strata, self.window_shards)
                orders.append(SourceOrder(*arguments, shuffle=self.shuffle))
            yield tuple(orders)


class SampleOrder:
    """The order of one split. `eras`: the mixtures of the run, ascending, the first from sample 0;
    only the last must fit the inventory. Raises SnapshotError for a source with weight and no
    sequences."""

    def __init__(self, inventory: Inventory, eras: Sequence[MixtureEra]) -> None:
        self.inventory, self.layout, self.split = inventory, inventory.layout, inventory.split
        self._eras = tuple(eras)
        self._starts = [era.sample for era in eras]
        self._mixtures: dict[int, Mixture] = {}
        self._orders = inventory.orders if self.split == "validation" else inventory.orders_of(self._eras)
        is_new = all(mine is new for mine, new in zip(self._orders, inventory.orders))
        self._addresses = inventory.addresses if is_new else AddressFinder(self._orders, self.layout.source_starts)
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
        row, order = address - int(self.layout.source_starts[source]), self._orders[source]
        candidates = {
            (epoch, sample)
            for epoch in range(num_epochs)
            for attempt in range(MAX_REPLACEMENTS + 1 if without else 1)
            for ordinal in order.ordinals_of(row, epoch, attempt)
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
        mixture, uses = self.mixture, list[tuple[int, int, int]]()  # (first sample, number in the source, number)
        for source, num_drawn in enumerate(mixture.counts(max(sample, mixture.start))[: len(self.layout.sources)]):
            if not mixture.is_drawn(source):
                continue
            for _, (ordinal, shards) in zip(range(per_source), self._orders[source].windows_from(num_drawn)):
                first_sample = sample if ordinal <= num_drawn else mixture.sample_of(source, ordinal)
                if first_sample is not None:
                    uses += [(first_sample, number, int(self.layout.source_shards[source]) + number) for number in shards]
        return list(dict.fromkeys(shard for _, _, shard in sorted(uses)))

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
        starts = self.layout.source_starts
        for source, name in enumerate(self.layout.sources):
            if self.inventory.sizes[name] == 0 and self.mixture.is_drawn(source):
                reason = "all its strata with rows are repeated 0 times"
                raise SnapshotError(
                    f"source '{name}' has weight in the mixture, but "
                    f"{reason if starts[source] < starts[source + 1] else 'the snapshot holds no training sequence of it'}. "
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
