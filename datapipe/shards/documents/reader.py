"""Reads files of documents that a run wrote: batch by batch, in their order."""

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq

from datapipe.columns import as_large_string, text_lengths
from datapipe.storage.root import Root

_CHUNK_BYTES = 1 << 20
_LINES_BYTES = 8 << 20


def parquet_schema(root: Root, path: str) -> pa.Schema:
    """The columns of a Parquet file."""
    with root.open_unmapped(path) as stream, closing(pq.ParquetFile(stream)) as file:
        return file.schema_arrow.remove_metadata()


def parquet_batches(root: Root, path: str, names: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The row groups of a Parquet file, one in memory at a time. `names`: only these columns; None: all."""
    with root.open_unmapped(path) as stream, closing(pq.ParquetFile(stream)) as file:
        for number in range(file.num_row_groups):
            yield from file.read_row_group(number, columns=names, use_threads=False).combine_chunks().to_batches()


def json_chunks(root: Root, path: str) -> Iterator[bytes]:
    """The bytes of a file of JSON lines, decompressed, a MiB at a time."""
    with root.open_unmapped(path) as stream, pa.CompressedInputStream(stream, "zstd") as lines:
        while chunk := lines.read(_CHUNK_BYTES):
            yield chunk


def json_schema(root: Root, path: str) -> pa.Schema:
    """The columns of a file of JSON lines. Reads all of it, since any line may be the first with a
    value in a column. A string stays a string where it looks like a time."""
    schema = pa.schema([])
    for lines in _whole_lines(root, path):
        fields = ((field.name, _without_times(field.type)) for field in _parsed(lines, None).schema)
        found = pa.schema([(name, pa.large_string() if name in ("id", "text") else kind) for name, kind in fields])
        schema = pa.unify_schemas([schema, found], promote_options="permissive")
    return schema


def json_batches(root: Root, path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a file of JSON lines, some MiB at a time, with the columns of `schema`."""
    for lines in _whole_lines(root, path):
        yield from _parsed(lines, schema).combine_chunks().to_batches()


def _parsed(lines: bytes, schema: pa.Schema | None) -> pa.Table:
    options = pj.ReadOptions(use_threads=False, block_size=len(lines) + 1)
    return pj.read_json(pa.BufferReader(lines), options, pj.ParseOptions(explicit_schema=schema))


def _without_times(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_without_times(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_times(field.type)) for field in kind])
    return kind


def _whole_lines(root: Root, path: str) -> Iterator[bytes]:
    held, num_bytes = [b""], 0
    for chunk in json_chunks(root, path):
        end = chunk.rfind(b"\n") + 1
        held.append(chunk[:end])
        num_bytes += end
        if end and num_bytes >= _LINES_BYTES:
            yield b"".join(held)
            held, num_bytes = [], 0
        held.append(chunk[end:])
    if lines := b"".join(held):
        yield lines


def count_documents(root: Root, path: str) -> tuple[int, int | None]:
    """How many documents a file has, and the bytes of their texts; None where counting them means parsing JSON."""
    if path.endswith(".jsonl.zst"):
        return sum(chunk.count(b"\n") for chunk in json_chunks(root, path)), None
    num_docs = num_bytes = 0
    for batch in parquet_batches(root, path, ["text"]):
        num_docs += batch.num_rows
        num_bytes += int(text_lengths(as_large_string(batch.column("text"))).sum())
    return num_docs, num_bytes
