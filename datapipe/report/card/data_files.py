"""The data files of an output or an export, as the hub and Croissant describe them: configurations, splits, columns.

shards/web/part-00000-00000-<digest>.arrow     ─▶ configuration default, split train: rows of tokens
documents/web/part-00000-<digest>.parquet      ─▶ configuration default, or one for each source where columns differ
data/train-00000.parquet                       ─▶ an export has one configuration
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from datapipe.shards import schemas
from datapipe.shards.documents.reader import json_schema, parquet_schema
from datapipe.shards.manifest import Snapshot
from datapipe.shards.shard_table import ShardEntry
from datapipe.snapshots.export.export import SPLITS, ExportedSplit
from datapipe.storage.root import Root

DataFormat = Literal["parquet", "jsonl.zst", "arrow"]

MOST_LISTED = 100
"""Files of a split that are listed by name. More are told by a pattern, which also takes files of earlier snapshots that
`datapipe clean` has not deleted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitFiles:
    """The files of one split.

    Attributes:
        split: "train" or "validation".
        paths: of the files, or patterns of them.
        rows: documents, or packed rows.
        bytes: of the texts, or of the tokens.
        file_bytes: of the files.
    """

    split: str
    paths: tuple[str, ...]
    rows: int
    bytes: int
    file_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """Splits with the same columns.

    Attributes:
        schema: None where it cannot be told.
    """

    name: str
    splits: tuple[SplitFiles, ...]
    schema: pa.Schema | None


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFiles:
    """All data files of a snapshot or an export.

    Attributes:
        is_packed: whether rows are packed tokens; otherwise documents.
    """

    format: DataFormat
    is_packed: bool
    configurations: tuple[Configuration, ...]

    @property
    def rows(self) -> int:
        return sum(split.rows for configuration in self.configurations for split in configuration.splits)


def data_files(root: Root, manifest: Snapshot) -> DataFiles:
    """The data files of a snapshot in its output. Reads the columns of one file of each source."""
    return _of_rows(manifest) if manifest.has_tokens else _of_documents(root, manifest)


def _of_rows(snapshot: Snapshot) -> DataFiles:
    id_type = schemas.token_type(snapshot.tokenizer.vocab_size)
    row_bytes = snapshot.sequence_length * id_type.bit_width // 8
    splits: list[SplitFiles] = []
    for split, prefix in (("train", "part"), ("validation", "validation")):
        shards = [shard for shard in snapshot.shards if shard.split == split]
        rows = sum(shard.sequences for shard in shards)
        paths = _paths([shard.path for shard in shards], f"shards/*/{prefix}-*.{snapshot.shard_format}")
        num_bytes = sum(shard.bytes for shard in shards)
        if shards:
            splits.append(SplitFiles(split=split, paths=paths, rows=rows, bytes=rows * row_bytes, file_bytes=num_bytes))
    schema = schemas.sequences(id_type, snapshot.sequence_length)
    configuration = Configuration(name="default", splits=tuple(splits), schema=schema)
    return DataFiles(format=snapshot.shard_format, is_packed=True, configurations=(configuration,))


def _of_documents(root: Root, snapshot: Snapshot) -> DataFiles:
    by_source: dict[str, list[ShardEntry]] = {}
    for entry in snapshot.shards:
        by_source.setdefault(entry.source, []).append(entry)
    columns = {source: _columns(root, snapshot, entries[0].path) for source, entries in by_source.items()}
    ending = snapshot.shard_format
    known = [schema for schema in columns.values() if schema is not None]
    if len(known) == len(columns) and all(schema.equals(known[0]) for schema in known):
        whole = _split([entry for entries in by_source.values() for entry in entries], f"documents/*/*.{ending}")
        configurations = [Configuration(name="default", splits=(whole,), schema=known[0])] if known else []
    else:
        configurations = [
            Configuration(name=source, splits=(_split(entries, f"documents/{source}/*.{ending}"),), schema=columns[source])
            for source, entries in by_source.items()
        ]
    return DataFiles(format=ending, is_packed=False, configurations=tuple(configurations))


def _columns(root: Root, snapshot: Snapshot, path: str) -> pa.Schema | None:
    """The columns of a file; None where it is gone or damaged, which `datapipe verify` tells."""
    try:
        return parquet_schema(root, path) if snapshot.shard_format == "parquet" else json_schema(root, path)
    except (OSError, pa.ArrowException):
        return None


def _split(entries: Sequence[ShardEntry], pattern: str) -> SplitFiles:
    return SplitFiles(
        split="train",
        paths=_paths([entry.path for entry in entries], pattern),
        rows=sum(entry.documents for entry in entries),
        bytes=sum(entry.text_bytes for entry in entries),
        file_bytes=sum(entry.bytes for entry in entries),
    )


def _paths(paths: Sequence[str], pattern: str) -> tuple[str, ...]:
    return tuple(paths) if len(paths) <= MOST_LISTED else (pattern,)


def exported_files(
    target: Root, format: DataFormat, is_packed: bool, schema: pa.Schema, written: Sequence[ExportedSplit]
) -> DataFiles:
    """The files of an export, which has one configuration."""
    sizes, splits = target.list_files("data"), list[SplitFiles]()
    for split in SPLITS:
        rows = sum(each.rows for each in written if each.split == split)
        num_bytes = sum(size for path, size in sizes if path.startswith(f"data/{split}-"))
        if rows:
            paths = (f"data/{split}-*.{format}",)
            splits.append(SplitFiles(split=split, paths=paths, rows=rows, bytes=num_bytes, file_bytes=num_bytes))
    configuration = Configuration(name="default", splits=tuple(splits), schema=schema)
    return DataFiles(format=format, is_packed=is_packed, configurations=(configuration,))
