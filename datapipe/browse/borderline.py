"""Documents on either side of a threshold, and how many documents other thresholds would keep.

    borderline tables of the map tasks  ─▶  the 50 just kept and the 50 just dropped, nearest first
    tags of kept documents              ─▶  documents and bytes at up to 2,000 thresholds, exactly
    histogram of report.json            ─▶  documents at the bounds of its bins, by this rule alone

A tagged value is read once for the thresholds and once for the counts; memory is one record batch. A document "just kept" has
passed this filter; a later stage may have dropped it, which its row tells.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np

from datapipe.browse.output import BrowsedOutput
from datapipe.browse.query import Documents, Query
from datapipe.browse.rows import Rows
from datapipe.credentials import masked
from datapipe.errors import UserError
from datapipe.exchange.partitions import read_table
from datapipe.inspect.documents import stage_alias
from datapipe.plan.outputs import TableFile

MOST_SHOWN = 50
MOST_POINTS = 2_000
EXCERPT_CHARS = 300
EXCERPTS_S = 1.5
"""Excerpts are read for so long; the rows that remain come without one, and the page can ask for their documents."""

_SAMPLE = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleOf:
    """A rule of the filters of some sources, with what the report knows of it."""

    stage: str
    rule: str
    sources: tuple[str, ...]
    facts: Mapping[str, Any]


class Borderline:
    """Both sides of thresholds."""

    def __init__(
        self, output: BrowsedOutput, documents: Documents, rows: Rows, text: Callable[[int, Mapping[str, Any]], tuple[str, str]]
    ) -> None:
        self._output, self._documents, self._rows, self._text = output, documents, rows, text

    def rule(self, stage: str, rule: str, source: str) -> RuleOf:
        """The rule. Raises UserError where no source has measured it."""
        if source and source not in self._output.sources:
            raise UserError(f"no source '{source}'. The sources of this output: {', '.join(self._output.sources)}.")
        found = {
            name: (run_name, rules[rule])
            for name in ([source] if source else self._output.sources)
            for run_name, rules in self._output.measured(name).items()
            if stage in (run_name, stage_alias(f"{run_name}:")) and rule in rules
        }
        if not found:
            return self._unmeasured(stage, rule, source)
        run_name, facts = next(iter(found.values()))
        thresholds = {each.get("threshold") for _, each in found.values()}
        known = facts.get("threshold") if len(thresholds) == 1 else None
        return RuleOf(stage=run_name, rule=rule, sources=tuple(found), facts={**facts, "threshold": known})

    def _unmeasured(self, stage: str, rule: str, source: str) -> RuleOf:
        """A rule of a run that measured no distributions: its dropped documents are all that is known."""
        reasons = [
            reason
            for reason in self._rows.lookup.reasons
            if reason.fate == "dropped" and source in ("", reason.source) and (reason.stage, reason.rule) == (stage, rule)
        ]
        if not reasons:
            raise UserError(f"No filter has measured {stage}:{rule} in this output. Choose a rule of api/output.")
        facts = {"threshold": reasons[0].threshold if len({reason.threshold for reason in reasons}) == 1 else None}
        return RuleOf(stage=stage, rule=rule, sources=tuple(reason.source for reason in reasons), facts=facts)

    def sides(self, rule: RuleOf) -> dict[str, Any]:
        """The documents nearest the threshold on either side."""
        nearest = self._nearest(rule)
        ends = monotonic() + EXCERPTS_S
        shown = {side: [row for row in map(self._row, nearest[side]) if row is not None] for side in nearest}
        if "side" not in rule.facts:
            source = rule.sources[0] if len(rule.sources) == 1 else ""
            query = Query(source=source, fate="dropped", stage=rule.stage, rule=rule.rule, sort="distance", limit=MOST_SHOWN)
            shown["dropped"] = self._rows.listed(self._documents.find(query))
        for pair in _alternating(shown["kept"], shown["dropped"]):
            if monotonic() < ends:
                [number] = self._rows.lookup.rows_of_key(bytes.fromhex(pair["key"]))[:1]
                pair["excerpt"] = self._text(number, pair)[0][:EXCERPT_CHARS] or None
        return {**self._about(rule), **shown}

    def _nearest(self, rule: RuleOf) -> dict[str, list[tuple[float, bytes, float, float]]]:
        """(distance, key, value, threshold) of the nearest documents by side."""
        nearest: dict[str, list[tuple[float, bytes, float, float]]] = {"kept": [], "dropped": []}
        for source in rule.sources:
            for step in self._output.inspector.map_steps(source):
                for file in step.outputs("borderline", TableFile):
                    for batch in read_table(self._output.root, file):
                        for row in batch.to_pylist():
                            if (row["stage"], row["rule"]) == (rule.stage, rule.rule):
                                distance = abs(row["value"] - row["threshold"])
                                side = nearest["dropped" if row["is_dropped"] else "kept"]
                                side.append((distance, row["key"], row["value"], row["threshold"]))
        return {side: sorted(found)[:MOST_SHOWN] for side, found in nearest.items()}

    def _row(self, near: tuple[float, bytes, float, float]) -> dict[str, Any] | None:
        distance, key, value, threshold = near
        row = self._rows.of_key(key)
        return None if row is None else {**row, "value": value, "threshold": threshold, "distance": distance}

    def _about(self, rule: RuleOf) -> dict[str, Any]:
        facts = rule.facts
        about = {"option": facts.get("option", ""), "side": facts.get("side", "other"), "threshold": facts.get("threshold")}
        return {**about, "yaml": self.yaml(rule)}

    def yaml(self, rule: RuleOf) -> str:
        """The line of the mixture with "{threshold}" in the place of the rule's option; empty where it has none."""
        use, option = self._output.use_of(rule.sources[0], rule.stage), rule.facts.get("option")
        if use is None or not option:
            return ""
        options = {name: value for name, value in use.options.items() if name not in (option, "mode")}
        listed = [f"{name}: {json.dumps(value, ensure_ascii=False, default=str)}" for name, value in options.items()]
        listed += [f"as: {use.alias}"] if use.alias != use.name else []
        return masked("- " + use.name + ": {" + ", ".join([*listed, option + ": {threshold}"]) + "}")

    # ---------------------------------------------------------------------------------------------- sweeps

    def sweep(self, rule: RuleOf) -> dict[str, Any]:
        """How much every threshold keeps: points ascending by threshold."""
        if rule.facts.get("side") not in ("min", "max"):
            raise UserError(f"{rule.stage}:{rule.rule} compares no value with a threshold, so there is nothing to sweep.")
        in_force = rule.facts.get("threshold")
        about = {**self._about(rule), "in_force": in_force}
        if rule.facts.get("mode") == "tag":
            values = _Tagged(self._documents, self._rows, rule)
            points = values.points(in_force)
            if points:
                counts = [values.total, *points]
                for each in counts:
                    each["tokens"] = self._tokens_of(rule, each["bytes"])
                return {**about, "exact": True, "points": points, "total": values.total}
        return {**about, "exact": False, **_of_histograms(self._output, rule)}

    def _tokens_of(self, rule: RuleOf, num_bytes: int | None) -> int | None:
        """About how many tokens so much text of the rule's sources has; None without a tokenizer."""
        tokens = sum(self._output.tokens_of(source) or 0 for source in rule.sources)
        kept = sum(self._output.report.get("sources", {}).get(source, {}).get("kept_bytes", 0) for source in rule.sources)
        return round(num_bytes * tokens / kept) if tokens and kept and num_bytes is not None else None


