"""Compares the simulation of a run, `datapipe plan --at SIZE --json`, with what the run measured, figure by figure.

    python -m tests.benchmarks.fit SIMULATED.json RECORDS.json

RECORDS are those of `tests.benchmarks.scale`, {"records": [{"text_bytes": …, "tasks": {"map": …}, …}, …]}: the largest run is
compared, and the smaller ones of its recipe give a line by bytes of text, which is shown beside; of one run through the origin.
Of figures by kind of work, or by class of requests, the sum is compared first.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FIGURES = (
    *("documents", "tokens", "core_seconds", "driver_seconds", "bytes_written", "bytes_read"),
    *("requests", "peak_work_bytes", "peak_driver_bytes", "tasks"),
)
_OF_RECIPE = ("recipe", "keep_work", "split_bytes")


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A figure: what was measured, what the simulation has, and what a line through smaller runs has."""

    name: str
    measured: float
    simulated: float
    line: float | None = None

    @property
    def error(self) -> float:
        """Of the simulation, relative to the measured figure."""
        return error_of(self.simulated, self.measured)


def error_of(predicted: float, measured: float) -> float:
    return (predicted - measured) / measured if measured else float(predicted != 0)


def fits(simulated: Mapping[str, Any], measured: Mapping[str, Any], smaller: Sequence[Mapping[str, Any]] = ()) -> Iterator[Fit]:
    """The figures that both have."""
    theirs, others = _flat(simulated), [(run["text_bytes"], _flat(run)) for run in smaller]
    for name, value in _flat(measured).items():
        if name in theirs:
            points = [(size, figures[name]) for size, figures in others if name in figures]
            yield Fit(name=name, measured=value, simulated=theirs[name], line=_line(points, measured["text_bytes"]))


def fits_of_records(simulated: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> list[Fit]:
    largest = max(records, key=lambda run: run["text_bytes"])
    same = [run for run in records if all(run.get(name) == largest.get(name) for name in _OF_RECIPE)]
    return [*fits(simulated, largest, [run for run in same if run is not largest])]


def _flat(run: Mapping[str, Any]) -> dict[str, float]:
    flat: dict[str, float] = {}
    for name in (name for name in FIGURES if run.get(name)):
        by_name = run[name] if isinstance(run[name], Mapping) else {}
        flat[name] = sum(by_name.values()) if by_name else run[name]
        flat |= {f"{name}.{kind}": value for kind, value in by_name.items()}
    return flat


def _line(points: Sequence[tuple[float, float]], size: float) -> float | None:
    if not points:
        return None
    sizes, values = np.array(points, np.float64).T
    if len(points) == 1:
        return float(values[0] * size / sizes[0])
    slope, start = np.polyfit(sizes, values, 1)
    return float(start + slope * size)


def printed(rows: Sequence[Fit]) -> Iterator[str]:
    yield "| figure | measured | simulated | error | by smaller runs | error |"
    yield "|---|---:|---:|---:|---:|---:|"
    for row in rows:
        line = ("", "") if row.line is None else (f"{row.line:,.4g}", f"{error_of(row.line, row.measured):+.1%}")
        yield f"| {row.name} | {row.measured:,.4g} | {row.simulated:,.4g} | {row.error:+.1%} | {line[0]} | {line[1]} |"


if __name__ == "__main__":
    _simulated, _records = (json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:])
    print(*printed(fits_of_records(_simulated, _records["records"])), sep="\n")
