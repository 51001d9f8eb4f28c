"""The charts of a report: what each of the forms draws. `html/templates/charts.html` has their elements.

A chart draws a table. Lengths of its marks, or areas, are proportional to the numbers of the table.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import ClassVar, NamedTuple, Self

from datapipe.dataclass import dataclass, replace

WIDTH = 720  # Units of a chart across. On a page of this width they are CSS pixels.
MOST_BARS = 60
_LOG_RANGE = 20.0
"""Values whose largest is so many times their median are drawn on a logarithmic axis."""

HEAT_COLORS = 8
_HEAT_RANGE = 8.0  # the same for colors, of which the eye distinguishes few
MOST_TITLED = 2500  # squares of a heat map, with a title each. More have none: a page would have 80 bytes for each.
_TALL, _MOST_TALL = 320.0, 900.0  # of a heat map: where squares are not small, and at most
_MOST_LABEL, _CHAR = 16, 7.0  # characters of a label, and their width
_GAP, _TITLE = 10, 24  # beside a tile, and above


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Intervals:
    """A line for each row of the table, from its column 3 to its column 4, with a mark of column 2 and a fainter one of
    column 1. A number that is None has none."""

    kind: ClassVar[str] = "intervals"
    hint: ClassVar[str] = ""
    least: float  # of the axis
    most: float

    def x(self, value: float) -> float:
        return 230.0 + (value - self.least) / ((self.most - self.least) or 1.0) * 410.0


@dataclass(frozen=True, kw_only=True)
class HeatMap:
    """A square for each cell of a grid, in a color for its number. Columns are the last axis, rows the one before; where there
    are more, each name on the others has a separate tile."""

    kind: ClassVar[str] = "heat"
    axes: Sequence[tuple[str, Sequence[str]]]  # the name of each, and its parts of the names of cells, in order
    numbers: Mapping[str, float]  # by the name of the cell, "en/science/19", in the order of the axes
    is_share: bool = False

    @property
    def caption(self) -> str:
        """What tiles, rows and columns are: "Columns, from the left: quality, 0 to 19."."""
        *others, columns = self.axes
        kinds = [("Columns, from the left", columns), *(("Rows, from the top", rows) for rows in others[-1:])]
        known = [f"{kind}: {name}, {parts[0]} to {parts[-1]}." for kind, (name, parts) in reversed(kinds)]
        tiles = [f"Tiles: {'/'.join(name for name, _ in others[:-1])}."] if others[1:] else []
        return " ".join([*tiles, *known, "The key has the least number of each color."])

    @cached_property
    def _tiles(self) -> Sequence[str]:
        return list(dict.fromkeys("/".join(name.split("/")[:-2]) for name in self.numbers))

    @cached_property
    def _parts(self) -> tuple[Sequence[str], Sequence[str]]:
        """Of rows and columns."""
        rows = self.axes[-2][1] if len(self.axes) > 1 else [""]
        return rows, self.axes[-1][1]

    @cached_property
    def _grid(self) -> _Grid:
        rows, columns, tiles = *map(len, self._parts), len(self._tiles)
        if tiles == 1:
            left = 18.0 + _CHAR * max(map(_label_length, self._parts[0]))
            return _Grid(left, min(72.0, (WIDTH - 12 - left) / columns), min(24.0, _MOST_TALL / rows), 1)
        for side, tall in (*((side, _TALL) for side in range(24, 11, -2)), *((side, _MOST_TALL) for side in range(24, 1, -1))):
            across = int((WIDTH - 24 + _GAP) // (columns * side + _GAP))
            if across and -(-tiles // across) * (rows * side + _TITLE) <= tall:
                return _Grid(12.0, side, side, -(-tiles // -(-tiles // across)))
        width = min(2.0, (WIDTH - 24) / columns)
        across = max(1, int((WIDTH - 24 + _GAP) // (columns * width + _GAP)))
        return _Grid(12.0, width, max(0.25, (_MOST_TALL / -(-tiles // across) - _TITLE) / rows), across)

    @cached_property
    def _bottom(self) -> float:
        return self._corner(len(self._tiles) - 1)[1] + len(self._parts[0]) * self._grid.height

    @property
    def height(self) -> float:
        return self._bottom + 36

    def _corner(self, tile: int) -> tuple[float, float]:
        """x and y of the first square of a tile."""
        left, width, height, across = self._grid
        rows, columns = map(len, self._parts)
        return left + tile % across * (columns * width + _GAP), 20 + tile // across * (rows * height + _TITLE)

    @cached_property
    def _borders(self) -> list[float]:
        """The least number of each color: in equal parts, or where numbers are spread over magnitudes in equal ratios."""
        positive = sorted(number for number in self.numbers.values() if number > 0) or [1.0]
        low, middle, high = positive[0], positive[len(positive) // 2], positive[-1]
        if high > _HEAT_RANGE * middle:
            return [low * (high / low) ** (color / HEAT_COLORS) for color in range(HEAT_COLORS)]
        return [low + (high - low) * color / HEAT_COLORS for color in range(HEAT_COLORS if high > low else 1)]

    def color(self, number: float) -> int:
        """From 1, the faintest, to HEAT_COLORS; 0 for nothing."""
        return bisect_right(self._borders, number) + HEAT_COLORS - len(self._borders) if number > 0 else 0

    def text(self, number: float) -> str:
        return f"{100 * number:.2g}%" if self.is_share else short(number, "B")

    def squares(self) -> Iterator[tuple[float, float, float, str]]:
        """x, y, number and name of each cell."""
        rows, columns = ({part: at for at, part in enumerate(parts)} for parts in self._parts)
        tiles = {tile: self._corner(number) for number, tile in enumerate(self._tiles)}
        _, width, height, _ = self._grid
        for name, number in self.numbers.items():
            *others, column = name.split("/")
            left, top = tiles["/".join(others[:-1])]
            yield left + columns[column] * width, top + rows[others[-1] if others else ""] * height, number, name

    def marks(self) -> Iterator[tuple[int, str, str]]:
        """Color, path and title of each mark: of a cell or, where there are many, of all cells of a color."""
        _, width, height, _ = self._grid
        wide, tall = (coordinate(side - 0.5 if side > 3 else side) for side in (width, height))
        titled, paths = len(self.numbers) <= MOST_TITLED, dict[int, list[str]]()
        for x, y, number, name in self.squares():
            path = f"M{coordinate(x)} {coordinate(y)}h{wide}v{tall}h-{wide}z"
            if titled:
                yield self.color(number), path, f"{name}: {self.text(number)}"
            else:
                paths.setdefault(self.color(number), []).append(path)
        for color, listed in paths.items():
            yield color, "".join(listed), ""
        for x, color, _ in self._legend():
            yield color, f"M{coordinate(x)} {coordinate(self._bottom + 14)}h14v12h-14z", ""

    def _legend(self) -> Iterator[tuple[float, int, str]]:
        """x, color and words of each."""
        colors = [(self.color(border), self.text(border)) for border in self._borders]
        if any(number <= 0 for number in self.numbers.values()):
            colors.insert(0, (0, "0"))
        for place, (color, words) in enumerate(colors):
            yield 12.0 + 78 * place, color, words

    def texts(self) -> Iterator[tuple[float, float, str, int, str]]:
        """x, y, words, the most characters of them, and class of each text."""
        left, width, height, _ = self._grid
        rows, columns = self._parts
        for x, _, words in self._legend():
            yield x + 18, self._bottom + 24, words, _MOST_LABEL, "start tick"
        if len(self._tiles) > 1:
            most = int((len(columns) * width + _GAP - 4) / _CHAR)
            for number, tile in enumerate(self._tiles if most > 1 else ()):
                x, y = self._corner(number)
                yield x, y - 5, tile, most, "start tick"
            return
        for at in range(0, len(rows), math.ceil(13 / height)):
            yield left - 6, 20 + (at + 0.5) * height + 4, rows[at], _MOST_LABEL, "end tick"
        for at in range(0, len(columns), math.ceil(_CHAR * max(map(_label_length, columns)) / width)):
            x = left + (at + 0.5) * width
            if x + _label_length(columns[at]) * _CHAR / 2 < WIDTH:
                yield x, 14, columns[at], _MOST_LABEL, "middle tick"
        if width >= 48 and height >= 16:
            for x, y, number, _ in self.squares():
                on = " on" if self.color(number) > HEAT_COLORS - 3 else ""
                yield x + width / 2, y + height / 2 + 4, self.text(number), _MOST_LABEL, f"middle{on}"


def _label_length(part: str) -> int:
    """Characters of a label. A page shows control characters by their code points."""
    return min(len(part) if part.isprintable() else _MOST_LABEL, _MOST_LABEL)


class _Grid(NamedTuple):
    """The squares of a heat map."""

    left: float
    width: float
    height: float
    across: int  # tiles beside each other


Drawing = Bars | Histogram | Flow | Stacked | HeatMap | Intervals


def coordinate(number: float) -> str:
    return f"{number:.3f}".rstrip("0").rstrip(".")


def short(number: float, billion: str = "G") -> str:
    """A number in few characters: 1,200, 12.5k, 3.4M, 0.0015. `billion`: "B" of tokens, "G" of bytes."""
    size = abs(number)
    for unit, letter in ((1e12, "T"), (1e9, billion), (1e6, "M"), (1e4, "k")):
        if size >= unit:
            return f"{number / (1e3 if letter == 'k' else unit):.3g}{letter}"
    return f"{number:,.0f}" if number == int(number) or size >= 100 else f"{number:.3g}"


def cut(text: str, most: int) -> str:
    """A text of at most so many characters, its middle left out."""
    if len(text) <= most:
        return text
    head = (most - 1) // 2
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"
