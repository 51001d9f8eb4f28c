"""Clusters of duplicates by size, in bounded memory: a keyed sample of survivors, each with all documents dropped for it.

A survivor is in the sample where its keyed hash is below 2^64 / 2^halvings. The bound is halved whenever the sample holds more
than it may. So the sample holds every cluster until there are many, and then a uniform share of them with whole counts. What is
left out of the sample of a task is left out of the sample of all tasks, which therefore does not depend on the tasks.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from datapipe.columns import KEY_TYPE, full_schema, is_first, key_halves, make_keys, numbers
from datapipe.exchange.partitions import TableWriter
from datapipe.records.outputs import Outputs
from datapipe.rng import keyed_hash, seed_for
from datapipe.storage.root import Root

SURVIVORS = full_schema(stage=pa.string(), survivor=KEY_TYPE, dropped=pa.int64(), halvings=pa.int64())
"""Documents of a task that a stage dropped for a survivor; a sample of survivors. All rows of a stage have its halvings."""

MOST_OF_TASK = 4096
"""Survivors in the sample of a task and stage: at most 130 kB."""

_SEED = seed_for(0, "clusters")


class ClusterSample:
    """A sample of the clusters of one stage.

    Attributes:
        halvings: the share of clusters in the sample is 2^-halvings.
    """

    def __init__(self, most: int) -> None:
        self.halvings = 0
        self._most = most
        self._rows: list[np.ndarray] = []  # (n, 3) uint64 each: the halves of a survivor's key, and documents
        self._held = 0

    def add(self, keys: pa.Array, dropped: np.ndarray, halvings: int = 0) -> None:
        """Adds documents that were dropped for these survivors; a survivor may occur several times.

        Args:
            keys: (n,) of the survivors.
            dropped: (n,) documents.
            halvings: of the sample that the survivors are of.
        """
        rows = np.column_stack([*key_halves(keys), dropped.astype(np.uint64)])
        self.halvings = max(self.halvings, halvings)
        self._rows.append(self._sampled(rows))
        self._held += len(self._rows[-1])
        if self._held > 2 * self._most:
            self._shrink()

    def clusters(self) -> tuple[pa.Array, np.ndarray]:
        """Survivors of the sample in the order of their keys, and the documents dropped for each, (n,) int64."""
        rows = self._shrink()
        return make_keys(rows[:, 0], rows[:, 1]), rows[:, 2].astype(np.int64)

    def _sampled(self, rows: np.ndarray) -> np.ndarray:
        if not self.halvings:
            return rows
        hashes = keyed_hash((rows[:, 0], rows[:, 1]), _SEED)
        return rows[hashes >> np.uint64(64 - self.halvings) == 0]

    def _shrink(self) -> np.ndarray:
        """One row a survivor, at most so many as the sample may hold."""
        rows = _summed(np.concatenate(self._rows)) if self._rows else np.zeros((0, 3), np.uint64)
        rows = self._sampled(rows)
        while len(rows) > self._most:
            self.halvings += 1
            rows = self._sampled(rows)
        self._rows, self._held = [rows], len(rows)
        return rows


def _summed(rows: np.ndarray) -> np.ndarray:
    """Rows of one key as one row, in the order of keys: (m, 3) uint64 of (n, 3)."""
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    starts = np.flatnonzero(is_first(rows[:, 0], rows[:, 1]))
    sums = np.add.reduceat(rows[:, 2], starts) if len(starts) else rows[:, 2]
    return np.column_stack([rows[starts, :2], sums])


class SurvivorWriter:
    """The sample of a task's clusters, for each stage that drops documents in favour of others."""

    def __init__(self, root: Root, folder: str) -> None:
        self._writer = TableWriter(root, f"{folder}/survivors.arrow")
        self._stages: dict[str, ClusterSample] = {}

    def add(self, stage: str, survivors: pa.Array) -> None:
        """Adds the survivors of dropped documents, one a document."""
        sample = self._stages.setdefault(stage, ClusterSample(MOST_OF_TASK))
        sample.add(survivors, np.ones(len(survivors), np.int64))

    def finish(self) -> Outputs:
        for stage, sample in self._stages.items():
            keys, dropped = sample.clusters()
            halvings = pa.array(np.full(len(keys), sample.halvings, np.int64))
            arrays = [pa.array([stage] * len(keys), pa.string()), keys, pa.array(dropped), halvings]
            self._writer.add(pa.record_batch(arrays, schema=SURVIVORS))
        return {"survivors": self._writer.finish()}


def read_samples(batches: Iterator[pa.RecordBatch], samples: dict[str, ClusterSample], most: int) -> None:
    """Adds the tables of tasks to the samples of stages, at most `most` clusters in each."""
    for batch in batches:
        stages = batch.column("stage").dictionary_encode()
        codes, dropped, halvings = numbers(stages.indices), numbers(batch.column("dropped")), numbers(batch.column("halvings"))
        for code, stage in enumerate(stages.dictionary.to_pylist()):
            rows = np.flatnonzero(codes == code)
            keys = batch.column("survivor").take(pa.array(rows))
            samples.setdefault(stage, ClusterSample(most)).add(keys, dropped[rows], int(halvings[rows[0]]))
