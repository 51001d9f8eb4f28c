"""The write task: the cleaned documents of one part of a source become files of text.

    documents, in the order of the input ─▶ those that begin in the part ─▶ file by file ─▶ Parquet or JSON lines

Memory: one batch and one row group. The bytes of a file follow from its documents alone; see `steps/splits.py` for
those that it holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise
from operator import itemgetter

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datapipe.columns import count_empty, is_first, text_lengths
from datapipe.exchange.partitions import read_documents, read_table
from datapipe.metrics import TaskMetrics
from datapipe.records.outputs import DocumentsFile, Outputs
from datapipe.shards.documents.writer import DocumentWriter, published_rows, published_schema
from datapipe.stage.licenses import codes_of_documents
from datapipe.steps.splits import weight
from datapipe.steps.work import WriteTask
from datapipe.storage.root import Root


def run_write(task: WriteTask, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
    """Writes the files of a part below `folder`."""
    metrics = TaskMetrics()
    with metrics.timed("read documents"):
        schema = published_schema(next(read_table(root, task.like)).schema)
    outputs: list[DocumentsFile] = []
    for number, of_file in groupby(_by_file(task, root, metrics), key=itemgetter(0)):
        writer = DocumentWriter(root, f"{folder}/part-{number:05d}.{task.format}", task.format, schema, number)
        try:
            for _, rows in of_file:
                _add(task, rows, schema, writer, metrics)
            with metrics.timed(f"write {task.format}"):
                outputs.append(writer.finish())
        except BaseException:
            writer.abort()
            raise
    metrics.document_counts.kept = metrics.document_counts.read
    metrics.document_counts.kept_bytes = metrics.document_counts.read_bytes
    return {"files": tuple(outputs)}, metrics


def _add(task: WriteTask, rows: pa.RecordBatch, schema: pa.Schema, writer: DocumentWriter, metrics: TaskMetrics) -> None:
    """Adds documents to a file, and to the counts."""
    num_bytes, counts = int(text_lengths(rows.column("text")).sum()), metrics.document_counts
    with metrics.timed(f"write {task.format}", num_bytes, rows.num_rows):
        writer.add(published_rows(rows, task.source, schema))
    if task.license_column is not None:
        metrics.licenses.count(*codes_of_documents(rows, task.license_column), _counted(rows))
    counts.read += rows.num_rows
    counts.read_bytes += num_bytes
    metrics.empty += count_empty(rows.column("text"))


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
        for start, stop in pairwise([*np.flatnonzero(is_first(numbers)).tolist(), len(numbers)]):
            yield int(numbers[start]), batch.record.slice(int(first) + start, stop - start)


def _counted(rows: pa.RecordBatch) -> NDArray[np.int64]:
    """The counts of each document, (num_docs, 4): the fields of `TokenCounts`, of which nothing but the bytes is known."""
    lengths = text_lengths(rows.column("text"))
    return np.stack([np.ones_like(lengths), lengths, *[np.zeros_like(lengths)] * 2], axis=1)
