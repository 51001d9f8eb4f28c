"""The data files of an output or an export, as the hub and Croissant describe them: configurations, splits, columns.

shards/web/part-00000-00000-<digest>.arrow     ─▶ configuration default, split train: rows of tokens
documents/web/part-00000-<digest>.parquet      ─▶ configuration default, or one for each source where columns differ
data/train-00000.parquet                       ─▶ an export has one configuration
"""

from collections.abc import Sequence
from typing import Literal

import pyarrow as pa

from datapipe.dataclass import dataclass
from datapipe.shards import schemas
from datapipe.shards.documents.reader import json_schema, parquet_schema
from datapipe.shards.manifest import Snapshot
from datapipe.shards.shard_table import ShardEntry
from datapipe.snapshots.export.export import SPLITS, ExportedSplit
from datapipe.storage.root import Root

DataFormat = Literal["parquet", "jsonl.zst", "arrow"]

MOST_LISTED = 100
"""Files of a split that are listed by name. A pattern stands for more, which also
matches files of earlier snapshots that `datapipe clean` has not deleted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitFiles:
    """The files of one split, or patterns of them: documents with the bytes of their texts, or
    packed rows with those of their tokens."""

    split: str
    paths: tuple[str, ...]
    rows: int
    bytes: int
    file_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """Splits with the same columns; `schema` is None where a file is gone or damaged."""

    name: str
    splits: tuple[SplitFiles, ...]
    schema: pa.Schema | None


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFiles:
    """All data files of a snapshot or an export, of packed tokens or of documents."""

    format: DataFormat
    is_packed: bool
    configurations: tuple[Configuration, ...]

    @property
    def rows(self) -> int:
        return sum(split.rows for configuration in self.configurations for split in configuration.splits)


def data_files(root: Root, manifest: Snapshot) -> DataFiles:
    """The data files of a snapshot in its output. Reads the columns of one file of each source."""
    configurations = _of_rows(manifest) if manifest.has_tokens else _of_documents(root, manifest)
    return DataFiles(format=manifest.shard_format, is_packed=manifest.has_tokens, configurations=tuple(configurations))


def _of_rows(snapshot: Snapshot) -> list[Configuration]:
    id_type = schemas.token_type(snapshot.tokenizer.vocab_size)
    row_bytes = snapshot.sequence_length * id_type.bit_width // 8
    splits: list[SplitFiles] = []
    for split, prefix in (("train", "part"), ("validation", "validation")):
        shards = [shard for shard in snapshot.shards if shard.split == split]
        rows = sum(shard.sequences for shard in shards)
        if shards:
            splits.append(_split(split, shards, f"shards/*/{prefix}-*.{snapshot.shard_format}", rows, rows * row_bytes))
    schema = schemas.sequences(id_type, snapshot.sequence_length)
    return [Configuration(name="default", splits=tuple(splits), schema=schema)]


def _of_documents(root: Root, snapshot: Snapshot) -> list[Configuration]:
    by_source: dict[str, list[ShardEntry]] = {}
    for entry in snapshot.shards:
        by_source.setdefault(entry.source, []).append(entry)
    columns = {source: _columns(root, snapshot, entries[0].path) for source, entries in by_source.items()}
    first = next(iter(columns.values()), None)
    listed = [(source, source, entries) for source, entries in by_source.items()]
    if first is not None and all(schema is not None and schema.equals(first) for schema in columns.values()):
        columns, listed = {"default": first}, [("default", "*", list(snapshot.shards))]
    configurations: list[Configuration] = []
    for name, folder, entries in listed:
        rows, text_bytes = sum(entry.documents for entry in entries), sum(entry.text_bytes for entry in entries)
        split = _split("train", entries, f"documents/{folder}/*.{snapshot.shard_format}", rows, text_bytes)
        configurations.append(Configuration(name=name, splits=(split,), schema=columns[name]))
    return configurations


def _columns(root: Root, snapshot: Snapshot, path: str) -> pa.Schema | None:
    try:
        return parquet_schema(root, path) if snapshot.shard_format == "parquet" else json_schema(root, path)
    except (OSError, pa.ArrowException):
        return None


def _split(split: str, entries: Sequence[ShardEntry], pattern: str, rows: int, num_bytes: int) -> SplitFiles:
    paths = tuple(entry.path for entry in entries) if len(entries) <= MOST_LISTED else (pattern,)
    file_bytes = sum(entry.bytes for entry in entries)
    return SplitFiles(split=split, paths=paths, rows=rows, bytes=num_bytes, file_bytes=file_bytes)


def exported_files(
    target: Root, format: DataFormat, is_packed: bool, schema: pa.Schema, written: Sequence[ExportedSplit]
) -> DataFiles:
    sizes, splits = target.list_files("data"), list[SplitFiles]()
    for split in SPLITS:
        rows = sum(each.rows for each in written if each.split == split)
        num_bytes = sum(size for path, size in sizes if path.startswith(f"data/{split}-"))
        if rows:
            paths = (f"data/{split}-*.{format}",)
            splits.append(SplitFiles(split=split, paths=paths, rows=rows, bytes=num_bytes, file_bytes=num_bytes))
    configuration = Configuration(name="default", splits=tuple(splits), schema=schema)
    return DataFiles(format=format, is_packed=is_packed, configurations=(configuration,))
