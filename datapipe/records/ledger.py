"""The ledger: one record per committed task, and the only thing that makes its outputs exist.

    work/ledger/NUMBER-ID.jsonl      one line a record:   VERSION ⇥ CHECKSUM ⇥ FINGERPRINT ⇥ ATTEMPT ⇥ JSON

A commit file has the records of many tasks and appears completely or not at all, after the workers
have flushed all their outputs. Every line carries the checksum of all that follows it, so a flipped
bit costs one record. FINGERPRINT and ATTEMPT, the folder of the outputs, stand before the JSON: a
run finds its records, and deletes orphans, without decoding all of them.

Files are in the order in which they were written. A line with `forget` in the place of a
fingerprint takes back the lines whose checksums it lists, wherever they stand. A line with `freed`
there lists files, by the folder of their attempt, that were deleted because no task reads them any
more. It is written before they are deleted, and they never count as present again.

The task of a record runs again where the record is torn, edited or of another version of datapipe,
or its outputs are gone or pending deletions (`lock.py`), other than by being freed. Of two commits
the first record stays. A task whose freed files are needed after all runs again (`restore`): its
next record stands beside the first, which keeps the files that were not freed until the run ends.
"""

import json
import re
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from sys import intern
from typing import Any, TypeVar

import xxhash
from pydantic_core import from_json

from datapipe.machine.files import UNFINISHED
from datapipe.machine.memory import without_collection
from datapipe.metrics import TaskMetrics
from datapipe.records.checksum import READINGS
from datapipe.records.names import ATTEMPTS, INDEX, LEDGER, LISTS, PUBLISH, PUBLISHED, SNAPSHOTS, WORK
from datapipe.records.outputs import OutputFile, Outputs, Record, output_from_json, output_to_json
from datapipe.records.versions import content_of, versions_digest
from datapipe.storage.lock import PROBE, OutputLock
from datapipe.storage.root import Root

RECORD_VERSION = 5  # No earlier version is read
MOST_RECORDS = 1000  # Records of one file
FORGET, FREED = "forget", "freed"

T = TypeVar("T")

_MERGED = 256  # Small commit files, as a long run of slow tasks leaves them, that are merged
_READERS = 16  # files that are read from an object store, or deleted there, at once
_NAME = re.compile(rf"{LEDGER}/(\d{{8}})-[0-9a-f]{{32}}\.jsonl")
TASK_DIGITS = 16  # of its fingerprint, which the folder of an attempt begins with
_ATTEMPT = re.compile(rf"{ATTEMPTS}/[^/]+/[0-9a-f]{{{TASK_DIGITS}}}-[^/]+(?=/)")


