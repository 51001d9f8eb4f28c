"""How many documents other thresholds of a rule would keep, each a number that the rule's option takes.

    tags of kept documents     ─▶  documents and bytes at up to 2,000 thresholds, exactly; and together with the other rules
    histogram of report.json   ─▶  documents at the bounds of its bins

Counts are those of one rule alone. `together` counts what the stage keeps with its other rules as they are; None where the
tags do not tell it.

A tagged value is read once for the thresholds and once for the counts; memory is one record batch. A bin holds the values from
one bound to below the other, so the greatest threshold that drops the bin above is the number just below its bound.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ValidationError, create_model

from datapipe import catalogue
from datapipe.columns import compute
from datapipe.config.stage_use import StageUse
from datapipe.errors import DatapipeError
from datapipe.explore.lookup.file import LookUp
from datapipe.explore.output import BrowsedOutput
from datapipe.explore.query import Documents, tag_numbers
from datapipe.stage.ranking import BELOW_SHARE

MOST_POINTS = 2_000
_SAMPLE = 1 << 16
_HALVES = (-0.5, 0.5, 1.5, 1000.5)

_BY_TAGS = "Of the documents that this run kept. A later stage that compares documents may keep others."
_BY_HISTOGRAM = (
    "By this rule alone, from the histogram of the report: other rules may drop some of these. `mode: tag` gives exact counts."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleOf:
    """A rule of the filters of some sources, with what the report knows of it."""

    stage: str
    rule: str
    sources: tuple[str, ...]
    facts: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Accepted:
    """Which thresholds an option takes.

    Attributes:
        model: with the option as its only field, `threshold`; None takes any number.
        is_whole: whether they are whole numbers.
    """

    model: type[BaseModel] | None
    is_whole: bool = False

    @classmethod
    def by(cls, use: StageUse | None, option: str) -> Self:
        """Those of an option of a stage; any number where there is no such option."""
        try:
            field = None if use is None else catalogue.stage_class(use.name).model_fields.get(option)
        except DatapipeError:
            field = None
        if field is None:
            return cls(model=None)
        threshold: Any = (field.annotation, field)
        model = create_model("Threshold", threshold=threshold)
        return cls(model=model, is_whole=not any(map(cls(model=model).takes, _HALVES)))

    def takes(self, threshold: float) -> bool:
        if not math.isfinite(threshold) or self.model is None:
            return self.model is None and math.isfinite(threshold)
        number = int(threshold) if float(threshold).is_integer() else threshold  # as the page writes it
        try:
            self.model.model_validate_json(json.dumps({"threshold": number}), strict=True)
        except ValidationError:
            return False
        return True

    def of_value(self, value: float, is_min: bool) -> float:
        """The threshold next to a value, inwards where the option takes whole numbers alone."""
        return value if not self.is_whole else math.ceil(value) if is_min else math.floor(value)

    def of_bin(self, low: float, high: float, is_min: bool) -> float:
        """The threshold that all values of a bin pass, and as few others as possible."""
        if is_min:
            return low if high > 0 else math.nextafter(low, math.inf)
        return self.of_value(math.nextafter(high, -math.inf) if high > 0 else high, is_min)


# ------------------------------------------------------------------------------------------------ tags


class TaggedSweep:
    """Counts over the tags of a rule in the kept documents of its sources."""

    def __init__(self, output: BrowsedOutput, documents: Documents, lookup: LookUp, rule: RuleOf, accepted: Accepted) -> None:
        self._output, self._documents, self._rule, self._accepted = output, documents, rule, accepted
        self._sizes = lookup.section("size")
        self._keeps_share = any(BELOW_SHARE in output.measured(source).get(rule.stage, {}) for source in rule.sources)
        self._is_certain = rule.rule == BELOW_SHARE or not self._keeps_share  # else the cut moves with the threshold

    def swept(self) -> dict[str, Any] | None:
        """The points with their total; None where there are no tags. A document without a value passes any threshold."""
        grid = self._grid() if self._rule.facts.get("mode") == "tag" else np.zeros(0)
        if not len(grid):
            return None
        is_min = self._rule.facts["side"] == "min"
        # (num_thresholds + 1, 3): documents, their bytes, and the documents that the other rules pass, between the thresholds
        counts, passing, total = np.zeros((len(grid) + 1, 3), np.int64), np.zeros(3, np.int64), np.zeros(2, np.int64)
        for start, values, others_pass in self._values():
            sizes = self._sizes[start : start + len(values)].astype(np.int64)
            weights, known = np.column_stack([np.ones_like(sizes), sizes, others_pass]), ~np.isnan(values)
            # a value keeps its document at the thresholds up to it (min), or from it on (max)
            index = np.searchsorted(grid, values[known], "right" if is_min else "left")
            np.add.at(counts, index, weights[known])
            passing += weights[~known].sum(axis=0)
            total += weights[:, :2].sum(axis=0)
        sums = (np.cumsum(counts[::-1], axis=0)[::-1][1:] if is_min else np.cumsum(counts, axis=0)[:-1]) + passing
        points = [
            {"threshold": threshold, "documents": kept, "bytes": size, "together": both if self._is_certain else None}
            for threshold, (kept, size, both) in zip(grid.tolist(), sums.tolist())
        ]
        whole = dict(zip(("documents", "bytes"), total.tolist()))
        return {"exact": True, "note": _BY_TAGS, "points": points, "total": whole}

    def _grid(self) -> np.ndarray:
        """Up to `MOST_POINTS` thresholds: all values, or quantiles of a sample, and the one in force."""
        column, in_force = f"{self._rule.stage}.{self._rule.rule}", self._rule.facts.get("threshold")
        values = self._documents.tag_values(column, list(self._rule.sources))
        parts = [np.unique(each[np.isfinite(each)]) for _, each in values]
        found = np.unique(np.concatenate(_thinned(parts))) if parts else np.zeros(0)
        if len(found) > MOST_POINTS:
            found = found[np.linspace(0, len(found) - 1, MOST_POINTS - 1).round().astype(np.int64)]
        bounds = [self._accepted.of_value(value, self._rule.facts["side"] == "min") for value in found.tolist()]
        known = [] if in_force is None or not bounds else [in_force]
        return np.unique(list(filter(self._accepted.takes, [*bounds, *known])))

    def _values(self) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """The number of the first row of each part, the values of the rule, and whether the other rules of the stage pass:
        (num_docs,) float64 and bool."""
        stage, own = self._rule.stage, f"{self._rule.stage}.{self._rule.rule}"
        for source in self._rule.sources:
            others = self._others(source)
            columns = [own, f"{stage}.rule", *(f"{stage}.{name}" for name, facts in others.items() if _is_bound(facts))]
            for start, batch in self._documents.tags(columns, [source]):
                yield start, tag_numbers(batch, own), self._others_pass(batch, source, others)

    def _others(self, source: str) -> Mapping[str, Mapping[str, Any]]:
        """The other rules of the stage that some document fails; none where the stage keeps a share, which moves."""
        rules = self._output.measured(source).get(self._rule.stage, {})
        if not self._is_certain and self._keeps_share:
            return {}
        replaced = self._rule.facts.get("option") if self._rule.rule == BELOW_SHARE else None
        return {
            name: facts
            for name, facts in rules.items()
            if name not in (self._rule.rule, BELOW_SHARE) and facts.get("failed") and facts.get("option") != replaced
        }

    def _others_pass(self, batch: pa.RecordBatch, source: str, others: Mapping[str, Mapping[str, Any]]) -> np.ndarray:
        """Which documents pass these rules. Of a rule whose threshold is not known, the first rule that failed tells it; not
        certain are those that failed an earlier one."""
        first = batch.column(f"{self._rule.stage}.rule")
        order = list(self._output.measured(source)[self._rule.stage])
        passes = np.ones(batch.num_rows, np.bool_)
        for name, facts in others.items():
            if _is_bound(facts):
                values = tag_numbers(batch, f"{self._rule.stage}.{name}")
                passes &= ~(values < facts["threshold"] if facts["side"] == "min" else values > facts["threshold"])
                continue
            passes &= ~_is_in(first, [name])
            self._is_certain &= not _is_in(first, order[: order.index(name)]).any()
        return passes


def _is_bound(facts: Mapping[str, Any]) -> bool:
    """Whether a rule compares its values with one threshold."""
    return facts["side"] in ("min", "max") and facts["threshold"] is not None


def _is_in(names: pa.Array, wanted: Sequence[str]) -> np.ndarray:
    """Which names are wanted, null is not: (num_docs,) bool."""
    return compute.is_in(names, value_set=pa.array(wanted, names.type)).to_numpy(zero_copy_only=False)


def _thinned(parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Every n-th value of each part, so that few remain."""
    step = max(1, sum(map(len, parts)) // _SAMPLE)
    return [np.append(part[::step], part[-1:]) for part in parts]


# ------------------------------------------------------------------------------------------------ histograms


def swept_histograms(output: BrowsedOutput, rule: RuleOf, accepted: Accepted) -> dict[str, Any]:
    """Points at the bounds of the bins of report.json, and at the threshold in force."""
    is_min, in_force = rule.facts["side"] == "min", rule.facts.get("threshold")
    entries = [output.measured(source)[rule.stage][rule.rule] for source in rule.sources]
    # per bin: its threshold, and its documents
    bins = [
        [(accepted.of_bin(low, high, is_min), passed + failed) for low, high, passed, failed in entry.get("bins", ())]
        for entry in entries
    ]
    bounds = sorted({bound for each in bins for bound, _ in each if accepted.takes(bound)})
    points = {
        bound: sum(
            entry.get("not_a_number", 0) + sum(count for edge, count in each if (edge >= bound if is_min else edge <= bound))
            for entry, each in zip(entries, bins)
        )
        for bound in bounds[:: max(1, len(bounds) // MOST_POINTS)]
    }
    if in_force is not None:
        points[in_force] = sum(entry.get("passed", 0) + entry.get("not_a_number", 0) for entry in entries)
    unknown = {"bytes": None, "tokens": None, "together": None}
    listed = [{"threshold": bound, "documents": count, **unknown} for bound, count in sorted(points.items())]
    total = {"documents": sum(entry.get("documents", 0) for entry in entries), "bytes": None, "tokens": None}
    return {"exact": False, "note": _BY_HISTOGRAM, "points": listed, "total": total}
