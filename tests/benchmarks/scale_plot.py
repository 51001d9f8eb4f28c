"""The growth of runs as an SVG: each figure beside its value at the smallest size, over the size, on logarithmic axes."""

import math
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from datapipe.report.drawing import WIDTH, short
from tests.benchmarks.scale_figures import GROWING, Figures

_COLORS = {
    "reads": "#0072b2",
    "requests": "#e69f00",
    "driver seconds": "#009e73",
    "core seconds": "#56b4e9",
    "peak memory of the driver": "#cc79a7",
    "peak memory of a worker": "#d55e00",
}
_GREY = "#7f7f7f"
Curve = Sequence[tuple[float, float]]  # (bytes of text, ratio)
_HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 430, 60, 190, 20, 60


def write_plot(path: Path, records: Sequence[Figures]) -> None:
    path.write_text(plot(records), encoding="utf-8")


def plot(records: Sequence[Figures]) -> str:
    """Lines of the figures, and a dashed one of what grows in proportion to the text."""
    first, last = records[0].text_bytes, records[-1].text_bytes
    curves = {name: _curve(records, name) for name in _COLORS}
    proportional = [(first, 1.0), (last, last / first)]
    ratios = [ratio for curve in (*curves.values(), proportional) for _, ratio in curve]
    axes = _Axes((first, last), (min(ratios), max(ratios)))
    marks = [*axes.ticks(), axes.line(proportional, _GREY, 'stroke-dasharray="4"')]
    marks += [axes.line(curve, _COLORS[name]) for name, curve in curves.items() if curve]
    ends = [("in proportion", _GREY, proportional), *((name, _COLORS[name], curve) for name, curve in curves.items() if curve)]
    title = f'<text x="{_LEFT}" y="{_HEIGHT - 6}">bytes of text; each figure divided by its first</text>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">'
    return "\n".join([head, *marks, *axes.labels(ends), title, "</svg>", ""])


def _curve(records: Sequence[Figures], name: str) -> Curve:
    points = [(each.text_bytes, value) for each in records if (value := GROWING[name](each)) > 0]
    return [(size, value / points[0][1]) for size, value in points] if len(points) > 1 else []


class _Axes:
    """Two logarithmic axes by their ends."""

    def __init__(self, sizes: tuple[float, float], ratios: tuple[float, float]) -> None:
        self._sizes, self._ratios = sizes, ratios

    def x(self, size: float) -> float:
        return _LEFT + _share(size, self._sizes) * (WIDTH - _LEFT - _RIGHT)

    def y(self, ratio: float) -> float:
        return _HEIGHT - _BOTTOM - _share(ratio, self._ratios) * (_HEIGHT - _BOTTOM - _TOP)

    def line(self, curve: Curve, color: str, style: str = "") -> str:
        points = " ".join(f"{self.x(size):.1f},{self.y(ratio):.1f}" for size, ratio in curve)
        return f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2" {style}/>'

    def labels(self, ends: Sequence[tuple[str, str, Curve]]) -> Iterator[str]:
        """Names beside the ends of curves, each below the one before."""
        lowest = 0.0
        for name, color, curve in sorted(ends, key=lambda end: self.y(end[2][-1][1])):
            lowest = max(self.y(curve[-1][1]) + 4, lowest + 15)
            yield f'<text x="{self.x(curve[-1][0]) + 6:.1f}" y="{lowest:.1f}" fill="{color}">{escape(name)}</text>'

    def ticks(self) -> Iterator[str]:
        for size in self._sizes:
            yield f'<text x="{self.x(size):.1f}" y="{_HEIGHT - _BOTTOM + 34}" text-anchor="middle">{short(size)}</text>'
        for ratio in self._ratios:
            yield f'<text x="{_LEFT - 8}" y="{self.y(ratio) + 4:.1f}" text-anchor="end">{short(ratio)}</text>'


def _share(value: float, ends: tuple[float, float]) -> float:
    """How far a value is from the first of two ends to the second."""
    low, high = ends
    return math.log(value / low) / (math.log(high / low) or 1.0)
