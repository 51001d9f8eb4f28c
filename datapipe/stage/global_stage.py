"""The contract of a global stage, which compares every document with all others.

    emit(batch)  ─▶  rows  ─▶  exchange by hash  ─▶  reduce(name, bucket)  ─▶  rows  ─▶  …  ─▶  drops, cuts, sizes

The stage emits rows, the engine shuffles them by key, and `reduce` handles each partition.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import pyarrow as pa
from pydantic import BeforeValidator, Field, WithJsonSchema, field_validator

from datapipe.reserved_columns import OWN_COLUMNS
from datapipe.stage.base import Share, Stage
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.tables import CONTENTS, Bucket, Exchange

_STRING_OR_STRINGS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


class Global(Stage):
    """Compares every document with all others.

        emit(batch)             rows (hash uint64, …, key, …) of the tables in `emits()`
        exchanges()             the exchanges, in order; each is planned after the one before it is committed
        reduce(name, bucket)    all rows of a range of hashes  ->  rows of other tables, exchanged by their own hashes
        drops, cuts, sizes,     the final tables, which the engine exchanges by document and applies
        contents

    `reduce` treats the rows of each hash independently: its output must not depend on the borders
    of the hash ranges.

    **Hot keys.** If the rows of one hash exceed the memory of a task, the engine calls `reduce` once
    per chunk: consecutive rows of the largest table, with all rows of that hash in the other tables. A
    chunk that begins inside a group (`Exchange.group`) begins with a copy of the group's first row. A
    row may be reduced twice: `drops` may repeat, counts may not.

    `scope: source` mixes the source's name into every emitted hash, except in the tables of `by_key`."""

    scope: Literal["run", "source"] = Field(
        default="run",
        description="run: compare documents across all sources that use this stage. source: within each source only.",
    )

    size_column: str | None = Field(
        default=None,
        min_length=1,
        description="Name of a new column in kept documents: the size of the document's cluster, including itself; 1 for a "
        "document without duplicates.",
    )

    cluster_column: str | None = Field(
        default=None,
        min_length=1,
        description="Name of a new column in kept documents: the id of the document's cluster, which is the key of its "
        "survivor as 32 hex digits. The records of dropped documents name the same key as their survivor.",
    )

    max_dropped: Share | None = Field(
        default=None,
        description="Largest share of a source's documents that the stage may drop, such as 50%. `on_excess` sets what happens "
        "above it. Default: no limit.",
    )

    on_excess: Literal["fail", "warn"] = Field(
        default="fail",
        description="Used with max_dropped. fail: the run stops after the stage has processed a source that exceeds it. warn: "
        "the run prints a warning and continues.",
    )

    against: Annotated[
        tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_listed), WithJsonSchema(_STRING_OR_STRINGS)
    ] = Field(
        default=(),
        description="Outputs of earlier runs (with their work/ folder), or indexes that `datapipe index` made of them; paths "
        "or URLs. New documents are also compared with all documents of those runs, including dropped ones, without reading "
        "their text again. Published documents are never removed: when a new document duplicates an old one, the new one is "
        "dropped.",
    )

    @field_validator("size_column", "cluster_column")
    @classmethod
    def _not_own(cls, name: str | None) -> str | None:
        if name in OWN_COLUMNS:
            raise ValueError("expected another name: every document already has a column of this name")
        return name

    checks: ClassVar[frozenset[str]] = frozenset({"max_dropped", "on_excess", "against"})

    rows_version: ClassVar[int] = 1
    """Raise it when `emit` changes its rows for the same text: rows of different versions are not compared."""

    apply_options: ClassVar[tuple[str, ...]] = ()
    """Options that `emit` does not read: a change of them reads no document again."""

    rule: ClassVar[str] = "duplicate"
    """The second half of a drop's reason, STAGE:RULE."""

    by_key: ClassVar[tuple[str, ...]] = ()
    """Emitted tables whose hash is `tables.key_hash` of the key, for rows by document."""

    def removed_share_limit(self) -> float:
        """A document that loses more than this share of its bytes is dropped, with the reason STAGE:too_much_removed."""
        return 1.0

    def shingles(self) -> tuple[int, Literal["word", "char"]]:
        """The n-grams by which `inspect --clusters` measures similarity: their length, in words or in characters of words."""
        return 5, "word"

    def source_order(self) -> tuple[str, ...] | None:
        """The order of sources that decides which document survives: () for the mixture's order, None without an order."""
        return None

    @property
    def makes_contents(self) -> bool:
        """Whether it makes documents of several, in place of comparing them: no later run compares with its rows."""
        return any(CONTENTS in exchange.outputs for exchange in self.exchanges())

    def unseen_by_emit(self) -> set[str]:
        """Options that `emit` does not read."""
        return {"size_column", "cluster_column", *self.apply_options, *self.checks}

    def row_identity(self, seed: int) -> Mapping[str, Any]:
        """The identity of the emitted rows, as JSON: rows of two runs are comparable if it is equal. It holds all options that
        `emit` reads except `keep`, which ranks the documents of each run separately."""
        stage_options = {name for name in type(self).model_fields if name not in Global.model_fields}
        options = self.model_dump(mode="json", include={"scope", *stage_options} - {"keep", *self.apply_options})
        return {"stage": f"{type(self).__module__}:{type(self).__qualname__}", "version": self.rows_version, **options}

    def emits(self) -> Mapping[str, pa.Schema]:
        """The schemas of the emitted tables, by name."""
        raise NotImplementedError

    def emit(self, batch: DocumentBatch) -> Mapping[str, pa.RecordBatch]:
        """The rows of a batch for every table of `emits()`."""
        raise NotImplementedError

    def exchanges(self) -> Sequence[Exchange]:
        """The exchanges, in order, by the options alone. Planning calls it before `open`."""
        raise NotImplementedError

    def reduce(self, exchange: str, bucket: Bucket) -> Mapping[str, pa.RecordBatch]:
        """Reduces one partition to rows, in any order, of the exchange's output tables. A table may be left out. `bucket`: all
        rows of a range of hashes, each table sorted (see `Exchange`), or a chunk of a hot key."""
        raise NotImplementedError

    def reduce_slices(self, exchange: str, slices: Iterator[pa.RecordBatch]) -> Iterator[Mapping[str, pa.RecordBatch]]:
        """Reduces all rows of a range of hashes, of an exchange with `in_slices`: sorted, and all rows of a slice before those
        of the next one. A hash may go on in the next slice. Yields rows of the output tables."""
        raise NotImplementedError

    def reduce_at_once(self, exchange: str, tables: Bucket) -> Mapping[str, pa.RecordBatch]:
        """Reduces all rows of the inputs, each table sorted, in one call, for an exchange with `at_once_bytes`."""
        raise NotImplementedError
