"""Documents of a finished or stopped run: kept, dropped for a reason, or quarantined, for `datapipe inspect`.

    facts that match  ─▶  keyed sample  ─▶  texts, read again from the source or from the files of kept documents

The sample is keyed: the same query returns the same documents each time, and a larger sample contains the smaller one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from datapipe.document_name import FORMS, InputFiles, document_name
from datapipe.errors import UserError, suggest
from datapipe.exchange.partitions import read_row
from datapipe.explore.located import GONE, NOT_FOUND
from datapipe.explore.output import Fate, Output
from datapipe.own_columns import OWN_COLUMNS
from datapipe.shards.removed import Removed, read_removed
from datapipe.shards.snapshots import newest_manifest

SAMPLE = "md5(key), key"
"""The order of a keyed sample in SQL."""

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
        rows = self.database.rows(f"select {COLUMNS} from facts where {where} order by {SAMPLE} limit $count", options)
        if not rows and query.reason:
            raise self._unknown_reason(query.reason, sources)
        return [self._document(row) for row in rows]

    def find_document(self, text: str) -> InspectedDocument:
        """What the run decided about one document. Raises UserError where it has no such document.

        Args:
            text: a form that `InputFiles.key` takes, or the document's own id.
        """
        try:
            key, problem = self.named_key(text), f"{text!r}: no input file of this run has this name. Expected {FORMS}."
        except UserError as error:
            key, problem = None, str(error)
        key = key or self.key_of_own_id(text)
        if key is None:
            raise UserError(f"{problem} No document has it as its id, of those that could be read.")
        found = self.facts_of([key])
        if not found:
            raise UserError(f"{text!r}: the run has read no such document, or not yet decided about it.")
        return self._document(found[key])

    def named_key(self, text: str) -> bytes | None:
        """The key that a name or hex digits give; None where no file has the name. Raises UserError for other texts."""
        files = self.locator.files.items()
        return InputFiles((number, source, file.path) for number, (source, file, _) in files).key(text)

    def facts_of(self, keys: Sequence[bytes]) -> dict[bytes, dict[str, Any]]:
        """The facts of documents by key, in the order of the keys; without those that this run has not decided about."""
        rows = self.database.rows(f"select {COLUMNS} from facts where key in (select unnest(?::blob[]))", [list(keys)])
        by_key = {row["key"]: row for row in rows}
        return {key: by_key[key] for key in keys if key in by_key}

    def key_of_own_id(self, own_id: str) -> bytes | None:
        """The key of the document with this id; None where there is none. Raises UserError where several have it."""
        found = self.database.rows("select key from facts where id = ? order by key", [own_id])
        if len(found) > 1:
            names = ", ".join(self.locator.label(row["key"]) for row in found[:_SHOWN_NAMES])
            raise UserError(f"{own_id!r}: {len(found):,} documents have this id: {names}. Expected one of these names.")
        return found[0]["key"] if found else None

    def kept_row(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """All columns of a kept document, its text among them, as the stages left them."""
        texts = self.texts[self.database.file_of(facts["filename"]).path]
        [row] = read_row(self.root, texts, facts["file_row_number"]).to_pylist()
        return row

    def _unknown_reason(self, reason: str, sources: list[str]) -> UserError:
        query = "select distinct stage, rule from facts where fate = 'dropped' and source in $sources order by all"
        known = [reason_of(row) for row in self.database.rows(query, {"sources": sources})]
        listed = f"The reasons in this output: {', '.join(known)}"
        return UserError(f"no document was dropped for '{reason}'.{suggest(reason, known)} {listed}")

    def _document(self, facts: Mapping[str, Any]) -> InspectedDocument:
        is_kept = facts["fate"] == "kept"
        stored = self.kept_row(facts) if is_kept else {}
        located = self.locator.locate(facts["key"], text=not is_kept)
        excerpt = None if facts["excerpt"] is None else facts["excerpt"].decode(errors="replace")
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
            survivor="" if facts["survivor"] is None else self.locator.label(facts["survivor"]),
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


def stage_alias(reason: str) -> str:
    """The stage of "stage:rule", by its name in the mixture. A run adds "@digest" where sources give it different options."""
    return reason.rpartition(":")[0].partition("@")[0]


def matching(requested: str) -> str:
    """In SQL, whether a requested "stage" or "stage:rule" is that of a row, by the stage's name in the run or in the mixture;
    an empty text matches everything.

    Args:
        requested: a parameter, as SQL names it.
    """
    alias = "split_part(stage, '@', 1)"
    return f"({requested} = '' or {requested} in (stage, {alias}, stage || ':' || rule, {alias} || ':' || rule))"
