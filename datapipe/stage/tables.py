"""Exchanges: rows of documents meet by hash, in a row of meetings that a global stage declares (`global_stage.Global`).

    emitted tables  ->  meeting  ->  tables  ->  meeting  ->  …  ->  drops, cuts, sizes  ->  back to the documents

A table is rows of one schema. What meets in one task is a range of hashes, chosen by the engine from committed sizes, so the
memory of a task is bounded whatever the corpus, and nothing that comes of it depends on where the ranges begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from datapipe import columns, rng
from datapipe.columns import KEY_TYPE
from datapipe.errors import UserError

RANK = "rank"
"""The unsigned column, right before `key`, of tables that decide which document is the first: the one of lowest (rank, key).
Its top bit is set by stages, for documents of this run; the engine clears it in the rows of earlier ones (`as_settled`). So
whatever else decides, what was published stays, and whoever drops or cuts passes over it (`is_new`)."""

DROP_SCHEMA = pa.schema(
    [
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("key", KEY_TYPE, nullable=False),
        pa.field("survivor", KEY_TYPE, nullable=False),
        pa.field("value", pa.float64(), nullable=False),
    ]
)
"""The final table `drops`: drop the document `key`, since `survivor` stands for it; `value` is the measured likeness (1.0:
equal; NaN: none was). Of several rows of a document the first by (key, survivor) counts. `hash` is the first half of `key`
(`columns.key_halves`), as in all final tables."""

CUT_SCHEMA = pa.schema(
    [
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("key", KEY_TYPE, nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("stop", pa.int64(), nullable=False),
        pa.field("rule", pa.string(), nullable=False),
    ]
)
"""The final table `cuts`: take the bytes [start, stop) out of the text of `key`, for `rule`. Spans of a document may touch
and overlap: a byte is cut once, and counted for the rule of the span that begins first (of those the longest, then the
rule's name). They begin and end at borders of characters. The document keeps a cut point there (`stage/cut_points.py`)."""

SIZE_SCHEMA = pa.schema(
    [
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("key", KEY_TYPE, nullable=False),
        pa.field("size", pa.int64(), nullable=False),
    ]
)
"""The final table `sizes`: so many documents were dropped in favour of `key`. Rows of one key add up, so that a cluster may
be counted in parts."""

FINAL_SCHEMAS: Mapping[str, pa.Schema] = {"drops": DROP_SCHEMA, "cuts": CUT_SCHEMA, "sizes": SIZE_SCHEMA}
"""The tables that become verdicts, by name. The engine exchanges them by key, and a map task reads those of its documents."""

OPEN = "open"
"""The table by which an exchange of several rounds says that it needs another one: it ends when nobody wrote to it."""

OPEN_SCHEMA = pa.schema([pa.field("hash", pa.uint64(), nullable=False)])


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """One meeting of rows by hash.

    Every table has `hash` uint64 as its first column, by which its rows find the bucket where they meet, and a key column if
    it is about documents. Rows are sorted by all their columns of integers and keys, from left to right; so `hash` first, and
    what follows it is for the stage to choose: (hash, rank, key) brings the document of lowest rank first. Columns of other
    types ride along, and must follow from the sorted ones, since rows that differ in them alone come in any order.

    Attributes:
        name: what it does, in lower case and hyphens: "match", "compare", "cluster". Its step in the run is STAGE/NAME.
        inputs: tables that meet: emitted ones, or outputs of exchanges before.
        outputs: tables that it makes, with their schemas. Rows written to one table by several exchanges are added up.
        rounds: how often it may be repeated. In each round after the first it reads, of those inputs that are outputs of its
            own too, what the round before wrote; the other inputs are the same in every round. What it writes to tables
            that it does not read adds up over the rounds. It ends with the round that writes no row to the table `open`;
            where `rounds` are not enough the run fails.
        group: the columns that documents compared with each other have in common, a prefix of the sorted columns of the
            largest table; `hash` alone by default.
        neighbours: whether a piece of a giant group begins with the last row of the piece before it too, after the first of
            the group.
        at_once_bytes: 0: never. Else: where the inputs take no more than that (None: `execution.bucket_bytes`) they meet in
            one task and one call, `meet_at_once`, and there is no second round.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: Mapping[str, pa.Schema]
    rounds: int = 1
    group: tuple[str, ...] = ("hash",)
    neighbours: bool = False
    at_once_bytes: int | None = 0

    @property
    def label(self) -> str:
        """The name as people read it: "match bands"."""
        return self.name.replace("-", " ")


def drops_for_others(exchanges: Iterable[Exchange]) -> bool:
    """Whether documents are dropped in favour of others, so that there are clusters to look at; else spans are cut."""
    return any("drops" in one.outputs for one in exchanges)


Bucket = Mapping[str, pa.RecordBatch]
"""Rows by table. Every input of the exchange is there, though it may have no row."""


def new_bit(kind: Any) -> Any:
    """What marks a document of this run in ranks of an unsigned NumPy type: its top bit, of that type."""
    kind = np.dtype(kind)
    return kind.type(1 << (8 * kind.itemsize - 1))


def source_rank(place: int | None) -> np.uint16:
    """The rank of a document of this run by the place of its source alone, or by nothing. Raises UserError above 15 bits."""
    bit = new_bit(np.uint16)
    if place is not None and place >= bit:
        raise UserError(f"keep: source_order goes by at most {bit:,} sources; this is number {place + 1:,}")
    return bit | np.uint16(place or 0)


def is_new(rows: pa.RecordBatch) -> np.ndarray:
    """Which rows are about documents of this run, (num_rows,) bool."""
    ranks = columns.numbers(rows.column(RANK))
    return ranks >= new_bit(ranks.dtype)


def as_reference(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of a table as those of an earlier run: all ranks changed alike, so what was sorted stays sorted."""
    at = rows.schema.get_field_index(RANK)
    if at < 0:
        return rows
    ranks = columns.numbers(rows.column(at))
    return rows.set_column(at, rows.schema.field(at), pa.array(ranks & ~new_bit(ranks.dtype)))


def key_hash(keys: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """The hash by which rows about a document meet, (num_rows,) uint64: even over documents, where the first half of a key is
    the same for a whole file."""
    return rng.keyed_hash(columns.key_halves(keys), 0)