class Ledger:
    """The records of one output folder. Only the driver writes it, under the run's lock.
    `pending_deletions`: folders of attempts, and files there, that a run which lost the output may
    still be deleting; the folders count as gone, the files as freed."""

    def __init__(self, root: Root, pending_deletions: Collection[str] = ()) -> None:
        self.root = root
        self.files = CommitFiles(root)
        self._pending_deletions = frozenset(pending_deletions)
        self._unnoted = _by_folder(filter(attempt_folder, pending_deletions))  # freed, without a line
        self._lines: dict[str, list[Line]] = {}
        self._records: dict[str, Record | None] = {}
        self._named: set[str] = set()
        self._sizes: dict[str, int] = {}
        self._freed: dict[str, frozenset[str]] = {}  # names of files by the folder of their attempt
        self._same_names: dict[frozenset[str], frozenset[str]] = {}  # most folders lack the same files
        self._restored: set[str] = set()  # tasks that run again since a freed file is needed
        self._by_content: dict[str, list[str]] | None = None

    @without_collection()
    def load(self) -> None:
        """Reads all records, once, and lists their outputs; each record is decoded when it is asked for."""
        lines: dict[str, Line] = {line.checksum: line for line in self.files.read()}
        forgotten = {name for line in lines.values() if line.fingerprint == FORGET for name in line.names()}
        for line in lines.values():
            if line.fingerprint == FREED:
                self._note_freed(line.freed())
            elif line.fingerprint != FORGET and line.checksum not in forgotten:
                self._lines.setdefault(line.fingerprint, []).append(line)
                self._named.add(line.attempt)
        self._note_freed(self._unnoted)
        self._sizes = dict(self.root.list_files(ATTEMPTS))

    def fingerprints(self) -> list[str]:
        """Of all tasks that have a record, whether its outputs are there or not."""
        return [*self._lines, *(name for name, record in self._records.items() if record and name not in self._lines)]

    def look_up(self, fingerprint: str) -> Record | None:
        """The committed record of a task whose outputs are all still there, or freed; or None."""
        if fingerprint not in self._records:
            lines = (line for line in self._lines.get(fingerprint, ()) if line.attempt not in self._pending_deletions)
            records = (line.record() for line in sorted(lines, key=lambda line: len(self._freed.get(line.attempt, ()))))
            self._records[fingerprint] = next((record for record in records if not any(self._lost(record))), None)
        return self._records[fingerprint]

    def look_up_any_version(self, fingerprint: str) -> Record | None:
        """As `look_up`, also of the same task with other versions of libraries (`versions.py`). Of several records the one of
        the versions that most tasks of the ledger have counts, so that steps that follow each other find theirs."""
        if self._by_content is None:
            self._by_content = _by_content(self._lines)
        found = [*filter(None, map(self.look_up, self._by_content.get(content_of(fingerprint), ())))]
        whole = (record for record in found if attempt_of(record) not in self._freed)
        return next(whole, None) or next(iter(found), None) or self.look_up(fingerprint)

    def lost_output(self, fingerprint: str) -> str | None:
        """The first file that a record of a task names and that is gone, or cut; None where the task has all, or no record."""
        if self.look_up(fingerprint) is not None:
            return None
        records = [line.record() for line in self._lines.get(fingerprint, ())]
        return next((output.path for record in records for output in self._lost(record)), None)

    def _lost(self, record: Record) -> Iterator[OutputFile]:
        outputs = (output for group in record.outputs.values() for output in group)
        return (file for file in outputs if self._sizes.get(file.path) != file.bytes and not self.is_freed(file.path))

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
        return any(name in self._freed.get(line.attempt, ()) for line in self._lines.get(fingerprint, ()))

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
        freed = _by_folder(unread)
        with lock.deleting([*unread], ATTEMPTS):
            self.files.write(_freed_lines(freed))
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
        return {name for name in alike if (record := self.look_up(name)) is not None and attempt_of(record) in freed}

    def restore(self, fingerprints: Collection[str]) -> None:
        """Lets tasks run again, of which freed files are needed. What they wrote before stays until `forget_replaced`."""
        self._restored.update(fingerprints)
        self._records.update(dict.fromkeys(fingerprints))

    def forget_replaced(self) -> None:
        """Takes back the earlier records of tasks that ran again. Their files go with the next orphans."""
        replaced: list[Line] = []
        for fingerprint in self._restored:
            record = self._records.get(fingerprint)
            own = None if record is None else attempt_of(record)
            replaced += [line for line in self._lines.get(fingerprint, ()) if record is not None and line.attempt != own]
        self._write_forget(line.checksum for line in replaced)
        self._named -= {line.attempt for line in replaced}
        for fingerprint in {line.fingerprint for line in replaced}:
            del self._lines[fingerprint]
        self._restored.clear()

    def commit(self, records: Sequence[Record]) -> list[Record]:
        """Makes records durable, together. Returns for each the record that stands: the first one of its task."""
        first = {record.fingerprint: record for record in reversed(records)}
        missing = [record for name, record in first.items() if self.look_up(name) is None]
        lines = [line_of(record) for record in missing]
        self.files.write(lines)
        for record, line in zip(missing, lines):
            self._records[record.fingerprint] = record
            self._named.add(line.attempt)
        self.files.merge_small(_MERGED)
        return [self._records[record.fingerprint] or record for record in records]

    def forget(self, fingerprints: Collection[str]) -> None:
        """Takes the records of tasks back, which run again, with any versions of libraries. Their files go with the next
        orphans."""
        contents = set(map(content_of, fingerprints))
        wanted = {*fingerprints, *(name for name in self.fingerprints() if content_of(name) in contents)}
        self._by_content = None
        self._write_forget(line.checksum for line in self.files.read() if line.fingerprint in wanted)
        for fingerprint in wanted:
            self._lines.pop(fingerprint, None)
            record = self._records.get(fingerprint)
            self._records[fingerprint] = None
            if record is not None:
                self._named.discard(line_of(record).attempt)

    def _write_forget(self, checksums: Iterable[str]) -> None:
        listed = sorted(checksums)
        self.files.write([_sealed(FORGET, "", json.dumps(listed).encode())] if listed else [])

    def keep(self, fingerprints: Collection[str]) -> None:
        """Deletes the records of all other tasks, and torn records. Only while no run is active."""
        paths, wanted = list(self.files.sizes), set(fingerprints)
        kept = [line for name, lines in self._lines.items() if name in wanted for line in lines]
        attempts = {line.attempt for line in kept}
        self.files.write([*kept, *_freed_lines({name: files for name, files in self._freed.items() if name in attempts})])
        self.files.delete(paths)
        self._lines = {name: lines for name, lines in self._lines.items() if name in wanted}
        self._records.clear()
        self._named = {line.attempt for line in kept}

    def delete_orphans(self, lock: OutputLock) -> int:
        """Deletes the files of killed runs and attempts: attempts that no record names, and files
        on their way to a final name. No task may be running. Returns how many files of attempts it
        deleted. Raises LeaseLostError, and deletes nothing, where another run has taken the output.
        """
        paths = [path for path, _ in self.root.list_files(ATTEMPTS)]
        named = self._named - self._pending_deletions
        attempts = Counter(folder for folder in map(attempt_folder, paths) if folder is not None and folder not in named)
        left = [*self._unfinished(), *(path for path in paths if self.is_freed(path) and attempt_folder(path) not in attempts)]
        with lock.deleting([*attempts, *left], ATTEMPTS):
            self.files.write(_freed_lines(self._unnoted))
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


