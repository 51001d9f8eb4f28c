"""Writes parts to a folder as a dataset of another tool: Parquet or JSON lines for the Hugging Face hub, or MDS.

    files ─▶ index.json of each split, or README.md ─▶ the mark of a whole export (`export_folder.py`)

The bytes follow from the rows and the options alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from datapipe.errors import UserError
from datapipe.shards.datasets.card import dataset_card
from datapipe.shards.datasets.mds import MOST_BYTES, MdsWriter
from datapipe.shards.datasets.parts import Part, common_schema, in_schema
from datapipe.shards.documents.writer import DocumentFormat, DocumentWriter, row_bytes
from datapipe.shards.export import SPLITS, Split, sync_all
from datapipe.shards.export_folder import MARK, ExportFolder
from datapipe.storage import Root

DatasetFormat = Literal["parquet", "jsonl", "mds"]

_Count = tuple[str, Split, int]
_DEFAULT_BYTES = {"parquet": 256 << 20, "jsonl": 256 << 20, "mds": 64 << 20}
_FILES: dict[DatasetFormat, DocumentFormat] = {"parquet": "parquet", "jsonl": "jsonl.zst"}


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetRequest:
    """What to write.

    Attributes:
        snapshot: fingerprint of the snapshot that the rows come from, and `kind` what they are: so that an export goes on
            only in a folder of its own.
        target_bytes: size of a file; None: 256 MiB, or 64 MiB for MDS.
        is_compressed: for MDS: shards as zstd files.
    """

    format: DatasetFormat
    name: str
    snapshot: str
    kind: Literal["documents", "text", "rows"]
    source: str | None = None
    split: Split | None = None
    target_bytes: int | None = None
    is_compressed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenDataset:
    """Counts of a finished export.

    Attributes:
        rows: source, split and number of rows of each part.
        files, bytes: all that was written.
    """

    rows: tuple[_Count, ...]
    files: int
    bytes: int

    @property
    def splits(self) -> tuple[Split, ...]:
        """The splits that have rows."""
        return tuple(split for split in SPLITS if any(each == split for _, each, _ in self.rows))


About = Callable[[pa.Schema, Mapping[Split, "WrittenSplit"]], Mapping[str, bytes]]
"""Makes the files about a data set, README.md among them, from its columns and splits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenSplit:
    """The files of a split: the pattern that they match, their rows, and their bytes."""

    pattern: str
    rows: int
    bytes: int


def write_dataset(
    root: Root, target: Root, wanted: DatasetRequest, parts: Sequence[Part], about: About | None = None
) -> WrittenDataset:
    """Writes the parts. Raises UserError for a folder with other files, or where there is nothing to write.

    Args:
        root: of the snapshot, below which nothing is written.
        about: of a data set for the hub; None: a README.md with the files of each split.
    """
    if not parts:
        raise UserError("nothing to export: no document or row of this source and split. Choose another one")
    if wanted.format == "mds" and wanted.target_bytes is not None and wanted.target_bytes > MOST_BYTES:
        raise UserError(f"--target-bytes {wanted.target_bytes}: an MDS shard has less than 4 GiB. Give less")
    schema = common_schema(parts)
    request = {**asdict(wanted), "card": about is not None}
    folder = ExportFolder(root=root, target=target, request=request)
    if (whole := folder.begin()) is not None:
        return WrittenDataset(**{**whole, "rows": tuple(tuple(count) for count in whole["rows"])})
    rows: list[_Count] = []
    write = _write_mds if wanted.format == "mds" else _write_hub
    for split in SPLITS:
        rows += write(target, wanted, split, schema, [part for part in parts if part.split == split])
    if not rows:
        folder.give_up()
        raise UserError("nothing to export: no document or row of this source and split. Choose another one")
    sync_all(target)
    if wanted.format != "mds":
        splits = _written_splits(target, _FILES[wanted.format], rows)
        for path, content in (_plain(wanted, schema, splits, rows) if about is None else about(schema, splits)).items():
            target.write_atomic(path, content)
    sizes = [size for path, size in target.list_files("") if path != MARK]
    written = WrittenDataset(rows=tuple(rows), files=len(sizes), bytes=sum(sizes))
    folder.end(asdict(written))
    return written


def _written_splits(target: Root, ending: DocumentFormat, rows: Sequence[_Count]) -> dict[Split, WrittenSplit]:
    sizes = target.list_files("data")
    here: list[Split] = [split for split in SPLITS if any(each == split for _, each, _ in rows)]
    return {
        split: WrittenSplit(
            pattern=f"data/{split}-*.{ending}",
            rows=sum(count for _, each, count in rows if each == split),
            bytes=sum(size for path, size in sizes if path.rpartition("/")[2].startswith(f"{split}-")),
        )
        for split in here
    }


def _plain(
    wanted: DatasetRequest, schema: pa.Schema, splits: Mapping[Split, WrittenSplit], rows: Sequence[_Count]
) -> dict[str, bytes]:
    patterns = {split: written.pattern for split, written in splits.items()}
    return {"README.md": dataset_card(wanted.name, patterns, rows, schema if wanted.format == "jsonl" else None)}


def loading_line(url: str, is_remote: bool, wanted: DatasetRequest, split: Split) -> str:
    """The line of Python that loads a split of what was written at `url`."""
    quoted = json.dumps(url, ensure_ascii=False)
    if wanted.format == "mds":
        place = f'remote={quoted}, local="cache"' if is_remote else f"local={quoted}"
        return f'streaming.StreamingDataset({place}, split="{split}", batch_size=8)'
    if is_remote:
        return f'datasets.load_dataset("LOCAL-COPY", split="{split}", streaming=True)   # after a copy of {url}'
    return f'datasets.load_dataset({quoted}, split="{split}")'


def _write_mds(target: Root, wanted: DatasetRequest, split: Split, schema: pa.Schema, parts: Sequence[Part]) -> list[_Count]:
    num_bytes = wanted.target_bytes or _DEFAULT_BYTES["mds"]
    writer = MdsWriter(target, split, schema, num_bytes, is_compressed=wanted.is_compressed)
    counts: list[_Count] = [(part.source, split, _add(writer, part, schema)) for part in parts]
    index = writer.finish()
    if not writer.files:
        return []
    target.write_atomic(f"{split}/index.json", index)
    return [count for count in counts if count[2]]


def _write_hub(target: Root, wanted: DatasetRequest, split: Split, schema: pa.Schema, parts: Sequence[Part]) -> list[_Count]:
    num_bytes = wanted.target_bytes or _DEFAULT_BYTES[wanted.format]
    writer = HubWriter(target, split, _FILES[wanted.format], schema, num_bytes)
    counts: list[_Count] = []
    try:
        for part in parts:
            counts.append((part.source, split, _add(writer, part, schema)))
            writer.end_file()
    except BaseException:
        writer.abort()
        raise
    return [count for count in counts if count[2]]


def _add(writer: HubWriter | MdsWriter, part: Part, schema: pa.Schema) -> int:
    num_rows = 0
    for rows in part.batches():
        writer.add(in_schema(rows, schema))
        num_rows += rows.num_rows
    return num_rows


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
