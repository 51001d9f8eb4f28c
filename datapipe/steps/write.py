"""The write task: the cleaned documents of one part of a source become files of text.

    documents, in the order of the input ─▶ those that begin in the part ─▶ file by file ─▶ Parquet or JSON lines

    documents in the order of the input, weighed    0 ──────┬─ d ─┬──┬────────┬───────
    files of `target_bytes`, numbered               │ 0          │ 1          │ 2
    parts of some files, one for each task          │ 0                       │ 1

A document whose weight begins at w goes to file w // `target_bytes`. So the documents of a file
depend on the text alone, and not on how the input was cut into tasks. Memory: one batch and one row
group."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby, pairwise
from operator import itemgetter
from typing import Any, Literal, Self, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datapipe.columns import count_empty, is_first, text_lengths
from datapipe.dataclass import dataclass, field
from datapipe.exchange.tables import read_documents, read_table
from datapipe.metrics import TaskMetrics
from datapipe.records.outputs import DocumentsFile, Outputs, Record, TableFile
from datapipe.records.versions import PARQUET
from datapipe.shards.documents.writer import DocumentWriter, published_rows, published_schema
from datapipe.stage.licenses import codes_of_documents
from datapipe.steps.growth import Growth, StepSize
from datapipe.steps.kind import Fields, Planning, Task, entering, file_checksums
from datapipe.storage.root import Root
from datapipe.token_counts import CountsByName

LEAST_DOCUMENT_BYTES = 64
"""The weight of a document beside its text: it bounds the number of empty documents in a file."""

WRITTEN_BYTES = 64 << 20
"""The least weight of the documents that a task writes, but for the last task of a source."""

Number = TypeVar("Number", int, NDArray[np.int64])


@dataclass(slots=True)
class WriteMetrics:
    """The numbers of a write task: documents without text, and counts by licence as those of `TokenizeMetrics`."""

    empty: int = 0
    licenses: CountsByName = field(default_factory=CountsByName)

    def add(self, other: Self) -> None:
        self.empty += other.empty
        self.licenses.add(other.licenses)


@dataclass(frozen=True, kw_only=True, slots=True)
class WriteTask(Task):
    kind, version, of_tokens = "write", 1, False
    mb_per_s, metrics_type = 100.0, WriteMetrics
    options = ("seed", "documents")

    # files of the step before that overlap the part, in the order of the input
    documents: tuple[TableFile, ...] = field(metadata=entering(file_checksums))
    begin: int  # weight of the documents before those in `documents`
    # start, stop: the part; multiples of `target_bytes`
    start: int
    stop: int
    # a file of the source whose columns all files of the source get
    like: TableFile = field(metadata=entering(lambda file: file.checksum))
    format: Literal["parquet", "jsonl.zst"]
    target_bytes: int
    license_column: str | None = None  # as that of `TokenizeTask`

    @property
    def libraries_used(self) -> tuple[str, ...]:
        return (PARQUET if self.format == "parquet" else "pyarrow",)

    def run(self, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
        metrics = TaskMetrics(own=WriteMetrics())
        with metrics.timed("read documents"):
            schema = published_schema(next(read_table(root, self.like)).schema)
        outputs: list[DocumentsFile] = []
        for number, of_file in groupby(_by_file(self, root, metrics), key=itemgetter(0)):
            writer = DocumentWriter(root, f"{folder}/part-{number:05d}.{self.format}", self.format, schema, number)
            try:
                for _, rows in of_file:
                    _add(self, rows, schema, writer, metrics)
                with metrics.timed(f"write {self.format}"):
                    outputs.append(writer.finish())
            except BaseException:
                writer.abort()
                raise
        metrics.document_counts.kept = metrics.document_counts.read
        metrics.document_counts.kept_bytes = metrics.document_counts.read_bytes
        return {"files": tuple(outputs)}, metrics

    @classmethod
    def plan_source(cls, planning: Planning, source: str) -> None:
        """One task per part of about `WRITTEN_BYTES`, and at least one file."""
        spec, cleaned = planning.mixture.documents, planning.cleaned(source)
        parts = _parts(cleaned.records, spec.target_bytes) if cleaned.is_committed else None
        common = {"license_column": planning.mixture.sources[source].license_field, **spec.model_dump()}
        planning.add(cls, f"{source}/write", "write documents", parts, ["write"], source=source, **common)

    @classmethod
    def grow(cls, growth: Growth, step: StepSize) -> None:
        cleaned = growth.steps[growth.cleaned(step.source)]
        total = cleaned.kept_bytes + LEAST_DOCUMENT_BYTES * cleaned.kept
        growth.add(step, math.ceil(total / _part_bytes(growth.mixture.documents.target_bytes)), growth.documents(step.source))


def _part_bytes(target_bytes: int) -> int:
    return target_bytes * math.ceil(WRITTEN_BYTES / target_bytes)


def _parts(cleaned: Sequence[Record], target_bytes: int) -> Iterator[Fields]:
    parts = documents_by_part(cleaned, _part_bytes(target_bytes))
    yield from ({**part, "like": parts[0]["documents"][0]} for part in parts)


def documents_by_part(cleaned: Sequence[Record], part_bytes: int) -> list[dict[str, Any]]:
    """The fields `documents`, `begin`, `start` and `stop` of each part of `part_bytes`, by the weights in committed counts."""
    counts = (record.metrics.document_counts for record in cleaned)
    ends = list(accumulate((weight(each.kept_bytes, each.kept) for each in counts), initial=0))  # (num_records + 1,)
    parts: list[dict[str, Any]] = []
    for start in range(0, ends[-1], part_bytes):
        first, last = bisect_right(ends, start) - 1, bisect_left(ends, start + part_bytes)
        files = tuple(file for record in cleaned[first:last] for file in record.of("documents", TableFile))
        parts.append({"documents": files, "begin": ends[first], "start": start, "stop": start + part_bytes})
    return parts


def weight(text_bytes: Number, num_docs: int) -> Number:
    return text_bytes + LEAST_DOCUMENT_BYTES * num_docs


def _add(task: WriteTask, rows: pa.RecordBatch, schema: pa.Schema, writer: DocumentWriter, metrics: TaskMetrics) -> None:
    num_bytes, counts = int(text_lengths(rows.column("text")).sum()), metrics.document_counts
    with metrics.timed(f"write {task.format}", num_bytes, rows.num_rows):
        writer.add(published_rows(rows, task.source, schema))
    if task.license_column is not None:
        metrics.of(WriteMetrics).licenses.count(*codes_of_documents(rows, task.license_column), _counted(rows))
    counts.read += rows.num_rows
    counts.read_bytes += num_bytes
    metrics.of(WriteMetrics).empty += count_empty(rows.column("text"))


def _by_file(task: WriteTask, root: Root, metrics: TaskMetrics) -> Iterator[tuple[int, pa.RecordBatch]]:
    begin = task.begin
    for batch in read_documents(root, task.documents, metrics):
        if begin >= task.stop:
            return
        ends = begin + np.cumsum(weight(text_lengths(batch.texts), 1))  # (num_docs,)
        begins = np.concatenate([[begin], ends[:-1]])
        begin = int(ends[-1])
        first, last = np.searchsorted(begins, [task.start, task.stop])
        numbers = begins[first:last] // task.target_bytes
        for start, stop in pairwise([*np.flatnonzero(is_first(numbers)).tolist(), len(numbers)]):
            yield int(numbers[start]), batch.record.slice(int(first) + start, stop - start)


def _counted(rows: pa.RecordBatch) -> NDArray[np.int64]:
    """The counts of each document, (num_docs, 4): the fields of `TokenCounts`, of which only the bytes are known."""
    lengths = text_lengths(rows.column("text"))
    return np.stack([np.ones_like(lengths), lengths, *[np.zeros_like(lengths)] * 2], axis=1)
