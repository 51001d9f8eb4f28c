"""Folders as the Hugging Face hub has them: files numbered by split, and a README.md that says which file is of which split.

    README.md                                  its front matter has the configuration that `load_dataset` reads; written last
    data/train-00000-of-00012.parquet          or .jsonl.zst
    data/validation-00000-of-00001.parquet

There is one configuration, and the source is a column: a mixture is trained on as one dataset, one line loads all of it, and
every file has the same columns, as a configuration must have. A file holds rows of one source, so statistics of the column
`source` let a reader of Parquet pass over the files of the others. A row group has about 16 MiB; the viewer of the hub wants
less than 300 MB. How many files there are is known at the end, so files have other names until then.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from datapipe.shards.documents.writer import DocumentFormat, DocumentWriter, row_bytes
from datapipe.shards.export import Split
from datapipe.storage import Root, sync_file

STAGING = "unfinished"


class HubWriter:
    """Writes the rows of one split. After an error, call `abort`.

    Args:
        target_bytes: of rows in memory in a file: a file ends with the row that reaches them.
    """

    def __init__(self, root: Root, split: Split, format: DocumentFormat, schema: pa.Schema, target_bytes: int) -> None:
        self._root, self._split, self._schema = root, split, schema
        self._format: DocumentFormat = format
        self._target_bytes = target_bytes
        self._writer: DocumentWriter | None = None
        self._bytes = self._num_files = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Adds rows of the source that is being written."""
        stops, first = np.concatenate([[0], np.cumsum(row_bytes(rows))]), 0
        while first < rows.num_rows:
            if self._writer is None:
                self._writer = DocumentWriter(self._root, self._staged(self._num_files), self._format, self._schema)
                self._num_files += 1
            room = self._target_bytes - self._bytes
            stop = min(int(np.searchsorted(stops, stops[first] + room)), rows.num_rows)
            stop = max(stop, first + 1)
            self._writer.add(rows.slice(first, stop - first))
            self._bytes += int(stops[stop] - stops[first])
            first = stop
            if self._bytes >= self._target_bytes:
                self.end_file()

    def end_file(self) -> None:
        """Ends the open file: the next row begins another."""
        writer, self._writer, self._bytes = self._writer, None, 0
        if writer is not None:
            writer.finish()

    def finish(self) -> list[str]:
        """Gives all files their names. Returns the names."""
        self.end_file()
        names = [
            f"data/{self._split}-{number:05d}-of-{self._num_files:05d}.{self._format}" for number in range(self._num_files)
        ]
        for number, name in enumerate(names):
            staged = self._staged(number)
            if self._root.local is not None:
                sync_file(self._root.local / staged)
                Path(self._root.path("data")).mkdir(exist_ok=True)
            self._root.filesystem.move(self._root.path(staged), self._root.path(name))
        return names

    def abort(self) -> None:
        """Closes the open file and leaves it incomplete."""
        if self._writer is not None:
            self._writer.abort()

    def _staged(self, number: int) -> str:
        return f"{STAGING}/{self._split}-{number:05d}.{self._format}"
