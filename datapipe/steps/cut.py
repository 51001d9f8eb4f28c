"""The cut of a filter that keeps the documents of a source with the highest scores.

    score of a document  ─▶  (ordered 64-bit integer, tie)  ─▶  the cut: the least pair that is kept  ─▶  kept or below_share

The tie is a keyed hash of the document, so documents of one score are chosen evenly and the order
is total. No task holds a row for each document of the source. The cut is found by refining an
interval that contains it:

    round 1   every task   its scores, sorted    ─▶  at most `SUMMARY_PAIRS` of its pairs, with the exact weight above each
              one task     all summaries         ─▶  the narrowest interval of pairs that must contain the cut
    round 2   every task   its scores in there   ─▶  …

An equi-depth summary of n documents leaves less than 3 n / `SUMMARY_PAIRS` of them uncertain,
however the scores are distributed, and one of `SUMMARY_PAIRS` documents is exact. So four rounds
are enough for 4e10 documents.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

from datapipe.columns import dtype_of, from_ordered, full_schema, ordered
from datapipe.dataclass import dataclass, replace
from datapipe.errors import StageError

SUMMARY_PAIRS = 1024
"""Parts of equal weight, and of equal count, that a summary cuts the scores of a task into."""

SCORES_SCHEMA = full_schema(score=pa.uint64(), tie=pa.uint64(), weight=pa.int64())
"""What a map task writes beside its documents: each document's ordered score, tie, and weight (1, or its bytes)."""

SUMMARY_SCHEMA = pa.schema([*SCORES_SCHEMA, *full_schema(weight_above=pa.int64(), documents_above=pa.int64())])
"""Some pairs of a task, the highest first: the weight of each, and the weight and number of all documents above it. The last
row is no document: its pair is 0 and its columns count all documents of the task that are not below the interval."""


_NUMBERS = ("documents", "kept_documents", "weight", "kept_weight")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Pair:
    """A position in the order of documents: the `ordered` score, and a keyed hash of the document, 64 bits each."""

    score: int
    tie: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """A cut, or an interval that holds it: the lowest kept pair is at most `kept` and above `dropped`."""

    # this pair and all above it are kept; None: not known of any, or nothing is. The lowest one where the cut is found.
    kept: Pair | None = None
    # this pair and all below it are dropped; None: not known of any, or the cut is found
    dropped: Pair | None = None
    # documents, weight: that reach the filter; None before the first round
    documents: int | None = None
    weight: int | None = None
    # kept_documents, kept_weight: of these; None before the cut is found
    kept_documents: int | None = None
    kept_weight: int | None = None

    @property
    def is_found(self) -> bool:
        return self.kept_documents is not None

    @property
    def threshold(self) -> float:
        """The least score that is kept; infinite where nothing is."""
        return float("inf") if self.kept is None else from_ordered(self.kept.score)

    def to_json(self) -> dict[str, Any]:
        """The cut for the report: the threshold as a number, and the tie as 16 hex digits."""
        threshold, tie = (None, None) if self.kept is None else (self.threshold, f"{self.kept.tie:016x}")
        return {"threshold": threshold, "tie": tie, **{name: getattr(self, name) for name in _NUMBERS}}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Cut:
        """Raises KeyError, TypeError or ValueError for anything else than `to_json` returns."""
        threshold, tie = data["threshold"], data["tie"]
        kept = None if threshold is None else Pair(score=int(ordered(np.array([threshold]))[0]), tie=int(tie, 16))
        counts: dict[str, Any] = {name: int(data[name]) for name in _NUMBERS}
        return cls(kept=kept, **counts)


def is_kept(cut: Cut, scores: np.ndarray, ties: np.ndarray) -> np.ndarray:
    """Which documents are not below the cut, (num_docs,) bool, by `ordered` scores and ties, (num_docs,) uint64 each."""
    return np.zeros(len(scores), np.bool_) if cut.kept is None else _is_at_least(scores, ties, cut.kept)


def _is_at_least(scores: np.ndarray, ties: np.ndarray, pair: Pair) -> np.ndarray:
    return (scores > np.uint64(pair.score)) | ((scores == np.uint64(pair.score)) & (ties >= np.uint64(pair.tie)))


def check_scores(scores: np.ndarray) -> None:
    """Raises StageError for a score that is no finite number, which has no place in the order."""
    wrong = np.flatnonzero(~np.isfinite(scores))
    if len(wrong):
        raise StageError(
            f"the score of document {wrong[0]} of the batch is {scores[wrong[0]]}. Expected finite numbers: a share of "
            "documents is kept by their order"
        )


