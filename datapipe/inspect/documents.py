"""Documents of a finished or stopped run to look at: kept, dropped for a reason, or quarantined.

    outputs of the map steps  ─▶  rows that match the query  ─▶  keyed sample  ─▶  texts, read again from the source

The sample is keyed: the same query returns the same documents each time, and a larger sample contains the smaller one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa

from datapipe.columns import KEY_TYPE, compute, key_halves
from datapipe.config import Mixture
from datapipe.document_name import FORMS, document_name, named_key
from datapipe.engine.history import read_history, read_mixture
from datapipe.errors import UserError, suggest
from datapipe.exchange.partitions import read_table
from datapipe.inspect.originals import GONE, NOT_FOUND, DocumentLocator
from datapipe.own_columns import OWN_COLUMNS
from datapipe.plan.compile import Step
from datapipe.plan.outputs import TableFile
from datapipe.rng import keyed_hash, seed_for
from datapipe.shards.removed import Removed, read_removed
from datapipe.shards.snapshots import newest_manifest
from datapipe.storage import Root

_SHOWN_NAMES = 5

_OWN_VALUES = frozenset({*OWN_COLUMNS, "html", "source", "stored in", "sample"})

Outcome = Literal["kept", "dropped", "quarantined"]


@dataclass(frozen=True, kw_only=True, slots=True)
class InspectedDocument:
    """A document and what the run decided about it.

    Attributes:
        key: 32 hex digits.
        position: byte offset or row number in the file.
        reason: "stage:rule" of a dropped document, the stage of a quarantined one.
        value, threshold: what the rule measured, and its threshold.
        own_id: of a kept document; empty where the input has no id.
        survivor: of a duplicate, the name of the document that was kept in its place.
        text: of a kept document as the stages left it, otherwise as read; None when the source no longer holds it.
        error: why the document is quarantined.
        is_taken_down: whether the newest snapshot leaves it out, whatever the run decided.
        columns: of a kept document, and of a dropped one as the deciding stage got it: kept fields, and what stages wrote.
        is_as_judged: whether the text is the extracted one of a page, as the stage that dropped it got it.
    """

    source: str
    outcome: Outcome
    key: str
    path: str
    position: int
    reason: str = ""
    value: float | None = None
    threshold: float | None = None
    survivor: str = ""
    text: str | None = None
    error: str = ""
    own_id: str = ""
    is_taken_down: bool = False
    columns: Mapping[str, Any] = field(default_factory=dict)
    is_as_judged: bool = False

    @property
    def name(self) -> str:
        return document_name("" if self.path in (GONE, NOT_FOUND) else self.source, self.path, self.position)

    def to_json(self) -> dict[str, Any]:
        """The document as plain data, under the words of the glossary; what it does not have is None."""
        empty_is_none = {name: getattr(self, name) or None for name in ("own_id", "reason", "survivor", "error")}
        return {"document": self.name, **asdict(self), **empty_is_none}


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentQuery:
    """Which documents to find.

    Attributes:
        source: empty for all sources.
        reason: a stage or "stage:rule"; empty for all reasons.
        count: at most so many documents.
    """

    outcome: Outcome
    source: str = ""
    reason: str = ""
    count: int = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspector:
    """The committed work of an output.

    Attributes:
        steps: with the records that still exist.
        mixture: as resolved when the run started.
        locator: finds the documents of the inputs.
    """

    root: Root
    steps: tuple[Step, ...]
    mixture: Mixture
    locator: DocumentLocator

    @classmethod
    def open(cls, output: str) -> Self:
        """Reads what an output remembers of its run. Raises UserError for a folder without a run."""
        root = Root(output)
        history, mixture = read_history(root), read_mixture(root)
        locator = DocumentLocator(history.files, mixture, history.earlier)
        return cls(root=root, steps=history.steps, mixture=mixture, locator=locator)

    @property
    def sources(self) -> list[str]:
        return list(dict.fromkeys(step.source for step in self.steps if step.kind == "map"))

    def find(self, query: DocumentQuery) -> list[InspectedDocument]:
        """The documents that match a query. Raises UserError for an unknown source or reason."""
        sources = self.select_sources(query.source)
        rows = heapq.nsmallest(query.count, self._rows(query, sources), key=lambda row: (row["sample"], row["key"]))
        if not rows and query.reason:
            self._check_reason(query.reason, sources)
        removed = read_removed(self.root, newest_manifest(self.root))
        return [self._document(query.outcome, row, removed) for row in rows]

    def find_document(self, text: str) -> list[InspectedDocument]:
        """What the run decided about one document, step by step. Raises UserError where it has no such document.

        Args:
            text: a form that `document_name.named_key` takes, or the document's own id.
        """
        files = {number: (source, file.path) for number, (source, file, _) in self.locator.files.items()}
        try:
            key, problem = named_key(text, files), f"{text!r}: no input file of this run has this name. Expected {FORMS}."
        except UserError as error:
            key, problem = None, str(error)
        key = key or self.key_of_own_id(text)
        if key is None:
            raise UserError(f"{problem} No document has it as its id, of those that could be read.")
        removed = read_removed(self.root, newest_manifest(self.root))
        found = [
            self._document(outcome, row, removed)
            for outcome in ("kept", "dropped", "quarantined")
            for row in self._rows_with(outcome, key)
        ]
        if not found:
            raise UserError(f"{text!r}: the run has read no such document, or not yet decided about it.")
        return found

    def key_of_own_id(self, own_id: str) -> bytes | None:
        """The key of the document with this id; None where there is none. Raises UserError where several have it."""
        outcomes: tuple[Outcome, ...] = ("kept", "dropped", "quarantined")
        found = [
            key
            for outcome in outcomes
            for source in self.sources
            for _, output in self.tables(outcome, source)
            for batch in read_table(self.root, output, ["key", "id"])
            for key in batch.column("key").filter(compute.equal(batch.column("id"), own_id)).to_pylist()
        ]
        if len(found) > 1:
            names = ", ".join(self.locator.locate(key, text=False).label for key in found[:_SHOWN_NAMES])
            raise UserError(f"{own_id!r}: {len(found):,} documents have this id: {names}. Expected one of these names.")
        return found[0] if found else None

    def select_sources(self, source: str) -> list[str]:
        """The named source alone, or all sources for "". Raises UserError for an unknown source."""
        if source and source not in self.sources:
            known = ", ".join(self.sources)
            raise UserError(
                f"no source '{source}' in this output.{suggest(source, self.sources)} The sources of this output: {known}"
            )
        return [source] if source else self.sources

    def map_steps(self, source: str) -> list[Step]:
        """The map steps of a source, in the order in which its documents pass them."""
        return [step for step in self.steps if step.kind == "map" and step.source == source]

    def _check_reason(self, reason: str, sources: list[str]) -> None:
        records = [record for name in sources for step in self.map_steps(name) for record in step.records]
        known = sorted({dropped_for for record in records for dropped_for in record.metrics.document_counts.dropped})
        if not any(matches_reason(reason, dropped_for) for dropped_for in known):
            raise UserError(
                f"no document was dropped for '{reason}'.{suggest(reason, known)} "
                f"The reasons in this output: {', '.join(known)}"
            )

    def _rows(self, query: DocumentQuery, sources: list[str]) -> Iterator[dict[str, Any]]:
        for name in sources:
            for step, output in self.tables(query.outcome, name):
                yield from self._rows_of(output, query, step)

    def tables(self, outcome: Outcome, source: str) -> Iterator[tuple[Step, TableFile]]:
        """The files that hold the documents of a source with this outcome."""
        kind = {"kept": "documents", "dropped": "drops", "quarantined": "quarantine"}[outcome]
        steps = self.map_steps(source)
        for step in steps[-1:] if outcome == "kept" else steps:
            for output in step.outputs(kind, TableFile):
                yield step, output

    def _rows_with(self, outcome: Outcome, key: bytes) -> Iterator[dict[str, Any]]:
        """The rows of one document, in every table of an outcome."""
        wanted = pa.scalar(key, KEY_TYPE)
        for step, output in (table for source in self.sources for table in self.tables(outcome, source)):
            for batch_number, batch in enumerate(read_table(self.root, output)):
                numbers = compute.indices_nonzero(compute.equal(batch.column("key"), wanted)).to_pylist()
                yield from (_row(batch, number, step, (output, batch_number, number)) for number in numbers)

    def _rows_of(self, output: TableFile, query: DocumentQuery, step: Step) -> Iterator[dict[str, Any]]:
        seed = seed_for(0, "inspect")
        for batch_number, batch in enumerate(read_table(self.root, output)):
            hashes = keyed_hash(key_halves(batch.column("key")), seed)
            for number, (row, sample) in enumerate(zip(_without_text(batch).to_pylist(), hashes.tolist())):
                if not query.reason or matches_reason(query.reason, _reason(row)):
                    yield {**_described(row, step, (output, batch_number, number)), "sample": sample}

    def _document(self, outcome: Outcome, row: dict[str, Any], removed: Removed) -> InspectedDocument:
        located = self.locator.locate(row["key"], text=outcome != "kept")
        text = self._kept_text(*row["stored in"]) if outcome == "kept" else located.text
        own_id = row.get("id") or ""
        survivor = None if row.get("survivor") is None else self.locator.locate(row["survivor"], text=False)
        return InspectedDocument(
            source=row["source"],
            outcome=outcome,
            key=row["key"].hex(),
            path=located.path,
            position=located.position,
            reason=_reason(row),
            value=row.get("value"),
            threshold=row.get("threshold"),
            survivor="" if survivor is None else survivor.label,
            text=text if text is not None else row.get("excerpt"),
            error=row.get("error", ""),
            is_taken_down=bool(removed.holds(np.frombuffer(row["key"], np.uint8).reshape(1, -1))[0]),
            columns=columns_of(row) if outcome == "kept" else {},
            own_id=own_id if own_id != document_name(row["source"], located.path, located.position) else "",
        )

    def _kept_text(self, output: TableFile, batch_number: int, row_number: int) -> str:
        """The text of a kept document, as the stages left it."""
        batch = next(islice(read_table(self.root, output, ["text"]), batch_number, None))
        return batch.column("text")[row_number].as_py()


def columns_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a document that its source or its stages named, as text and numbers."""
    named = {name: value for name, value in row.items() if name not in _OWN_VALUES and value is not None}
    return {name: value if isinstance(value, bool | int | float) else str(value) for name, value in named.items()}


