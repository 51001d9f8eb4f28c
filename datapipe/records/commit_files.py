"""The files of the ledger, and the lines in them: a record each.

    work/ledger/NUMBER-ID.jsonl      one line a record:   VERSION ⇥ CHECKSUM ⇥ FINGERPRINT ⇥ ATTEMPT ⇥ JSON

A commit file has the records of many tasks and appears completely or not at all. Every line carries
the checksum of all that follows it, so a flipped bit costs one record. FINGERPRINT and ATTEMPT, the
folder of the outputs, stand before the JSON: a run finds its records, and deletes orphans, without
decoding all of them.

Files are in the order in which they were written. A line with `forget` in the place of a
fingerprint takes back the lines whose checksums it lists, wherever they stand. A line with `freed`
there lists files, by the folder of their attempt, that were deleted because no task reads them any
more. It is written before they are deleted, and they never count as present again.
"""

import json
import re
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, TypeVar

import xxhash

from datapipe.dataclass import dataclass, field
from datapipe.records.checksum import READINGS
from datapipe.records.names import ATTEMPTS, LEDGER
from datapipe.records.outputs import Outputs, Record, output_from_json, output_to_json
from datapipe.storage.root import Root

RECORD_VERSION = 5  # No earlier version is read
MOST_RECORDS = 1000  # Records of one file
FORGET, FREED = "forget", "freed"

T = TypeVar("T")

_READERS = 16  # files that are read from an object store, or deleted there, at once
_NAME = re.compile(rf"{LEDGER}/(\d{{8}})-[0-9a-f]{{32}}\.jsonl")
TASK_DIGITS = 16  # of its fingerprint, which the folder of an attempt begins with
_ATTEMPT = re.compile(rf"{ATTEMPTS}/[^/]+/[0-9a-f]{{{TASK_DIGITS}}}-[^/]+(?=/)")


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

    def names(self) -> list[str]:
        """The checksums of the lines that a line `forget` takes back."""
        return json.loads(self.content)

    def freed(self) -> Mapping[str, Sequence[str]]:
        """The names of the files that a line `freed` lists, by the folder of their attempt."""
        return json.loads(self.content)

    def to_bytes(self) -> bytes:
        return f"{RECORD_VERSION}\t{self.checksum}\t".encode() + _covered(self.fingerprint, self.attempt, self.content) + b"\n"


def line_of(record: Record) -> Line:
    content = record.content
    folders = (attempt_folder(output.path) for group in content.outputs.values() for output in group)
    outputs = {kind: [output_to_json(output) for output in group] for kind, group in content.outputs.items()}
    body = {"step": record.step, "versions": record.versions, "outputs": outputs, "metrics": content.metrics.to_json()}
    return sealed(record.fingerprint, next(filter(None, folders), ""), json.dumps(body, ensure_ascii=False).encode())


def outputs_of(data: Mapping[str, Any]) -> Outputs:
    """The outputs of a record, in the JSON of its line."""
    return {kind: tuple(map(output_from_json, group)) for kind, group in data["outputs"].items()}


def by_folder(paths: Iterable[str]) -> dict[str, list[str]]:
    """The names of files by their folder."""
    names: dict[str, list[str]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        names.setdefault(folder, []).append(name)
    return names


def freed_lines(freed: Mapping[str, Collection[str]]) -> Iterator[Line]:
    """Lines with the names of files by the folder of their attempt, of at most `MOST_RECORDS` folders each."""
    folders = sorted(freed)
    for start in range(0, len(folders), MOST_RECORDS):
        names = {folder: sorted(freed[folder]) for folder in folders[start : start + MOST_RECORDS]}
        yield sealed(FREED, "", json.dumps(names, ensure_ascii=False).encode())


def forget_line(checksums: Iterable[str]) -> Line:
    """The line that takes back the lines with these checksums."""
    return sealed(FORGET, "", json.dumps(sorted(checksums)).encode())


def sealed(fingerprint: str, attempt: str, content: bytes) -> Line:
    """A line with its checksum."""
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
        """All lines. Those of files that the run which holds the output merges meanwhile are found in the merged ones, and
        may come twice."""
        self.sizes, self.num_refused, self._next = {}, 0, 0
        paths = self._fresh()
        while paths:
            for path, (lines, num_refused) in zip(paths, self._each(self._lines, paths)):
                self.sizes[path] = len(lines)
                self.num_refused += num_refused
                yield from lines
            is_whole = all(self.sizes[path] for path in paths)
            paths = [] if is_whole else self._fresh()

    def _fresh(self) -> list[str]:
        """The files that were not read yet, in the order in which they were written."""
        listed = [path for path, _ in self.root.list_files(LEDGER, recursive=False)]
        files = sorted((match[0], int(match[1])) for path in listed if (match := _NAME.fullmatch(path)))
        self._next = max(self._next, *(number + 1 for _, number in files), 0)
        self.num_refused += 0 if self.sizes else sum(path.endswith(".json") for path in listed)
        return [path for path, _ in files if path not in self.sizes]

    def _each(self, action: Callable[[str], T], paths: Iterable[str]) -> Iterator[T]:
        """The results of an action on each file, of an object store for several at once, and no further ahead: a reader of very
        many files holds few."""
        if self.root.local is not None:
            yield from map(action, paths)
            return
        left = iter(paths)
        with ThreadPoolExecutor(_READERS) as pool:
            begun = deque(pool.submit(action, path) for path in islice(left, _READERS))
            while begun:
                yield begun.popleft().result()
                begun.extend(pool.submit(action, path) for path in islice(left, 1))

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
