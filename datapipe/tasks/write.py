"""The write task: the cleaned documents of one part of a source become files of text.

    documents, in the order of the input ─▶ those that begin in the part ─▶ file by file ─▶ Parquet or JSON lines

Memory: one batch and one row group. The bytes of a file follow from its documents alone; see `plan/splits.py` for
those that it holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datapipe.columns import count_empty, text_lengths
from datapipe.exchange.partitions import read_documents, read_table
from datapipe.metrics import TaskMetrics
from datapipe.plan.outputs import DocumentsFile, Outputs
from datapipe.plan.splits import weight
from datapipe.plan.work import WriteTask
from datapipe.shards.documents.writer import DocumentWriter, published_rows, published_schema
from datapipe.stage.licenses import codes_of_documents
from datapipe.storage import Root


def run_write(task: WriteTask, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
    """Writes the files of a part below `folder`."""
    metrics = TaskMetrics()
    with metrics.timed("read documents"):
        schema = published_schema(next(read_table(root, task.like)).schema)
    files = _Files(task, root, folder, schema)
    try:
        for number, rows in _by_file(task, root, metrics):
            with metrics.timed(f"write {task.format}") as work:
                work.bytes, work.documents = files.add(number, rows), rows.num_rows
            if task.license_column is not None:
                metrics.licenses.count(*codes_of_documents(rows, task.license_column), _counted(rows))
            metrics.document_counts.read += work.documents
            metrics.empty += count_empty(rows.column("text"))
            metrics.document_counts.read_bytes += work.bytes
        with metrics.timed(f"write {task.format}"):
            outputs = files.finish()
    except BaseException:
        files.abort()
        raise
    metrics.document_counts.kept = metrics.document_counts.read
    metrics.document_counts.kept_bytes = metrics.document_counts.read_bytes
    return {"files": outputs}, metrics


def _by_file(task: WriteTask, root: Root, metrics: TaskMetrics) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The documents of the part with the number of their file, ascending."""
    begin = task.begin
    for batch in read_documents(root, task.documents, metrics):
        if begin >= task.stop:
            return
        ends = begin + np.cumsum(weight(text_lengths(batch.texts), 1))  # (num_docs,)
        begins = np.concatenate([[begin], ends[:-1]])
        begin = int(ends[-1])
        first, last = np.searchsorted(begins, [task.start, task.stop])
        numbers = begins[first:last] // task.target_bytes
        borders = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        for start, stop in zip(borders[:-1], borders[1:]):
            if start < stop:
                yield int(numbers[start]), batch.record.slice(int(first) + start, stop - start)


def _counted(rows: pa.RecordBatch) -> NDArray[np.int64]:
    """The counts of each document, (num_docs, 4): the fields of `TokenCounts`, of which nothing but the bytes is known."""
    lengths = text_lengths(rows.column("text"))
    return np.stack([np.ones_like(lengths), lengths, *[np.zeros_like(lengths)] * 2], axis=1)


class _Files:
    """The files of a task, one open at a time."""

    def __init__(self, task: WriteTask, root: Root, folder: str, schema: pa.Schema) -> None:
        self._task, self._root, self._folder, self._schema = task, root, folder, schema
        self._writer: DocumentWriter | None = None
        self._number = -1
        self._done: list[DocumentsFile] = []

    def add(self, number: int, record: pa.RecordBatch) -> int:
        """Adds documents to file `number`; a new number ends the file before. Returns the bytes of their text."""
        if self._writer is None or number != self._number:
            self._finish_file()
            path = f"{self._folder}/part-{number:05d}.{self._task.format}"
            self._writer, self._number = DocumentWriter(self._root, path, self._task.format, self._schema), number
        rows = published_rows(record, self._task.source, self._schema)
        self._writer.add(rows)
        return int(text_lengths(rows.column("text")).sum())

    def finish(self) -> tuple[DocumentsFile, ...]:
        self._finish_file()
        return tuple(self._done)

    def abort(self) -> None:
        """Closes the open file and leaves it incomplete."""
        if self._writer is not None:
            self._writer.abort()

    def _finish_file(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            self._done.append(DocumentsFile(**asdict(writer.finish()), number=self._number))
