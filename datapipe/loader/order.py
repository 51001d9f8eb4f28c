"""Which sequence is sample g: the order of a whole run as a function of the snapshot and a seed.

    train        g -> mixture -> (source, ordinal) -> (epoch, keyed permutation of the source) -> address
    validation   g -> address g: every validation sequence once, by source, shard and row; weights play no part

Each epoch of each source is a permutation of its own, of all its sequences, evaluated per index. So any sample is found in
constant time and memory, the shuffle is global, and nothing has to be remembered. It runs backwards as well: `samples_of`
says where in the run a sequence comes up.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property
from math import floor

import numpy as np

from datapipe.errors import SnapshotError
from datapipe.kernels.permute import invert, permute
from datapipe.loader.layout import Layout, Split, plan_layout
from datapipe.loader.mixing import Mixture
from datapipe.rng import seed_for
from datapipe.shards.manifest import Snapshot


class SampleOrder:
    """The order of one split. Raises SnapshotError where a source is to be drawn from and has no sequences."""

    def __init__(self, snapshot: Snapshot, split: Split, seed: int) -> None:
        self.snapshot = snapshot
        self.split: Split = split
        self.seed = seed
        self.layout: Layout = plan_layout(snapshot, split)
        self.mixture = Mixture(snapshot, self.layout.sources)
        _check_sources(self.layout, self.mixture, split)

    def locate(self, samples: np.ndarray) -> np.ndarray:
        """The address of each sample in `layout`: (n,) int64.

        Args:
            samples: (n,) int64, global sample numbers within the run.
        """
        if self.split == "validation":
            return samples.astype(np.int64)
        sources, ordinals = self.mixture.assign(samples)
        starts = self.layout.source_starts[sources]
        epochs, indices = np.divmod(ordinals, self.layout.source_starts[sources + 1] - starts)
        positions = np.empty(len(samples), np.int64)
        for source, epoch in set(zip(sources.tolist(), epochs.tolist())):
            here = (sources == source) & (epochs == epoch)
            positions[here] = permute(self._key(source, epoch), self.layout.size(source), indices[here])
        return starts + positions

    def samples_of(self, address: int, num_epochs: int) -> list[tuple[int, int]]:
        """(epoch, sample) wherever the sequence at `address` comes up in its source's first `num_epochs` epochs.

        The samples are those of an endless run: the caller cuts them off where its own ends.
        """
        if self.split == "validation":
            return [(0, address)]
        source = int(self.layout.source_of(np.array([address]))[0])
        position, size = np.array([address]) - self.layout.source_starts[source], self.layout.size(source)
        found: list[tuple[int, int]] = []
        for epoch in range(num_epochs):
            index = int(invert(self._key(source, epoch), size, position)[0])
            sample = self.mixture.sample_of(source, epoch * size + index)
            if sample is not None:
                found.append((epoch, sample))
        return found

    def num_steps(self, global_batch_size: int) -> int | None:
        """How many global batches there are; None if there is no end.

        Training ends after the whole batches that fit into the snapshot's `total_tokens`, counted in full rows, and before the
        first batch in which a source would pass its `max_epochs`. Validation drops nothing: its last batch may be smaller.
        """
        if self.num_samples is None:
            return None
        drop_last = self.split == "train"
        return self.num_samples // global_batch_size if drop_last else -(-self.num_samples // global_batch_size)

    @cached_property
    def num_samples(self) -> int | None:
        """How many samples there are before batches are cut; None if there is no end."""
        if self.split == "validation":
            return self.layout.num_sequences
        ends = [samples for samples in (self._samples_of_tokens, self._samples_of_epochs) if samples is not None]
        return min(ends, default=None)

    @property
    def _samples_of_tokens(self) -> int | None:
        tokens = self.snapshot.total_tokens
        return None if tokens is None else tokens // self.snapshot.sequence_length

    @property
    def _samples_of_epochs(self) -> int | None:
        """The first sample past the `max_epochs` of its source."""
        found: list[int] = []
        for source, name in enumerate(self.layout.sources):
            limit = self.snapshot.sources[name].max_epochs
            if limit is None:
                continue
            # str: 0.7 epochs of 10 sequences are 7, though the float 0.7 is a little less
            sample = self.mixture.sample_of(source, floor(Fraction(str(limit)) * self.layout.size(source)))
            if sample is not None:
                found.append(sample)
        return min(found, default=None)

    def _key(self, source: int, epoch: int) -> int:
        return seed_for(self.seed, "loader", self.split, self.layout.sources[source], epoch)


def _check_sources(layout: Layout, mixture: Mixture, split: Split) -> None:
    if split == "validation":
        if layout.num_sequences == 0:
            raise SnapshotError(
                "the snapshot holds no validation sequences. Set `validation: 0.1%` (or more) in the mixture and run it again."
            )
        return
    for source, name in enumerate(layout.sources):
        if layout.size(source) == 0 and mixture.is_drawn(source):
            raise SnapshotError(
                f"source '{name}' has weight in the mixture and not one training sequence in the snapshot. "
                f"Set its weight to 0, or see in report.json which stage dropped its documents, and run the mixture again."
            )
