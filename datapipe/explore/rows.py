"""Documents as the page lists them: filters, an order, a page of the result; names, ids and no text.

    options ─▶ where, order, limit in SQL ─▶ facts ─▶ ids redacted ─▶ rows

Values of kept documents are those of their tags (`mode: tag`). Documents without a value come last in either order, and equal
ones in the order of their keys, so pages neither overlap nor leave anything out. The id that a document has in its input is
content, so it passes the redactions of its source. Its name, SOURCE/PATH:POSITION, is made of the names of files and is not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from datapipe.document_name import document_name
from datapipe.errors import UserError
from datapipe.explore.database import quoted
from datapipe.explore.documents import COLUMNS, FIRST, Inspector
from datapipe.explore.output import FATES
from datapipe.explore.redaction import RedactionError, Redactor

MOST_LISTED = 500
MOST_SKIPPED = 1_000_000
MOST_ID_CHARS = 500

_ORDERS = {"value": "value", "distance": "abs(value - threshold)", "bytes": "bytes"}
SORTS = ("key", *(sign + name for name in _ORDERS for sign in ("", "-")))
_OF_STAGE = "$stage in ('', stage, split_part(stage, '@', 1))"
_ROW = "key, filename, file_row_number"
_FINITE = "case when isfinite({0}) then {0} end as {1}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """A request for documents. Empty strings and None do not restrict.

    Attributes:
        stage: by its name in the run or in the mixture.
        low, high: bounds of the measured value, both included.
    """

    source: str = ""
    fate: str = ""
    stage: str = ""
    rule: str = ""
    low: float | None = None
    high: float | None = None
    sort: str = "key"
    offset: int = 0
    limit: int = 50

    def check(self, sources: Sequence[str]) -> None:
        """Raises UserError for a value that no list can have."""
        check_source(self.source, sources)
        check_fate(self.fate)
        if self.sort not in SORTS:
            raise UserError(f"sort '{self.sort}': expected one of {', '.join(SORTS)}.")
        if not (0 <= self.offset <= MOST_SKIPPED and 0 <= self.limit <= MOST_LISTED):
            raise UserError(
                f"offset {self.offset}, limit {self.limit}: expected an offset up to {MOST_SKIPPED:,} and a limit up to "
                f"{MOST_LISTED}. Narrow the list by its filters instead."
            )

    @property
    def order(self) -> str:
        """In SQL; every order ends in the key."""
        kind, sign = self.sort.removeprefix("-"), "desc" if self.sort.startswith("-") else "asc"
        return f"key, {FIRST}" if kind == "key" else f"{_ORDERS[kind]} {sign} nulls last, key, {FIRST}"


def check_source(source: str, sources: Sequence[str]) -> None:
    """Raises UserError for a source that the output lacks; an empty name is any."""
    if source and source not in sources:
        raise UserError(f"no source '{source}'. The sources of this output: {', '.join(sources)}.")


def check_fate(fate: str) -> None:
    """Raises UserError for a fate that there is not; an empty name is any."""
    if fate and fate not in FATES:
        raise UserError(f"fate '{fate}': expected one of {', '.join(FATES)}.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """What became of some documents, and how many; the threshold where all have one."""

    source: str
    fate: str
    stage: str
    rule: str
    threshold: float | None
    documents: int


class Rows:
    """Rows of lists, and the look-up of documents by what people call them."""

    def __init__(self, output: Inspector, redactor: Redactor) -> None:
        self.output, self.redactor, self.database = output, redactor, output.database
        self._counted = lru_cache(maxsize=256)(self._count)

    @cached_property
    def reasons(self) -> list[Reason]:
        """How many documents each rule of each source dropped, and how many were kept or quarantined."""
        threshold = "case when min(threshold) = max(threshold) then min(threshold) end as threshold"
        rows = self.database.rows(
            f"select source, fate, coalesce(stage, '') as stage, coalesce(rule, '') as rule, {threshold}, "
            f"count(*) as documents from facts group by all order by all"
        )
        return [Reason(**{**row, "threshold": _finite(row["threshold"])}) for row in rows]

    @cached_property
    def num_docs(self) -> int:
        return sum(reason.documents for reason in self.reasons)

    # ---------------------------------------------------------------------------------------------- lists

    def listed(self, query: Query) -> tuple[int, list[dict[str, Any]]]:
        """How many documents a list has, and a page of it. Raises UserError for a request that makes no sense."""
        query.check(self.output.sources)
        value, threshold, sources = self._measured(query)
        table = (
            f"(select * replace ({_FINITE.format(value, 'value')}, {_FINITE.format(threshold, 'threshold')}) from facts "
            f"where fate in $fates and source in $sources and {_OF_STAGE} and $rule in ('', rule))"
        )
        limits = {name: limit for name, limit in (("low", query.low), ("high", query.high)) if limit is not None}
        bounds = " and ".join(["true", *(f"value {'>=' if name == 'low' else '<='} ${name}" for name in limits)])
        is_tagged = value != "value"
        options = {
            "fates": (query.fate,) if query.fate else FATES,
            "sources": tuple(sources),
            "stage": "" if is_tagged else query.stage,
            "rule": "" if is_tagged else query.rule,
            **limits,
        }
        total = self._counted(f"select count(*) as total from {table} where {bounds}", tuple(options.items()))
        chosen = self.database.rows(
            f"select {_ROW} from {table} where {bounds} order by {query.order} limit $limit offset $offset",
            {**options, "limit": query.limit, "offset": query.offset},
        )
        # the other columns of these rows alone: sorting rows of all columns takes twice as long
        listed = self.database.rows(
            f"select {COLUMNS} from {table} where key in (select unnest($keys::blob[])) and {bounds}",
            {**options, "keys": [row["key"] for row in chosen]},
        )
        facts = {(row["filename"], row["file_row_number"]): row for row in listed}
        return total, self.shown([facts[row["filename"], row["file_row_number"]] for row in chosen])

    def _count(self, query: str, options: tuple[tuple[str, Any], ...]) -> int:
        return self.database.rows(query, dict(options))[0]["total"]

    def _measured(self, query: Query) -> tuple[str, str, list[str]]:
        """The value and the threshold in SQL, and the sources to list: those of tags, where kept documents of a rule are wanted
        that a filter with `mode: tag` has measured."""
        sources = [query.source] if query.source else self.output.sources
        if query.fate == "kept" and query.rule:
            for source in sources:
                for stage, rules in self.output.measured(source).items():
                    facts = rules.get(query.rule, {})
                    if stage.partition("@")[0] == query.stage.partition("@")[0] and facts.get("mode") == "tag":
                        return self._tag(stage, query.rule, facts.get("threshold"), sources)
        return "value", "threshold", sources

    def _tag(self, stage: str, rule: str, threshold: float | None, sources: list[str]) -> tuple[str, str, list[str]]:
        facts = {source: self.output.measured(source).get(stage, {}).get(rule, {}) for source in sources}
        tagging = [source for source, known in facts.items() if known.get("mode") == "tag"]
        limit = "null::double" if threshold is None else f"{threshold!r}::double"
        return f"{quoted(f'{stage}.{rule}')}::double", limit, tagging

    # ---------------------------------------------------------------------------------------------- look-ups

    def of_keys(self, keys: Sequence[bytes]) -> dict[bytes, dict[str, Any]]:
        """The facts of documents by key; without those that this run has not decided about."""
        listed = self.database.rows(
            f"select {COLUMNS} from facts where key in (select unnest(?::blob[])) order by {FIRST}", [list(dict.fromkeys(keys))]
        )
        return {row["key"]: row for row in reversed(listed)}

    def named(self, text: str, most: int) -> list[dict[str, Any]]:
        """The rows of the documents with this key, name, id or URL."""
        try:
            key = self.output.named_key(text)
        except UserError:
            key = None
        found = self.database.rows(
            "select distinct key, key is distinct from $key as is_other from facts "
            "where key = $key or id = $text or url = $text order by is_other, key limit $most",
            {"key": key, "text": text, "most": most},
        )
        facts = self.of_keys([row["key"] for row in found])
        return self.shown([facts[row["key"]] for row in found])

    # ---------------------------------------------------------------------------------------------- rows

    def shown(self, listed: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Facts as rows of the page."""
        rows = []
        for facts in listed:
            value, threshold = _finite(facts["value"]), _finite(facts["threshold"])
            row = {"key": facts["key"].hex(), "name": self.name(facts["key"]), "id": facts["id"] or ""}
            row |= {name: facts[name] or "" for name in ("source", "fate", "stage", "rule")}
            distance = None if value is None or threshold is None else abs(value - threshold)
            row |= {"value": value, "threshold": threshold, "distance": distance, "bytes": facts["bytes"], "excerpt": None}
            rows.append(row)
        self._redact_ids(rows)
        return rows

    def name(self, key: bytes) -> str:
        """SOURCE/PATH:POSITION of a document of this run, or of an earlier one."""
        known = self.output.locator.files.get(int.from_bytes(key[:8], "big"))
        if known is None:
            return self.output.locator.locate(key, text=False).label
        return document_name(known[0], known[1].path, int.from_bytes(key[8:], "big"))

    def _redact_ids(self, rows: Sequence[dict[str, Any]]) -> None:
        """Redacts ids, source by source; a document without an id of its own has its name as its id."""
        for source in {row["source"] for row in rows}:
            own = [row for row in rows if row["source"] == source and row["id"] not in ("", row["name"])]
            try:
                ids = self.redactor.redacted(source, [row["id"] for row in own]) if own else []  # whole: ids are short
            except RedactionError:
                ids = ["(the redaction failed)"] * len(own)
            for row, redacted in zip(own, ids):
                row["id"] = redacted[:MOST_ID_CHARS]
        for row in rows:
            row["id"] = row["id"] or row["name"]


def _finite(number: float | None) -> float | None:
    return None if number is None or not math.isfinite(number) else number