def _without_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select([name for name in batch.schema.names if name != "text"])


def _row(batch: pa.RecordBatch, number: int, step: Step, stored_in: tuple[TableFile, int, int]) -> dict[str, Any]:
    return _described(_without_text(batch).slice(number, 1).to_pylist()[0], step, stored_in)


def _described(row: dict[str, Any], step: Step, stored_in: tuple[TableFile, int, int]) -> dict[str, Any]:
    """A row with the source and the place of its document; `stored_in` is (file, batch, row)."""
    excerpt = {"excerpt": row["excerpt"].decode(errors="replace")} if "excerpt" in row else {}
    return {**row, **excerpt, "source": step.source, "stored in": stored_in}


def _reason(row: dict[str, Any]) -> str:
    stage, rule = row.get("stage", ""), row.get("rule", "")
    return f"{stage}:{rule}" if rule else stage


def stage_of(reason: str) -> str:
    """The stage of "stage:rule", by its name in the run."""
    return reason.rpartition(":")[0]


def stage_alias(reason: str) -> str:
    """The stage of "stage:rule", by its name in the mixture. A run adds "@digest" where sources give it different options."""
    return stage_of(reason).partition("@")[0]


def matches_reason(requested: str, reason: str) -> bool:
    """Whether "stage:rule" matches a requested stage or "stage:rule", by the stage's name in the run or in the mixture."""
    rule = reason.rpartition(":")[2]
    return any(requested in (stage, f"{stage}:{rule}") for stage in (stage_of(reason), stage_alias(reason)))
