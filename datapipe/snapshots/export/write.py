"""Writes parts to a folder as a dataset of another tool: Parquet or JSON lines for the Hugging Face hub, or MDS.

    files ─▶ index.json of each split, or README.md ─▶ the mark of a whole export (`folder.py`)

The bytes follow from the rows and the options alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

import numpy as np
import pyarrow as pa

from datapipe.errors import UserError
from datapipe.shards.documents.writer import DocumentFormat, DocumentWriter, row_bytes
from datapipe.shards.manifest import Snapshot
from datapipe.snapshots.export.card import dataset_card
from datapipe.snapshots.export.export import SPLITS, ExportedSplit, ExportRequest, Split, write_export
from datapipe.snapshots.export.mds import MOST_BYTES, MdsWriter
from datapipe.snapshots.export.parts import Part, common_schema, in_schema
from datapipe.storage.root import Root

_DEFAULT_BYTES = {"parquet": 256 << 20, "jsonl": 256 << 20, "mds": 64 << 20}
_FILES: dict[str, DocumentFormat] = {"parquet": "parquet", "jsonl": "jsonl.zst"}

About = Callable[[pa.Schema, Sequence[ExportedSplit]], Mapping[str, bytes]]
"""Makes the files about a data set, README.md among them, from its columns and splits."""


def write_dataset(
    root: Root, manifest: Snapshot, target: Root, wanted: ExportRequest, parts: Sequence[Part], about: About | None = None
) -> list[ExportedSplit]:
    """Writes the parts of a snapshot, of which nothing is changed. `about` makes the files about a data set for the hub.
    Raises UserError for a folder with other files, or where there is nothing to write."""
    if wanted.format == "mds" and wanted.target_bytes is not None and wanted.target_bytes > MOST_BYTES:
        raise UserError(f"--target-bytes {wanted.target_bytes}: an MDS shard has less than 4 GiB. Give less")
    schema = common_schema(parts)
    indexes: dict[str, bytes] = {}

    def write() -> list[ExportedSplit]:
        written: list[ExportedSplit] = []
        for split in SPLITS:
            of_split = [part for part in parts if part.split == split]
            if wanted.format == "mds":
                written += _write_mds(target, wanted, split, schema, of_split, indexes)
            else:
                written += _write_hub(target, wanted, split, schema, of_split)
        return written

    def last_files(written: list[ExportedSplit]) -> Mapping[str, bytes]:
        if wanted.format == "mds":
            return indexes
        if about is not None:
            return about(schema, written)
        patterns = {split: f"data/{split}-*.{_FILES[wanted.format]}" for split in SPLITS}
        of_json = schema if wanted.format == "jsonl" else None
        return {"README.md": dataset_card(manifest.name, patterns, written, of_json)}

    of_rows = {"snapshot": manifest.fingerprint, "length": manifest.sequence_length}
    identity = {"name": manifest.name, **of_rows, "card": about is not None}
    return write_export(root, target, wanted, identity, write, last_files)


def loading_line(url: str, is_remote: bool, wanted: ExportRequest, first: ExportedSplit) -> str:
    """The line of Python that loads the first of what was written at `url`."""
    quoted, split = json.dumps(url, ensure_ascii=False), first.split
    if wanted.is_snapshot:
        of_split = "" if split == "train" else f', split="{split}"'
        return f"datapipe.loader.Loader({quoted}, batch_size=8{of_split})"
    if wanted.format == "megatron":
        folder = "LOCAL-COPY" if is_remote else url
        prefix = json.dumps(f"{folder}/{first.files[0].removesuffix('.bin')}", ensure_ascii=False)
        after = f"   # after a copy of {url}" if is_remote else ""
        return f"megatron.core.datasets.indexed_dataset.IndexedDataset({prefix}){after}"
    if wanted.format == "mds":
        place = f'remote={quoted}, local="cache"' if is_remote else f"local={quoted}"
        return f'streaming.StreamingDataset({place}, split="{split}", batch_size=8)'
    if is_remote:
        return f'datasets.load_dataset("LOCAL-COPY", split="{split}", streaming=True)   # after a copy of {url}'
    return f'datasets.load_dataset({quoted}, split="{split}")'


def _write_mds(
    target: Root, wanted: ExportRequest, split: Split, schema: pa.Schema, parts: Sequence[Part], indexes: dict[str, bytes]
) -> list[ExportedSplit]:
    num_bytes = wanted.target_bytes or _DEFAULT_BYTES["mds"]
    writer = MdsWriter(target, split, schema, num_bytes, is_compressed=wanted.is_compressed)
    written = [_add(writer, part, schema) for part in parts]
    index = writer.finish()
    if writer.files:
        indexes[f"{split}/index.json"] = index
    return [each for each in written if each.rows]


def _write_hub(
    target: Root, wanted: ExportRequest, split: Split, schema: pa.Schema, parts: Sequence[Part]
) -> list[ExportedSplit]:
    num_bytes = wanted.target_bytes or _DEFAULT_BYTES[wanted.format]
    writer = HubWriter(target, split, _FILES[wanted.format], schema, num_bytes)
    written: list[ExportedSplit] = []
    with ExitStack() as handles:
        handles.callback(writer.abort)
        for part in parts:
            written.append(_add(writer, part, schema))
            writer.end_file()
    return [each for each in written if each.rows]


def _add(writer: HubWriter | MdsWriter, part: Part, schema: pa.Schema) -> ExportedSplit:
    num_rows = 0
    for rows in part.batches():
        writer.add(in_schema(rows, schema))
        num_rows += rows.num_rows
    return ExportedSplit(source=part.source, split=part.split, rows=num_rows)


class HubWriter:
    """Writes the rows of one split; a file ends with the row that reaches `target_bytes` in memory.
    After an error, call `abort`."""

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
                path = f"data/{self._split}-{self._num_files:05d}.{self._format}"
                self._writer = DocumentWriter(self._root, path, self._format, self._schema)
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

    def abort(self) -> None:
        """Closes the open file and leaves it incomplete."""
        if self._writer is not None:
            self._writer.abort()
