"""The contract of a global stage: documents are judged in the sight of all others, by a row of exchanges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import pyarrow as pa
from pydantic import BeforeValidator, Field, WithJsonSchema, field_validator

from datapipe.own_columns import OWN_COLUMNS
from datapipe.stage.base import Stage
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.percent import Share
from datapipe.stage.tables import Bucket, Exchange

_STRING_OR_STRINGS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


class Global(Stage):
    """Judges each document in the sight of all others, by a row of exchanges.

        emit(batch)          rows (hash uint64, …, key, …) of the tables `emits()`: what of a document is exchanged
        exchanges()          in turn: which tables meet, and what comes of it. Each is planned when the one before is committed
        meet(name, bucket)   all rows of a range of hashes  ->  rows of other tables, which are exchanged by hashes of theirs
        verdicts             the tables `drops`, `cuts` and `sizes`, brought back to the documents by the engine

    What `meet` returns, taken over all buckets, must not depend on where the ranges of hashes begin: rows of different hashes
    know nothing of each other. **Giant groups**: where the rows of one hash are more than a task may hold, `meet` is called
    for pieces of them: of the table that has most rows of the hash some consecutive ones, of the other tables all rows of
    the hash. A piece that begins inside a group (`Exchange.group`) begins with the first row of that group once more. So a
    star around the first row of each group needs no thought, and a join of a long table with a short one neither; what is
    made of a row that comes twice is to be such that it does no harm (`drops` may repeat themselves, counts may not).

    `scope: source` keeps the sources apart: the engine then mixes the source's name into every emitted hash, those of tables
    named in `by_key` excepted.
    """

    scope: Literal["run", "source"] = Field(
        default="run",
        description="run: compare documents across all sources that name this stage. source: within each source only.",
    )

    size_column: str | None = Field(
        default=None,
        min_length=1,
        description="Column to add to the documents that stay: how many their cluster held, themselves included; 1 for one "
        "that was alone. A source's `strata` may go by it: documents that had many duplicates may come up more often.",
    )

    cluster_column: str | None = Field(
        default=None,
        min_length=1,
        description="Column to add to the documents that stay: the name of their cluster, which is the key of the document "
        "that stands for it, so their own, as 32 hex digits. Drops name it as their survivor.",
    )

    max_dropped: Share | None = Field(
        default=None,
        description="Share of the documents of a source, such as 50%, that the stage may drop; `on_excess` says what happens "
        "when it drops more. Unlimited by default.",
    )

    on_excess: Literal["fail", "warn"] = Field(
        default="fail",
        description="fail: a source that loses more than `max_dropped` stops the run, once all of it was judged. warn: the run "
        "says so and goes on.",
    )

    against: Annotated[
        tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_listed), WithJsonSchema(_STRING_OR_STRINGS)
    ] = Field(
        default=(),
        description="Outputs of earlier runs (with their work/ folder), or indexes that `datapipe index` made of them: paths "
        "or URLs. Documents are held against theirs too, dropped ones included, without their text being read again. What an "
        "earlier run decided stays: of an old document and a new one like it, the new one goes.",
    )

    @field_validator("size_column", "cluster_column")
    @classmethod
    def _not_own(cls, name: str | None) -> str | None:
        if name in OWN_COLUMNS:
            raise ValueError("expected a name of its own: every document has a column of that name already")
        return name

    checks: ClassVar[frozenset[str]] = frozenset({"max_dropped", "on_excess", "against"})

    rows_version: ClassVar[int] = 1
    """To be raised when `emit` says something else of the same text: rows of another version are not compared."""

    apply_options: ClassVar[tuple[str, ...]] = ()
    """Options of the stage's own that `emit` does not look at: other values of them give other verdicts on the same rows, so no
    document is read again for them."""

    rule: ClassVar[str] = "duplicate"
    """The reason of a drop, after the stage's name."""

    by_key: ClassVar[tuple[str, ...]] = ()
    """Emitted tables whose hash is `exchanges.key_hash` of the key: rows that are looked up by document."""

    def removed_share_limit(self) -> float:
        """Of a document of which a greater share of the bytes is cut, all is dropped, as `STAGE:too_much_removed`."""
        return 1.0

    def shingles(self) -> tuple[int, Literal["word", "char"]]:
        """What `inspect --clusters` tells likeness by: n-grams of so many words, or of characters of words."""
        return 5, "word"

    def source_order(self) -> tuple[str, ...] | None:
        """The order of sources that decides who survives: () for the mixture's own, None where none does."""
        return None

    def unseen_by_emit(self) -> set[str]:
        """Options that `emit` does not look at."""
        return {"size_column", "cluster_column", *self.apply_options, *self.checks}

    def row_identity(self, seed: int) -> Mapping[str, Any]:
        """What the rows of two runs must have in common to meet, as JSON: all that `emit` looks at but `keep`, which ranks the
        documents of each run by itself.

        Args:
            seed: of the mixture, for stages whose rows depend on it.
        """
        own = {name for name in type(self).model_fields if name not in Global.model_fields}
        options = self.model_dump(mode="json", include={"scope", *own} - {"keep", *self.apply_options})
        return {"stage": f"{type(self).__module__}:{type(self).__qualname__}", "version": self.rows_version, **options}

    def emits(self) -> Mapping[str, pa.Schema]:
        """The tables that a document gives rows to."""
        raise NotImplementedError

    def emit(self, batch: DocumentBatch) -> Mapping[str, pa.RecordBatch]:
        """The rows of a batch, for every table of `emits()`."""
        raise NotImplementedError

    def exchanges(self) -> Sequence[Exchange]:
        """A function of the options alone; it is asked for when the run is planned, before `open`."""
        raise NotImplementedError

    def reduce(self, exchange: str, bucket: Bucket) -> Mapping[str, pa.RecordBatch]:
        """What comes of a meeting: rows in any order, for tables of the exchange's outputs; those left out get none.

        Args:
            exchange: its name.
            bucket: all rows of a range of hashes, each table sorted (`Exchange`); or a piece of a giant group.
        """
        raise NotImplementedError

    def reduce_at_once(self, exchange: str, tables: Bucket) -> Mapping[str, pa.RecordBatch]:
        """What comes of a meeting of everything, for an exchange that has `at_once_bytes`.

        Args:
            exchange: its name.
            tables: all rows there are, each table sorted.
        """
        raise NotImplementedError
