"""The snapshots of an output: when each was published, and what of the output it needs.

    snapshots/<fingerprint>/publication.json    {"published_at": seconds since the epoch, "lengths": {folder: [fingerprint, …]}}
    snapshots/<fingerprint>/pin.json            {"pinned_at": seconds since the epoch, "why": text}

`lengths` holds the snapshots of further sequence lengths that were published with it, by folder of the output: "length-8192".
A snapshot is never changed. One that is published again keeps the time of its first publication; other sequence lengths that it
is published with then are added. A snapshot with a pin stays, whatever is published after it, until it is unpinned.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from shlex import quote
from typing import Any, TypeVar

from datapipe.errors import DatapipeError, SnapshotError
from datapipe.records.names import LISTS, SNAPSHOT, length_folders
from datapipe.shards.manifest import Snapshot, find_snapshot, fingerprints, has_snapshot, read_snapshot, snapshot_folder
from datapipe.storage.root import Root

PUBLICATION = "publication.json"
PIN = "pin.json"

_Note = TypeVar("_Note")

DATA_PATH = re.compile(
    r"shards/[^/]+/(part|validation)(-stratum-\d{2})?-\d{5,}(-pieces-\d{5,})?-\d{5,}(-[0-9a-f]{16})?\.(arrow|parquet)"
    r"|documents/[^/]+/part-\d{5,}-[0-9a-f]{16}\.(parquet|jsonl\.zst)"
    r"|lists/[0-9a-f]{32}\.parquet"
)
"""Paths of the shards, of the files of documents and of the lists of both that runs write."""

DATA_FOLDERS = ("shards", "documents", LISTS)
"""The folders that hold them."""


def note_publication(root: Root, fingerprint: str, lengths: Mapping[str, str]) -> None:
    """Notes when a snapshot was first published, and the snapshots of further lengths that are published with it now.

    Args:
        lengths: fingerprint by folder of the output.
    """
    published_at, noted = _read_note(root, fingerprint)
    wanted = noted | {folder: {*noted.get(folder, ()), name} for folder, name in lengths.items()}
    if published_at is None or wanted != noted:
        at = time.time() if published_at is None else published_at
        content = {"published_at": at, "lengths": {folder: sorted(names) for folder, names in sorted(wanted.items())}}
        root.write_atomic(f"{snapshot_folder(fingerprint)}/{PUBLICATION}", (json.dumps(content) + "\n").encode())


def _read_note(root: Root, fingerprint: str) -> tuple[float | None, dict[str, set[str]]]:
    """The time of the first publication and the noted lengths; None without a note."""

    def made(noted: Any) -> tuple[float, dict[str, set[str]]]:
        return float(noted["published_at"]), {str(folder): set(names) for folder, names in noted["lengths"].items()}

    remedy = "Delete it, and run the mixture again: only the time of the snapshot is lost."
    return read_note(root, f"{snapshot_folder(fingerprint)}/{PUBLICATION}", made, remedy) or (None, {})


def read_note(
    root: Root, path: str, made: Callable[[Any], _Note], remedy: str, kind: type[DatapipeError] = SnapshotError
) -> _Note | None:
    """What `made` makes of a small JSON file; None where there is none. Raises an error of this kind, which ends with the
    remedy, for a damaged one."""
    try:
        return made(json.loads(root.read_bytes(path)))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise kind(f"{root.child_url(path)}: the file was edited or damaged: {error}. {remedy}") from error


def length_snapshots(root: Root, fingerprint: str) -> dict[str, str]:
    """By folder, the fingerprint of the snapshot of a further sequence length that was published with a snapshot; of several,
    the newest one of its folder if that is among them."""
    _, noted = _read_note(root, fingerprint)
    newest = {folder: read_snapshot(root.within(folder)).fingerprint for folder, names in noted.items() if len(names) > 1}
    return {folder: newest[folder] if newest.get(folder) in names else min(names) for folder, names in noted.items() if names}


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
            intact.append((snapshot.num_removed, _read_note(root, name)[0] or 0.0, snapshot))
    return max(intact, key=lambda one: one[:2])[2] if intact else None


@dataclass(frozen=True, kw_only=True)
class Publication:
    """A snapshot of an output, as it was published.

    Attributes:
        snapshot: its manifest.
        published_at: seconds since the epoch; None for an export, which notes no time.
        lengths: by folder, fingerprints of the snapshots that were published with it; its own in the folder "".
    """

    snapshot: Snapshot
    published_at: float | None
    lengths: Mapping[str, Set[str]]

    @property
    def fingerprint(self) -> str:
        return self.snapshot.fingerprint


def publications(root: Root) -> list[Publication]:
    """The snapshots of an output by time, the newest last. Raises SnapshotError where there is none."""
    newest = read_snapshot(root)
    found: list[Publication] = []
    for name in {newest.fingerprint, *fingerprints(root)}:
        published_at, lengths = _read_note(root, name)
        snapshot = newest if name == newest.fingerprint else read_snapshot(root, name)
        found.append(Publication(snapshot=snapshot, published_at=published_at, lengths={"": {name}, **lengths}))
    return sorted(found, key=lambda each: (each.snapshot is newest, each.published_at or 0.0, each.fingerprint))


def published_names(published: Iterable[Publication]) -> set[tuple[str, str]]:
    """Folder and fingerprint of the snapshots of all sequence lengths."""
    return {(folder, name) for each in published for folder, names in each.lengths.items() for name in names}


def files_needed(snapshots: Iterable[Snapshot]) -> dict[str, int]:
    """By path, the bytes of every shard that some snapshot has, and of every list of shards."""
    return {entry.path: entry.bytes for snapshot in snapshots for entry in (*snapshot.lists, *snapshot.shards)}


def data_files(root: Root) -> list[tuple[str, int]]:
    """Path and bytes of all files among the shards, documents and lists of an output."""
    return [file for folder in DATA_FOLDERS for file in root.list_files(folder)]


# ------------------------------------------------------------------------------------------------ pins


@dataclass(frozen=True, kw_only=True)
class Pin:
    """A snapshot that no cleaning deletes.

    Attributes:
        folder: that of its sequence length below the output, as "length-8192"; empty for the first.
        pinned_at: seconds since the epoch.
        why: what needs it, in the words of who pinned it; may be empty.
    """

    folder: str
    fingerprint: str
    pinned_at: float
    why: str


def pins(root: Root) -> list[Pin]:
    """The pinned snapshots of an output, of all sequence lengths. Raises SnapshotError for a damaged pin."""
    found = (_read_pin(root, folder, name) for folder, name in _all_names(root))
    return [pin for pin in found if pin is not None]


def _all_names(root: Root) -> list[tuple[str, str]]:
    """Folder and fingerprint of every snapshot of an output."""
    return [(folder, name) for folder in length_folders(root) for name in fingerprints(root.within(folder))]


def pin_snapshot(root: Root, name: str, why: str, pinned_at: float) -> Pin:
    """Pins a snapshot; one that is pinned gets the new reason. Raises SnapshotError where none is there, or no longer.

    Args:
        name: its fingerprint, or the first digits of it; also of a further sequence length.
        pinned_at: seconds since the epoch.
    """
    folder, fingerprint = _find(root, name)
    target = root.within(folder)
    content = {"pinned_at": pinned_at, "why": why}
    target.write_atomic(_pin_path(fingerprint), (json.dumps(content, ensure_ascii=False) + "\n").encode())
    if not has_snapshot(target, fingerprint):
        target.delete(_pin_path(fingerprint))
        raise SnapshotError(
            f"{target.url}: `datapipe clean` deleted snapshot {fingerprint} just now. Expected one that is there."
        )
    return Pin(folder=folder, fingerprint=fingerprint, pinned_at=pinned_at, why=why)


def unpin_snapshot(root: Root, name: str) -> str:
    """Removes the pin of a snapshot, also a damaged one. Returns its fingerprint. Raises SnapshotError where it has no pin."""
    folder, fingerprint = _find(root, name)
    target = root.within(folder)
    if not target.exists(_pin_path(fingerprint)):
        raise SnapshotError(f"{target.url}: snapshot {fingerprint} is not pinned. `datapipe snapshots` lists the pins.")
    target.delete(_pin_path(fingerprint))
    return fingerprint


def _find(root: Root, name: str) -> tuple[str, str]:
    """The folder and the fingerprint of the one snapshot that `name` begins, of any sequence length."""
    fitting = [(folder, each) for folder, each in _all_names(root) if name and each.startswith(name)]
    if not any(folder for folder, _ in fitting):
        return "", find_snapshot(root, name)
    if len(fitting) > 1:
        there = ", ".join(f"{each[:12]} in {folder or 'the output itself'}" for folder, each in fitting)
        raise SnapshotError(f"{root.url}: several snapshots begin with '{name}': {there}. Give more digits.")
    return fitting[0]


def _pin_path(fingerprint: str) -> str:
    return f"{snapshot_folder(fingerprint)}/{PIN}"


def _read_pin(root: Root, folder: str, fingerprint: str) -> Pin | None:
    def made(noted: Any) -> Pin:
        return Pin(folder=folder, fingerprint=fingerprint, pinned_at=float(noted["pinned_at"]), why=str(noted["why"]))

    command = f"datapipe snapshots {quote(root.url)}"
    remedy = f"`{command} --pin {fingerprint[:12]}` writes it again, and `--unpin {fingerprint[:12]}` removes it."
    return read_note(root.within(folder), _pin_path(fingerprint), made, remedy)
