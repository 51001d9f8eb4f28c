"""Deletes what no kept snapshot of an output needs: snapshots, their shards and documents, and files of tasks under work/.

The newest snapshots are kept, those with a pin, and the tasks of the last run, so that a run that was stopped resumes. A
manifest goes before the files that it names, so that a cleaning which is killed leaves whole snapshots and files that the next
one deletes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from datapipe.composing.additions import unneeded_files
from datapipe.errors import SnapshotError
from datapipe.ledger.ledger import Ledger, attempt_folder
from datapipe.ledger.lock import exclusive
from datapipe.ledger.names import ATTEMPTS, BEGUN, FILES, INPUTS, PUBLISHED, REMOVED, RUN, TOKENIZER, WORK, published_tasks
from datapipe.shards.manifest import SNAPSHOT, Manifest, folder_names, length_folders, read_manifest, snapshot_folder
from datapipe.shards.snapshots import (
    ADDITIONS,
    DATA_FOLDERS,
    DATA_PATH,
    Pin,
    Publication,
    data_files,
    files_needed,
    pins,
    publications,
)
from datapipe.storage import Root

_File = tuple[str, int]
"""Path below the output, and bytes."""

_NEWEST = (SNAPSHOT, TOKENIZER, FILES, REMOVED)
"""Files of the newest snapshot of a sequence length, beside its folder."""


@dataclass(frozen=True, kw_only=True)
class Cleaning:
    """What a cleaning deletes.

    Attributes:
        kept, dropped: the publications of the first sequence length, the newest last.
        pins: of the snapshots that would be deleted without them, of any sequence length.
        shards: path and bytes of the shards and files of documents that are deleted.
        files: paths and bytes of other files of the snapshots that are deleted.
        tasks: fingerprints of the tasks whose records are deleted.
        work_files: path and bytes of the files of these tasks, and of those that no record names.
        additions: path and bytes of the files of additions that nothing needs.
        keeps_tasks: whether every task stays, since the last run was killed and has told none.
    """

    kept: tuple[Publication, ...]
    dropped: tuple[Publication, ...]
    pins: tuple[Pin, ...]
    shards: tuple[_File, ...]
    files: tuple[_File, ...]
    tasks: tuple[str, ...]
    work_files: tuple[_File, ...]
    additions: tuple[_File, ...] = ()
    keeps_tasks: bool = False

    @property
    def num_bytes(self) -> int:
        """Bytes of the names that are deleted. A file with another hard link, as a shard has under work/, stays on the disk."""
        return sum(size for group in (self.shards, self.files, self.work_files, self.additions) for _, size in group)

    @property
    def is_empty(self) -> bool:
        return not any((self.shards, self.files, self.tasks, self.work_files, self.additions))

    @property
    def manifests(self) -> list[str]:
        """Those of `files` that are deleted first."""
        return [path for path, _ in self.files if path.rpartition("/")[2] == SNAPSHOT]


def plan_cleaning(root: Root, keep: int) -> Cleaning:
    """What `clean` would delete. Raises SnapshotError where there is no snapshot, or a damaged one.

    Args:
        keep: how many of the newest snapshots stay, at least 1; pinned ones stay beside them.
    """
    if not root.exists(SNAPSHOT) and root.exists(INPUTS):
        raise SnapshotError(
            f"{root.url}: no run has published a snapshot here yet, so there is nothing to clean. The same `datapipe run` "
            f"goes on with what is committed. To give it up, delete {root.child_url(WORK)} while no run is at work."
        )
    every, pinned = publications(root), pins(root)
    newest, names = every[-keep:], {("", publication.fingerprint) for publication in every[-keep:]}
    own = {pin.fingerprint for pin in pinned if not pin.folder}
    kept = [publication for publication in every if publication in newest or publication.fingerprint in own]
    wanted = {"": {publication.fingerprint for publication in kept}}
    for folder in length_folders(root):
        target = root.within(folder)
        names |= {(folder, name) for name in _wanted(target, folder, newest)}
        wanted[folder] = _wanted(target, folder, kept) | {pin.fingerprint for pin in pinned if pin.folder == folder}
    parts = [_unneeded(root.within(folder), folder, stay) for folder, stay in wanted.items()]
    shards, files = (tuple(chain.from_iterable(each)) for each in zip(*parts))
    tasks, work_files = _unneeded_work(root, kept)
    return Cleaning(
        kept=tuple(kept),
        dropped=tuple(publication for publication in every if publication not in kept),
        pins=tuple(pin for pin in pinned if (pin.folder, pin.fingerprint) not in names),
        shards=shards,
        files=files,
        tasks=tuple(tasks),
        work_files=tuple(work_files),
        keeps_tasks=root.exists(BEGUN),
        additions=tuple(unneeded_files(root, [publication.snapshot for publication in kept])),
    )


def clean(root: Root, keep: int) -> Cleaning:
    """Deletes what the `keep` newest snapshots, pinned ones and the last run do not need, while no run is at work.

    Returns what it was. Raises SnapshotError, before it deletes anything, where a snapshot was pinned meanwhile.
    """
    with exclusive(root) as hold:
        cleaning = plan_cleaning(root, keep)
        _refuse_new_pins(root, cleaning)
        lists = [path for path, _ in cleaning.work_files if path.startswith(f"{PUBLISHED}/")]
        files = (*cleaning.files, *cleaning.shards, *cleaning.additions)
        paths = list(dict.fromkeys([*cleaning.manifests, *(path for path, _ in files), *lists]))
        with hold.deleting(paths):
            for path in paths:
                root.delete(path)
        ledger = Ledger(root, hold.condemned)
        ledger.load()
        if cleaning.tasks:
            ledger.keep(set(ledger.fingerprints()) - set(cleaning.tasks))
        ledger.sweep(hold)
        for folder in ("", *length_folders(root)):
            target = root.within(folder)
            for parent in ("snapshots", *DATA_FOLDERS):
                target.delete_empty_folders(parent)
        root.delete_empty_folders(ADDITIONS)
    return cleaning


def _refuse_new_pins(root: Root, cleaning: Cleaning) -> None:
    """A pin does not wait for the lock of the output, so that it can be set while a run is at work."""
    for pin in pins(root):
        path = f"{snapshot_folder(pin.fingerprint)}/{SNAPSHOT}"
        if (f"{pin.folder}/{path}" if pin.folder else path) in cleaning.manifests:
            raise SnapshotError(
                f"{root.url}: snapshot {pin.fingerprint} was pinned while the cleaning was planned. Nothing was deleted. "
                f"Run `datapipe clean` again."
            )


def _wanted(target: Root, folder: str, kept: Sequence[Publication]) -> set[str]:
    """The snapshots of a further sequence length that stay: those that were published with the kept ones.

    The snapshot of datapipe 0.1 did not note the others; then the newest stays.
    """
    names = {name for publication in kept for name in publication.lengths.get(folder, ())}
    is_noted = all(publication.published_at is not None for publication in kept)
    return names if is_noted or not target.exists(SNAPSHOT) else {*names, read_manifest(target).fingerprint}


def _unneeded(target: Root, folder: str, wanted: set[str]) -> tuple[list[_File], list[_File]]:
    """The shards, and the other files, that the wanted snapshots of one folder do not need."""
    folders = [snapshot_folder(name) for name in folder_names(target) if name not in wanted]
    files = [(path, size) for own in folders for path, size in target.list_files(own)]
    if not wanted:  # a sequence length that no kept snapshot has
        files += [(path, size) for path, size in target.list_files("", recursive=False) if path in _NEWEST]
    needed = files_needed(_snapshots(target, wanted))
    shards = [(path, size) for path, size in data_files(target) if path not in needed and DATA_PATH.fullmatch(path)]
    prefix = f"{folder}/" if folder else ""
    return [(f"{prefix}{path}", size) for path, size in shards], [(f"{prefix}{path}", size) for path, size in files]


def _snapshots(target: Root, wanted: set[str]) -> list[Manifest]:
    """The wanted snapshots, and the newest one where there are any: its manifest in the folder itself names shards, too."""
    found = [read_manifest(target)] if wanted and target.exists(SNAPSHOT) else []
    names = wanted - {snapshot.fingerprint for snapshot in found}
    return [*found, *(read_manifest(target, name) for name in sorted(names))]


def _unneeded_work(root: Root, kept: Sequence[Publication]) -> tuple[list[str], list[tuple[str, int]]]:
    """The tasks that neither a kept snapshot nor the last run has, and files under work/ that no other task names.

    Which tasks a run has that was killed is written nowhere, so after one every task stays.
    """
    needed = _last_run(root)
    for publication in kept:
        try:
            needed |= set(root.read_bytes(published_tasks(publication.fingerprint)).decode().split())
        except FileNotFoundError:  # published by datapipe 0.1
            continue
    ledger = Ledger(root)
    ledger.load()
    names = ledger.fingerprints()
    if root.exists(BEGUN):
        needed |= set(names)
    gone = [name for name in names if name not in needed]
    records = [record for name in names if name in needed and (record := ledger.look_up(name)) is not None]
    used = {attempt_folder(output.path) for record in records for outputs in record.outputs.values() for output in outputs}
    files = [(path, size) for path, size in root.list_files(ATTEMPTS) if attempt_folder(path) not in {*used, None}]
    lists = {published_tasks(publication.fingerprint) for publication in kept}
    return gone, [*files, *((path, size) for path, size in root.list_files(PUBLISHED) if path not in lists)]


def _last_run(root: Root) -> set[str]:
    """The tasks of the last run, whether it succeeded or not."""
    try:
        steps = json.loads(root.read_bytes(RUN))["steps"]
        return {fingerprint for step in steps for fingerprint in step["tasks"]}
    except FileNotFoundError:
        return set()
    except (ValueError, LookupError, TypeError) as error:
        raise SnapshotError(f"{root.child_url(RUN)}: the file was edited or damaged. Run the mixture again.") from error


def work_bytes(root: Root) -> int:
    """Bytes of the files under work/."""
    return sum(size for _, size in root.list_files(WORK))