def _by_content(fingerprints: Collection[str]) -> dict[str, list[str]]:
    """Fingerprints by what they have beside versions, those of the most frequent versions first."""
    frequency = Counter(map(versions_digest, fingerprints))
    by_content: dict[str, list[str]] = {}
    for name in fingerprints:
        by_content.setdefault(content_of(name), []).append(name)
    for names in by_content.values():
        names.sort(key=lambda name: -frequency[versions_digest(name)])
    return by_content


def attempt_folder(path: str) -> str | None:
    """The folder of the attempt that a file under work/attempts is of; None for another file."""
    match = _ATTEMPT.match(path)
    return match[0] if match else None


@dataclass(frozen=True, slots=True)
class Line:
    """A record as it is stored."""

    checksum: str  # of the rest; 32 hex digits
    fingerprint: str
    attempt: str  # the folder of its outputs; empty where it has none
    content: bytes  # JSON

    def record(self) -> Record:
        data: Mapping[str, Any] = from_json(self.content)  # twice as fast as `json`
        outputs: Outputs = {kind: tuple(map(output_from_json, group)) for kind, group in data["outputs"].items()}
        metrics = TaskMetrics.from_json(data["metrics"])
        versions = intern(data.get("versions", ""))  # of few kinds
        return Record(step=data["step"], fingerprint=self.fingerprint, outputs=outputs, metrics=metrics, versions=versions)

    def names(self) -> list[str]:
        """The checksums of the lines that a line `forget` takes back."""
        return json.loads(self.content)

    def freed(self) -> Mapping[str, Sequence[str]]:
        """The names of the files that a line `freed` lists, by the folder of their attempt."""
        return json.loads(self.content)

    def to_bytes(self) -> bytes:
        return f"{RECORD_VERSION}\t{self.checksum}\t".encode() + _covered(self.fingerprint, self.attempt, self.content) + b"\n"


def attempt_of(record: Record) -> str:
    """The folder of the outputs of a record; empty where it has none."""
    folders = (attempt_folder(output.path) for group in record.outputs.values() for output in group)
    return next((folder for folder in folders if folder), "")


def line_of(record: Record) -> Line:
    outputs = {kind: [output_to_json(output) for output in group] for kind, group in record.outputs.items()}
    body = {"step": record.step, "versions": record.versions, "outputs": outputs, "metrics": record.metrics.to_json()}
    return _sealed(record.fingerprint, attempt_of(record), json.dumps(body, ensure_ascii=False).encode())


