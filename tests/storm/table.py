"""What became of each fault, and the table of all of them.

fault ─▶ pending ─▶ verdict of its round: same | refused | wrong
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum


class Verdict(StrEnum):
    """What became of a fault.

    Attributes:
        SAME: the run, or the same command again, made the bytes of an undisturbed run.
        REFUSED: a command ended with a message that names the fault, and the same command made the right bytes once the fault
            was gone, where it can go.
        WRONG: anything else.
    """

    SAME = "same bytes"
    REFUSED = "refused, fault named"
    WRONG = "wrong"


@dataclass(slots=True)
class Table:
    """Faults by kind and verdict. `skipped`: why a kind cannot be tried on this machine."""

    counts: dict[str, Counter[Verdict]] = field(default_factory=dict)
    rounds: Counter[str] = field(default_factory=Counter)
    skipped: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, kind: str, verdict: Verdict, count: int) -> None:
        self.counts.setdefault(kind, Counter())[verdict] += count

    def total(self, kind: str) -> int:
        return self.counts.get(kind, Counter()).total()

    def num_failures(self, kind: str) -> int:
        return sum(failure.startswith(f"{kind}:") for failure in self.failures)

    @property
    def is_wrong(self) -> bool:
        return any(counts[Verdict.WRONG] for counts in self.counts.values()) or bool(self.failures)

    def lines(self) -> list[str]:
        """A Markdown table."""
        rows = [("fault", "rounds", "faults", *(verdict.value for verdict in Verdict))]
        for kind, counts in self.counts.items():
            numbers = (self.rounds[kind], counts.total(), *(counts[verdict] for verdict in Verdict))
            rows.append((kind, *(f"{number:,}" for number in numbers)))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [" | ".join(value.ljust(width) for value, width in zip(row, widths)) for row in rows]
        rule = "|".join("-" * (width + 1 + (column > 0)) for column, width in enumerate(widths))
        skipped = [f"{kind}: skipped, {reason}" for kind, reason in self.skipped.items()]
        return [f"| {lines[0]} |", f"|-{rule}|", *(f"| {line} |" for line in lines[1:]), *skipped]
