"""The ledger: one record per committed task, and the only thing that makes its outputs exist.

Its files (`commit_files.py`) appear completely or not at all, after the workers have flushed all
their outputs.

The task of a record runs again where the record is torn, edited or of another version of datapipe,
or its outputs are gone or pending deletions (`lock.py`), other than by being freed. Of two commits
the first record stays. A task whose freed files are needed after all runs again (`restore`): its
next record stands beside the first, which keeps the files that were not freed until the run ends.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import cast

from datapipe.dataclass import replace
from datapipe.machine.files import UNFINISHED
from datapipe.machine.memory import without_collection
from datapipe.records.commit_files import (
    FORGET,
    FREED,
    TASK_DIGITS,
    CommitFiles,
    Line,
    attempt_folder,
    by_folder,
    forget_line,
    freed_lines,
    line_of,
)
from datapipe.records.names import ATTEMPTS, INDEX, LEDGER, LISTS, PUBLISH, PUBLISHED, SNAPSHOTS, WORK
from datapipe.records.outputs import OutputFile, Record
from datapipe.records.packed import Hashes, PackedLine, Packer
from datapipe.records.versions import content_of, versions_digest
from datapipe.storage.lock import PROBE, OutputLock
from datapipe.storage.root import Root

_MERGED = 256  # Small commit files, as a long run of slow tasks leaves them, that are merged


class Ledger:
    """The records of one output folder. Only the driver writes it, under the run's lock.
    `pending_deletions`: folders of attempts, and files there, that a run which lost the output may
    still be deleting; the folders count as gone, the files as freed."""

    def __init__(self, root: Root, pending_deletions: Collection[str] = ()) -> None:
        self.root = root
        self.files = CommitFiles(root)
        self._pending_deletions = frozenset(pending_deletions)
        self._unnoted = by_folder(filter(attempt_folder, pending_deletions))  # freed, without a line
        self._packer = Packer()
        self._lines: dict[str, PackedLine] = {}  # of each task, the first one
        self._more: dict[str, list[PackedLine]] = {}  # the others of a task that has several
        self._records: dict[str, Record | None] = {}
        self._present = Hashes()  # of the files under work/attempts, with their sizes
        self._freed: dict[str, frozenset[str]] = {}  # names of files by the folder of their attempt
        self._same_names: dict[frozenset[str], frozenset[str]] = {}  # most folders lack the same files
        self._restored: set[str] = set()  # tasks that run again since a freed file is needed
        self._by_content: dict[str, list[str]] | None = None

    @without_collection()
    def load(self) -> None:
        """Reads all records, once, and lists their outputs; each record is decoded when it is asked for."""
        forgotten = set[str]()
        for line in self.files.read():
            if line.fingerprint == FREED:
                self._note_freed(line.freed())
            elif line.fingerprint == FORGET:
                forgotten.update(line.names())
            elif line.fingerprint not in self._lines or all(
                line.checksum != other.line.checksum for other in self._lines_of(line.fingerprint)
            ):
                self._add_line(line)
        if forgotten:
            for name in [*self._lines]:
                self._keep_lines(name, [line for line in self._lines_of(name) if line.line.checksum not in forgotten])
        self._note_freed(self._unnoted)
        self._present = Hashes(f"{size} {path}" for path, size in self.root.each_file(ATTEMPTS))

    def _add_line(self, line: Line) -> PackedLine:
        packed = self._packer.packed(line)
        if self._lines.setdefault(line.fingerprint, packed) is not packed:
            self._more.setdefault(line.fingerprint, []).append(packed)
        return packed

    def _lines_of(self, fingerprint: str) -> list[PackedLine]:
        first = self._lines.get(fingerprint)
        return [] if first is None else [first, *self._more.get(fingerprint, ())]

    def _keep_lines(self, fingerprint: str, lines: Sequence[PackedLine]) -> None:
        """Leaves a task these of its lines."""
        self._lines.pop(fingerprint, None)
        self._more.pop(fingerprint, None)
        if lines:
            self._lines[fingerprint] = lines[0]
        if len(lines) > 1:
            self._more[fingerprint] = [*lines[1:]]

    def fingerprints(self) -> list[str]:
        """Of all tasks that have a record, whether its outputs are there or not."""
        return [*self._lines]

    def look_up(self, fingerprint: str) -> Record | None:
        """The committed record of a task whose outputs are all still there, or freed; or None."""
        if fingerprint not in self._records:
            lines = self._lines_of(fingerprint)
            if self._pending_deletions:
                lines = [line for line in lines if line.attempt not in self._pending_deletions]
            if len(lines) > 1:
                lines = sorted(lines, key=lambda line: len(self._freed.get(line.attempt, ())))
            found = (record for record, files in (line.record_and_files() for line in lines) if not any(self._lost(files)))
            self._records[fingerprint] = next(found, None)
        return self._records[fingerprint]

    def look_up_any_version(self, fingerprint: str) -> Record | None:
        """As `look_up`, also of the same task with other versions of libraries (`versions.py`). Of several records the one of
        the versions that most tasks of the ledger have counts, so that steps that follow each other find theirs."""
        if self._by_content is None:
            self._by_content = _by_content(self._lines)
        found = [*filter(None, map(self.look_up, self._by_content.get(content_of(fingerprint), ())))]
        whole = (record for record in found if not self._freed or _attempt_of(record) not in self._freed)
        return next(whole, None) or next(iter(found), None) or self.look_up(fingerprint)

    def lost_output(self, fingerprint: str) -> str | None:
        """The first file that a record of a task names and that is gone, or cut; None where the task has all, or no record."""
        if self.look_up(fingerprint) is not None:
            return None
        return next((path for line in self._lines_of(fingerprint) for path in self._lost(line.record_and_files()[1])), None)

    def _lost(self, files: Iterable[tuple[str, int]]) -> Iterator[str]:
        return (path for path, size in files if f"{size} {path}" not in self._present and not self.is_freed(path))

    @property
    def has_freed(self) -> bool:
        return bool(self._freed)

    def is_freed(self, path: str) -> bool:
        """Whether a file of a task was deleted because no task reads it any more."""
        folder, _, name = path.rpartition("/")
        return name in self._freed.get(folder, ())

    def was_freed(self, fingerprint: str, output: OutputFile) -> bool:
        """Whether an earlier attempt at a task wrote the same file, which was freed."""
        name = output.path.rpartition("/")[2]
        return any(name in self._freed.get(line.attempt, ()) for line in self._lines_of(fingerprint))

    def _note_freed(self, freed: Mapping[str, Collection[str]]) -> None:
        for folder, names in freed.items():
            both = self._freed.get(folder, frozenset()).union(names)
            self._freed[folder] = self._same_names.setdefault(both, both)

    def free(self, outputs: Iterable[OutputFile], lock: OutputLock) -> int:
        """Deletes files that no task reads any more; their records stay. Returns the bytes. Raises
        LeaseLostError, and deletes nothing, where another run has taken the output."""
        unread = {output.path: output.bytes for output in outputs if not self.is_freed(output.path)}
        if not unread:
            return 0
        freed = by_folder(unread)
        with lock.deleting([*unread], ATTEMPTS):
            self.files.write(freed_lines(freed))
            self.files.delete_outputs(unread)
        self._note_freed(freed)  # at last, so that another try after an error deletes them all
        return sum(unread.values())

    def freed_by(self, outputs: Iterable[OutputFile]) -> set[str]:
        """The tasks that wrote those of the files that are freed."""
        freed = {path.rpartition("/")[0] for path in (output.path for output in outputs) if self.is_freed(path)}
        if not freed:
            return set()
        prefixes = {folder.rpartition("/")[2][:TASK_DIGITS] for folder in freed}
        alike = [name for name in self.fingerprints() if name[:TASK_DIGITS] in prefixes]
        return {name for name in alike if (record := self.look_up(name)) is not None and _attempt_of(record) in freed}

    def restore(self, fingerprints: Collection[str]) -> None:
        """Lets tasks run again, of which freed files are needed. What they wrote before stays until `forget_replaced`."""
        self._restored.update(fingerprints)
        self._records.update(dict.fromkeys(fingerprints))

    def forget_replaced(self) -> None:
        """Takes back the earlier records of tasks that ran again, also in a run that was killed. Their files go with the next
        orphans."""
        replaced = {line for name in {*self._restored, *self._more} for line in self._replaced(name)}
        self._write_forget(line.line.checksum for line in replaced)
        for name in {line.fingerprint for line in replaced}:
            self._keep_lines(name, [line for line in self._lines_of(name) if line not in replaced])
        self._restored.clear()

    def _replaced(self, fingerprint: str) -> list[PackedLine]:
        """The lines of a task beside that of the record that counts; none where no record does."""
        record = self.look_up(fingerprint)
        own = None if record is None else _attempt_of(record)
        return [line for line in self._lines_of(fingerprint) if own is not None and line.attempt != own]

    def commit(self, records: Sequence[Record]) -> list[Record]:
        """Makes records durable, together. Returns for each the record that stands: the first one of its task."""
        first = {record.fingerprint: record for record in reversed(records)}
        missing = [record for name, record in first.items() if self.look_up(name) is None]
        lines = [line_of(record) for record in missing]
        self.files.write(lines)
        standing = dict[str, Record]()
        for record, line in zip(missing, lines):
            standing[record.fingerprint] = record
            self._records[record.fingerprint] = replace(record, stored=self._add_line(line))
        self.files.merge_small(_MERGED)
        return [standing.get(record.fingerprint) or self.look_up(record.fingerprint) or record for record in records]

    def forget(self, fingerprints: Collection[str]) -> None:
        """Takes the records of tasks back, which run again, with any versions of libraries. Their files go with the next
        orphans."""
        contents = set(map(content_of, fingerprints))
        wanted = {*fingerprints, *(name for name in self.fingerprints() if content_of(name) in contents)}
        self._by_content = None
        self._write_forget(line.checksum for line in self.files.read() if line.fingerprint in wanted)
        for fingerprint in wanted:
            self._keep_lines(fingerprint, ())
            self._records[fingerprint] = None

    def _write_forget(self, checksums: Iterable[str]) -> None:
        listed = [*checksums]
        self.files.write([forget_line(listed)] if listed else [])

    def keep(self, fingerprints: Collection[str]) -> None:
        """Deletes the records of all other tasks, and torn records. Only while no run is active."""
        paths, wanted = list(self.files.sizes), set(fingerprints)
        replaced = {line for name in self._more for line in self._replaced(name)}
        names = [name for name in self._lines if name in wanted]
        kept = {name: [line for line in self._lines_of(name) if line not in replaced] for name in names}
        lines = [line.line for listed in kept.values() for line in listed]
        attempts = {line.attempt for line in lines}
        self.files.write([*lines, *freed_lines({name: files for name, files in self._freed.items() if name in attempts})])
        self.files.delete(paths)
        self._lines, self._more = {}, {}
        for name, listed in kept.items():
            self._keep_lines(name, listed)
        self._records.clear()

    def delete_orphans(self, lock: OutputLock) -> int:
        """Deletes the files of killed runs and attempts: attempts that no record names, and files on their way to a final
        name. No task may be running. Returns how many files of attempts it deleted. Raises LeaseLostError, and deletes
        nothing, where another run has taken the output."""
        lines = (line for name in self._lines for line in self._lines_of(name))
        named = Hashes(attempt for line in lines if (attempt := line.attempt) not in self._pending_deletions)
        attempts, freed = Counter[str](), list[str]()
        for path, _ in self.root.each_file(ATTEMPTS):
            folder = attempt_folder(path)
            if folder is not None and folder not in named:
                attempts[folder] += 1
            elif self.is_freed(path):
                freed.append(path)
        left = [*self._unfinished(), *freed]
        with lock.deleting([*attempts, *left], ATTEMPTS):
            self.files.write(freed_lines(self._unnoted))
            self._unnoted = {}
            for folder in attempts:
                self.root.delete_folder(folder)
            for path in left:
                self.root.delete(path)
            self.root.delete_empty_folders(ATTEMPTS)
        return attempts.total()

    def _unfinished(self) -> list[str]:
        left = [path for path, _ in self.root.list_files(PUBLISH)]
        for folder in ("", SNAPSHOTS, LISTS, WORK, LEDGER, INDEX, PUBLISHED):
            paths = (path for path, _ in self.root.list_files(folder, recursive=folder == SNAPSHOTS))
            left += [path for path in paths if UNFINISHED.fullmatch(path) or path.startswith(PROBE)]
        return left


def _attempt_of(record: Record) -> str:
    """The folder of the outputs of a record of the ledger, all of which are packed; empty where it has none."""
    return cast(PackedLine, record.stored).attempt


def _by_content(fingerprints: Collection[str]) -> dict[str, list[str]]:
    """Fingerprints by what they have beside versions, those of the most frequent versions first."""
    frequency = Counter(map(versions_digest, fingerprints))
    by_content: dict[str, list[str]] = {}
    for name in fingerprints:
        by_content.setdefault(content_of(name), []).append(name)
    for names in by_content.values():
        names.sort(key=lambda name: -frequency[versions_digest(name)])
    return by_content
