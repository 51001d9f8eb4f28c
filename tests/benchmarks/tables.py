"""What a benchmark gives: tables of figures and bounds of ratios; and the settings that all of them share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

NOT_MEASURED = "not installed"
"""Stands in the cells of a peer that this environment does not have."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of a run of benchmarks.

    Attributes:
        quick: the smallest sizes: to see that every benchmark runs, not to read its figures.
        data: the folder of real corpora.
        folder: scratch space, about 2 GB.
        web: JSON lines of English web text inside `folder`, field `text`.
        only: measure what has this in its name.
        documents: the size of what grows with documents; 0: the size that the README shows.
        sizes: bytes of the corpora of `scale`; none: those that the README shows.
        figures: the file that keeps the figures of `scale`; None: the one beside it. For `peers`: results, not measured again.
        price: dollars for a core and hour.
        write: whether READMEs, and files that keep results, get what is measured.
        against: a commit or file whose results `peers` compares with its own.
    """

    quick: bool
    data: Path
    folder: Path
    web: Path
    only: str = ""
    documents: int = 0
    sizes: Sequence[int] = ()
    figures: Path | None = None
    price: float = 0.04
    write: bool = False
    against: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table: its title, one paragraph on what was measured, and its cells as text. The first column is left-aligned.

    `kept_in` names the document that holds a copy beside other rows or text, which `--write` leaves as it is; "print" is none.
    Without it, `--write` replaces the section of `tests/benchmarks/README.md`.
    """

    title: str
    note: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    kept_in: str = ""

    def to_markdown(self, measured: str = "") -> str:
        """The section of a README. `measured`: when and on what."""
        lines = [f"| {' | '.join(self.header)} |", "|---|" + "---:|" * (len(self.header) - 1)]
        lines += [f"| {' | '.join(row)} |" for row in self.rows]
        note = f"{self.note}\n\n{measured}" if measured else self.note
        return "\n".join([f"## {self.title}", "", note, "", *lines, ""])


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A ratio of two figures of one run, and the range that it keeps on any machine."""

    name: str
    ratio: float
    least: float = 0.0
    most: float = float("inf")
    of: str = ""  # what has this ratio, where another run may choose another one

    @property
    def holds(self) -> bool:
        return self.least <= self.ratio <= self.most

    def __str__(self) -> str:
        limit = f"at least {self.least:g}" if self.most == float("inf") else f"at most {self.most:g}"
        of = f" ({self.of})" if self.of else ""
        return f"{'ok' if self.holds else 'BROKEN':<7}{self.name}{of}: {self.ratio:.3g}, {limit}"


def best_s(work: Callable[[], object], num_runs: int) -> float:
    """CPU seconds of this process for the fastest of `num_runs` calls, after one to warm up."""
    work()
    taken = []
    for _ in range(num_runs):
        started = time.process_time()
        work()
        taken.append(time.process_time() - started)
    return max(min(taken), 1e-9)


def both_best_s(work: Callable[[], object], other: Callable[[], object], num_runs: int) -> tuple[float, float]:
    """CPU seconds of the fastest calls of two, called in turn."""
    pairs = [(best_s(work, 1), best_s(other, 1)) for _ in range(num_runs)]
    first, second = zip(*pairs)
    return min(first), min(second)
