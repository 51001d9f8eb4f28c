"""The files of a snapshot that list its shards, as columns of `shard_table.SCHEMA`.

    ShardTable ─▶ lists/<digest>.parquet    the shards of part 0: of the first run
               ─▶ lists/<digest>.parquet    those of each part that was added later

So a manifest stays small, however many shards it has. Snapshots with the same shards share a list.
"""

import io
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from datapipe.columns import compute
from datapipe.errors import SnapshotError
from datapipe.records.checksum import bytes_checksum
from datapipe.records.names import LISTS
from datapipe.shards.shard_table import MOST_CHARACTERS, SCHEMA, ShardTable
from datapipe.storage.root import Root, parquet_table

_REQUIRED = ("path", "source", "split", "checksum", "sequences", "tokens", "documents", "bytes", "text_bytes")


def list_files(shards: ShardTable) -> dict[str, bytes]:
    """By path, the content of the lists of shards: one for each part, in the order of the parts."""
    files: dict[str, bytes] = {}
    for part in np.unique(shards.parts).tolist():
        sink = io.BytesIO()
        table = shards.of_part(part)
        if table.column("cells").null_count == len(table):
            table = table.drop_columns("cells")
        pq.write_table(table, sink, compression="zstd", store_schema=False)
        content = sink.getvalue()
        files[f"{LISTS}/{xxhash.xxh3_128_hexdigest(content)}.parquet"] = content
    return files


def read_lists(root: Root, checksums: Mapping[str, str]) -> ShardTable:
    """The shards of lists, by their paths. Raises SnapshotError for a list that is missing or damaged."""
    return ShardTable(pa.concat_tables([_listed(root, path, checksum) for path, checksum in checksums.items()]))


def _listed(root: Root, path: str, checksum: str) -> pa.Table:
    try:
        content = root.read_bytes(path)
        if bytes_checksum(content) != checksum:
            raise ValueError("its checksum is another one")
        return read_list(content)
    except (ValueError, OSError, pa.ArrowException) as error:
        raise SnapshotError(
            f"{root.child_url(path)}: not the list of shards that the manifest names: {str(error)[:300]}. Run "
            f"the mixture again to rewrite it, with --rebuild where files were added later."
        ) from error


def read_list(content: bytes) -> pa.Table:
    """The shards in the content of a list, as columns of `SCHEMA`. Raises ValueError for content that no run writes."""
    table = parquet_table(content)
    if "cells" not in table.schema.names:
        table = table.append_column(SCHEMA.field("cells"), pa.nulls(len(table), SCHEMA.field("cells").type))
    if table.schema.names != SCHEMA.names:
        raise ValueError(f"a list of shards with the columns {', '.join(table.schema.names)[:MOST_CHARACTERS]}")
    table = table.cast(SCHEMA)
    table.validate(full=True)
    for field in SCHEMA:
        column = table.column(field.name)
        if field.name in _REQUIRED and column.null_count:
            raise ValueError(f"a shard without {field.name}")
        _check_values(field.name, column.combine_chunks())
    return table


def _check_values(name: str, values: pa.Array) -> None:
    most = (1 << 62) - 1
    if name == "split" and not compute.all(compute.is_in(values, pa.array(["train", "validation"])), min_count=0).as_py():
        raise ValueError("a split that is neither train nor validation")
    if name == "hashes":
        sizes = compute.list_value_length(values)
        if not compute.all(compute.equal(sizes, 2), min_count=0).as_py() or values.flatten().null_count:
            raise ValueError("a range of hashes that is no pair")
        values, most = values.flatten(), 1 << 64
    elif name == "cells":
        runs = values.flatten()
        if runs.null_count or any(field.null_count for field in runs.flatten()):
            raise ValueError("a run of a cell that lacks a number")
        return  # `check_cells` checks the others
    elif pa.types.is_string(values.type):
        values, most = compute.utf8_length(values), MOST_CHARACTERS
    bounds = compute.min_max(values).as_py()
    if bounds["min"] is not None and not 0 <= bounds["min"] <= bounds["max"] <= most:
        raise ValueError(f"a {name} that is out of range")
