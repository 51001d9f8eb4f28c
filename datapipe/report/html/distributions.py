"""The histograms of the report: what rules measured, and lengths. Bins of report.json are joined to bars that one can see."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from datapipe.report.html.drawing import Bin, Chart, Histogram, cut, short
from datapipe.report.tables import MeasuredRule, Table

MOST_BARS = 60
_LOG_RANGE = 20.0
"""Values whose largest is so many times their median stand on a logarithmic axis."""


def rule_chart(rule: MeasuredRule) -> Chart:
    """What a rule measured, with its threshold."""
    facts = rule.facts
    bins = joined([Bin(low=low, high=high, passed=p, failed=f) for low, high, p, f in facts["bins"]])
    rows = [[_range(each), each.passed, each.failed] for each in bins]
    table = Table(headings=["measured", "pass", "fail"], rows=[*rows, ["all", facts["passed"], facts["failed"]]])
    title = f"{cut(rule.label, 90)}: {rule.failed_share or 0.0:.1%} of {facts['passed'] + facts['failed']:,} documents fail"
    drawing = Histogram(bins=bins, threshold=facts["threshold"], is_log=is_log(bins)) if bins else None
    return Chart(title=title, table=table, drawing=drawing, note=" ".join(_notes(rule)))


def _notes(rule: MeasuredRule) -> Iterator[str]:
    facts = rule.facts
    option = f"{facts['option']} " if facts["option"] else ""
    if facts["threshold"] is not None:
        side = {"min": "at least ", "max": "at most "}.get(facts["side"], "")
        yield f"{option}{side}{facts['threshold']:g}."
    elif facts["option"]:
        yield f"{option}differs by document."
    if facts["mode"] == "tag":
        yield "mode: tag, so nothing is dropped."
    elif facts["dropped"] != facts["failed"]:
        yield f"{facts['dropped']:,} are dropped for it; the others fail another rule first."
    if facts["not_a_number"]:
        yield f"{facts['not_a_number']:,} documents have no value."
    for word, outcome in (("Just passes", "kept"), ("Just fails", "dropped")):
        nearest = facts["borderline"][outcome][:1]
        if nearest:
            yield f"{word}: {nearest[0]['document']} with {nearest[0]['value']:.4g}."


def rules_nobody_fails(rules: Sequence[MeasuredRule]) -> Table:
    """A row for each rule without a picture: its threshold and the range of its values."""
    rows = []
    for rule in rules:
        bins = rule.facts["bins"]
        least, greatest = (bins[0][0], bins[-1][1]) if bins else (None, None)
        rows.append([rule.label, rule.facts["threshold"], least, greatest, rule.facts["failed"]])
    return Table(headings=["rule", "threshold", "least bin from", "greatest bin to", "fail"], rows=rows)


def length_chart(source: str, part: str, bins: Sequence[Sequence[float]]) -> Chart:
    """Lengths of the documents of a source, in bytes."""
    bars = joined([Bin(low=low, high=high, passed=documents) for low, high, documents, _ in bins])
    total, size = sum(row[2] for row in bins), sum(row[3] for row in bins)
    title = f"{source}, as {part}: {total:,.0f} documents of {short(size / total)} bytes on average"
    table = Table(headings=["bytes", "documents"], rows=[[_range(each), each.passed] for each in bars])
    return Chart(title=title, table=table, drawing=Histogram(bins=bars, threshold=None, is_log=True))


def is_log(bins: Sequence[Bin]) -> bool:
    """Whether values are spread over magnitudes: the largest is far above the median."""
    half, seen = sum(each.count for each in bins) / 2, 0.0
    for each in bins:
        seen += each.count
        if seen >= half:
            return each.high > 0 and bins[-1].high > _LOG_RANGE * each.high and bins[0].low >= 0
    return False


def joined(bins: Sequence[Bin]) -> list[Bin]:
    """Bins that one can see: neighbours are joined until each takes a sixtieth of the axis. Counts stay whole, and parts stay
    apart, so a threshold inside a bar moves nothing from one side to the other."""
    logarithmic = is_log(bins)
    result = [each for each in bins if logarithmic and each.low <= 0]  # left of a logarithmic axis
    rest = bins[len(result) :]
    if not rest:
        return result
    at = math.log if logarithmic else float
    least = (at(rest[-1].high) - at(rest[0].low)) / MOST_BARS
    bars = [rest[0]]
    for each in rest[1:]:
        last = bars[-1]
        if at(last.high) - at(last.low) < least and at(each.high) - at(last.low) <= 2 * least:
            bars[-1] = replace(last, high=each.high, passed=last.passed + each.passed, failed=last.failed + each.failed)
        else:
            bars.append(each)
    return [*result, *(bars if logarithmic else _widened(bars, least))]


def _widened(bins: Sequence[Bin], least: float) -> list[Bin]:
    """Bars that stand alone and would be too narrow to see, such as that of zero, made wider as far as there is room."""
    lows = [each.low for each in bins[1:]] + [float("inf")]
    return [replace(each, high=max(each.high, min(each.low + least, low))) for each, low in zip(bins, lows)]


def _range(each: Bin) -> str:
    return "0" if each.low == 0 and each.high < 1e-9 else f"{each.low:.4g} to {each.high:.4g}"
