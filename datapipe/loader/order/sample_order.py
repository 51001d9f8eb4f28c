"""Which sequence is sample g: the order of a whole run as a function of the snapshot, a seed and the run's lineage.

    train        g -> mixture that held at g -> (source, ordinal) -> (epoch, keyed permutation of the source) -> address
    validation   g -> address g: every validation sequence once, by source, shard and row; weights play no part

Each epoch of each source is a permutation of its own (`epochs.py`), so any sample is found in constant time and memory, the
shuffle is global, and nothing has to be remembered. Where the mixture was changed on the way, each leg draws on from the places
that the one before had reached. It runs backwards as well: `samples_of` says where in the run a sequence comes up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from datapipe.errors import SnapshotError
from datapipe.loader.order.layout import Layout, Split, plan_layout
from datapipe.loader.order.lineage import MixtureEra, data_of
from datapipe.loader.order.mixing import Mixture
from datapipe.loader.order.source_order import MAX_WALKS, SourceOrder
from datapipe.shards.manifest import Snapshot


class Inventory:
    """What there is to draw from in one split of a snapshot, and the order of each source; the same whatever the mixture.

    Args:
        window_shards: how many shards of a source are mixed at a time; 0 for all.

    Attributes:
        data: by source, a digest of its rows.
        sizes: by source, samples in one of its epochs.
    """

    def __init__(self, snapshot: Snapshot, split: Split, seed: int, window_shards: int) -> None:
        self.snapshot, self.seed, self.window_shards = snapshot, seed, window_shards
        self.split: Split = split
        self.layout: Layout = plan_layout(snapshot, split)
        self.data = data_of(snapshot, self.layout)
        self.orders = tuple(
            SourceOrder(
                seed,
                ("loader", split, name),
                self.layout.shards[start:stop],
                snapshot.sources[name].strata if split == "train" else None,
                window_shards,
            )
            for name, start, stop in zip(self.layout.sources, self.layout.source_shards, self.layout.source_shards[1:])
        )
        self.sizes = {name: order.size for name, order in zip(self.layout.sources, self.orders)}


class SampleOrder:
    """The order of one split. Raises SnapshotError where a source is to be drawn from and has no sequences.

    Args:
        legs: the mixtures of the run, the first from sample 0, rising. Only the last has to fit the supply.
    """

    def __init__(self, inventory: Inventory, eras: Sequence[MixtureEra]) -> None:
        self.inventory, self.layout, self.split = inventory, inventory.layout, inventory.split
        self._eras = tuple(eras)
        self._starts = [era.sample for era in eras]
        self._mixtures: dict[int, Mixture] = {}
        self._check_split()

    def locate(self, samples: np.ndarray, attempt: int = 0) -> np.ndarray:
        """The address of each sample in `layout`: (n,) int64.

        Args:
            samples: (n,) int64, global sample numbers within the run.
            attempt: above 0, the address that takes the place of one that cannot be had; of the same source and epoch.
        """
        if self.split == "validation":
            return samples.astype(np.int64)
        if len(self._eras) == 1:
            return self._locate_in(0, samples, attempt)
        number_of = np.searchsorted(self._starts, samples, side="right") - 1
        out = np.empty(len(samples), np.int64)
        for number in set(number_of.tolist()):
            here = number_of == number
            out[here] = self._locate_in(number, samples[here], attempt)
        return out

    def locate_without(self, samples: np.ndarray, shards: Mapping[int, int], attempt: int = 0) -> np.ndarray:
        """`locate`, with rows of left-out shards replaced by others of the same source and epoch.

        Args:
            shards: number of a shard -> the sample from which on it is left out.
        """
        addresses = self.locate(samples, attempt)
        if not shards or self.split == "validation":
            return addresses
        since = np.full(len(self.layout.shards), np.iinfo(np.int64).max)
        since[list(shards)] = list(shards.values())
        hit = np.zeros(0, np.int64)
        for further in range(attempt + 1, attempt + MAX_WALKS + 1):
            hit = np.flatnonzero(since[self.layout.find(addresses)[0]] <= samples)
            if len(hit) == 0:
                return addresses
            addresses[hit] = self.locate(samples[hit], further)
        source = self.layout.sources[int(self.layout.source_of(addresses[hit[:1]])[0])]
        raise SnapshotError(
            f"source '{source}': nearly all of its shards are left out, so that no row takes the place of theirs. "
            f"Leave out fewer, or give the source no weight."
        )

    def samples_of(self, address: int, num_epochs: int, without: Mapping[int, int] = {}) -> list[tuple[int, int]]:
        """(epoch, sample) wherever the sequence at `address` comes up in its source's first `num_epochs` epochs.

        The samples are those of an endless run: the caller cuts them off where its own ends.

        Args:
            without: shards that are left out, as for `locate_without`; rows may stand in for theirs.
        """
        if self.split == "validation":
            return [(0, address)]
        source = int(self.layout.source_of(np.array([address]))[0])
        row, order = address - int(self.layout.source_starts[source]), self.inventory.orders[source]
        found = {
            (epoch, sample)
            for epoch in range(num_epochs)
            for attempt in range(MAX_WALKS + 1 if without else 1)
            for ordinal in order.ordinals_of(row, epoch, attempt)
            for sample in self._samples_of_ordinal(source, ordinal)
        }
        in_order = sorted(found, key=lambda one: (one[1], one[0]))
        addresses = self.locate_without(np.array([sample for _, sample in in_order], np.int64), without)
        return [one for one, there in zip(in_order, addresses.tolist()) if there == address]

    def epochs_until(self, source: int, stop: int) -> int:
        """Epochs of a source that are begun before sample `stop`, whichever mixture drew them."""
        size = max(1, self.inventory.orders[source].size)
        ends = [min(stop, later) for later in [*self._starts[1:], stop]]
        return max(
            -(-self._mixture(number).counts(max(end, start))[source] // size)
            for number, (start, end) in enumerate(zip(self._starts, ends))
        )

    def drawn_elsewhere(self) -> list[tuple[int, int, str, str]]:
        """What earlier legs drew of rows that are not here: first step, the one after the last, source, snapshot."""
        found: list[tuple[int, int, str, str]] = []
        for era, later in zip(self._eras, self._eras[1:]):
            gone = [name for name in sorted(era.recipe.drawn) if era.data.get(name) != self.inventory.data.get(name)]
            found += [(era.step, later.step, name, era.snapshot) for name in gone]
        return found

    def windows_ahead(self, sample: int, per_source: int = 2) -> list[int]:
        """Numbers of the shards that are read from `sample` on, by first use: a few windows of each source."""
        if self.split == "validation":
            return list(range(int(self.layout.find(np.array([sample]))[0][0]), len(self.layout.shards)))
        mixture, found = self.mixture, list[tuple[int, int, int]]()
        for source, place in enumerate(mixture.counts(max(sample, mixture.start))[: len(self.layout.sources)]):
            if not mixture.is_drawn(source):
                continue
            for _, (first, shards) in zip(range(per_source), self.inventory.orders[source].windows_from(place)):
                at = sample if first <= place else mixture.sample_of(source, first)
                if at is not None:
                    found += [(at, number, int(self.layout.source_shards[source]) + number) for number in shards]
        return list(dict.fromkeys(shard for _, _, shard in sorted(found)))

    @property
    def mixture(self) -> Mixture:
        """The one that holds last."""
        return self._mixture(len(self._eras) - 1)

    @cached_property
    def num_samples(self) -> int | None:
        """How many samples there are before batches are cut; None if there is no end."""
        if self.split == "validation":
            return self.layout.num_sequences
        ends = [end for end in (self._eras[-1].recipe.num_samples, self.mixture.end) if end is not None]
        return min(ends, default=None)

    def _locate_in(self, number: int, samples: np.ndarray, attempt: int) -> np.ndarray:
        mixture = self._mixture(number)
        sources, ordinals = mixture.assign(samples)
        first = int(sources[0]) if len(sources) else 0
        if (sources == first).all():
            self._check_era(number, first)
            return self.layout.source_starts[first] + self.inventory.orders[first].locate(ordinals, attempt)
        out = np.empty(len(samples), np.int64)
        for source in set(sources.tolist()):
            self._check_era(number, source)
            here = sources == source
            out[here] = self.layout.source_starts[source] + self.inventory.orders[source].locate(ordinals[here], attempt)
        return out

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
        """Whether a leg drew from a source as it is in this snapshot."""
        name = self._mixture(number).sources[source]
        return name in self.inventory.data and self._eras[number].data.get(name) == self.inventory.data[name]

    def _check_era(self, number: int, source: int) -> None:
        if number + 1 < len(self._eras) and not self._fits(number, source):
            era, name = self._eras[number], self._mixture(number).sources[source]
            raise SnapshotError(
                f"source '{name}' was other data, or none of this snapshot's, before step {self._eras[number + 1].step} of "
                f"this run. Open the output that held it then, of snapshot {era.snapshot}, to see those batches."
            )

    def _check_split(self) -> None:
        if self.split == "validation":
            if self.layout.num_sequences == 0:
                raise SnapshotError(
                    "the snapshot holds no validation sequences. Set `validation: 0.1%` (or more) in the mixture and run it "
                    "again."
                )
            return
        for source, name in enumerate(self.layout.sources):
            if self.inventory.sizes[name] == 0 and self.mixture.is_drawn(source):
                held = "an epoch of nothing, since every stratum with a row in it is repeated 0 times"
                raise SnapshotError(
                    f"source '{name}' has weight in the mixture and "
                    f"{held if self.layout.size(source) else 'not one training sequence in the snapshot'}. "
                    f"Set its weight to 0, or see in report.json where its documents went, and run the mixture again."
                )


def mixture_of(era: MixtureEra, first: tuple[str, ...] = ()) -> Mixture:
    """The mixture of a leg over the sources `first` and, behind them, its others."""
    drawn = {name for phase in era.recipe.phases for name in phase.weights}
    sources = (*first, *sorted(drawn - set(first)))
    sizes = [era.sizes.get(name, 0) for name in sources]
    return Mixture(era.recipe, sources, sizes, era.sample, [era.places.get(name, 0) for name in sources])


def places_at(era: MixtureEra, sample: int) -> dict[str, int]:
    """How many samples before `sample`, which `leg` holds or just held, came from each source in the whole run: by name."""
    mixture = mixture_of(era)
    return {**era.places, **dict(zip(mixture.sources, mixture.counts(sample)))}
