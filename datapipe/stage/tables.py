"""Tables and exchanges of a global stage (`global_stage.Global`).

A table is a set of rows of one schema. An exchange brings rows of equal hash into one task. A task
reduces a range of hashes, which the engine chooses from committed sizes: its memory is bounded, and
the output does not depend on the borders of the ranges.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from datapipe import columns, rng
from datapipe.columns import KEY_TYPE, full_schema
from datapipe.dataclass import dataclass
from datapipe.errors import UserError

RANK = "rank"
"""The unsigned column right before `key` in tables that decide which document survives: the one of lowest (rank, key).

Stages set its top bit in rows of this run. The engine clears the bit in reference rows, which are rows of earlier runs
(`as_reference`). Reference rows therefore always rank first and published documents are never removed. Stages drop and cut
new documents only (`is_new`)."""

DROP_SCHEMA = full_schema(hash=pa.uint64(), key=KEY_TYPE, survivor=KEY_TYPE, value=pa.float64())
"""The final table `drops`: drop the document `key` as a duplicate of `survivor`. `value` is the measured similarity (1.0:
identical; NaN: not measured). If a document has several rows, the first by (key, survivor) counts. In all final tables `hash`
is the first half of `key` (`columns.key_halves`)."""

CUT_SCHEMA = full_schema(hash=pa.uint64(), key=KEY_TYPE, start=pa.int64(), stop=pa.int64(), rule=pa.string())
"""The final table `cuts`: remove the bytes [start, stop) from the text of `key`, for the reason `rule`. Spans of a document may
touch and overlap. Each byte is counted once, for the span that begins first; ties go to the longest span, then to the rule's
name. Spans begin and end between characters. Each removed span leaves a cut point (`stage/cut_points.py`)."""

SIZE_SCHEMA = full_schema(hash=pa.uint64(), key=KEY_TYPE, size=pa.int64())
"""The final table `sizes`: the number of documents that were dropped as duplicates of `key`. Rows of one key add up, so a
cluster may be counted in parts."""

FINAL_SCHEMAS: Mapping[str, pa.Schema] = {"drops": DROP_SCHEMA, "cuts": CUT_SCHEMA, "sizes": SIZE_SCHEMA}
"""The tables that hold decisions, by name. The engine exchanges them by key, and a map task applies those of its documents."""

CONTENTS = "contents"
"""The final table of a stage that makes documents of several: new columns of the document `key`, as its exchange declares
them behind `hash` and `key`. One of them is `text`. Every document that the stage does not drop has one row. The engine keeps
no text of documents beside it (`Global.makes_contents`)."""

FINAL_TABLES = (*FINAL_SCHEMAS, CONTENTS)

OPEN = "open"
"""The table that requests another round of an exchange: the exchange ends after a round that writes no row to it."""

OPEN_SCHEMA = full_schema(hash=pa.uint64())


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """An exchange of rows by hash, and the call of `reduce` on each partition.

    The first column of every table is `hash` uint64: it decides the partition. Rows are sorted by all columns
    of integers and keys, from left to right; columns of other types must be functions of these.
    """

    name: str  # what it does, in lower case and hyphens: "match", "cluster". Its step is STAGE/NAME.
    inputs: tuple[str, ...]  # the tables it reads: emitted tables, or outputs of earlier exchanges
    # the tables it writes, with their schemas. Rows of several exchanges add up.
    outputs: Mapping[str, pa.Schema]
    # the largest number of repetitions. From the second round on, an input that is also an output holds the
    # rows of the round before. The exchange ends after a round that writes no row to the table `open`, and
    # the run fails if `rounds` do not suffice.
    rounds: int = 1
    # the columns that documents must share to be compared, a prefix of the sorted columns of the largest table
    group: tuple[str, ...] = ("hash",)
    # inputs of a join: a reference row counts only where one of these tables has a new row with its hash, so
    # the engine leaves out most others. (): every reference row counts.
    old_beside: tuple[str, ...] = ()
    # whether a chunk of a hot key also begins with the last row of the chunk before it, after the first row of the group
    neighbours: bool = False
    # whether `Global.reduce_slices` gets the rows of a range, of the only input, in their order, slice by slice: for
    # rows of one hash that may exceed the memory of a task, and of which the output needs the order
    in_slices: bool = False
    # inputs up to this size are reduced by one call of `reduce_at_once`, without rounds. 0: never. None: up
    # to half of `execution.bucket_bytes`.
    at_once_bytes: int | None = 0

    @property
    def label(self) -> str:
        """The name as people read it: "match bands"."""
        return self.name.replace("-", " ")


def drops_for_others(exchanges: Iterable[Exchange]) -> bool:
    """Whether the exchanges drop duplicates, so that there are clusters to inspect. Other stages cut spans."""
    return any("drops" in exchange.outputs for exchange in exchanges)


Bucket = Mapping[str, pa.RecordBatch]
"""Rows by table. It holds every input of the exchange; a table may have no rows."""


def new_bit(kind: Any) -> Any:
    """The top bit of an unsigned NumPy type, as a value of that type: it marks documents of this run in ranks."""
    kind = np.dtype(kind)
    return kind.type(1 << (8 * kind.itemsize - 1))


def source_number(source_position: int | None, most_sources: int) -> int:
    """The position of a source (`StageContext`), 0 without an order. Raises UserError for one beyond `most_sources`."""
    number = source_position or 0
    if number >= most_sources:
        raise UserError(
            f"keep: source_order: found source number {number + 1:,}, expected at most {most_sources:,} sources. "
            "List fewer sources, or leave source_order out."
        )
    return number


def source_rank(source_position: int | None) -> np.uint16:
    """The rank of new documents by the position of their source. Raises UserError above 15 bits."""
    bit = new_bit(np.uint16)
    return bit | np.uint16(source_number(source_position, int(bit)))


def is_new(rows: pa.RecordBatch) -> np.ndarray:
    """Which rows belong to new documents, (num_rows,) bool. The others are reference rows."""
    ranks = columns.numbers(rows.column(RANK))
    return ranks >= new_bit(ranks.dtype)


def as_reference(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of a table as reference rows. The top bit of every rank is cleared, so sorted rows stay sorted."""
    index = rows.schema.get_field_index(RANK)
    if index < 0:
        return rows
    ranks = columns.numbers(rows.column(index))
    return rows.set_column(index, rows.schema.field(index), pa.array(ranks & ~new_bit(ranks.dtype)))


def key_hash(keys: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """The hash that brings the rows of a document together, (num_rows,) uint64. It spreads documents evenly; the first half of
    a key would not, because all documents of a file share it."""
    return rng.keyed_hash(columns.key_halves(keys), 0)
