"""Rows of an exchange drawn from a seed, written to files, and the same rows sorted by plain Python."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from datapipe.columns import KEY_TYPE, make_keys
from datapipe.exchange.files import ExchangeWriter
from datapipe.records.outputs import ExchangeFile
from datapipe.storage.root import Root

SCHEMA = pa.schema(
    [
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("digest", pa.uint64(), nullable=False),
        pa.field("count", pa.int32(), nullable=False),
        pa.field("key", KEY_TYPE, nullable=False),
        pa.field("text", pa.string(), nullable=False),
    ]
)

Row = dict[str, Any]


def uneven_hashes(seed: int, distinct: int = 40) -> list[int]:
    """Hashes of which most come once and some hundreds of times; the first and the last that exist are among them."""
    generator = np.random.default_rng(seed)
    values = [0, (1 << 64) - 1, *generator.integers(0, 1 << 64, distinct, dtype=np.uint64).tolist()]
    counts = generator.geometric(0.5, len(values)) ** 3
    return [value for value, count in zip(values, counts) for _ in range(count)]


def rows_of(hashes: Sequence[int], first: int = 0, digests: int = 3) -> pa.RecordBatch:
    """A row for each hash, in a random order, with its own key, from number `first` on; the text gives the key."""
    generator = np.random.default_rng(first)
    positions = generator.permutation(np.arange(first, first + len(hashes), dtype=np.uint64))
    arrays = [
        pa.array(np.array(hashes, np.uint64)),
        pa.array(generator.integers(0, digests, len(hashes), dtype=np.uint64)),
        pa.array(generator.integers(-2, 2, len(hashes), dtype=np.int32)),
        make_keys(7, positions),
        pa.array([f"row {position}" for position in positions]),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def write(root: Root, path: str, rows: pa.RecordBatch, batch_rows: int = 100, *, as_old: bool = False) -> ExchangeFile:
    """Writes rows in batches.

    Args:
        as_old: the file is one of an index, whose rows are of an earlier run.
    """
    writer = ExchangeWriter(root, path, rows.schema)
    for start in range(0, rows.num_rows, batch_rows):
        writer.add(rows.slice(start, batch_rows))
    output = writer.finish()
    return replace(output, url=root.child_url(path)) if as_old else output


def order(row: Row) -> tuple[int, ...]:
    """The words that a row is sorted by: signed numbers are moved up by 2**63, and a key is two words."""
    key = row["key"]
    return row["hash"], row["digest"], row["count"] + (1 << 63), int.from_bytes(key[:8], "big"), int.from_bytes(key[8:], "big")


def in_order(parts: Iterable[pa.RecordBatch]) -> list[Row]:
    """All rows, sorted by Python."""
    return sorted((row for part in parts for row in part.to_pylist()), key=order)
