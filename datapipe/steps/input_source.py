"""The documents of the input files of a map task, in batches with keys, up to the limit.

splits ─▶ reader ─▶ fields in the types of their columns ─▶ keys ─▶ batches of `TARGET_BATCH_BYTES`
            └─▶ rejected input ─▶ quarantine
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from datapipe.inputs.planned_input import PlannedInput, damages
from datapipe.machine.activity import at_place
from datapipe.metrics import TaskMetrics, UnreadableFile
from datapipe.stage.field_types import FoundType
from datapipe.stage.reader import FieldNames, OpenInput, ReadBatch, Reader, Split
from datapipe.steps.quarantine import Quarantine
from datapipe.steps.read_batches import coalesced, conformed, limited, with_keys


@dataclass(frozen=True, kw_only=True, slots=True)
class InputSplit:
    """A split, its reader, and the digest of the reader's code and options."""

    split: Split
    reader: Reader
    reader_digest: str

    def identity(self) -> list[Any]:
        file = self.split.file
        return [self.reader_digest, file.path, file.num_bytes, file.stamp, self.split.start, self.split.stop]


@dataclass(slots=True)
class MapMetrics:
    """The numbers of a map task.

    Attributes:
        unreadable_files: in the order of the input, one for each damage.
        unsplittable_files: paths of input files of which the task found that they cannot be cut at its range. Such a task has
            no outputs and no counts, and the plan reads these files whole instead.
        wider_types: by field, the type of values that its column does not hold, as JSON (`stage/field_types.py`). Such a task
            has no outputs and no counts, and the plan reads the source with wider types instead.
        searched: by stage and list, how many entries it has and how many of them cannot be found; see `stage/findings.py`.
        field_values: by kept field, documents that were read and have a value; of tasks that read input.
    """

    unreadable_files: list[UnreadableFile] = field(default_factory=list)
    unsplittable_files: list[str] = field(default_factory=list)
    wider_types: dict[str, dict[str, str]] = field(default_factory=dict)
    searched: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    field_values: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class InputSource:
    """The input of one task.

    Attributes:
        own: of `metrics`.
        limit: documents to read; None for all.
        path: of the file that is read.
    """

    source: str
    inputs: tuple[InputSplit, ...]
    fields: FieldNames
    limit: int | None
    metrics: TaskMetrics
    own: MapMetrics
    quarantine: Quarantine
    path: str = ""

    def batches(self) -> Iterator[pa.RecordBatch]:
        return coalesced(self._records())

    def _records(self) -> Iterator[pa.RecordBatch]:
        """The readers' batches with keys, up to the limit. Raises ChangedInputError where a file is not the planned one."""
        self.own.field_values = dict.fromkeys(self.fields.columns, 0)
        for entry in self.inputs:
            if self.limit == 0:
                return
            self.path = entry.split.file.path
            with PlannedInput(entry.split.file) as planned:
                yield from self._records_of(entry, planned.open)

    def _records_of(self, entry: InputSplit, open_input: OpenInput) -> Iterator[pa.RecordBatch]:
        """The batches of a split, up to the limit; rejected input goes to quarantine."""
        split, num_records = entry.split, 0
        reading = iter(entry.reader.read(split, self.fields, open_input))
        while self.limit is None or self.limit > 0:
            with self.metrics.timed("read") as work:
                at_place(f"{split.file.path}, after {num_records:,} of its documents")
                part = next(reading, None)
                if part is None:
                    break
                self._add_wider(part)
                part = conformed(part, split, self.fields)
                if self.limit is not None:
                    part, self.limit = limited(part, self.limit)
                record = with_keys(part, split, self.source)
                work.bytes, work.documents = part.input_bytes, len(part.positions)
            num_records += len(part.positions) + len(part.rejected) + sum(part.passed_over.values())
            self._count(split, part)
            if record.num_rows:
                for name, column in part.extra.items():
                    self.own.field_values[name] += len(column) - column.null_count
                yield record
        if not num_records and split.start == 0 and split.stop in (None, len(split.file.row_groups)):
            self.metrics.document_counts.counts["read:empty_files"] += 1

    def _count(self, split: Split, part: ReadBatch) -> None:
        """Counts what is no document."""
        self.quarantine.reject(split.file.path, part.rejected)
        self.own.unreadable_files += damages(split.file, part.rejected)
        for kind, count in part.passed_over.items():
            self.metrics.document_counts.counts[f"read:{kind}"] += count

    def _add_wider(self, part: ReadBatch) -> None:
        """Adds the types of values that do not fit to those that the task has met, in the order of the input."""
        for name, kind in part.wider.items():
            found, held = FoundType(kind=kind, path=self.path), self.own.wider_types.get(name)
            self.own.wider_types[name] = (found if held is None else FoundType.from_json(held).with_more(found)).to_json()
