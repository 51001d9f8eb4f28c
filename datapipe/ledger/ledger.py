"""The ledger: one record per committed task, and the only thing that makes its outputs exist.

    work/ledger/FINGERPRINT.json     outputs, numbers, and a checksum of the record itself

A record is written atomically after all its outputs are on disk, so it is there whole or not at all. A torn or edited record
counts as none, and so does a record whose outputs are gone or that another version of datapipe wrote: the task runs again.
Committing twice is harmless: the first record stays.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import xxhash

from datapipe.ledger.names import ATTEMPTS, INDEX, LEDGER, PROBE, PUBLISH, PUBLISHED, WORK
from datapipe.metrics import TaskMetrics
from datapipe.plan.outputs import Outputs, output_from_json, output_to_json
from datapipe.plan.work import Record
from datapipe.shards.manifest import SNAPSHOTS, length_folders
from datapipe.storage import UNFINISHED, Root, sync_file, sync_folder

RECORD_VERSION = 3
"""Of records. Version 1 had the same outputs as one type with a map of `facts`; version 2 named exchange files of another form,
and no unreadable files. Neither is read."""

_ATTEMPT = re.compile(rf"{ATTEMPTS}/[^/]+/[0-9a-f]{{16}}-[^/]+(?=/)")


def attempt_folder(path: str) -> str | None:
    """The folder of the attempt that a file under work/attempts belongs to; None for another file."""
    found = _ATTEMPT.match(path)
    return found[0] if found else None


class RecordVersionError(ValueError):
    """A whole record of another version of datapipe."""


class Ledger:
    """The records of one output folder. Only the driver writes it, under the run's lock."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self._records: dict[str, Record | None] = {}
        self._listed: set[str] = set()
        self._stored: dict[str, Record | None] = {}  # as read, so that sweeping and looking up read each once
        self._refused: set[str] = set()

    @property
    def num_refused(self) -> int:
        """How many of the records read so far another version of datapipe wrote."""
        return len(self._refused)

    def load(self) -> None:
        """Lists the records, once; each is read when it is asked for."""
        names = (path.rpartition("/")[2] for path, _ in self.root.list_files(LEDGER))
        self._listed = {name.removesuffix(".json") for name in names if name.endswith(".json") and not name.startswith(".")}

    def look_up(self, fingerprint: str) -> Record | None:
        """The committed record of a task whose outputs are all still there, or None."""
        if fingerprint not in self._records:
            record = self._read(fingerprint) if fingerprint in self._listed else None
            self._records[fingerprint] = record if record is not None and self._has_outputs(record) else None
        return self._records[fingerprint]

    def commit(self, record: Record) -> Record:
        """Makes a record durable; where the task has a record already, that one stays and is returned."""
        known = self.look_up(record.fingerprint)
        if known is not None:
            return known
        if self.root.local is not None:
            self._sync(record)
        self.root.write_atomic(f"{LEDGER}/{record.fingerprint}.json", record_to_bytes(record))
        self._records[record.fingerprint] = self._stored[record.fingerprint] = record
        self._listed.add(record.fingerprint)
        self._refused.discard(record.fingerprint)
        return record

    def forget(self, fingerprint: str) -> None:
        """Deletes the record of a task, if there is one: the task runs again. Its files go with the next sweep."""
        self.root.delete(f"{LEDGER}/{fingerprint}.json")
        self._records[fingerprint] = self._stored[fingerprint] = None
        self._listed.discard(fingerprint)

    def sweep(self) -> int:
        """Deletes what killed runs and killed attempts leave: attempts that no record names, files on their way to a final
        name, and records of other versions. No task may be running.

        Returns:
            How many files of attempts it deleted.
        """
        with ThreadPoolExecutor(8) as pool:
            records = list(pool.map(self._read, sorted(self._listed)))
        paths = (output.path for record in records if record for outputs in record.outputs.values() for output in outputs)
        named = set(map(attempt_folder, paths))
        listed = (attempt_folder(path) for path, _ in self.root.list_files(ATTEMPTS))
        unnamed = Counter(folder for folder in listed if folder is not None and folder not in named)
        for folder in unnamed:
            self.root.delete_folder(folder)
        for fingerprint in sorted(self._refused):
            self.root.delete(f"{LEDGER}/{fingerprint}.json")
        self._sweep_unfinished()
        return unnamed.total()

    def _sweep_unfinished(self) -> None:
        """Deletes files on their way to a final name, and empty folders of attempts."""
        left = [path for path, _ in self.root.list_files(PUBLISH)]
        lengths = length_folders(self.root)
        snapshots = [SNAPSHOTS, *(f"{folder}/{SNAPSHOTS}" for folder in lengths)]
        for folder in ("", *lengths, *snapshots, WORK, LEDGER, INDEX, PUBLISHED):
            paths = (path for path, _ in self.root.list_files(folder, recursive=folder in snapshots))
            left += [path for path in paths if UNFINISHED.fullmatch(path) or path.startswith(PROBE)]
        for path in left:
            self.root.delete(path)
        self.root.delete_empty_folders(ATTEMPTS)

    def _sync(self, record: Record) -> None:
        assert self.root.local is not None
        for outputs in record.outputs.values():
            for output in outputs:
                path = self.root.local / output.path
                sync_file(path)
                sync_folder(path.parent)

    def _has_outputs(self, record: Record) -> bool:
        outputs = [output for group in record.outputs.values() for output in group]
        return all(self.root.size(output.path) == output.bytes for output in outputs)

    def _read(self, fingerprint: str) -> Record | None:
        if fingerprint not in self._stored:
            self._stored[fingerprint] = self._fetch(fingerprint)
        return self._stored[fingerprint]

    def _fetch(self, fingerprint: str) -> Record | None:
        try:
            record = record_from_bytes(self.root.read_bytes(f"{LEDGER}/{fingerprint}.json"))
        except FileNotFoundError:
            return None
        except RecordVersionError:
            self._refused.add(fingerprint)
            return None
        return record if record is not None and record.fingerprint == fingerprint else None


def record_to_bytes(record: Record) -> bytes:
    """A record as JSON with its own checksum in the first line."""
    outputs = {kind: [output_to_json(output) for output in group] for kind, group in record.outputs.items()}
    body: dict[str, Any] = {
        "version": RECORD_VERSION,
        "step": record.step,
        "fingerprint": record.fingerprint,
        "outputs": outputs,
        "metrics": record.metrics.to_json(),
    }
    content = json.dumps(body, ensure_ascii=False).encode()
    return f'{{"checksum": "{xxhash.xxh3_128_hexdigest(content)}"}}\n'.encode() + content + b"\n"


def record_from_bytes(content: bytes) -> Record | None:
    """The record, or None where the bytes are torn or edited. Raises RecordVersionError."""
    head, _, body = content.partition(b"\n")
    body = body.removesuffix(b"\n")
    try:
        if json.loads(head)["checksum"] != xxhash.xxh3_128_hexdigest(body):
            return None
        data: Mapping[str, Any] = json.loads(body)
    except (ValueError, KeyError, TypeError):
        return None
    if data.get("version") != RECORD_VERSION:
        raise RecordVersionError(f"a record of version {data.get('version')}, expected {RECORD_VERSION}")
    outputs: Outputs = {kind: tuple(output_from_json(output) for output in group) for kind, group in data["outputs"].items()}
    metrics = TaskMetrics.from_json(data["metrics"])
    return Record(step=data["step"], fingerprint=data["fingerprint"], outputs=outputs, metrics=metrics)
