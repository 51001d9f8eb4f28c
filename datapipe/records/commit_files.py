"""Commit files: the records of many tasks in one file, which appears completely or not at all.

    work/ledger/NUMBER-ID.jsonl      one line a record:   VERSION ⇥ CHECKSUM ⇥ FINGERPRINT ⇥ ATTEMPT ⇥ JSON

Every line carries the checksum of all that follows it, so a flipped bit costs one record. FINGERPRINT and ATTEMPT, the folder
of the outputs, stand before the JSON: a run finds its records, and deletes what none names, without decoding all of them.

Files are in the order in which they were written. A line with `forget` in the place of a fingerprint takes back the lines whose
checksums it lists, wherever they stand.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import xxhash
from pydantic_core import from_json

from datapipe.metrics import TaskMetrics
from datapipe.records.checksum import READINGS
from datapipe.records.names import ATTEMPTS, LEDGER
from datapipe.records.outputs import Outputs, output_from_json, output_to_json
from datapipe.records.record import Record
from datapipe.storage.root import Root

RECORD_VERSION = 5
"""Of records. Version 3 had a file for each record, FINGERPRINT.json. No earlier version is read."""

MOST_RECORDS = 1000
"""Records of one file."""

FORGET = "forget"

T = TypeVar("T")

_READERS = 16
"""Files that are read from an object store, or deleted there, at once."""

_NAME = re.compile(rf"{LEDGER}/(\d{{8}})-[0-9a-f]{{32}}\.jsonl")
_ATTEMPT = re.compile(rf"{ATTEMPTS}/[^/]+/[0-9a-f]{{16}}-[^/]+(?=/)")


def attempt_folder(path: str) -> str | None:
    """The folder of the attempt that a file under work/attempts belongs to; None for another file."""
    found = _ATTEMPT.match(path)
    return found[0] if found else None


@dataclass(frozen=True, slots=True)
class Line:
    """A record as it is stored.

    Attributes:
        checksum: of the rest; 32 hex digits.
        attempt: the folder of its outputs; empty where it has none.
        content: JSON.
    """

    checksum: str
    fingerprint: str
    attempt: str
    content: bytes

    def record(self) -> Record:
        """The record, decoded."""
        data: Mapping[str, Any] = from_json(self.content)  # twice as fast as `json`
        outputs: Outputs = {kind: tuple(map(output_from_json, group)) for kind, group in data["outputs"].items()}
        metrics = TaskMetrics.from_json(data["metrics"])
        return Record(step=data["step"], fingerprint=self.fingerprint, outputs=outputs, metrics=metrics)

    def names(self) -> list[str]:
        """The checksums of the lines that a line `forget` takes back."""
        return json.loads(self.content)

    def to_bytes(self) -> bytes:
        return f"{RECORD_VERSION}\t{self.checksum}\t".encode() + _covered(self.fingerprint, self.attempt, self.content) + b"\n"


def line_of(record: Record) -> Line:
    """A record as it is stored."""
    folders = (attempt_folder(output.path) for group in record.outputs.values() for output in group)
    attempt = next((folder for folder in folders if folder), "")
    outputs = {kind: [output_to_json(output) for output in group] for kind, group in record.outputs.items()}
    body = {"step": record.step, "outputs": outputs, "metrics": record.metrics.to_json()}
    return _sealed(record.fingerprint, attempt, json.dumps(body, ensure_ascii=False).encode())


def forgetting(checksums: Iterable[str]) -> Line:
    """The line that takes other lines back."""
    return _sealed(FORGET, "", json.dumps(sorted(checksums)).encode())


def _sealed(fingerprint: str, attempt: str, content: bytes) -> Line:
    return Line(xxhash.xxh3_128_hexdigest(_covered(fingerprint, attempt, content)), fingerprint, attempt, content)


def _covered(fingerprint: str, attempt: str, content: bytes) -> bytes:
    return f"{fingerprint}\t{attempt}\t".encode() + content


def lines_of(content: bytes) -> tuple[list[Line], int]:
    """The whole lines of a commit file, and how many whole lines another version of datapipe wrote. Torn and edited lines count
    as none."""
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
    """The commit files of one output.

    Attributes:
        sizes: by path, the lines of each file, in the order in which they were written.
        num_refused: lines and files of other versions of datapipe.
    """

    root: Root
    sizes: dict[str, int] = field(default_factory=dict)
    num_refused: int = 0
    _next: int = 0

    def read(self) -> Iterator[Line]:
        """All lines, file after file."""
        listed = [path for path, _ in self.root.list_files(LEDGER, recursive=False)]
        self.sizes, self.num_refused = {}, sum(path.endswith(".json") for path in listed)
        found = sorted((match[0], int(match[1])) for path in listed if (match := _NAME.fullmatch(path)))
        paths = [path for path, _ in found]
        self._next = max((number for _, number in found), default=-1) + 1
        for path, (lines, num_refused) in zip(paths, self._each(self._lines, paths)):
            self.sizes[path] = len(lines)
            self.num_refused += num_refused
            yield from lines

    def _each(self, action: Callable[[str], T], paths: Iterable[str]) -> Iterator[T]:
        """What an action returns for each file, of an object store for several at once."""
        with ThreadPoolExecutor(_READERS if self.root.local is None else 1) as pool:
            yield from pool.map(action, paths)

    def _lines(self, path: str) -> tuple[list[Line], int]:
        """As `lines_of`. A file with lines that are torn or damaged is read again; the reading with most lines counts."""
        most: tuple[list[Line], int] = [], 0
        for _ in range(READINGS):
            try:
                content = self.root.read_bytes(path)
            except FileNotFoundError:  # merged meanwhile by the run that holds the output
                break
            most = max(lines_of(content), most, key=lambda found: len(found[0]))
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

    def merge_small(self, least_files: int) -> None:
        """Writes the lines of small files into large ones, where there are so many, and then deletes the small ones."""
        small = [path for path, num_lines in self.sizes.items() if num_lines < MOST_RECORDS // 4]
        if len(small) < least_files:
            return
        lines = list(self._each(self._lines, small))
        self.write(line for of_file, _ in lines for line in of_file)
        self.delete(small)
