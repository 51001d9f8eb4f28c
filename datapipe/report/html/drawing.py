"""Charts as SVG elements: scales, axes, and the five forms of the report. Each chart comes with the table that it draws.

A mark, which stands for a number, has `data-value` with the number, as its cell in the table has. Lengths of marks of one chart
are proportional to their numbers; of histograms it is the area. A chart that is wider than the page shrinks with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.etree import ElementTree as ET

from datapipe.metrics import counted

WIDTH = 720
"""Units of a chart across. On a page of this width they are CSS pixels."""

PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c7a00", "#7f7f7f")
"""Okabe and Ito's colours, which colour-blind people tell apart (jfly.uni-koeln.de/color)."""

_LABEL_WIDTH = 230
_CHAR_WIDTH = 7.6


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """The numbers behind a chart.

    Attributes:
        rows: texts and numbers; numbers stand to the right.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str | float | None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """A picture with its title, which says what to read from it, and its table.

    Attributes:
        svg: empty where a table is enough.
        note: what else a reader needs; may be empty.
    """

    title: str
    table: Table
    svg: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A bar with its label, in parts that follow each other.

    Attributes:
        parts: value and colour class of each.
        text: what stands behind the bar.
        is_marked: whether the label stands out.
    """

    label: str
    parts: Sequence[tuple[float, str]]
    text: str
    is_marked: bool = False


def bars(title: str, rows: Sequence[Bar]) -> str:
    """Horizontal bars, one below the other. Their lengths are proportional to their values."""
    height = 24
    text_width = max((len(row.text) for row in rows), default=0) * _CHAR_WIDTH + 14
    room = WIDTH - _LABEL_WIDTH - text_width
    most = max((sum(value for value, _ in row.parts) for row in rows), default=0.0) or 1.0
    svg = _svg(title, WIDTH, height * len(rows) + 4, "bars")
    for number, row in enumerate(rows):
        y, x = number * height + 4, float(_LABEL_WIDTH)
        _text(svg, _LABEL_WIDTH - 8, y + 13, cut(visible(row.label), 28), "end marked" if row.is_marked else "end")
        for value, color in row.parts:
            length = value / most * room
            _mark(svg, x, y, length, height - 6, value, color)
            x += length
        _text(svg, x + 6, y + 13, row.text, "number")
    return _written(svg)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bin:
    """A bar of a histogram from `low` to `high`, with counts of its two parts."""

    low: float
    high: float
    passed: float
    failed: float


def histogram(title: str, bins: Sequence[Bin], threshold: float | None, is_log: bool, labels: tuple[str, str]) -> str:
    """A histogram whose areas are proportional to counts, with the threshold as a line.

    Args:
        bins: ascending.
        is_log: whether the axis is logarithmic; bins at zero then stand left of it.
        labels: of the two parts, for people who hear the picture.
    """
    height, left, right, base = 176, 12.0, WIDTH - 12.0, 136.0
    position = _axis(bins, threshold, is_log, left, right)
    widths = [max(position(each.high) - position(each.low), 0.01) for each in bins]
    densities = [(each.passed + each.failed) / width for each, width in zip(bins, widths)]
    unit = (base - 12.0) / (max(densities, default=0.0) or 1.0)
    svg = _svg(f"{title} {labels[0]}: blue. {labels[1]}: orange.", WIDTH, height, "histogram")
    for each, width in zip(bins, widths):
        x, top = position(each.low), base
        for count, color in ((each.passed, "passed"), (each.failed, "failed")):
            tall = count / width * unit
            top -= tall
            if count:
                _mark(svg, x, top, width, tall, count, color)
    ET.SubElement(svg, "line", {"x1": _n(left), "x2": _n(right), "y1": _n(base), "y2": _n(base), "class": "axis"})
    for tick in _ticks(bins, is_log):
        x = position(tick)
        anchor = "start" if x < left + 12 else "end" if x > right - 16 else "middle"
        _text(svg, x, base + 16, short(tick), f"{anchor} tick")
    if threshold is not None:
        _threshold(svg, position(threshold), base, left, right, threshold)
    return _written(svg)