def _by_folder(paths: Iterable[str]) -> dict[str, list[str]]:
    """The names of files by their folder."""
    names: dict[str, list[str]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        names.setdefault(folder, []).append(name)
    return names


def _freed_lines(freed: Mapping[str, Collection[str]]) -> Iterator[Line]:
    """Lines with the names of files by the folder of their attempt, of at most `MOST_RECORDS` folders each."""
    folders = sorted(freed)
    for start in range(0, len(folders), MOST_RECORDS):
        names = {folder: sorted(freed[folder]) for folder in folders[start : start + MOST_RECORDS]}
        yield _sealed(FREED, "", json.dumps(names, ensure_ascii=False).encode())


def _sealed(fingerprint: str, attempt: str, content: bytes) -> Line:
    return Line(xxhash.xxh3_128_hexdigest(_covered(fingerprint, attempt, content)), fingerprint, attempt, content)


def _covered(fingerprint: str, attempt: str, content: bytes) -> bytes:
    return f"{fingerprint}\t{attempt}\t".encode() + content


def lines_of(content: bytes) -> tuple[list[Line], int]:
    """The whole lines of a commit file, and the number of those of other versions."""
    lines, num_refused = [], 0
    for stored in content.split(b"\n"):
        version, _, rest = stored.partition(b"\t")
        checksum, _, covered = rest.partition(b"\t")
        if len(checksum) != 32 or xxhash.xxh3_128_hexdigest(covered).encode() != checksum:
            continue
        if version != b"%d" % RECORD_VERSION:
            num_refused += 1
            continue
        fingerprint, attempt, body = covered.split(b"\t", 2)
        lines.append(Line(checksum.decode(), fingerprint.decode(), attempt.decode(), body))
    return lines, num_refused


@dataclass(slots=True)
class CommitFiles:
    root: Root
    # by path, the lines of each file, in the order in which they were written
    sizes: dict[str, int] = field(default_factory=dict)
    num_refused: int = 0  # lines and files of other versions of datapipe
    _next: int = 0

    def read(self) -> Iterator[Line]:
        listed = [path for path, _ in self.root.list_files(LEDGER, recursive=False)]
        self.sizes, self.num_refused = {}, sum(path.endswith(".json") for path in listed)
        files = sorted((match[0], int(match[1])) for path in listed if (match := _NAME.fullmatch(path)))
        paths = [path for path, _ in files]
        self._next = max((number for _, number in files), default=-1) + 1
        for path, (lines, num_refused) in zip(paths, self._each(self._lines, paths)):
            self.sizes[path] = len(lines)
            self.num_refused += num_refused
            yield from lines

    def _each(self, action: Callable[[str], T], paths: Iterable[str]) -> Iterator[T]:
        """The results of an action on each file, of an object store for several at once."""
        with ThreadPoolExecutor(_READERS if self.root.local is None else 1) as pool:
            yield from pool.map(action, paths)

    def _lines(self, path: str) -> tuple[list[Line], int]:
        """As `lines_of`. A file with torn or damaged lines is read again; the reading with most lines counts."""
        most: tuple[list[Line], int] = [], 0
        for _ in range(READINGS):
            try:
                content = self.root.read_bytes(path)
            except FileNotFoundError:  # merged meanwhile by the run that holds the output
                break
            most = max(lines_of(content), most, key=lambda line: len(line[0]))
            if len(most[0]) == content.count(b"\n"):
                break
        return most

    def write(self, lines: Iterable[Line]) -> list[str]:
        """Makes lines durable, in files of at most `MOST_RECORDS`. Returns their paths."""
        lines, paths = list(lines), []
        for start in range(0, len(lines), MOST_RECORDS):
            part = lines[start : start + MOST_RECORDS]
            path = f"{LEDGER}/{self._next:08d}-{uuid.uuid4().hex}.jsonl"
            self._next += 1
            self.root.write_atomic(path, b"".join(line.to_bytes() for line in part))
            self.sizes[path] = len(part)
            paths.append(path)
        return paths

    def delete(self, paths: Iterable[str]) -> None:
        paths = list(paths)
        for path, _ in zip(paths, self._each(self.root.delete, paths)):
            self.sizes.pop(path, None)

    def delete_outputs(self, paths: Iterable[str]) -> None:
        for _ in self._each(self.root.delete, paths):
            pass

    def merge_small(self, least_files: int) -> None:
        """Writes the lines of small files into large ones, where there are so many, and then deletes the small ones."""
        small = [path for path, num_lines in self.sizes.items() if num_lines < MOST_RECORDS // 4]
        if len(small) < least_files:
            return
        lines = list(self._each(self._lines, small))
        self.write(line for of_file, _ in lines for line in of_file)
        self.delete(small)
