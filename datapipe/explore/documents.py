"""Documents of a finished or stopped run: kept, dropped for a reason, or quarantined, for `datapipe inspect`.

    facts that match  ─▶  keyed sample  ─▶  texts, read again from the source or from the files of kept documents

The sample is keyed: the same query returns the same documents each time, and a larger sample contains the smaller one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from datapipe.document_name import FORMS, document_name, named_key
from datapipe.errors import UserError, suggest
from datapipe.exchange.partitions import read_row
from datapipe.explore.located import GONE, NOT_FOUND
from datapipe.explore.output import FATES, Fate, Output
from datapipe.own_columns import OWN_COLUMNS
from datapipe.shards.removed import Removed, read_removed
from datapipe.shards.snapshots import newest_manifest

SAMPLE = "md5(key), key"
"""The order of a keyed sample in SQL."""

FIRST = f"list_position({list(FATES)}, fate), filename, file_row_number"
"""The order of the rows of one document: a file that was read whole after a part of it leaves two of a damaged record."""

COLUMNS = "source, fate, key, id, stage, rule, value, threshold, survivor, bytes, error, excerpt, filename, file_row_number"

_SHOWN_NAMES = 5
_OWN_VALUES = frozenset({*OWN_COLUMNS, "html"})


@dataclass(frozen=True, kw_only=True, slots=True)
class InspectedDocument:
    """A document and what the run decided about it.

    Attributes:
        key: 32 hex digits.
        position: byte offset or row number in the file.
        reason: "stage:rule" of a dropped document, the stage of a quarantined one.
        value, threshold: what the rule measured, and its threshold; None where there is none.
        own_id: empty where the input has no id.
        survivor: of a duplicate, the name of the document that was kept in its place.
        text: of a kept document as the stages left it, otherwise as read; None when the source no longer holds it.
        error: why the document is quarantined.
        is_taken_down: whether the newest snapshot leaves it out, whatever the run decided.
        columns: of a kept document, and of a dropped one as the deciding stage got it: kept fields, and what stages wrote.
        is_as_judged: whether the text is the extracted one of a page, as the stage that dropped it got it.
    """

    source: str
    outcome: Fate
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

    outcome: Fate
    source: str = ""
    reason: str = ""
    count: int = 5


class Inspector(Output):
    """An output with queries about its documents."""

    @cached_property
    def removed(self) -> Removed:
        """The documents that were taken down from the newest snapshot."""
        return read_removed(self.root, newest_manifest(self.root))

    def find(self, query: DocumentQuery) -> list[InspectedDocument]:
        """The documents that match a query. Raises UserError for an unknown source or reason."""
        sources = self.select_sources(query.source)
        where = f"fate = $fate and source in $sources and {matching('$reason')}"
        options = {"fate": query.outcome, "sources": sources, "reason": query.reason, "count": query.count}
        rows = self.database.rows(
            f"select {COLUMNS} from facts where {where} order by {SAMPLE}, filename, file_row_number limit $count", options
        )
        if not rows and query.reason:
            self._check_reason(query.reason, sources)
        return [self._document(row) for row in rows]

    def find_document(self, text: str) -> list[InspectedDocument]:
        """What the run decided about one document, step by step. Raises UserError where it has no such document.

        Args:
            text: a form that `document_name.named_key` takes, or the document's own id.
        """
        try:
            key, problem = self.named_key(text), f"{text!r}: no input file of this run has this name. Expected {FORMS}."
        except UserError as error:
            key, problem = None, str(error)
        key = key or self.key_of_own_id(text)
        if key is None:
            raise UserError(f"{problem} No document has it as its id, of those that could be read.")
        found = self.rows_of(key)
        if not found:
            raise UserError(f"{text!r}: the run has read no such document, or not yet decided about it.")
        return [self._document(row) for row in found]

    def named_key(self, text: str) -> bytes | None:
        """The key that a name or hex digits give; None where no file has the name. Raises UserError for other texts."""
        return named_key(text, {number: (source, file.path) for number, (source, file, _) in self.locator.files.items()})

    def rows_of(self, key: bytes) -> list[dict[str, Any]]:
        """The facts of one document: one row, or none."""
        return self.database.rows(f"select {COLUMNS} from facts where key = ? order by {FIRST}", [key])

    def key_of_own_id(self, own_id: str) -> bytes | None:
        """The key of the document with this id; None where there is none. Raises UserError where several have it."""
        found = self.database.rows(f"select key from facts where id = ? order by {FIRST}", [own_id])
        if len(found) > 1:
            names = ", ".join(self.locator.locate(row["key"], text=False).label for row in found[:_SHOWN_NAMES])
            raise UserError(f"{own_id!r}: {len(found):,} documents have this id: {names}. Expected one of these names.")
        return found[0]["key"] if found else None

    def kept_row(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """All columns of a kept document, its text among them, as the stages left them."""
        texts = self.texts[self.database.file_of(facts["filename"]).path]
        [row] = read_row(self.root, texts, facts["file_row_number"]).to_pylist()
        return row

    def reasons(self, sources: list[str]) -> list[str]:
        """Every "stage:rule" that dropped documents of these sources."""
        records = (record for name in sources for step in self.map_steps(name) for record in step.records)
        return sorted({reason for record in records for reason in record.metrics.document_counts.dropped})

    def _check_reason(self, reason: str, sources: list[str]) -> None:
        known = self.reasons(sources)
        if not any(matches_reason(reason, dropped_for) for dropped_for in known):
            raise UserError(
                f"no document was dropped for '{reason}'.{suggest(reason, known)} "
                f"The reasons in this output: {', '.join(known)}"
            )

    def _document(self, facts: Mapping[str, Any]) -> InspectedDocument:
        is_kept = facts["fate"] == "kept"
        stored = self.kept_row(facts) if is_kept else {}
        located = self.locator.locate(facts["key"], text=not is_kept)
        excerpt = None if facts["excerpt"] is None else facts["excerpt"].decode(errors="replace")
        survivor = None if facts["survivor"] is None else self.locator.locate(facts["survivor"], text=False)
        own_id = facts["id"] or ""
        return InspectedDocument(
            source=facts["source"],
            outcome=facts["fate"],
            key=facts["key"].hex(),
            path=located.path,
            position=located.position,
            reason=reason_of(facts),
            value=None if facts["value"] is None or math.isnan(facts["value"]) else facts["value"],
            threshold=facts["threshold"],
            survivor="" if survivor is None else survivor.label,
            text=stored["text"] if is_kept else excerpt if located.text is None else located.text,
            error=facts["error"] or "",
            is_taken_down=bool(self.removed.holds(np.frombuffer(facts["key"], np.uint8).reshape(1, -1))[0]),
            columns=columns_of(stored),
            own_id=own_id if own_id != document_name(facts["source"], located.path, located.position) else "",
        )


def columns_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a document that its source or its stages named, as text and numbers."""
    named = {name: value for name, value in row.items() if name not in _OWN_VALUES and value is not None}
    return {name: value if isinstance(value, bool | int | float) else str(value) for name, value in named.items()}


def reason_of(facts: Mapping[str, Any]) -> str:
    """The "stage:rule" of a dropped document, the stage of a quarantined one."""
    return ":".join(filter(None, (facts["stage"], facts["rule"])))


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


def matching(requested: str) -> str:
    """`matches_reason` in SQL; an empty text matches everything.

    Args:
        requested: a parameter, as SQL names it.
    """
    alias = "split_part(stage, '@', 1)"
    return f"({requested} = '' or {requested} in (stage, {alias}, stage || ':' || rule, {alias} || ':' || rule))"
