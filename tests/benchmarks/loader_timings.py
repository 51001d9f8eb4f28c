"""Figures of the loader over interleaved rounds, each beside the gather of its round."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from tests.benchmarks.tables import NOT_MEASURED


@dataclass(frozen=True, kw_only=True)
class Timings:
    """The figures of one line of a table, a list over the rounds by column.

    Attributes:
        us: microseconds a batch.
        of_gather: speed beside the gather of the same round.
    """

    us: dict[str, list[float]] = field(default_factory=dict)
    of_gather: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, us: float, gather_us: float) -> None:
        self.us.setdefault(name, []).append(us)
        self.of_gather.setdefault(name, []).append(gather_us / us)

    def cell(self, name: str) -> str:
        if name not in self.us:
            return NOT_MEASURED
        share = median(self.of_gather[name])
        return f"{median(self.us[name]):,.1f} ({share:.2f})" if share > 0.095 else f"{median(self.us[name]):,.0f} ({share:.3f})"
