"""Lists of shards beside a manifest, which names them: a manifest stays small, however many shards it has.

    ShardTable ─▶ lists/<digest>.parquet    the shards of the first run
               ─▶ lists/<digest>.parquet    those of each addition

A list is named by the digest of its content. Snapshots with the same shards share it, and an addition writes its own list only.
"""

from __future__ import annotations

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
_SPLITS = ("train", "validation")
_MOST_COUNT = 1 << 62
_MOST_HASH = 1 << 64
_SHOWN_CHARACTERS = 300


def list_files(shards: ShardTable) -> dict[str, bytes]:
    """By path, the content of the lists of shards: one for each part, in the order of the parts."""
    files: dict[str, bytes] = {}
    for part in np.unique(shards.parts).tolist():
        sink = io.BytesIO()
        pq.write_table(shards.of_part(part), sink, compression="zstd", store_schema=False)
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
            f"{root.child_url(path)}: not the list of shards that the manifest names: {str(error)[:_SHOWN_CHARACTERS]}. Run "
            f"the mixture again to rewrite it."
        ) from error


def read_list(content: bytes) -> pa.Table:
    """The shards in the content of a list, as columns of `SCHEMA`. Raises ValueError for content that no run writes."""
    table = parquet_table(content)
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
    """Raises ValueError for values that are out of range."""
    most = _MOST_COUNT - 1
    if name == "split" and not compute.all(compute.is_in(values, pa.array(_SPLITS)), min_count=0).as_py():
        raise ValueError("a split that is neither train nor validation")
    if name == "hashes":
        sizes = compute.list_value_length(values)
        if not compute.all(compute.equal(sizes, 2), min_count=0).as_py() or values.flatten().null_count:
            raise ValueError("a range of hashes that is no pair")
        values, most = values.flatten(), _MOST_HASH
    elif pa.types.is_string(values.type):
        values, most = compute.utf8_length(values), MOST_CHARACTERS
    bounds = compute.min_max(values).as_py()
    if bounds["min"] is not None and not 0 <= bounds["min"] <= bounds["max"] <= most:
        raise ValueError(f"a {name} that is out of range")
