"""The ledger: one record per committed task, and the only thing that makes its outputs exist.

Records are written in groups, each a commit file (`commit_files.py`), atomically after all their outputs are on disk: the
workers that wrote the outputs have flushed them. A torn or edited record counts as none, and so does a record whose outputs are
gone or are pending deletions of a run that lost the output (`lock.py`), or that another version of datapipe wrote: the task
runs again. Committing twice is harmless: the first record stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from datapipe.machine.files import UNFINISHED
from datapipe.machine.memory import without_collection
from datapipe.records.commit_files import (
    FORGET,
    RECORD_VERSION,
    CommitFiles,
    Line,
    attempt_folder,
    forgetting,
    line_of,
)
from datapipe.records.names import ATTEMPTS, INDEX, LEDGER, LISTS, PUBLISH, PUBLISHED, SNAPSHOTS, WORK
from datapipe.records.outputs import OutputFile
from datapipe.records.record import Record
from datapipe.storage.lock import PROBE, OutputLock
from datapipe.storage.root import Root

__all__ = ["RECORD_VERSION", "Ledger", "attempt_folder"]

_MERGED = 256
"""Small commit files, as a long run of slow tasks leaves them, that are merged."""


class Ledger:
    """The records of one output folder. Only the driver writes it, under the run's lock.

    Args:
        pending_deletions: folders of attempts that a run which lost the output may still be deleting: they count as gone.
    """

    def __init__(self, root: Root, pending_deletions: Collection[str] = ()) -> None:
        self.root = root
        self.files = CommitFiles(root)
        self._pending_deletions = frozenset(pending_deletions)
        self._lines: dict[str, list[Line]] = {}
        self._records: dict[str, Record | None] = {}
        self._named: set[str] = set()
        self._sizes: dict[str, int] = {}
        self._is_listed_now = False

    @property
    def num_refused(self) -> int:
        """How many records another version of datapipe wrote."""
        return self.files.num_refused

    @without_collection()
    def load(self) -> None:
        """Reads all records, once, and lists what there is of their outputs; each is decoded when it is asked for."""
        lines: dict[str, Line] = {line.checksum: line for line in self.files.read()}
        forgotten = {name for line in lines.values() if line.fingerprint == FORGET for name in line.names()}
        for line in lines.values():
            if line.fingerprint != FORGET and line.checksum not in forgotten:
                self._lines.setdefault(line.fingerprint, []).append(line)
                self._named.add(line.attempt)
        self._sizes, self._is_listed_now = dict(self.root.list_files(ATTEMPTS)), True

    def fingerprints(self) -> list[str]:
        """Of all tasks that have a record, whether its outputs are there or not."""
        return [*self._lines, *(name for name, record in self._records.items() if record and name not in self._lines)]

    def look_up(self, fingerprint: str) -> Record | None:
        """The committed record of a task whose outputs are all still there, or None."""
        if fingerprint not in self._records:
            records = (
                line.record() for line in self._lines.get(fingerprint, ()) if line.attempt not in self._pending_deletions
            )
            self._records[fingerprint] = next((record for record in records if self._has_outputs(record)), None)
        return self._records[fingerprint]

    def lost_output(self, fingerprint: str) -> str | None:
        """The first file that a record of a task names and that is gone, or cut; None where the task has all, or no record."""
        if self.look_up(fingerprint) is not None:
            return None
        records = [line.record() for line in self._lines.get(fingerprint, ())]
        return next((output.path for record in records for output in self._lost(record)), None)

    def commit(self, records: Sequence[Record]) -> list[Record]:
        """Makes records durable, together. Where a task has a record already, that one stays.

        Returns:
            The record that stands, for each.
        """
        first = {record.fingerprint: record for record in reversed(records)}
        missing = [record for name, record in first.items() if self.look_up(name) is None]
        lines = [line_of(record) for record in missing]
        self._is_listed_now = False
        self.files.write(lines)
        for record, line in zip(missing, lines):
            self._records[record.fingerprint] = record
            self._named.add(line.attempt)
        self.files.merge_small(_MERGED)
        return [self._records[record.fingerprint] or record for record in records]

    def forget(self, fingerprints: Collection[str]) -> None:
        """Takes the records of tasks back, if they have one: the tasks run again. Their files go with the next sweep."""
        wanted = set(fingerprints)
        checksums = [line.checksum for line in self.files.read() if line.fingerprint in wanted]
        self.files.write([forgetting(checksums)] if checksums else [])
        for fingerprint in wanted:
            self._lines.pop(fingerprint, None)
            record = self._records.get(fingerprint)
            self._records[fingerprint] = None
            if record is not None:
                self._named.discard(line_of(record).attempt)

    def keep(self, fingerprints: Collection[str]) -> None:
        """Deletes the records of all other tasks, and what torn writes left of records. Only while no run is at work."""
        paths, wanted = list(self.files.sizes), set(fingerprints)
        kept = [line for name, lines in self._lines.items() if name in wanted for line in lines]
        self.files.write(kept)
        self.files.delete(paths)
        self._lines = {name: lines for name, lines in self._lines.items() if name in wanted}
        self._records.clear()
        self._named = {line.attempt for line in kept}

    def sweep(self, lock: OutputLock) -> int:
        """Deletes what killed runs and killed attempts have left: attempts that no record names, and files on their way to a
        final name. No task may be running. Raises LeaseLostError, and deletes nothing, where another run has taken the output.

        Right after `load`, what that has listed is looked at, and empty folders stay until the sweep at the end of the run: a
        run that is resumed does not list 10^5 attempts twice.

        Returns:
            How many files of attempts it deleted.
        """
        is_listed_now = self._is_listed_now
        paths = self._sizes if is_listed_now else (path for path, _ in self.root.list_files(ATTEMPTS))
        listed = map(attempt_folder, paths)
        named = self._named - self._pending_deletions
        attempts = Counter(folder for folder in listed if folder is not None and folder not in named)
        left = self._unfinished()
        with lock.deleting([*attempts, *left], ATTEMPTS):
            for folder in attempts:
                self.root.delete_folder(folder)
            for path in left:
                self.root.delete(path)
            if attempts or not is_listed_now:
                self.root.delete_empty_folders(ATTEMPTS)
        self._is_listed_now = False
        return attempts.total()

    def _unfinished(self) -> list[str]:
        left = [path for path, _ in self.root.list_files(PUBLISH)]
        for folder in ("", SNAPSHOTS, LISTS, WORK, LEDGER, INDEX, PUBLISHED):
            paths = (path for path, _ in self.root.list_files(folder, recursive=folder == SNAPSHOTS))
            left += [path for path in paths if UNFINISHED.fullmatch(path) or path.startswith(PROBE)]
        return left

    def _has_outputs(self, record: Record) -> bool:
        return next(self._lost(record), None) is None

    def _lost(self, record: Record) -> Iterator[OutputFile]:
        outputs = (output for group in record.outputs.values() for output in group)
        return (output for output in outputs if self._sizes.get(output.path) != output.bytes)
