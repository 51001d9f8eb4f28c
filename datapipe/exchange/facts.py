"""What a run knows of each document, in Parquet files that tasks write and `datapipe.explore` queries by SQL.

| kind | a row for each |
|---|---|
| kept | document that its source keeps: id, bytes, and every plain column; no text |
| drops, quarantine | document that was dropped or could not be processed |
| borderline | document near the threshold of a rule |
| findings | item of an evaluation set in a document |
| packed | part of a document in a row of a shard |

Every row carries its source, and where documents are counted its fate, so that one query reads the files of all tasks. The
rows of `kept` stand in the order of those of `documents`, which has the texts. A file holds at most `GROUP_ROWS` rows or about
`GROUP_BYTES` in memory before they are written.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datapipe.columns import compute, numbers, text_lengths
from datapipe.exchange.partitions import TableWriter
from datapipe.records.outputs import TableFile
from datapipe.reserved_columns import OWN_COLUMNS
from datapipe.stage.documents import DocumentBatch
from datapipe.storage.root import Root

GROUP_ROWS, GROUP_BYTES = 1 << 16, 16 << 20
MOST_CHARS = 1000
"""Texts of columns are cut to so many characters; `documents` has the whole ones."""

FACT_COLUMNS = (
    *("source", "fate", "key", "id", "path", "position", "name", "stage", "rule", "value", "threshold"),
    *("survivor", "bytes", "error", "excerpt", "shard", "row", "tokens", "place", "filename", "file_row_number"),
)
"""Columns of facts, of their views, and those that DuckDB adds to the rows of a file. See `_fact_names`."""

_FEW_VALUES = ("source", "fate", "stage", "rule", "path", "list", "shard")
_PLAIN = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_string, pa.types.is_large_string)


class FactWriter(TableWriter):
    """Writes rows of one schema, that of the first batch, to a Parquet file, which is made for the first row.

    Args:
        constants: columns with the same text in each row, before the others.
    """

    def __init__(self, root: Root, path: str, **constants: str) -> None:
        super().__init__(root, path)
        self._constants = constants
        self._held: list[pa.RecordBatch] = []

    def add(self, batch: pa.RecordBatch) -> None:
        for number, (name, value) in enumerate(self._constants.items()):
            batch = batch.add_column(number, name, pa.repeat(value, batch.num_rows))
        super().add(batch)

    def finish(self) -> tuple[TableFile, ...]:
        if self._held:
            self._flush()
        return super().finish()

    def _write(self, batch: pa.RecordBatch) -> None:
        self._held.append(batch)
        if sum(held.num_rows for held in self._held) >= GROUP_ROWS or sum(held.nbytes for held in self._held) >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._writer is None:
            schema = self._held[0].schema
            few: Any = [name for name in schema.names if name in _FEW_VALUES]
            self._writer = pq.ParquetWriter(self._opened(), schema, compression="zstd", use_dictionary=few)
        self._writer.write_table(pa.Table.from_batches(self._held), row_group_size=GROUP_ROWS)
        self._held.clear()


def kept_facts(batch: DocumentBatch) -> pa.RecordBatch:
    """A row for each document: key, id, bytes of its text, and its plain columns."""
    record = batch.record
    columns = {"key": batch.keys, "id": record.column("id"), "bytes": pa.array(text_lengths(record.column("text")))}
    plain = [field for field in record.schema if any(is_plain(field.type) for is_plain in _PLAIN)]
    kept = [field.name for field in plain if field.name not in OWN_COLUMNS]
    columns |= {fact: _short(record.column(name)) for name, fact in _fact_names(kept).items()}
    return pa.record_batch(columns)


def _fact_names(names: Sequence[str]) -> dict[str, str]:
    """The names in SQL of columns of documents. SQL ignores case, so a column with the name of a fact, or of a column before
    it, gets `kept.` in front, until no other has the name: value → kept.value; a, A → a, kept.A."""
    taken, facts = set(FACT_COLUMNS), dict[str, str]()
    for name in names:
        fact = name
        while fact.lower() in taken:
            fact = f"kept.{fact}"
        taken.add(fact.lower())
        facts[name] = fact
    return facts


def shard_of_task(fingerprint: str, path: str) -> str:
    """A shard that a task writes, by a name that is the same in all attempts at the task."""
    return f"{fingerprint}/{posixpath.basename(path)}"


def packed_facts(rows: pa.RecordBatch, shards: Sequence[str], numbers_of_rows: np.ndarray) -> pa.RecordBatch:
    """A row for each part of a document in rows of `schemas.sequences`.

    Args:
        shards, numbers_of_rows: the file of each row, as `shard_of_task` names it, and its number there, (num_rows,) each.
    """
    lengths, keys, starts = (rows.column(name) for name in ("lengths", "keys", "starts"))
    row_of = np.repeat(np.arange(rows.num_rows), np.diff(numbers(lengths.offsets)))
    return pa.record_batch(
        {
            "key": keys.flatten(),
            "shard": pa.array(shards, pa.string()).take(pa.array(row_of)),
            "row": pa.array(numbers_of_rows[row_of]),
            "start": starts.flatten(),
            "tokens": lengths.flatten(),
        }
    )


def _short(column: pa.Array) -> pa.Array:
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column
    return compute.utf8_slice_codeunits(column, 0, MOST_CHARS) if column.nbytes > MOST_CHARS else column
