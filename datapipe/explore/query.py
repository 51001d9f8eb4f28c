"""Which documents a list shows: filters, an order, and a page of the result.

    reasons that match  ─▶  their documents, chunk by chunk  ─▶  within min and max  ─▶  counted, and the first `offset + limit`

A chunk is a million rows of the mapped columns, so memory does not grow with the output. Values of kept documents are those of
their tags (`mode: tag`), which are read from the tables. Documents without a value come last in either order, and equal ones in
the order of the tables, so pages neither overlap nor leave anything out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from datapipe.columns import numbers
from datapipe.errors import UserError
from datapipe.explore.documents import stage_alias
from datapipe.explore.lookup.file import NO_SIZE, LookUp, Reason
from datapipe.explore.lookup.orders import CHUNK_ROWS
from datapipe.explore.output import FATES, BrowsedOutput
from datapipe.explore.stored import StoredRows

SORTS = ("key", "value", "-value", "distance", "-distance", "bytes", "-bytes")
MOST_LISTED = 500
MOST_SKIPPED = 1_000_000
_KEY_ROWS = 1 << 16
_HELD_BYTES = 64 << 20


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

    def check(self, sources: list[str]) -> None:
        """Raises UserError for a value that no list can have."""
        if self.source and self.source not in sources:
            raise UserError(f"no source '{self.source}'. The sources of this output: {', '.join(sources)}.")
        if self.fate and self.fate not in FATES:
            raise UserError(f"fate '{self.fate}': expected one of {', '.join(FATES)}.")
        if self.sort not in SORTS:
            raise UserError(f"sort '{self.sort}': expected one of {', '.join(SORTS)}.")
        if not (0 <= self.offset <= MOST_SKIPPED and 0 <= self.limit <= MOST_LISTED):
            raise UserError(
                f"offset {self.offset}, limit {self.limit}: expected an offset up to {MOST_SKIPPED:,} and a limit up to "
                f"{MOST_LISTED}. Narrow the list by its filters instead."
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """A page of a list.

    Attributes:
        total: documents of the whole list.
        rows: their numbers, in order.
        values: (num_rows,) float64 of the tags; None where those of the look-up file hold.
        threshold: of the tags.
    """

    total: int
    rows: np.ndarray
    values: np.ndarray | None = None
    threshold: float | None = None


class Documents:
    """Lists of the documents of an output."""

    def __init__(self, output: BrowsedOutput, lookup: LookUp, stored: StoredRows) -> None:
        self._output, self._lookup, self._stored = output, lookup, stored
        self._held: tuple[tuple[str, tuple[str, ...]] | None, list[tuple[int, np.ndarray]] | None] = None, None

    def find(self, query: Query) -> Listed:
        """A page of documents. Raises UserError for a request that makes no sense."""
        query.check(self._output.sources)
        tag = self._tag(query) if query.fate == "kept" and query.rule else None
        if tag is not None:
            return self._tagged(query, *tag)
        chosen = np.array([_matches(query, reason) for reason in self._lookup.reasons], np.bool_)
        return self._by_key(query, chosen) if query.sort == "key" else _first(query, self._chunks(query, chosen))

    def _by_key(self, query: Query, chosen: np.ndarray) -> Listed:
        """A page in the order of keys. Without bounds, no more documents are looked at than it takes to fill it."""
        by_key, reasons, values = (self._lookup.section(name) for name in ("by_key", "reason", "value"))
        is_bounded = query.low is not None or query.high is not None
        known = sum(reason.documents for reason, is_chosen in zip(self._lookup.reasons, chosen) if is_chosen)
        if chosen.all() and not is_bounded:
            return Listed(total=known, rows=np.array(by_key[query.offset : query.offset + query.limit], np.int64))
        found, passed, wanted = [np.zeros(0, np.int64)], 0, query.offset + query.limit
        for start in range(0, len(by_key), _KEY_ROWS):
            if passed >= min(wanted, known) and not is_bounded:
                break
            rows = by_key[start : start + _KEY_ROWS]
            rows = rows[chosen[reasons[rows]]]
            rows = rows[_inside(values[rows], query)] if is_bounded else rows
            found.append(rows[max(query.offset - passed, 0) : max(wanted - passed, 0)])
            passed += len(rows)
        return Listed(total=passed if is_bounded else known, rows=np.concatenate(found).astype(np.int64))

    def _chunks(self, query: Query, chosen: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Rows of the chosen reasons within the bounds, and their sort keys: ascending, NaN last."""
        thresholds = np.array([np.nan if reason.threshold is None else reason.threshold for reason in self._lookup.reasons])
        for start in range(0, self._lookup.num_docs, CHUNK_ROWS):
            part = slice(start, start + CHUNK_ROWS)
            reasons = self._lookup.section("reason")[part]
            rows = np.flatnonzero(chosen[reasons])
            if not len(rows):
                continue
            values = self._lookup.section("value")[part][rows]
            inside = _inside(values, query)
            rows, values = rows[inside], values[inside]
            own = self._lookup.section("threshold")[part][rows] if self._lookup.has("threshold") else thresholds[reasons[rows]]
            sizes = self._lookup.section("size")[part][rows]
            yield rows + start, _sort_keys(query, values, own, sizes)

    def _tagged(self, query: Query, column: str, threshold: float | None, sources: list[str]) -> Listed:
        """Kept documents by the values that a filter with `mode: tag` measured."""
        measured: dict[int, float] = {}

        def chunks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for start, values in self.tag_values(column, sources):
                rows = np.flatnonzero(_inside(values, query))
                sizes = self._lookup.section("size")[start : start + len(values)][rows]
                limits = np.full(len(rows), np.nan if threshold is None else threshold)
                keys = _sort_keys(query, values[rows], limits, sizes)
                first = _least(keys, query.offset + query.limit)
                measured.update(zip((rows[first] + start).tolist(), values[rows[first]].tolist()))
                yield rows + start, keys

        listed = _first(query, chunks())
        values = np.array([measured[row] for row in listed.rows.tolist()], np.float64)
        return Listed(total=listed.total, rows=listed.rows, values=values, threshold=threshold)

    def _tag(self, query: Query) -> tuple[str, float | None, list[str]] | None:
        """The column of a rule's values, its threshold, and the sources that may have it; None where nothing tagged."""
        sources = [query.source] if query.source else self._output.sources
        for source in sources:
            for stage, rules in self._output.measured(source).items():
                facts = rules.get(query.rule, {})
                if stage_alias(f"{stage}:") == stage_alias(f"{query.stage}:") and facts.get("mode") == "tag":
                    return f"{stage}.{query.rule}", facts.get("threshold"), sources
        return None

    def tag_values(self, column: str, sources: list[str]) -> Iterator[tuple[int, np.ndarray]]:
        """The values of a tag in the kept documents of some sources, in parts, with the number of the first row of each. Those
        of the last tag are kept in memory where they are few."""
        wanted, (held, parts) = (column, tuple(sources)), self._held
        if held != wanted:
            parts = None
            if 8 * self._lookup.num_docs <= _HELD_BYTES:
                parts = _longer(list(self._read_tag(column, sources)))
                self._held = wanted, parts
        yield from self._read_tag(column, sources) if parts is None else parts

    def _read_tag(self, column: str, sources: list[str]) -> Iterator[tuple[int, np.ndarray]]:
        for start, batch in self.tags([column], sources):
            yield start, tag_numbers(batch, column)

    def tags(self, columns: list[str], sources: list[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Columns of the kept documents of some sources, without files that lack one, with the number of each first row."""
        for number, table in enumerate(self._output.tables):
            if table.fate == "kept" and table.source in sources:
                for start, batch in self._stored.batches(number, columns):
                    if not set(columns) - set(batch.schema.names):
                        yield start, batch


def tag_numbers(batch: pa.RecordBatch, column: str) -> np.ndarray:
    """The values of a tag, NaN where there is none: (num_docs,) float64."""
    return numbers(batch.column(column).cast("float64").fill_null(np.nan))


def _longer(parts: list[tuple[int, np.ndarray]]) -> list[tuple[int, np.ndarray]]:
    """The parts with those that follow each other as one."""
    runs: list[tuple[int, list[np.ndarray]]] = []
    stop = -1
    for start, values in parts:
        if start != stop:
            runs.append((start, []))
        runs[-1][1].append(values)
        stop = start + len(values)
    return [(start, np.concatenate(values)) for start, values in runs]


def _matches(query: Query, reason: Reason) -> bool:
    stages = (reason.stage, stage_alias(f"{reason.stage}:"))
    return (
        query.source in ("", reason.source)
        and query.fate in ("", reason.fate)
        and (not query.stage or query.stage in stages)
        and query.rule in ("", reason.rule)
    )


def _inside(values: np.ndarray, query: Query) -> np.ndarray:
    """Which values are within the bounds, (n,) bool; a missing value is within none."""
    inside = np.ones(len(values), np.bool_)
    if query.low is not None:
        inside &= values >= query.low
    if query.high is not None:
        inside &= values <= query.high
    return inside


def _sort_keys(query: Query, values: np.ndarray, thresholds: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Numbers whose ascending order is the order of the list, (n,) float64; NaN, which sorts last, where there is none."""
    kind = query.sort.removeprefix("-")
    if kind == "key":
        return np.zeros(len(values))
    if kind == "bytes":
        keys = np.where(sizes == NO_SIZE, np.nan, sizes.astype(np.float64))
    else:
        keys = values if kind == "value" else np.abs(values - thresholds)
    return -keys if query.sort.startswith("-") else keys


def _first(query: Query, chunks: Iterator[tuple[np.ndarray, np.ndarray]]) -> Listed:
    """The page of rows with the least sort keys; of equal keys, in the order of rows."""
    wanted, total = query.offset + query.limit, 0
    rows, keys = np.zeros(0, np.int64), np.zeros(0)
    for chunk_rows, chunk_keys in chunks:
        total += len(chunk_rows)
        chosen = _least(chunk_keys, wanted)
        rows, keys = np.concatenate([rows, chunk_rows[chosen]]), np.concatenate([keys, chunk_keys[chosen]])
        order = np.argsort(keys, kind="stable")[:wanted]
        rows, keys = rows[order], keys[order]
    return Listed(total=total, rows=rows[query.offset :])


def _least(keys: np.ndarray, count: int) -> np.ndarray:
    """The indices of the `count` least keys, the first of equal ones, ascending by index."""
    if len(keys) <= count or count == 0:
        return np.arange(len(keys))[: count or 0]
    last = np.partition(keys, count - 1)[count - 1]  # NaN is greater than every number here
    if np.isnan(last):
        below, equal = np.flatnonzero(~np.isnan(keys)), np.flatnonzero(np.isnan(keys))
    else:
        below, equal = np.flatnonzero(keys < last), np.flatnonzero(keys == last)
    return np.sort(np.concatenate([below, equal[: count - len(below)]]))
