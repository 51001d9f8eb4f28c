"""The histograms of a report: what rules measured, and lengths."""

from collections.abc import Iterator, Sequence

from datapipe.report.cells import Table
from datapipe.report.drawing import Bin, Histogram, cut, short
from datapipe.report.report import LengthBin, MeasuredRule, Rule


def condition(rule: Rule) -> str:
    """The option and threshold of a rule: "min_words at least 50"; empty where no option holds a threshold."""
    side = {"min": "at least ", "max": "at most "}.get(rule.side, "")
    if not rule.option or rule.threshold is None:
        return f"{rule.option} differs by document" if rule.option else ""
    return f"{rule.option} {side}{rule.threshold:,.12g}"


def rule_figure(each: MeasuredRule) -> Table:
    rule = each.rule
    bins = [Bin(low=low, high=high, passed=passed, failed=failed) for low, high, passed, failed in rule.bins]
    drawing = Histogram.of(bins, rule.threshold) if bins else None
    rows = [[_range(bar), bar.passed, bar.failed] for bar in (drawing.bins if drawing else ())]
    return Table(
        title=f"{cut(each.label, 90)}: {rule.failed_share or 0.0:.1%} of {rule.passed + rule.failed:,} documents fail",
        headings=["measured", "pass", "fail"],
        rows=[*rows, ["all", rule.passed, rule.failed]],
        drawing=drawing,
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
    drawing = Histogram.of((Bin(low=low, high=high, passed=documents) for low, high, documents, _ in bins), is_log=True)
    total, size = sum(row[2] for row in bins), sum(row[3] for row in bins)
    return Table(
        title=f"{source}, as {part}: {total:,.0f} documents of {short(size / total)} bytes on average",
        headings=["bytes", "documents"],
        rows=[[_range(bar), bar.passed] for bar in drawing.bins],
        drawing=drawing,
    )


def _range(each: Bin) -> str:
    return "0" if each.low == 0 and each.high < 1e-9 else f"{each.low:.4g} to {each.high:.4g}"
