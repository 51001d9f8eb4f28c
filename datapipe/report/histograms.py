"""The histograms of a report: what rules measured, and lengths. Bins of report.json are joined to bars that one can see."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from datapipe.report.cells import Table
from datapipe.report.drawing import Bin, Histogram, cut, short
from datapipe.report.report import LengthBin, MeasuredRule, Rule

MOST_BARS = 60
_LOG_RANGE = 20.0
"""Values whose largest is so many times their median stand on a logarithmic axis."""


def condition(rule: Rule) -> str:
    """The option and threshold of a rule: "min_words at least 50"; empty where no option holds a threshold."""
    side = {"min": "at least ", "max": "at most "}.get(rule.side, "")
    if not rule.option or rule.threshold is None:
        return f"{rule.option} differs by document" if rule.option else ""
    return f"{rule.option} {side}{rule.threshold:,.12g}"


def rule_figure(each: MeasuredRule) -> Table:
    """What a rule measured, with its threshold."""
    rule = each.rule
    bins = joined([Bin(low=low, high=high, passed=passed, failed=failed) for low, high, passed, failed in rule.bins])
    rows = [[_range(each), each.passed, each.failed] for each in bins]
    return Table(
        title=f"{cut(each.label, 90)}: {rule.failed_share or 0.0:.1%} of {rule.passed + rule.failed:,} documents fail",
        headings=["measured", "pass", "fail"],
        rows=[*rows, ["all", rule.passed, rule.failed]],
        drawing=Histogram(bins=bins, threshold=rule.threshold, is_log=is_log(bins)) if bins else None,
        note=" ".join(_notes(rule)),
    )


def _notes(rule: Rule) -> Iterator[str]:
    if words := condition(rule):
        yield f"{words}."
    if rule.mode == "tag":
        yield "mode: tag, so nothing is dropped."
    elif rule.dropped != rule.failed:
        yield f"{rule.dropped:,} are dropped for it; the others fail another rule first."
    if rule.not_a_number:
        yield f"{rule.not_a_number:,} documents have no value."
    for words, nearest in (("Just passes", rule.borderline.kept), ("Just fails", rule.borderline.dropped)):
        for document in nearest[:1]:
            yield f"{words}: {document.document} with {document.value:.4g}."


def length_figure(source: str, part: str, bins: Sequence[LengthBin]) -> Table:
    """Lengths of the documents of a source, in bytes."""
    bars = joined([Bin(low=low, high=high, passed=documents) for low, high, documents, _ in bins])
    total, size = sum(row[2] for row in bins), sum(row[3] for row in bins)
    return Table(
        title=f"{source}, as {part}: {total:,.0f} documents of {short(size / total)} bytes on average",
        headings=["bytes", "documents"],
        rows=[[_range(each), each.passed] for each in bars],
        drawing=Histogram(bins=bars, threshold=None, is_log=True),
    )


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
