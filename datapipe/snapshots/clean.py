"""Deletes what no kept snapshot of an output needs: snapshots, their shards and documents, and files of tasks under work/.

    --work    also what only further work needs: the files that a run with `execution.keep_work: none` does not leave

The newest snapshots are kept, those with a pin, and the tasks of the last run, so that a run that
was stopped resumes. A manifest goes before the files that it names, so that a cleaning which is
killed leaves whole snapshots and files that the next one deletes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from datapipe.dataclass import dataclass
from datapipe.errors import SnapshotError, UserError
from datapipe.records.commit_files import TASK_DIGITS, attempt_folder
from datapipe.records.ledger import Ledger
from datapipe.records.names import (
    ATTEMPTS,
    BEGUN,
    INPUTS,
    OPTION_FILES,
    PUBLISHED,
    RUN,
    SNAPSHOT,
    SNAPSHOTS,
    WORK,
    published_tasks,
)
from datapipe.records.outputs import DocumentsFile, OutputFile, Record, ShardFile
from datapipe.shards.manifest import Snapshot
from datapipe.shards.snapshot_folder import folder_names, read_note, snapshot_folder
from datapipe.shards.snapshots import DATA_PATH, Pin, Publication, data_files, data_folders, files_needed, pins, publications
from datapipe.snapshots.committed_steps import tasks_in, tasks_of
from datapipe.snapshots.index.write import INDEX, ROWS
from datapipe.steps.kind import Step
from datapipe.steps.unread import PUBLISHED as PUBLISHED_KINDS
from datapipe.steps.unread import files_of, stays
from datapipe.storage.lock import exclusive
from datapipe.storage.root import Root


@dataclass(frozen=True, kw_only=True)
class Cleaning:
    """What a cleaning deletes."""

    # kept, dropped: the newest last
    kept: tuple[Publication, ...]
    dropped: tuple[Publication, ...]
    pins: tuple[Pin, ...]  # of the snapshots that would be deleted without them
    # path and bytes of the files of the snapshots that are deleted, manifests first
    files: tuple[tuple[str, int], ...]
    # path and bytes of the shards and files of documents that are deleted
    shards: tuple[tuple[str, int], ...]
    tasks: tuple[str, ...]  # fingerprints of the tasks whose records are deleted
    # path and bytes of the files of these tasks, of those that no record names, and of copies for nodes of a cluster
    work_files: tuple[tuple[str, int], ...]
    keeps_tasks: bool = False  # whether every task stays, since the last run was killed and has listed none
    # files of tasks that stay, which only further work needs
    unread: tuple[OutputFile, ...] = ()
    no_longer: tuple[str, ...] = ()  # what is not possible without them, a line each
    index: tuple[tuple[str, int], ...] = ()  # path and bytes of the files of the index that are deleted
    published_bytes: int = 0  # of `unread`, shards that stay on the disk under their published names

    @property
    def num_bytes(self) -> int:
        """Bytes of the names that are deleted. A file with another hard link, as a shard has under work/, stays on the disk."""
        groups = (self.files, self.shards, self.work_files, self.index)
        return sum(size for group in groups for _, size in group) + self.unread_bytes

    @property
    def unread_bytes(self) -> int:
        return sum(file.bytes for file in self.unread) - self.published_bytes

    @property
    def is_empty(self) -> bool:
        return not any((self.files, self.shards, self.tasks, self.work_files, self.unread, self.index))


def plan_cleaning(root: Root, keep: int, *, work: bool = False) -> Cleaning:
    """What `clean` would delete: of unpinned snapshots, the `keep` newest stay. `work`: also what only further work needs.
    Raises SnapshotError where there is no snapshot, or a damaged one; with `work` UserError for a run that has not ended."""
    if not root.exists(SNAPSHOT) and root.exists(INPUTS):
        raise SnapshotError(
            f"{root.url}: no run has published a snapshot here yet, so there is nothing to clean. The same `datapipe run` "
            f"goes on with what is committed. To give it up, delete {root.child_url(WORK)}, shards/ and length-*/ while no "
            f"run goes on."
        )
    every, pinned = publications(root), pins(root)
    newest = {publication.fingerprint for publication in every[-keep:]}
    wanted = newest | {pin.fingerprint for pin in pinned}
    kept = [publication for publication in every if publication.fingerprint in wanted]
    folders = [snapshot_folder(name) for name in folder_names(root) if name not in wanted]
    files = [file for folder in folders for file in root.list_files(folder)]
    needed = files_needed(publication.snapshot for publication in kept)
    shards = [file for file in data_files(root) if file[0] not in needed and DATA_PATH.fullmatch(file[0])]
    tasks, work_files, records = _unneeded_work(root, kept)
    unread, index = _unread_work(root, every[-1].snapshot, records) if work else ([], [])
    published = sum(file.bytes for file in unread if isinstance(file, ShardFile | DocumentsFile))
    return Cleaning(
        no_longer=tuple(_no_longer(root, bool(index))) if unread or index else (),
        kept=tuple(kept),
        dropped=tuple(publication for publication in every if publication not in kept),
        pins=tuple(pin for pin in pinned if pin.fingerprint not in newest),
        files=tuple(sorted(files, key=lambda file: not file[0].endswith(f"/{SNAPSHOT}"))),
        shards=tuple(shards),
        tasks=tuple(tasks),
        work_files=tuple(work_files),
        keeps_tasks=root.exists(BEGUN),
        unread=tuple(unread),
        index=tuple(index),
        published_bytes=0 if root.local is None else published,
    )


def clean(root: Root, keep: int, *, work: bool = False) -> Cleaning:
    """Deletes what the `keep` newest snapshots, pinned ones and the last run do not need, and returns what it was. `work`: also
    what only further work needs. Raises SnapshotError, before it deletes anything, where a snapshot was pinned meanwhile."""
    with exclusive(root) as lock:
        cleaning = plan_cleaning(root, keep, work=work)
        _refuse_new_pins(root, cleaning)
        beside_tasks = [path for path, _ in cleaning.work_files if path.startswith((f"{PUBLISHED}/", f"{OPTION_FILES}/"))]
        paths = [*(path for path, _ in (*cleaning.index, *cleaning.files, *cleaning.shards)), *beside_tasks]
        with lock.deleting(paths):
            for path in paths:
                root.delete(path)
        ledger = Ledger(root, lock.pending_deletions)
        ledger.load()
        if cleaning.tasks:
            ledger.keep(set(ledger.fingerprints()) - set(cleaning.tasks))
        ledger.delete_orphans(lock)
        ledger.free(cleaning.unread, lock)
        own = {SNAPSHOTS, ATTEMPTS, OPTION_FILES}
        for folder in own | {folder.partition("/")[0] for folder in data_folders(root)}:
            root.delete_empty_folders(folder)
    return cleaning


def _refuse_new_pins(root: Root, cleaning: Cleaning) -> None:
    """A pin does not wait for the lock of the output, so that it can be set while a run goes on."""
    deleted = {path for path, _ in cleaning.files}
    for pin in pins(root):
        if f"{snapshot_folder(pin.fingerprint)}/{SNAPSHOT}" in deleted:
            raise SnapshotError(
                f"{root.url}: snapshot {pin.fingerprint} was pinned while the cleaning was planned. Nothing was deleted. "
                f"Run `datapipe clean` again."
            )


def _unneeded_work(root: Root, kept: Sequence[Publication]) -> tuple[list[str], list[tuple[str, int]], list[Record]]:
    """The tasks that neither a kept snapshot nor the last run has, files under work/ that no other
    task names, or a run makes again, and the records of the others. After a run that was killed every task stays: which
    tasks it had is written nowhere."""
    needed = set(read_note(root, RUN, lambda run: tasks_in(run["steps"]), "Run the mixture again.") or ())
    for publication in kept:
        with suppress(FileNotFoundError):  # a copy without work/
            needed |= set(tasks_of(root, publication.fingerprint))
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
    files += [(path, size) for path, size in root.list_files(PUBLISHED) if path not in lists]
    return gone, [*files, *root.list_files(OPTION_FILES)], records


def _unread_work(root: Root, newest: Snapshot, records: Sequence[Record]) -> tuple[list[OutputFile], list[tuple[str, int]]]:
    """The files of tasks, and those of the index, that no snapshot needs. An output to which files were added keeps its index:
    the next files are compared with it."""
    if root.exists(BEGUN):
        raise UserError(
            f"{root.url}: the last run has not ended, or was killed, and it goes on with the files under work/. Run the same "
            f"`datapipe run` again first. Nothing was deleted."
        )
    keeps_index, ledger = bool(newest.last_part), Ledger(root)
    ledger.load()
    files = [
        file
        for record in records
        for file in files_of(record, (kind for kind in record.outputs if not stays(kind, keeps_index=keeps_index)))
        if not ledger.is_freed(file.path)
    ]
    own = (f"{WORK}/{INDEX}", f"{WORK}/{ROWS}/")
    return files, [file for file in root.list_files(WORK) if not keeps_index and file[0].startswith(own)]


def _no_longer(root: Root, has_index: bool) -> Iterator[str]:
    """What is not possible without the files that only further work needs."""
    yield "`datapipe inspect`, `sql` and `browse` show no documents"
    yield "`datapipe export --text` has no texts"
    yield "a run with another tokenizer, another sequence length or other stages reads the input files again"
    if has_index:
        yield "`datapipe run --follow`, `datapipe index` and `against` find no rows of this output to compare with"
    newest, run = publications(root)[-1].fingerprint, read_note(root, RUN, lambda run: set(tasks_in(run["steps"])), "")
    with suppress(FileNotFoundError):
        if run is not None and not run <= set(tasks_of(root, newest)):
            yield "the last run, which published nothing, reads the input files again when it is resumed"


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkBytes:
    """What work/ of an output takes, and how much of it each command deletes."""

    total: int
    clean: int  # `datapipe clean`: of tasks that no kept snapshot has
    work: int  # `datapipe clean --work`, beside that


def work_bytes(root: Root, steps: Iterable[Step], is_freed: Callable[[str], bool], *, keeps_index: bool) -> WorkBytes:
    """The bytes below work/ after a run of these steps. Shards that are published take no room on a disk."""
    steps = list(steps)
    records = [record for step in steps for record in step.records]
    needed = {task.fingerprint[:TASK_DIGITS] for step in steps for task in step.tasks or ()}
    for pin in pins(root):
        with suppress(FileNotFoundError):
            needed.update(name[:TASK_DIGITS] for name in tasks_of(root, pin.fingerprint))
    links = PUBLISHED_KINDS if root.local is not None else ()
    total, unneeded = 0, 0
    for path, size in root.list_files(WORK):
        folder = attempt_folder(path)
        is_unneeded = path.startswith(f"{OPTION_FILES}/")
        if folder is not None:
            is_unneeded = folder.rpartition("/")[2][:TASK_DIGITS] not in needed
        total, unneeded = total + size, unneeded + size * is_unneeded
    unread = 0
    for record in records:
        for kind, files in record.outputs.items():
            own = sum(file.bytes for file in files if not is_freed(file.path))
            total -= own * (kind in links)
            unread += own * (kind not in links and not stays(kind, keeps_index=keeps_index))
    return WorkBytes(total=total, clean=unneeded, work=unread)
