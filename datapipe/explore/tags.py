"""Documents by the values that a filter with `mode: tag` measured: distinct values, quantiles, counts at thresholds.

    facts of kept documents ─▶ value, bytes, whether the other rules pass ─▶ counts between thresholds ─▶ sums

A column `STAGE.RULE` holds the value that a rule measured, `STAGE.rule` the first rule that failed. One batch of values is in
memory at a time. A document without a value passes every threshold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from datapipe.columns import numbers
from datapipe.explore.database import Database, quoted, quoted_text


class TaggedRule(NamedTuple):
    """A rule of a filter: `threshold` is None where it compares no value with one threshold, so that only the first rule that
    failed tells its result."""

    name: str
    side: str
    threshold: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Swept:
    """Documents that thresholds keep.

    Attributes:
        counts: (num_thresholds, 4) int64: documents and bytes that pass the rule alone, and that pass the other rules too.
        total: (2,) int64: documents and bytes with tags.
        unsure: documents counted as passing the other rules that might fail one without a measured value.
    """

    counts: np.ndarray
    total: np.ndarray
    unsure: int


class Tags:
    """The tags of one filter in the kept documents of some sources.

    Args:
        stage: its name in the run.
    """

    def __init__(self, database: Database, stage: str, sources: Sequence[str]) -> None:
        self._database, self._stage, self._sources = database, stage, list(sources)

    def distinct(self, rule: str, most: int) -> np.ndarray | None:
        """The values of a rule, ascending; None where there are more than `most`."""
        rows = self._rows(f"select distinct value from {self._values(rule)} order by value limit {most + 1}")
        return None if len(rows) > most else np.array([row["value"] for row in rows], np.float64)

    def quantiles(self, rule: str, ranks: Sequence[float]) -> np.ndarray:
        """The values of a rule at these ranks, from 0 to 1."""
        [row] = self._rows(f"select quantile_disc(value, {list(ranks)}) as found from {self._values(rule)}")
        return np.array(row["found"], np.float64)

    def swept(self, rule: str, is_min: bool, others: Sequence[TaggedRule], order: Sequence[str], grid: np.ndarray) -> Swept:
        """What each threshold of a rule keeps.

        Args:
            others: rules of the filter that stay as they are.
            order: names of all its rules, in the order in which the first failed one is found.
            grid: (num_thresholds,) float64, ascending.
        """
        between, passing = np.zeros((len(grid) + 1, 4), np.int64), np.zeros(4, np.int64)
        unsure = 0
        for values, weights, is_unsure in self._weights(rule, others, order):
            known = ~np.isnan(values)
            # a value keeps its document at the thresholds up to it (min), or from it on (max)
            index = np.searchsorted(grid, values[known], "right" if is_min else "left")
            for column in range(4):  # exact below 2**53
                counted = np.bincount(index, weights[known, column], len(grid) + 1)
                between[:, column] += counted.astype(np.int64)
            passing += weights[~known].sum(axis=0)
            unsure += int((is_unsure & weights[:, 2]).sum())
        sums = np.cumsum(between[::-1], axis=0)[::-1][1:] if is_min else np.cumsum(between, axis=0)[:-1]
        return Swept(counts=sums + passing, total=(between.sum(axis=0) + passing)[:2], unsure=unsure)

    def _weights(
        self, rule: str, others: Sequence[TaggedRule], order: Sequence[str]
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Values (num_docs,), weights (num_docs, 4) as in `Swept.counts`, and who is unsure (num_docs,), batch by batch."""
        first, passes, unsure = quoted(f"{self._stage}.rule"), ["true"], ["false"]
        for other in others:
            if other.threshold is not None:
                passes.append(f"not {self._failed(other.name, other.side, other.threshold)}")
                continue
            earlier = ", ".join(map(quoted_text, order[: list(order).index(other.name)]))
            passes.append(f"{first} is distinct from {quoted_text(other.name)}")
            unsure.append(f"coalesce({first} in ({earlier}), false)" if earlier else "false")
        query = (
            f"select {self._column(rule)} as value, bytes, ({' and '.join(passes)})::tinyint as passes, "
            f"({' or '.join(unsure)})::tinyint as unsure from facts where fate = 'kept' and source in $sources"
        )
        for batch in self._database.batches(query, {"sources": self._sources}):
            value, sizes, passed, is_unsure = (numbers(batch.column(name)) for name in ("value", "bytes", "passes", "unsure"))
            alone = np.column_stack([np.ones_like(sizes), sizes])
            yield value, np.column_stack([alone, alone * passed[:, None]]).astype(np.int64), is_unsure.astype(np.int64)

    def _failed(self, rule: str, side: str, threshold: float) -> str:
        column = self._column(rule)
        return f"({column} < {threshold!r})" if side == "min" else f"({column} > {threshold!r} and not isnan({column}))"

    def _column(self, rule: str) -> str:
        return f"coalesce({quoted(f'{self._stage}.{rule}')}::double, 'nan'::double)"

    def _values(self, rule: str) -> str:
        where = f"fate = 'kept' and source in $sources and isfinite({self._column(rule)})"
        return f"(select {self._column(rule)} as value from facts where {where})"

    def _rows(self, query: str) -> list[dict[str, float]]:
        return self._database.rows(query, {"sources": self._sources})
