"""What an export of a dataset writes: parts, each one split of one source, as batches of rows with columns in common.

    documents   id, url, source, text, and the columns that were kept     from files of documents, or from work/
    rows        source, tokens, lengths, keys, starts                     from shards; a key is 32 hex digits
                unlearned, where documents have segments

A column that one source lacks is null in its rows, so that all files of a dataset have the same columns.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa

from datapipe import columns
from datapipe.dataclass import dataclass
from datapipe.errors import CorruptionError, UserError
from datapipe.shards import schemas
from datapipe.shards.documents.reader import json_batches, json_schema, parquet_batches, parquet_schema
from datapipe.shards.manifest import Snapshot
from datapipe.shards.shard_table import ShardEntry
from datapipe.snapshots.export.export import SPLITS, Split, has_mask, shard_batches, wanted_sources, with_mask
from datapipe.snapshots.verify import file_problems
from datapipe.stage.field_types import joined
from datapipe.storage.root import Root

_FIRST = ("id", "url", "source", "text")


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One split of one source; `batches` reads it from its beginning."""

    source: str
    split: Split
    schema: pa.Schema
    batches: Callable[[], Iterator[pa.RecordBatch]]


def common_schema(parts: Sequence[Part]) -> pa.Schema:
    """The columns of all parts, in one order. Raises UserError as `joined_schema`."""
    joined = joined_schema({f"'{part.source}'": part.schema for part in parts})
    names = [name for name in _FIRST if name in joined.names] + [name for name in joined.names if name not in _FIRST]
    return pa.schema([joined.field(name) for name in names])


def in_schema(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows with the columns of `schema`, null where they have none."""
    arrays = [
        rows.column(field.name).cast(field.type) if field.name in rows.schema.names else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def parts_of_documents(root: Root, snapshot: Snapshot, source: str | None, split: Split | None) -> list[Part]:
    """The documents of a run without a tokenizer, which holds none out. Raises UserError, CorruptionError."""
    if split == "validation":
        raise UserError("a run without a tokenizer holds no documents out: it has no validation split. Leave out --split")
    parts: list[Part] = []
    for name in wanted_sources(snapshot.sources, source):
        entries = [entry for entry in snapshot.shards if entry.source == name and entry.documents]
        if entries:
            schema = _schema_of(root, snapshot, entries)
            parts.append(
                Part(source=name, split="train", schema=schema, batches=partial(_batches, root, snapshot, entries, schema))
            )
    return parts


def _schema_of(root: Root, snapshot: Snapshot, entries: Sequence[ShardEntry]) -> pa.Schema:
    for entry in entries:
        for problem in file_problems(root, entry.path, entry.checksum, entry.bytes):
            raise CorruptionError(f"{problem}. Delete the file and run the mixture again to restore it")
    schema_of = parquet_schema if snapshot.shard_format == "parquet" else json_schema
    return joined_schema({entry.path: schema_of(root, entry.path) for entry in entries})


def joined_schema(schemas: Mapping[str, pa.Schema]) -> pa.Schema:
    """The columns of files or sources, by name: files that were added later may have wider types.
    Raises UserError where no type holds the values of a column."""
    fields: dict[str, tuple[pa.DataType, str]] = {}
    for path, schema in schemas.items():
        for field in schema:
            known, first = fields.get(field.name, (field.type, path))
            kind = joined(known, field.type)
            if kind is None:
                raise UserError(
                    f"the column '{field.name}' is {known} in {first} and {field.type} in {path}, and no type holds the "
                    f"values of both. Export each source by itself, with --source, or declare the column in the mixture, "
                    f"types: {{{field.name}: string}}, and run it with --rebuild"
                )
            fields[field.name] = (kind, first)
    return pa.schema([(name, kind) for name, (kind, _) in fields.items()])


def _batches(root: Root, snapshot: Snapshot, entries: Sequence[ShardEntry], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for entry in entries:
        is_parquet = snapshot.shard_format == "parquet"
        yield from parquet_batches(root, entry.path) if is_parquet else json_batches(root, entry.path, schema)


def parts_of_rows(root: Root, snapshot: Snapshot, source: str | None, split: Split | None) -> list[Part]:
    """The packed rows of a snapshot, in the order of its shards."""
    sources = wanted_sources(snapshot.sources, source)
    is_masked = any(has_mask(root, snapshot, snapshot.shards_of(name, each)) for name in sources for each in SPLITS)
    rows = schemas.sequences(schemas.token_type(snapshot.tokenizer.vocab_size), snapshot.sequence_length, has_mask=is_masked)
    keys = pa.field("keys", pa.list_(pa.string()), nullable=False)
    fields = [pa.field("source", pa.string(), nullable=False), *rows]
    schema = pa.schema([keys if field.name == "keys" else field for field in fields])
    return [
        Part(source=name, split=each, schema=schema, batches=partial(_rows, root, snapshot, name, each, schema))
        for name in sources
        for each in (SPLITS if split is None else (split,))
        if snapshot.shards_of(name, each)
    ]


def _rows(root: Root, snapshot: Snapshot, source: str, split: Split, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for rows in shard_batches(root, snapshot, snapshot.shards_of(source, split)):
        own = with_mask(rows) if schemas.UNLEARNED in schema.names else rows
        keys = own.column("keys")
        by_name = {
            "source": pa.repeat(pa.scalar(source, pa.string()), rows.num_rows),
            "keys": pa.ListArray.from_arrays(keys.offsets, columns.hex_keys(keys.values).cast(pa.string())),
        }
        arrays = [by_name.get(name, own.column(name) if name in own.schema.names else None) for name in schema.names]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