def _alternating(first: Sequence[dict[str, Any]], second: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The first of each, the second of each, and so on."""
    for number in range(max(len(first), len(second))):
        yield from first[number : number + 1]
        yield from second[number : number + 1]


class _Tagged:
    """The tags of a rule in the kept documents of its sources."""

    def __init__(self, documents: Documents, rows: Rows, rule: RuleOf) -> None:
        self._documents, self._sizes, self._rule = documents, rows.lookup.section("size"), rule
        self.total: dict[str, int | None] = {"documents": 0, "bytes": 0, "tokens": None}

    def points(self, in_force: float | None) -> list[dict[str, Any]]:
        """The counts at each threshold; none where there are no tags. A document without a value passes any threshold."""
        grid = self._grid(in_force)
        if not len(grid):
            return []
        is_min = self._rule.facts["side"] == "min"
        counts, passing = np.zeros((len(grid) + 1, 2), np.int64), np.zeros(2, np.int64)
        for start, values in self._values():
            sizes = self._sizes[start : start + len(values)].astype(np.int64)
            known = ~np.isnan(values)
            # a value keeps its document at the thresholds up to it (min), or from it on (max)
            index = np.searchsorted(grid, values[known], "right" if is_min else "left")
            counts[:, 0] += np.bincount(index, minlength=len(grid) + 1)
            counts[:, 1] += np.bincount(index, sizes[known], len(grid) + 1).astype(np.int64)
            passing += (np.count_nonzero(~known), sizes[~known].sum())
        sums = (np.cumsum(counts[::-1], axis=0)[::-1][1:] if is_min else np.cumsum(counts, axis=0)[:-1]) + passing
        self.total |= dict(zip(("documents", "bytes"), (counts.sum(axis=0) + passing).tolist()))
        return [
            {"threshold": threshold, "documents": kept, "bytes": size, "tokens": None}
            for threshold, (kept, size) in zip(grid.tolist(), sums.tolist())
        ]

    def _values(self) -> Iterator[tuple[int, np.ndarray]]:
        return self._documents.tag_values(f"{self._rule.stage}.{self._rule.rule}", list(self._rule.sources))

    def _grid(self, in_force: float | None) -> np.ndarray:
        """Up to `MOST_POINTS` thresholds: all values, or quantiles of a sample, and the one in force."""
        parts = [np.unique(values[np.isfinite(values)]) for _, values in self._values()]
        found = np.unique(np.concatenate(_thinned(parts))) if parts else np.zeros(0)
        if len(found) > MOST_POINTS:
            found = found[np.linspace(0, len(found) - 1, MOST_POINTS - 1).round().astype(np.int64)]
        known = [] if in_force is None else [in_force]
        return np.unique(np.concatenate([found, known])) if len(found) else found


def _thinned(parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Every n-th value of each part, so that few remain."""
    step = max(1, sum(map(len, parts)) // _SAMPLE)
    return [np.append(part[::step], part[-1:]) for part in parts]


def _of_histograms(output: BrowsedOutput, rule: RuleOf) -> dict[str, Any]:
    """Points at the bounds of the bins of report.json, and at the threshold in force, where it is exact."""
    is_min, in_force = rule.facts["side"] == "min", rule.facts.get("threshold")
    entries = [output.measured(source)[rule.stage][rule.rule] for source in rule.sources]
    edges = sorted({float(bin_[0 if is_min else 1]) for entry in entries for bin_ in entry.get("bins", ())})
    points = {
        edge: sum(_kept(entry, edge, is_min) for entry in entries) for edge in edges[:: max(1, len(edges) // MOST_POINTS)]
    }
    if in_force is not None:
        points[in_force] = sum(entry.get("passed", 0) + entry.get("not_a_number", 0) for entry in entries)
    listed = [
        {"threshold": edge, "documents": count, "bytes": None, "tokens": None}
        for edge, count in sorted(points.items())
        if math.isfinite(edge)
    ]
    total = sum(entry.get("documents", 0) for entry in entries)
    return {"points": listed, "total": {"documents": total, "bytes": None, "tokens": None}}


def _kept(entry: Mapping[str, Any], edge: float, is_min: bool) -> int:
    """Documents in the bins that a threshold at the bound of a bin keeps whole."""
    bins = entry.get("bins", ())
    inside = (sum(bin_[2:4]) for bin_ in bins if (bin_[0] >= edge if is_min else bin_[1] <= edge))
    return entry.get("not_a_number", 0) + sum(inside)
