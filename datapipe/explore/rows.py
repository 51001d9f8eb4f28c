"""Documents as the page lists them: filters, an order, a page of the result; names, ids, URLs and no text.

    options ─▶ where, order, limit in SQL ─▶ facts ─▶ ids and URLs redacted ─▶ rows

Values of kept documents are those of their tags (`mode: tag`). Documents without a value come last in either order, and equal
ones in the order of their keys, so pages neither overlap nor leave anything out. The id and the URL of a document are content,
so they pass the redactions of its source; its name, SOURCE/PATH:POSITION, does not.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import product
from typing import Any, Literal, get_args

from pydantic import BaseModel, Field

from datapipe.errors import UserError
from datapipe.explore.database import URL, quoted
from datapipe.explore.documents import FATES, Fate, Inspector, finite
from datapipe.explore.redaction import RedactionError, Redactor
from datapipe.explore.sweep import rule_of

MOST_LISTED = 500
MOST_ID_CHARS = 500

_ORDERS = {"value": "value", "distance": "abs(value - threshold)", "bytes": "bytes"}
Sort = Literal["key", "value", "-value", "distance", "-distance", "bytes", "-bytes"]
SORTS: tuple[Sort, ...] = get_args(Sort)
_OF_STAGE = "$stage in ('', stage, split_part(stage, '@', 1))"
_FINITE = "case when isfinite({0}) then {0} end as {1}"


class Query(BaseModel, frozen=True, allow_inf_nan=False):
    """A request for documents. Empty strings and None do not restrict; both bounds of the measured value are included."""

    source: str = ""
    fate: Fate | Literal[""] = ""
    stage: str = ""
    rule: str = ""
    low: float | None = Field(default=None, alias="min")
    high: float | None = Field(default=None, alias="max")
    sort: Sort = "key"
    offset: int = Field(default=0, ge=0, le=1_000_000)
    limit: int = Field(default=50, ge=0, le=MOST_LISTED)
    lines: bool = False  # whether each row has the first line of its text, which is read for it

    @property
    def order(self) -> str:
        """In SQL; every order ends in the key."""
        kind, sign = self.sort.removeprefix("-"), "desc" if self.sort.startswith("-") else "asc"
        return "key" if kind == "key" else f"{_ORDERS[kind]} {sign} nulls last, key"


class Rows:
    def __init__(self, output: Inspector, redactor: Redactor) -> None:
        self.output, self.redactor, self.database = output, redactor, output.database

    @cached_property
    def reasons(self) -> list[dict[str, Any]]:
        """How many documents each rule of each source dropped, kept or quarantined, and their threshold where all have one."""
        return self.database.rows(
            "select source, fate, coalesce(stage, '') as stage, coalesce(rule, '') as rule, case when min(threshold) = "
            "max(threshold) and isfinite(min(threshold)) then min(threshold) end as threshold, count(*) as documents "
            "from facts group by all order by all"
        )

    def listed(self, query: Query) -> tuple[int, list[dict[str, Any]]]:
        """How many documents a list has, and a page of it. Raises UserError for a request that makes no sense."""
        sources = self.output.select_sources(query.source)
        options = {"stage": query.stage, "rule": query.rule, "sources": tuple(sources), "low": query.low, "high": query.high}
        value, threshold = "value", "threshold"
        tagged = self._tag(query)
        if tagged is not None:
            value, threshold, options["sources"] = tagged
            options |= {"stage": "", "rule": ""}
        table = (
            f"(select key, bytes, {_FINITE.format(value, 'value')}, {_FINITE.format(threshold, 'threshold')} from facts "
            f"where fate in $fates and source in $sources and {_OF_STAGE} and $rule in ('', rule)) "
            f"where ($low::double is null or value >= $low) and ($high::double is null or value <= $high)"
        )
        options["fates"] = (query.fate,) if query.fate else FATES
        [counted] = self.database.rows(f"select count(*) as documents from {table}", options)
        chosen = self.database.rows(
            f"select key, value, threshold from {table} order by {query.order} limit $limit offset $offset",
            {**options, "limit": query.limit, "offset": query.offset},
        )
        # the other columns of these rows alone: sorting rows of all columns takes twice as long
        facts = self.output.facts_of([row["key"] for row in chosen])
        return counted["documents"], self.shown([{**facts[row["key"]], **row} for row in chosen])

    def _tag(self, query: Query) -> tuple[str, str, tuple[str, ...]] | None:
        """Value, threshold and sources in SQL, of kept documents by a rule that tags."""
        if query.fate != "kept" or not query.rule:
            return None
        try:
            rule = rule_of(self.output, query.stage, query.rule, query.source)
        except UserError:
            return None
        tagging, limit = rule.tagging, rule.facts.threshold
        limit = "null" if limit is None else repr(limit)
        return (f"{quoted(f'{rule.stage}.{rule.rule}')}::double", f"{limit}::double", tagging) if tagging else None

    def named(self, text: str, most: int) -> list[dict[str, Any]]:
        """The rows of the documents with this key, name, id or URL."""
        key = None
        with suppress(UserError):
            key = self.output.named_key(text)
        rows = self.database.rows(
            f"select key from facts where key = $key or id = $text or {URL} = $text "
            "order by key is distinct from $key, key limit $most",
            {"key": key, "text": text, "most": most},
        )
        return self.shown(list(self.output.facts_of([row["key"] for row in rows]).values()))

    def shown(self, listed: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        rows = []
        for facts in listed:
            value, threshold = finite(facts["value"]), finite(facts["threshold"])
            row = {
                "key": facts["key"].hex(),
                "name": self.output.locator.label(facts["key"]),
            }
            row |= {name: facts[name] or "" for name in ("id", "url", "source", "fate", "stage", "rule")}
            distance = None if value is None or threshold is None else abs(value - threshold)
            row |= {"value": value, "threshold": threshold, "distance": distance, "bytes": facts["bytes"], "excerpt": None}
            rows.append(row)
        self._redact(rows)
        return rows

    def _redact(self, rows: Sequence[dict[str, Any]]) -> None:
        """Redacts ids and URLs, which are content."""
        for source, name in product({row["source"] for row in rows}, ("id", "url")):
            own = [row for row in rows if row["source"] == source and row[name] not in ("", row["name"])]
            try:
                texts = self.redactor.redacted(source, [row[name] for row in own]) if own else []  # whole: they are short
            except RedactionError:
                texts = ["(the redaction failed)"] * len(own)
            for row, redacted in zip(own, texts):
                row[name] = redacted[:MOST_ID_CHARS]
        for row in rows:
            row["id"] = row["id"] or row["name"]
