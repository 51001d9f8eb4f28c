"""A section of the report, and words that several have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from datapipe.metrics import counted
from datapipe.report.html.drawing import Chart, Table


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
