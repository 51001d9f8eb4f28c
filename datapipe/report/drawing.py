"""The charts of a report: what each of the four forms draws. `html/templates/charts.html` has their elements.

A chart draws a table. Lengths of its marks, or areas, are proportional to the numbers of the table.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import ClassVar, Self

WIDTH = 720  # Units of a chart across. On a page of this width they are CSS pixels.
MOST_BARS = 60
_LOG_RANGE = 20.0
"""Values whose largest is so many times their median are drawn on a logarithmic axis."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bars:
    """A bar for each row of the table, with the number of one column and its unit behind it."""

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
    """An axis of values from `low` to `high`: logarithmic, but linear below `unit`; linear everywhere where that is 0."""

    left: ClassVar[float] = 12.0
    right: ClassVar[float] = WIDTH - 12.0
    low: float
    high: float
    unit: float

    def scaled(self, value: float) -> float:
        return math.asinh(value / self.unit) if self.unit else value

    def position(self, value: float) -> float:
        low, value, high = map(self.scaled, (self.low, value, self.high))
        return self.left + (value - low) / ((high - low) or 1.0) * (self.right - self.left)

    def with_value(self, value: float) -> Self:
        """The axis with a value that is at most a third of its length away."""
        is_near = -0.3 <= (self.position(value) - self.left) / (self.right - self.left) <= 1.3
        return replace(self, low=min(self.low, value), high=max(self.high, value)) if is_near else self


@dataclass(frozen=True, kw_only=True, slots=True)
class Histogram:
    """Bars with areas proportional to counts, and a threshold. At least one bin, ascending."""

    kind: ClassVar[str] = "histogram"
    hint: ClassVar[str] = "Areas stand for documents: blue passes the rule, orange fails it, whatever other rules decide."
    bins: Sequence[Bin]
    threshold: float | None
    is_log: bool

    @classmethod
    def of(cls, bins: Iterable[Bin], threshold: float | None = None, is_log: bool | None = None) -> Self:
        """The histogram with neighbours joined until each bar takes a sixtieth of the axis. Counts stay whole, and parts stay
        apart, so a threshold inside a bar moves nothing from one side to the other."""
        listed = list(bins)
        drawn = cls(bins=listed, threshold=threshold, is_log=_spreads(listed) if is_log is None else is_log)
        scaled, bars = drawn._axis().scaled, listed[:1]
        least = (scaled(listed[-1].high) - scaled(listed[0].low)) / MOST_BARS
        for each in listed[1:]:
            last = bars[-1]
            if scaled(last.high) - scaled(last.low) < least and scaled(each.high) - scaled(last.low) <= 2 * least:
                bars[-1] = replace(last, high=each.high, passed=last.passed + each.passed, failed=last.failed + each.failed)
            else:
                bars.append(each)
        return replace(drawn, bins=bars)

    def axis(self) -> Axis:
        return self._axis() if self.threshold is None else self._axis().with_value(self.threshold)

    def _axis(self) -> Axis:
        low, high = self.bins[0].low, self.bins[-1].high
        return Axis(low=low, high=high, unit=self._least_positive() if self.is_log else 0.0)

    def _least_positive(self) -> float:
        return min((each.low for each in self.bins if each.low > 0), default=self.bins[-1].high / 2)

    def marks(self, axis: Axis) -> Iterator[tuple[float, float, float, float, float, str]]:
        """x, y, width, height, count and class of each part of each bar."""
        base = 136.0
        widths = [max(axis.position(each.high) - axis.position(each.low), 2.0) for each in self.bins]
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
            first, last = math.ceil(math.log10(self._least_positive())), math.floor(math.log10(high))
            step = max(1, math.ceil((last - first + 1) / 8))
            return [*([0.0] if low <= 0 else []), *(10.0**power for power in range(first, last + 1, step))]
        rough = (high - low) / 6 or 1.0
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
        return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _spreads(bins: Sequence[Bin]) -> bool:
    """Whether values are spread over magnitudes: the largest is far above the median."""
    counts = [each.count for each in bins]
    middle = next(each for each, reached in zip(bins, accumulate(counts)) if reached >= sum(counts) / 2)
    return middle.high > 0 and bins[-1].high > _LOG_RANGE * middle.high and bins[0].low >= 0


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowStep:
    """A stage that `left` documents leave, with a text and the class of the part that leaves."""

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
        return max(30.0, step.left * 260.0 / self.read + 14.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stacked:
    """Shares that change along an axis. Rows are start, stop, and the share of each heading."""

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