class Ranked:
    """Scores of some documents inside an interval. Documents above it are counted, not held. `num_intervals`: that are
    summarised beside each other; the summaries of many are shorter, so that those of all tasks fit into the memory of one."""

    def __init__(self, interval: Cut, num_intervals: int = 1) -> None:
        self.interval = interval
        self._pairs = min(SUMMARY_PAIRS, max(SUMMARY_PAIRS // 8, 4 * SUMMARY_PAIRS // num_intervals))
        self._parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._weight_above = self._documents_above = 0

    def add(self, rows: pa.RecordBatch) -> None:
        scores, ties, weights = (rows.column(name).to_numpy() for name in ("score", "tie", "weight"))
        inside = np.ones(len(scores), np.bool_)
        if self.interval.kept is not None:
            above = _is_at_least(scores, ties, self.interval.kept)
            self._weight_above += int(weights[above].sum())
            self._documents_above += int(above.sum())
            inside &= ~above
        if self.interval.dropped is not None:
            inside &= _is_at_least(scores, ties, self.interval.dropped)
            inside &= (scores != np.uint64(self.interval.dropped.score)) | (ties != np.uint64(self.interval.dropped.tie))
        if inside.any():
            self._parts.append((scores[inside], ties[inside], weights[inside]))

    def summary(self) -> pa.RecordBatch:
        """At most 4 · `SUMMARY_PAIRS` rows of `SUMMARY_SCHEMA`, and the last one."""
        columns = [np.concatenate(column) for column in zip(*self._parts)] if self._parts else [np.zeros(0, np.uint64)] * 3
        order = np.lexsort((columns[1], columns[0]))[::-1]
        scores, ties, weights = (column[order] for column in columns)
        weight_above = self._weight_above + np.concatenate([[0], np.cumsum(weights.astype(np.int64))])
        documents_above = self._documents_above + np.arange(len(order) + 1)
        chosen = np.unique(
            np.concatenate([_even_steps(np.arange(len(order)), self._pairs), _even_steps(weight_above[:-1], self._pairs)])
        )
        rows = np.concatenate([chosen, [len(order)]]).astype(np.int64)
        pairs = (np.append(scores, np.uint64(0))[rows], np.append(ties, np.uint64(0))[rows], np.append(weights, 0)[rows])
        arrays = [*pairs, weight_above[rows], documents_above[rows]]
        return pa.record_batch(
            [pa.array(array.astype(dtype_of(field.type))) for array, field in zip(arrays, SUMMARY_SCHEMA)],
            schema=SUMMARY_SCHEMA,
        )


def _even_steps(measure: np.ndarray, pairs: int) -> np.ndarray:
    """Places that cut an ascending measure into at most `pairs` even parts, and the place before each; every place where there
    are few. A step of more than a part is between two of the places."""
    if len(measure) <= pairs:
        return np.arange(len(measure))
    wanted = measure[0] + (measure[-1] - measure[0]) * np.arange(pairs + 1) // pairs
    places = np.searchsorted(measure, wanted)
    return np.concatenate([places, np.maximum(places - 1, 0)])


def narrowed(summaries: Sequence[pa.RecordBatch], interval: Cut, share: Fraction) -> Cut:
    """The cut, or the narrower interval that contains it, from the summaries of all tasks. `share`
    is that of the weight of all documents, rounded down."""
    scores, ties, weights, weight_above, documents_above = (
        np.concatenate([summary.column(field.name).to_numpy() for summary in summaries]) for field in SUMMARY_SCHEMA
    )
    ends = np.cumsum([summary.num_rows for summary in summaries]) - 1
    starts = ends - [summary.num_rows - 1 for summary in summaries]
    if interval.weight is None:
        totals = int(documents_above[ends].sum()), int(weight_above[ends].sum())
        interval = replace(interval, documents=totals[0], weight=totals[1])
    documents, weight = interval.documents or 0, interval.weight or 0
    target = share.numerator * weight // share.denominator

    is_pair = np.ones(len(scores), np.bool_)
    is_pair[ends] = False
    at_least, documents_with = weight_above + weights, documents_above + 1  # with the document of the row itself
    more_at_least, more_documents = np.diff(at_least, prepend=0), np.diff(documents_with, prepend=0)
    more_at_least[starts], more_documents[starts] = (at_least - weight_above)[starts], 1
    more_at_most = np.diff(weight_above, append=0)
    order = np.lexsort((ties, scores))[::-1]
    order = order[is_pair[order]]
    least = weight_above[starts].sum() + np.cumsum(more_at_least[order])
    largest = weight_above[starts].sum() + np.cumsum(more_at_most[order])

    certain = int(np.searchsorted(largest, target, side="right"))  # the pairs before this one keep at most the target
    too_many = int(np.searchsorted(least, target, side="right"))  # this pair and all below it keep more
    while 0 < certain < len(order) and _pair(scores, ties, order[certain]) == _pair(scores, ties, order[certain - 1]):
        certain -= 1  # documents of equal pairs stay together
    kept = _pair(scores, ties, order[certain - 1]) if certain else interval.kept
    if len(order) == int((documents_above[ends] - documents_above[starts]).sum()):  # every document is a pair
        kept_documents = int(documents_above[starts].sum() + more_documents[order[:certain]].sum())
        kept_weight = int(largest[certain - 1]) if certain else int(weight_above[starts].sum())
        return Cut(kept=kept, documents=documents, weight=weight, kept_documents=kept_documents, kept_weight=kept_weight)
    dropped = _pair(scores, ties, order[too_many]) if too_many < len(order) else interval.dropped
    return replace(interval, kept=kept, dropped=dropped)


def _pair(scores: np.ndarray, ties: np.ndarray, row: int) -> Pair:
    return Pair(score=int(scores[row]), tie=int(ties[row]))
