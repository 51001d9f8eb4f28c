"""Documents as they were read: all their columns, from the input files, unless these have changed.

    key ─▶ file and position ─▶ is the file still the planned one? ─▶ the smallest split with the position ─▶ one document

The size and the stamp of a file (time of modification, ETag, commit or digest) are compared with those of the run before it is
read, and `PlannedInput` compares them again afterwards. A document of a file that differs is not read: another text might stand
at its position.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from datapipe.document_name import document_name
from datapipe.engine.history import read_types
from datapipe.errors import DatapipeError, UnsplittableInputError
from datapipe.explore.output import Output
from datapipe.inputs.discovery import content_digest
from datapipe.inputs.entries import entry_at
from datapipe.inputs.planned_input import PlannedInput
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.reader import FieldNames, InputFile, Reader
from datapipe.storage import split_query
from datapipe.tasks.read_batches import conformed, with_keys

_DIGEST = "xxh3_128:"


@dataclass(frozen=True, kw_only=True, slots=True)
class Original:
    """A document as it was read.

    Attributes:
        batch: of this document alone; None where it cannot be read.
        note: why not; empty where it can.
    """

    batch: DocumentBatch | None = None
    note: str = ""


class Originals:
    """Reads documents of an output again."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._types = read_types(output.root)
        self._digests: dict[tuple[str, int, int | None, int | None], str] = {}

    def read(self, key: bytes) -> Original:
        """The document with this key, or why it cannot be read. Raises nothing that reading may raise."""
        known = self._output.locator.files.get(int.from_bytes(key[:8], "big"))
        if known is None:
            return Original(note="No input file of this run holds the document.")
        source, file, reader = known
        name, position = document_name(source, file.path, 0).rpartition(":")[0], int.from_bytes(key[8:], "big")
        try:
            difference = self.difference(file)
            if difference:
                return Original(note=f"{name} {difference}, so the text that the run read cannot be shown.")
            with PlannedInput(file) as planned:
                batch = self._find(source, file, reader, position, planned)
        except (DatapipeError, OSError, pa.ArrowException, ValueError, ImportError) as error:
            return Original(note=f"{name} cannot be read again: {type(error).__name__}.")
        if batch is None:
            return Original(note=f"{name} has no document at {position} any more.")
        return Original(batch=batch)

    def difference(self, file: InputFile) -> str:
        """How an input file differs from the one that the run read, as the end of a sentence; empty if it does not."""
        path, query = split_query(file.url)
        entry = entry_at(path, query)
        if entry is None or entry.instead:
            return "is gone since the run"
        now = entry.file("", query)
        if now.num_bytes != file.num_bytes:
            return "has changed since the run"
        stamp = self._digest(now) if file.stamp.startswith(_DIGEST) else now.stamp
        return "" if stamp == file.stamp else "has changed since the run"

    def _digest(self, file: InputFile) -> str:
        state = (file.url, file.num_bytes, file.mtime_ns, file.ctime_ns)
        if state not in self._digests:
            self._digests[state] = content_digest(file.url)
        return self._digests[state]

    def _fields(self, source: str) -> FieldNames:
        """What tasks of the run read, in the types that it found."""
        spec = self._output.mixture.sources[source]
        return FieldNames(
            text=spec.text,
            id=spec.id,
            replaces_surrogates=spec.replaces_surrogates,
            keep=tuple(spec.keep.values()),
            columns=spec.keep,
            types={field: found.kind for field, found in self._types.get(source, {}).items()},
            declared={field: spec.types[column] for column, field in spec.keep.items() if column in spec.types},
        )

    def _find(self, source: str, file: InputFile, reader: Reader, position: int, planned: PlannedInput) -> DocumentBatch | None:
        fields = self._fields(source)
        for split in reader.splits_at(file, position):
            try:
                for part in reader.read(split, fields, planned.open):
                    found = np.flatnonzero(part.positions == position)
                    if len(found):
                        record = with_keys(conformed(part, split, fields), split, source).slice(int(found[0]), 1)
                        return DocumentBatch(
                            pa.RecordBatch.from_arrays([_alone(column) for column in record], schema=record.schema)
                        )
                    if len(part.positions) and int(part.positions[-1]) > position:
                        break
            except UnsplittableInputError:
                continue
        return None


def _alone(column: pa.Array) -> pa.Array:
    """A column of one document, without the memory of its neighbours."""
    return column.take(pa.array([0]))
