"""The charts of a report: what each of the four forms draws. `html/templates/charts.html` has their elements.

A chart draws a table. Lengths of its marks, or areas, are proportional to the numbers of the table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

WIDTH = 720
"""Units of a chart across. On a page of this width they are CSS pixels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bars:
    """A bar for each row of the table, with its number behind it.

    Attributes:
        column: of the table.
        unit: what stands behind each number.
    """

    kind: ClassVar[str] = "bars"
    hint: ClassVar[str] = ""
    column: int = 1
    unit: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bin:
    """A bar of a histogram from `low` to `high`, with counts of its two parts."""

    low: float
    high: float
    passed: float
    failed: float = 0.0

    @property
    def count(self) -> float:
        return self.passed + self.failed


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """An axis of values from `low` to `high`.

    Attributes:
        is_log: whether it is logarithmic; what is below `low` then stands left of it, and zero at the edge.
    """

    low: float
    high: float
    is_log: bool = False
    has_zero: bool = False
    left: float = 12.0
    right: float = WIDTH - 12.0

    def position(self, value: float) -> float:
        if not self.is_log:
            return self.left + (value - self.low) / ((self.high - self.low) or 1.0) * (self.right - self.left)
        if value <= 0:
            return self.left
        if self.has_zero and value < self.low:
            return self.left + 18.0
        begin = self.left + (26.0 if self.has_zero else 0.0)
        return begin + math.log(value / self.low) / (math.log(self.high / self.low) or 1.0) * (self.right - begin)


@dataclass(frozen=True, kw_only=True, slots=True)
class Histogram:
    """Bars whose areas are proportional to counts, and a threshold.

    Attributes:
        bins: ascending, at least one.
        is_log: whether the axis is logarithmic.
    """

    kind: ClassVar[str] = "histogram"
    hint: ClassVar[str] = "Areas stand for documents: blue passes the rule, orange fails it, whatever other rules say."
    bins: Sequence[Bin]
    threshold: float | None
    is_log: bool

    def axis(self) -> Axis:
        threshold, low, high = self.threshold, self.bins[0].low, self.bins[-1].high
        if self.is_log:
            positive = [each.low for each in self.bins if each.low > 0] or [high / 2]
            low = positive[0]
            if threshold is not None and threshold > 0:
                low, high = max(min(low, threshold), low / 16), min(max(high, threshold), high * 16)
            return Axis(low=low, high=high, is_log=True, has_zero=len(positive) < len(self.bins))
        if threshold is not None and low - 0.3 * (high - low) <= threshold <= high + 0.3 * (high - low):
            low, high = min(low, threshold), max(high, threshold)
        return Axis(low=low, high=high)

    def marks(self, axis: Axis) -> Iterator[tuple[float, float, float, float, float, str]]:
        """x, y, width, height, count and class of each part of each bar."""
        base = 136.0
        widths = [max(axis.position(each.high) - axis.position(each.low), 0.01) for each in self.bins]
        unit = (base - 12.0) / (max(each.count / width for each, width in zip(self.bins, widths)) or 1.0)
        for each, width in zip(self.bins, widths):
            top = base
            for count, color in ((each.passed, "passed"), (each.failed, "failed")):
                if count:
                    tall = count / width * unit
                    top -= tall
                    yield axis.position(each.low), top, width, tall, count, color

    def ticks(self) -> list[float]:
        low, high = self.bins[0].low, self.bins[-1].high
        if self.is_log:
            positive = min((each.low for each in self.bins if each.low > 0), default=high / 2)
            first, last = math.ceil(math.log10(positive)), math.floor(math.log10(high))
            step = max(1, math.ceil((last - first + 1) / 8))
            return [*([0.0] if low <= 0 else []), *(10.0**power for power in range(first, last + 1, step))]
        rough = (high - low) / 6 or 1.0
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
        return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowStep:
    """A stage that documents leave.

    Attributes:
        left: documents that leave here.
        text: what stands beside them.
        color: class of the part that leaves.
    """

    label: str
    left: int
    text: str
    color: str = "failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Flow:
    """A stream that gets narrower from top to bottom, of at least one document."""

    kind: ClassVar[str] = "flow"
    hint: ClassVar[str] = "The stream is as wide as the documents in it. What a stage drops leaves to the right."
    read: int
    steps: Sequence[FlowStep]

    @property
    def height(self) -> float:
        return 74.0 + sum(map(self.tall, self.steps))

    def tall(self, step: FlowStep) -> float:
        """The height of a step."""
        return max(30.0, step.left * 260.0 / self.read + 14.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stacked:
    """Shares that change along an axis. Rows of the table are start, stop, and the share of each other heading."""

    kind: ClassVar[str] = "stacked"
    hint: ClassVar[str] = "Axis: tokens."


Drawing = Bars | Histogram | Flow | Stacked


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
