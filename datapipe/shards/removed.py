"""removed.parquet: the documents that were taken down from a snapshot. Their rows stay where they are, and loaders pad them.

    key         16 bytes      of the document, sorted
    takedown    int32         the takedown that removed it, from 1

A list only grows: each takedown adds to those before it, in later snapshots of the output too. The manifest has a digest of the
list as it was after each takedown, so that a loader's lineage can name, by 18 characters, the list of a step.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from datapipe import columns
from datapipe.columns import KEY_BYTES, KEY_TYPE
from datapipe.dataclass import dataclass
from datapipe.errors import SnapshotError
from datapipe.records.checksum import bytes_checksum
from datapipe.shards.document_files import committed_file
from datapipe.shards.manifest import RemovedEntry, Snapshot
from datapipe.storage.root import Root, parquet_table

_KEY = f"S{KEY_BYTES}"


@dataclass(frozen=True)
class Removed:
    """Documents that were taken down."""

    keys: np.ndarray  # (num_documents,) of 16 bytes, sorted
    takedowns: np.ndarray  # (num_documents,) int32, the number of the takedown of each, from 1

    @classmethod
    def none(cls) -> Removed:
        return cls(np.zeros(0, _KEY), np.zeros(0, np.int32))

    def __len__(self) -> int:
        return len(self.keys)

    def with_takedown(self, keys: Iterable[bytes]) -> Removed:
        """This list with one takedown more, of the documents that are not in it; the same list where all of them are."""
        added = np.setdiff1d(np.array(list(keys), _KEY), self.keys)
        if not len(added):
            return self
        number = int(self.takedowns.max(initial=0)) + 1
        joined = np.concatenate([self.keys, added])
        takedowns = np.concatenate([self.takedowns, np.full(len(added), number, np.int32)])
        order = np.argsort(joined)
        return Removed(joined[order], takedowns[order])

    @cached_property
    def digests(self) -> tuple[str, ...]:
        """Of the list after each takedown."""
        names: list[str] = []
        for number in range(1, int(self.takedowns.max(initial=0)) + 1):
            before = names[-1].encode() if names else b""
            names.append(xxhash.xxh3_128_hexdigest(before + self.keys[self.takedowns == number].tobytes())[:18])
        return tuple(names)

    def until(self, digest: str) -> Removed:
        """The list as it was when it had this digest; "" is that of the empty list. Raises KeyError where it never had it."""
        if not digest:
            return Removed.none()
        if digest not in self.digests:
            raise KeyError(digest)
        held = self.takedowns <= self.digests.index(digest) + 1
        return Removed(self.keys[held], self.takedowns[held])

    def holds(self, keys: np.ndarray) -> np.ndarray:
        """Which documents are in the list: (n,) bool. `keys`: (n, 16) uint8, in any order."""
        if not len(self.keys):
            return np.zeros(len(keys), np.bool_)
        wanted = np.ascontiguousarray(keys).view(_KEY).reshape(-1)
        return self.keys[np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)] == wanted

    def has(self, key: bytes) -> bool:
        """Whether one document is in the list."""
        return bool(self.holds(np.frombuffer(key, np.uint8).reshape(1, KEY_BYTES))[0])

    @property
    def halves(self) -> tuple[np.ndarray, np.ndarray]:
        """File hash and position of each document, each (num_documents,) uint64."""
        return columns.matrix_halves(self.keys.view(np.uint8).reshape(-1, KEY_BYTES))

    def to_parquet(self) -> bytes:
        keys = columns.keys_from(self.keys.view(np.uint8).reshape(-1, KEY_BYTES))
        sink = io.BytesIO()
        pq.write_table(pa.table({"key": keys, "takedown": pa.array(self.takedowns)}), sink, compression="zstd")
        return sink.getvalue()


def removed_entry(removed: Removed, path: str) -> tuple[RemovedEntry | None, dict[str, bytes]]:
    """The list as a manifest names it, and its file by path; None and no file for an empty list."""
    if not len(removed):
        return None, {}
    content = removed.to_parquet()
    entry = RemovedEntry(
        path=path,
        bytes=len(content),
        checksum=bytes_checksum(content),
        documents=len(removed),
        takedowns=removed.digests,
    )
    return entry, {path: content}


def read_removed(root: Root, snapshot: Snapshot | None) -> Removed:
    """The documents that were taken down from a snapshot; none without one. Raises CorruptionError for a damaged list."""
    if snapshot is None or snapshot.removed is None:
        return Removed.none()
    table = parquet_table(committed_file(root, snapshot, snapshot.removed.path, snapshot.removed.checksum))
    keys = columns.key_matrix(table.column("key").cast(KEY_TYPE))
    return Removed(np.ascontiguousarray(keys).view(_KEY).reshape(-1), columns.numbers(table.column("takedown")))


class RemovedAtSteps:
    """The documents that are padding at each step of a run. `removed`: of the snapshot that is read.
    `removals`: (step, digest) in the order of steps: the list that holds from that step on."""

    def __init__(self, removed: Removed, removals: Sequence[tuple[int, str]], fingerprint: str) -> None:
        self._removed, self._removals, self._fingerprint = removed, tuple(removals), fingerprint
        self._lists: dict[str, Removed] = {}

    def at(self, step: int) -> Removed:
        """Raises SnapshotError where the snapshot does not know the list that held at a step."""
        digest = next((digest for since, digest in reversed(self._removals) if since <= step), "")
        if digest not in self._lists:
            try:
                self._lists[digest] = self._removed.until(digest)
            except KeyError:
                raise SnapshotError(
                    f"at step {step} documents were left out by a takedown that snapshot {self._fingerprint[:12]} does not "
                    f"have. Open the snapshot that the run read then, or a later one of its output."
                ) from None
        return self._lists[digest]
