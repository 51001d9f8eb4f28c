"""Locates documents by their keys, and reads them again from the files of their sources.

    key ─▶ hash of (source, path), position ─▶ the inputs that an output remembers ─▶ source, path, position
        └▶ is the file still the planned one? ─▶ the smallest split with the position ─▶ one document, with all its columns

The position is a byte offset or a row number. A key may belong to a file of this run, or to one of an earlier run that a stage
compares `against`: an index of it knows source, path and position, its output also knows the text.

A document of a file whose size or stamp (time of modification, ETag, commit or digest) differs from that of the run is not
read: another text might stand at its position.
"""

from contextlib import suppress
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from datapipe.config import Mixture
from datapipe.credentials import masked
from datapipe.dataclass import dataclass
from datapipe.document_name import document_name
from datapipe.engine.history import RunHistory, read_history, read_mixture, read_types
from datapipe.errors import DatapipeError, UserError
from datapipe.inputs.discovery import content_digest
from datapipe.inputs.entries import entry_at
from datapipe.inputs.planned_input import PlannedInput
from datapipe.snapshots.index.write import open_index
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.reader import FieldNames, InputFile
from datapipe.stage.row_files import POSITION_BITS
from datapipe.steps.read_batches import conformed, documents_of
from datapipe.steps.request import field_names
from datapipe.storage.root import Root, split_query

GONE = "(a file that no longer exists)"
NOT_FOUND = "(a file of an earlier run that is not at its old path)"
_DIGEST = "xxh3_128:"


@dataclass(frozen=True, kw_only=True, slots=True)
class LocatedDocument:
    # source, path: empty, and `GONE` or `NOT_FOUND`, when no run remembers the file
    source: str
    path: str
    position: int
    text: str | None = None  # as read; None when it was not requested, or the file no longer holds it
    run: str = ""  # the output or index of the earlier run that read the document; empty for this run

    @property
    def label(self) -> str:
        """SOURCE/PATH:POSITION, and the earlier run."""
        return self.name + (f" (of {masked(self.run)})" if self.run else "")

    @property
    def name(self) -> str:
        return document_name(self.source, self.path, self.position)

    def to_json(self) -> dict[str, Any]:
        """The document as plain data; `run` and `text` are None where it has none."""
        return {"document": self.name, "run": masked(self.run) or None, "text": self.text}


class Original(NamedTuple):
    """A document as it was read: a batch of it alone, or None and the note why it cannot be
    read. `refusal` is an error that the user can resolve, such as missing credentials."""

    batch: DocumentBatch | None
    note: str = ""
    refusal: UserError | None = None

    @property
    def text(self) -> str | None:
        """The text, of a page its bytes as text."""
        if self.batch is None:
            return None
        return self.batch.texts[0].as_py() if self.batch.has_text else self.batch.html[0].as_py().decode(errors="replace")


class DocumentLocator:
    """Locates documents in the inputs of an output and of the earlier runs that it was compared with."""

    def __init__(self, root: Root, history: RunHistory, mixture: Mixture) -> None:
        self.files, self._root, self._mixture, self._earlier_urls = history.files, root, mixture, history.earlier

    def locate(self, key: bytes, *, text: bool = True) -> LocatedDocument:
        """The document with this key; reading its text may take reading a whole archive."""
        file_number, position = split_key(key)
        if file_number in self.files:
            source, file, _ = self.files[file_number]
            original = self.read(key) if text else Original(None)
            if original.refusal:
                raise original.refusal
            return LocatedDocument(source=source, path=file.path, position=position, text=original.text)
        for url, files in self._earlier_files.items():
            if file_number in files:
                source, path = files[file_number]
                content = _earlier_text(url, key) if text else None
                return LocatedDocument(source=source, path=path, position=position, text=content, run=url)
        all_opened = len(self._earlier_files) == len(self._earlier_urls)
        return LocatedDocument(source="", path=GONE if all_opened else NOT_FOUND, position=position)

    def label(self, key: bytes) -> str:
        return self.locate(key, text=False).label

    def read(self, key: bytes) -> Original:
        """The document of this run with this key, with all its columns; errors become its note."""
        file_number, position = split_key(key)
        if file_number not in self.files:
            return Original(None, "No input file of this run holds the document.")
        source, file, reader = self.files[file_number]
        name = document_name(source, file.path, 0).rpartition(":")[0]
        try:
            difference = self.difference(file)
            if difference:
                return Original(None, f"{name} {difference}, so the text that the run read cannot be shown.")
            fields = self._fields(source)
            if fields.files is not None and file.compression is None:
                position &= (1 << POSITION_BITS) - 1  # of the record
            with PlannedInput(file) as planned:
                candidate = reader.find(file, position, fields, planned.open)
            if candidate is None:
                return Original(None, f"{name} has no document at {position} any more.")
            split, part, _ = candidate
            part = conformed(part, split, fields)
            row = int(np.searchsorted(part.positions, position))
            if part.positions[row : row + 1].tolist() != [position]:
                return Original(None, f"{name} has no document at {position}: it was rejected as it was read.")
            record = documents_of(part, split, source, fields)
            row = record.column("key").to_pylist().index(key)
        except (DatapipeError, OSError, pa.ArrowException, ValueError, ImportError) as error:
            refusal = error if isinstance(error, UserError) else None
            return Original(None, f"{name} cannot be read again: {type(error).__name__}.", refusal)
        return Original(DocumentBatch(record.take(pa.array([row]))))  # without the memory of its neighbours

    def difference(self, file: InputFile) -> str:
        """How an input file differs from the one that the run read, as the end of a sentence; empty if it does not."""
        path, query = split_query(file.url)
        entry = entry_at(path, query)
        if entry is None or entry.instead:
            return "is gone since the run"
        now = entry.file("", query)
        if now.num_bytes != file.num_bytes:
            return "has changed since the run"
        stamp = _digest(now.url, now.num_bytes, now.mtime_ns, now.ctime_ns) if file.stamp.startswith(_DIGEST) else now.stamp
        return "" if stamp == file.stamp else "has changed since the run"

    def _fields(self, source: str) -> FieldNames:
        spec = self._mixture.sources[source]
        types = {field: seen.kind for field, seen in self._types.get(source, {}).items()}
        declared = {field: spec.types[column] for column, field in spec.keep.items() if column in spec.types}
        return field_names(spec, spec.kept_fields, types, declared)

    @cached_property
    def _types(self) -> dict[str, dict[str, Any]]:
        return read_types(self._root)

    @cached_property
    def _earlier_files(self) -> dict[str, dict[int, tuple[str, str]]]:
        """Source and path by file hash, by the URL of each earlier run or index that still exists."""
        files_by_url: dict[str, dict[int, tuple[str, str]]] = {}
        for url in self._earlier_urls:
            with suppress(UserError):
                files_by_url[url] = {file.hash: (file.source, file.path) for file in open_index(url).files}
        return files_by_url


@cache
def _digest(url: str, *state: int | None) -> str:
    """The digest of a file, read once for each state of it: size, and times of change."""
    return content_digest(url)


def split_key(key: bytes) -> tuple[int, int]:
    """The file hash and the position in a key of 16 bytes."""
    return int.from_bytes(key[:8], "big"), int.from_bytes(key[8:], "big")


def _earlier_text(url: str, key: bytes) -> str | None:
    """The text of a document in an output; None in an index, which has no texts."""
    root = Root(url)
    with suppress(UserError, FileNotFoundError):
        return DocumentLocator(root, read_history(root), read_mixture(root)).locate(key).text
    return None