def _threshold(svg: ET.Element, x: float, base: float, left: float, right: float, threshold: float) -> None:
    """The line of the threshold; an arrow at the edge where it lies far outside."""
    inside = left <= x <= right
    x = min(max(x, left), right)
    line = {"x1": _n(x), "x2": _n(x), "y1": "2", "y2": _n(base), "class": "threshold", "data-threshold": repr(threshold)}
    ET.SubElement(svg, "line", line)
    anchor = "end" if x > WIDTH / 2 else "start"
    text = f"threshold {short(threshold)}"
    shown = text if inside else f"{text} →" if x == right else f"← {text}"
    _text(svg, x + (-6 if anchor == "end" else 6), base + 30, shown, f"{anchor} threshold-label")


def _axis(bins: Sequence[Bin], threshold: float | None, is_log: bool, left: float, right: float):
    """Where a value lies."""
    lows, highs = [each.low for each in bins], [each.high for each in bins]
    low, high = min(lows, default=0.0), max(highs, default=1.0)
    if is_log:
        positive = [value for value in lows if value > 0] or [high / 2]
        low = min(positive)
        has_zero = len(positive) < len(lows)
        begin = left + (26.0 if has_zero else 0.0)
        if threshold is not None and threshold > 0:
            low, high = max(min(low, threshold), low / 16), min(max(high, threshold), high * 16)
        span = math.log(high / low) or 1.0
        return lambda value: (
            left
            if value <= 0
            else left + 18.0
            if has_zero and value < low
            else begin + math.log(value / low) / span * (right - begin)
        )
    if threshold is not None and low - 0.3 * (high - low) <= threshold <= high + 0.3 * (high - low):
        low, high = min(low, threshold), max(high, threshold)
    span = (high - low) or 1.0
    return lambda value: left + (value - low) / span * (right - left)


def _ticks(bins: Sequence[Bin], is_log: bool) -> list[float]:
    low, high = min((each.low for each in bins), default=0.0), max((each.high for each in bins), default=1.0)
    if is_log:
        positive = min((each.low for each in bins if each.low > 0), default=high / 2)
        zero = [0.0] if low <= 0 else []
        first, last = math.ceil(math.log10(positive)), math.floor(math.log10(high))
        step = max(1, math.ceil((last - first + 1) / 8))
        return [*zero, *(10.0**power for power in range(first, last + 1, step))]
    rough = (high - low) / 6 or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowStep:
    """A stage that documents leave.

    Attributes:
        label: of the stage.
        left: documents that leave here.
        text: what stands beside them.
        color: class of the part that leaves.
    """

    label: str
    left: int
    text: str
    color: str = "failed"


def flow(title: str, read: int, steps: Sequence[FlowStep], kept: int) -> str:
    """A stream that gets narrower from top to bottom: widths are proportional to documents."""
    room, begin, gap = 260.0, 96.0, 40.0
    unit = room / max(read, 1)
    heights = [max(30.0, step.left * unit + 14.0) for step in steps]
    height = 34.0 + sum(heights) + 40.0
    svg = _svg(title, WIDTH, height, "flow")
    _text(svg, begin - 8, 22, f"{read:,} read", "end")
    _mark(svg, begin, 8, read * unit, 18, read, "passed")
    y, now = 26.0, read
    for step, tall in zip(steps, heights):
        after = now - step.left
        right, end = begin + now * unit, begin + room + gap
        thick = step.left * unit
        top = y + 8.0
        stay = {"x": _n(begin), "y": _n(y), "width": _n(after * unit), "height": _n(tall), "class": "stream"}
        ET.SubElement(svg, "rect", stay)
        if thick:
            bend = (
                f"M{_n(right - thick)},{_n(y)} C{_n(right - thick)},{_n(top + thick)} {_n(right)},{_n(top + thick)} "
                f"{_n(end)},{_n(top + thick)} L{_n(end)},{_n(top)} C{_n(right)},{_n(top)} {_n(right)},{_n(y + 4)} "
                f"{_n(right)},{_n(y)} Z"
            )
            ET.SubElement(svg, "path", {"d": bend, "class": f"{step.color} bend"})
        _mark(svg, end, top, 8, thick, step.left, step.color)
        middle = top + thick / 2
        _text(svg, end + 16, middle + 1, cut(visible(step.label), 38), "start")
        _text(svg, end + 16, middle + 14, cut(visible(step.text), 46), "start tick")
        y, now = y + tall, after
    _mark(svg, begin, y, kept * unit, 18, kept, "passed")
    _text(svg, begin - 8, y + 14, f"{kept:,} kept", "end")
    return _written(svg)


