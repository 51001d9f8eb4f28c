"""The snapshots of an output: when each was published, and what of the output it needs.

    snapshots/<fingerprint>/publication.json    {"published_at": seconds since the epoch}
    snapshots/<fingerprint>/pin.json            {"pinned_at": seconds since the epoch, "why": text}

A snapshot is never changed. One that is published again keeps the time of its first publication. A
snapshot with a pin stays, whatever is published after it, until it is unpinned.
"""

import json
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from shlex import quote
from typing import Any

from datapipe.dataclass import dataclass
from datapipe.errors import SnapshotError
from datapipe.records.names import LISTS, SNAPSHOT
from datapipe.shards.manifest import Snapshot, read_snapshot
from datapipe.shards.snapshot_folder import PUBLICATION, find_snapshot, fingerprints, has_snapshot, read_note, snapshot_folder
from datapipe.storage.root import Root

PIN = "pin.json"

_LENGTH_FOLDER = re.compile(r"length-\d+")

DATA_PATH = re.compile(
    r"(length-\d+/)?(shards/[^/]+/(part|validation)(-[a-z]+-\d{2})?-\d{5,}(-[a-z]+-\d{5,})?-\d{5,}(-[0-9a-f]{16})?\.(arrow|parquet)"
    r"|documents/[^/]+/part-\d{5,}-[0-9a-f]{16}\.(parquet|jsonl\.zst)"
    r"|lists/[0-9a-f]{32}\.parquet)"
)
"""Paths of the shards, of the files of documents and of the lists of both that runs write."""


def note_publication(root: Root, fingerprint: str) -> None:
    """Notes when a snapshot was first published."""
    if _published_at(root, fingerprint) is None:
        content = {"published_at": time.time()}
        root.write_atomic(f"{snapshot_folder(fingerprint)}/{PUBLICATION}", (json.dumps(content) + "\n").encode())


def _published_at(root: Root, fingerprint: str) -> float | None:
    """The time of the first publication; None without a note."""
    remedy = "Delete it, and run the mixture again: only the time of the snapshot is lost."
    return read_note(root, f"{snapshot_folder(fingerprint)}/{PUBLICATION}", lambda noted: float(noted["published_at"]), remedy)


def newest_manifest(root: Root) -> Snapshot | None:
    """The newest snapshot of an output; None where there is none that can be read.

    Where snapshot.json of the output is damaged, it is the last one among the folders of snapshots: that with the most
    documents taken down, since their list only grows, and then the one published last.
    """
    if not root.exists(SNAPSHOT):
        return None
    with suppress(SnapshotError):
        return read_snapshot(root)
    intact: list[tuple[int, float, Snapshot]] = []
    for name in fingerprints(root):
        with suppress(SnapshotError):
            snapshot = read_snapshot(root, name)
            intact.append((snapshot.num_removed, _published_at(root, name) or 0.0, snapshot))
    return max(intact, key=lambda listed: listed[:2])[2] if intact else None


@dataclass(frozen=True, kw_only=True)
class Publication:
    """A snapshot of an output, as it was published."""

    snapshot: Snapshot  # its manifest
    published_at: float | None  # seconds since the epoch; None for an export, which notes no time

    @property
    def fingerprint(self) -> str:
        return self.snapshot.fingerprint


def publications(root: Root) -> list[Publication]:
    """The snapshots of an output, the newest last. Raises SnapshotError where there is none."""
    newest = read_snapshot(root)
    published: list[Publication] = []
    for name in {newest.fingerprint, *fingerprints(root)}:
        snapshot = newest if name == newest.fingerprint else read_snapshot(root, name)
        published.append(Publication(snapshot=snapshot, published_at=_published_at(root, name)))
    return sorted(published, key=lambda each: (each.snapshot is newest, each.published_at or 0.0, each.fingerprint))


def files_needed(snapshots: Iterable[Snapshot]) -> dict[str, int]:
    """By path, the bytes of every shard of any length that some snapshot has, and of every list of shards."""
    rows = (each for snapshot in snapshots for each in (snapshot, *snapshot.further))
    return {entry.path: entry.bytes for each in rows for entry in (*each.lists, *each.shards)}


def data_folders(root: Root) -> list[str]:
    """The folders of an output that hold shards, documents and lists, as far as they are there."""
    lengths = [f"{folder}/" for folder in root.folders() if _LENGTH_FOLDER.fullmatch(folder)]
    return [prefix + folder for prefix in ("", *lengths) for folder in ("shards", "documents", LISTS)]


def data_files(root: Root) -> list[tuple[str, int]]:
    """Path and bytes of all files among the shards, documents and lists of an output."""
    return [file for folder in data_folders(root) for file in root.list_files(folder)]


@dataclass(frozen=True, kw_only=True)
class Pin:
    """A snapshot that no cleaning deletes."""

    fingerprint: str
    pinned_at: float  # seconds since the epoch
    why: str  # what needs it, in the words of who pinned it; may be empty


def pins(root: Root) -> list[Pin]:
    """The pinned snapshots of an output. Raises SnapshotError for a damaged pin."""
    return [pin for name in fingerprints(root) if (pin := _read_pin(root, name)) is not None]


def pin_snapshot(root: Root, name: str, why: str, pinned_at: float) -> Pin:
    """Pins a snapshot; one that is pinned gets the new reason. Raises SnapshotError where none is there, or no longer.
    `name`: its fingerprint, or the first digits of it. `pinned_at`: seconds since the epoch."""
    fingerprint = find_snapshot(root, name)
    content = {"pinned_at": pinned_at, "why": why}
    path = _pin_path(fingerprint)
    root.write_atomic(path, (json.dumps(content, ensure_ascii=False) + "\n").encode())
    if not has_snapshot(root, fingerprint):
        root.delete(path)
        raise SnapshotError(
            f"{root.url}: `datapipe clean` deleted snapshot {fingerprint} just now. Expected one that is there."
        )
    return Pin(fingerprint=fingerprint, pinned_at=pinned_at, why=why)


def unpin_snapshot(root: Root, name: str) -> str:
    """Removes the pin of a snapshot, also a damaged one. Returns its fingerprint. Raises SnapshotError where it has no pin."""
    fingerprint = find_snapshot(root, name)
    path = _pin_path(fingerprint)
    if not root.exists(path):
        raise SnapshotError(f"{root.url}: snapshot {fingerprint} is not pinned. `datapipe snapshots` lists the pins.")
    root.delete(path)
    return fingerprint


def _pin_path(fingerprint: str) -> str:
    return f"{snapshot_folder(fingerprint)}/{PIN}"


def _read_pin(root: Root, fingerprint: str) -> Pin | None:
    def made(noted: Any) -> Pin:
        return Pin(fingerprint=fingerprint, pinned_at=float(noted["pinned_at"]), why=str(noted["why"]))

    command = f"datapipe snapshots {quote(root.url)}"
    remedy = f"`{command} --pin {fingerprint[:12]}` writes it again, and `--unpin {fingerprint[:12]}` removes it."
    return read_note(root, _pin_path(fingerprint), made, remedy)
