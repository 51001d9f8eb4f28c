"""How many documents other thresholds of a rule would keep, each a number that the rule's option takes.

    tags of kept documents     ─▶  documents and bytes at up to 2,000 thresholds, exactly; and together with the other rules
    histogram of report.json   ─▶  documents at the bounds of its bins

Counts are those of one rule alone. `together` counts what the stage keeps with its other rules as they are; None where the
tags do not tell it.

A bin holds the values from one bound to below the other, so the greatest threshold that drops the bin above is the number just
below its bound.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import ValidationError, create_model

from datapipe import catalogue
from datapipe.config.stage_use import StageUse
from datapipe.errors import DatapipeError
from datapipe.explore.documents import Inspector
from datapipe.explore.sweep import RuleOf, counted, tagged_values, tags_of

MOST_POINTS = 2_000
_HALVES = (-0.5, 0.5, 1.5, 1000.5)

_BY_TAGS = "Of the documents that this run kept. A later stage that compares documents may keep others."
_BY_HISTOGRAM = (
    "By this rule alone, from the histogram of the report: other rules may drop some of these. `mode: tag` gives exact counts."
)


class Accepted:
    """Which thresholds an option of a stage takes; any number where there is no such option."""

    def __init__(self, use: StageUse | None, option: str) -> None:
        try:
            field = None if use is None else catalogue.stage_class(use.name).model_fields.get(option)
        except DatapipeError:
            field = None
        threshold: Any = None if field is None else (field.annotation, field)
        self.model = None if field is None else create_model("Threshold", threshold=threshold)
        self.is_whole = not any(map(self.takes, _HALVES))

    def takes(self, threshold: float) -> bool:
        if not math.isfinite(threshold) or self.model is None:
            return math.isfinite(threshold)
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


def swept_tags(output: Inspector, rule: RuleOf, accepted: Accepted) -> dict[str, Any] | None:
    """The points over the tags of a rule in the kept documents of its sources, with their total; None where there are no tags.
    A document without a value passes any threshold."""
    tags, is_certain = tags_of(output, rule)
    grid = _grid(output, rule, list(tags), accepted) if tags else []
    if not grid:
        return None
    total = counted(output.database, rule, tags, grid)[-1]
    is_certain &= not total["unsure"]
    points = [
        {"threshold": each["threshold"], **each["alone"], "together": each["together"]["documents"] if is_certain else None}
        for each in total["kept"]
    ]
    return {"exact": True, "note": _BY_TAGS, "points": points, "total": total["tagged"]}


def _grid(output: Inspector, rule: RuleOf, sources: Sequence[str], accepted: Accepted) -> list[float]:
    """Up to `MOST_POINTS` thresholds: all values, or quantiles of them, and the one in force."""
    in_force, is_min = rule.facts["threshold"], rule.facts["side"] == "min"
    found, _ = tagged_values(output.database, rule, sources, MOST_POINTS, np.linspace(0, 1, MOST_POINTS - 1).tolist())
    bounds = {accepted.of_value(value, is_min) for value in found}
    bounds |= {in_force} if bounds and in_force is not None else set()
    return sorted(filter(accepted.takes, bounds))


# ------------------------------------------------------------------------------------------------ histograms


def swept_histograms(rule: RuleOf, accepted: Accepted) -> dict[str, Any]:
    """Points at the bounds of the bins of report.json, and at the threshold in force."""
    is_min, in_force = rule.facts["side"] == "min", rule.facts["threshold"]
    entries = list(rule.of_sources.values())
    # per bin: its threshold, and its documents
    bins = [
        [(accepted.of_bin(low, high, is_min), passed + failed) for low, high, passed, failed in entry["bins"]]
        for entry in entries
    ]
    bounds = sorted({bound for each in bins for bound, _ in each if accepted.takes(bound)})
    points = {
        bound: sum(
            entry["not_a_number"] + sum(count for edge, count in each if (edge >= bound if is_min else edge <= bound))
            for entry, each in zip(entries, bins)
        )
        for bound in bounds[:: max(1, len(bounds) // MOST_POINTS)]
    }
    if in_force is not None:
        points[in_force] = sum(entry["passed"] + entry["not_a_number"] for entry in entries)
    unknown = {"bytes": None, "tokens": None, "together": None}
    listed = [{"threshold": bound, "documents": count, **unknown} for bound, count in sorted(points.items())]
    total = {"documents": sum(entry["documents"] for entry in entries), "bytes": None, "tokens": None}
    return {"exact": False, "note": _BY_HISTOGRAM, "points": listed, "total": total}