def stacked(title: str, borders: Sequence[float], shares: Sequence[Sequence[float]], colors: Sequence[str]) -> str:
    """Shares that change along an axis: in each interval a column of parts, whose heights are proportional to the shares.

    Args:
        borders: n + 1 ascending positions.
        shares: n rows, each with the share of every part.
    """
    height, left, right, base = 190, 12.0, WIDTH - 12.0, 160.0
    svg = _svg(title, WIDTH, height, "stacked")
    begin, span = borders[0], (borders[-1] - borders[0]) or 1.0
    for number, row in enumerate(shares):
        x, stop = (left + (borders[number + side] - begin) / span * (right - left) for side in (0, 1))
        top = base
        for share, color in zip(row, colors):
            tall = share * (base - 8.0)
            top -= tall
            if share:
                _mark(svg, x, top, stop - x, tall, share, color)
    for number in range(5):
        value = begin + span * number / 4
        anchor = "start" if number == 0 else "end" if number == 4 else "middle"
        _text(svg, left + (right - left) * number / 4, base + 18, short(value), f"{anchor} tick")
    return _written(svg)


# ------------------------------------------------------------------------------------------------ elements


def _svg(title: str, width: float, height: float, kind: str) -> ET.Element:
    size = {"viewBox": f"0 0 {_n(width)} {_n(height)}", "role": "img", "data-chart": kind, "class": "chart"}
    svg = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size})
    ET.SubElement(svg, "title").text = visible(title)
    return svg


def _mark(svg: ET.Element, x: float, y: float, width: float, height: float, value: float, color: str) -> None:
    box = {"x": _n(x), "y": _n(y), "width": _n(width), "height": _n(height)}
    ET.SubElement(svg, "rect", {**box, "class": color, "data-value": repr(value)})


def _text(svg: ET.Element, x: float, y: float, text: str, kind: str) -> None:
    ET.SubElement(svg, "text", {"x": _n(x), "y": _n(y), "class": kind}).text = visible(text)


def _written(svg: ET.Element) -> str:
    return ET.tostring(svg, encoding="unicode")


def _n(number: float) -> str:
    """A coordinate, to a thousandth."""
    return f"{number:.3f}".rstrip("0").rstrip(".")


def short(number: float) -> str:
    """A number in few characters: 1,200, 12.5k, 3.4M, 0.0015."""
    size = abs(number)
    for unit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= unit:
            return f"{number / (1e3 if letter == 'k' else unit):.3g}{letter}"
    return f"{number:,.0f}" if number == int(number) or size >= 100 else f"{number:.3g}"


def cut(text: str, most: int) -> str:
    """A text of at most so many characters, its middle left out."""
    if len(text) <= most:
        return text
    head = (most - 1) // 2
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


_CONTROLS = {
    code: f"⟨U+{code:04X}⟩"
    for code in (
        *range(0x20),
        *range(0x7F, 0xA0),
        0x061C,
        0x200E,
        0x200F,
        0x2028,
        0x2029,
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
        0xFEFF,
        *range(0xD800, 0xE000),
        0xFFFE,
        0xFFFF,
    )
    if code not in (0x09, 0x0A)
}


def visible(text: str) -> str:
    """A text whose control characters, of bidirectional text too, are shown as their code points."""
    return text.translate(_CONTROLS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A part of the page.

    Attributes:
        anchor: its name in links.
        note: a sentence below the heading; may be empty.
        more: what is only in report.json; may be empty.
    """

    anchor: str
    heading: str
    charts: Sequence[Chart] = ()
    tables: Sequence[tuple[str, Table]] = field(default_factory=tuple)
    note: str = ""
    more: str = ""


def left_out(shown: int, there: int, noun: str, plural: str = "") -> str:
    """How many are only in report.json."""
    return (
        f"{counted(there - shown, f'more {noun}', f'more {plural}' if plural else '')} in report.json." if there > shown else ""
    )


def share_of(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "0%"
