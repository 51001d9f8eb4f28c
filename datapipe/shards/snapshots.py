"""The snapshots of an output: when each was published, and what of the output it needs.

    snapshots/<fingerprint>/publication.json    {"published_at": seconds since the epoch, "snapshots": {folder: fingerprint}}

`snapshots` holds the snapshots of all sequence lengths of one publication, by folder of the output: "" and "length-8192".
A snapshot is never changed. One that is published again keeps the time of its first publication.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from datapipe.errors import SnapshotError
from datapipe.shards.manifest import Snapshot, fingerprints, read_snapshot, snapshot_folder
from datapipe.storage import Root

PUBLICATION = "publication.json"

SHARD_PATH = re.compile(
    r"shards/[^/]+/(part|validation)(-stratum-\d{2})?-\d{5,}(-pieces-\d{5,})?-\d{5,}(-[0-9a-f]{16})?\.(arrow|parquet)"
)
"""Paths of the shards that runs write."""


def publication_json(published_at: float, snapshots: Mapping[str, str]) -> bytes:
    """The content of publication.json."""
    return (json.dumps({"published_at": published_at, "snapshots": dict(snapshots)}) + "\n").encode()


@dataclass(frozen=True, kw_only=True)
class Publication:
    """A snapshot of an output, as it was published.

    Attributes:
        snapshot: its manifest.
        published_at: seconds since the epoch; None for the snapshot of datapipe 0.1, which noted no time.
        lengths: fingerprints by folder, of the snapshots of further sequence lengths that were published with it.
        is_newest: whether it is the one that loaders open by default.
    """

    snapshot: Snapshot
    published_at: float | None
    lengths: Mapping[str, str]
    is_newest: bool

    @property
    def fingerprint(self) -> str:
        return self.snapshot.fingerprint


def publications(root: Root) -> list[Publication]:
    """The snapshots of an output by time, the newest last. Raises SnapshotError where there is none."""
    newest = read_snapshot(root)
    found = [_publication(root, name, newest) for name in fingerprints(root)]
    if newest.fingerprint not in {publication.fingerprint for publication in found}:
        found.append(Publication(snapshot=newest, published_at=None, lengths={}, is_newest=True))
    return sorted(found, key=lambda each: (each.is_newest, each.published_at or 0.0, each.fingerprint))


def _publication(root: Root, fingerprint: str, newest: Snapshot) -> Publication:
    is_newest = fingerprint == newest.fingerprint
    snapshot = newest if is_newest else read_snapshot(root, fingerprint)
    published_at, lengths = None, {}
    try:
        noted = json.loads(root.read_bytes(f"{snapshot_folder(fingerprint)}/{PUBLICATION}"))
        published_at = float(noted["published_at"])
        lengths = {str(folder): str(name) for folder, name in noted["snapshots"].items() if folder}
    except FileNotFoundError:
        pass
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise SnapshotError(
            f"{root.child_url(snapshot_folder(fingerprint))}/{PUBLICATION}: the file was edited or damaged: {error}. "
            f"Delete it: only the time of the snapshot is lost."
        ) from error
    return Publication(snapshot=snapshot, published_at=published_at, lengths=lengths, is_newest=is_newest)


def shards_needed(snapshots: Iterable[Snapshot]) -> dict[str, int]:
    """By path, the bytes of every shard that some snapshot has."""
    return {entry.path: entry.bytes for snapshot in snapshots for entry in snapshot.shards}
