"""What a benchmark gives: a table for `tests/benchmarks/README.md`, and the settings that all of them share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

NOT_MEASURED = "not installed"
"""Stands in the cells of a peer that this environment has not."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run of all benchmarks is told.

    Attributes:
        quick: the smallest sizes: to see that every benchmark runs, not to read its figures.
        data: the folder of real corpora.
        folder: scratch space, about 1 GB.
        web: JSON lines of English web text inside `folder`, field `text`.
        datatrove, datatrove_script: the Python that has datatrove, and the script that it runs; "": not measured.
        streaming: the Python that has mosaicml-streaming and torch; "": not measured.
    """

    quick: bool
    data: Path
    folder: Path
    web: Path
    datatrove: str = ""
    datatrove_script: str = ""
    streaming: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table: its title, one paragraph on what was measured, and its cells as text. The first column is left-aligned."""

    title: str
    note: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def to_markdown(self) -> str:
        lines = [f"| {' | '.join(self.header)} |", "|---|" + "---:|" * (len(self.header) - 1)]
        lines += [f"| {' | '.join(row)} |" for row in self.rows]
        return "\n".join([f"## {self.title}", "", self.note, "", *lines, ""])


def ratio_cells(ours: float, peer: float | None) -> tuple[str, str]:
    """The cells of a peer: its rate, and how many times as fast we are."""
    return (NOT_MEASURED, "") if peer is None else (f"{peer:,.2f}", f"{ours / peer:,.0f}")
