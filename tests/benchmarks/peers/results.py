"""What comparisons measured: pairs of figures, the file that keeps them, and what changed since another commit.

{"version": 1, "comparisons": {"loader, input_ids: torch": {"peer": "torch 2.13.0", "pairs": [[31.2, 130.9], …], …}, …}}
"""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.tables import Table

KEPT = Path(__file__).parents[1] / "peers.json"
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What one side of a pair measured. `kept`: the share of documents that it kept."""

    value: float
    kept: float | None = None


@dataclass(frozen=True, kw_only=True)
class Result:
    """Pairs of one comparison.

    Attributes:
        peer: the library with its version.
        unit: of the figures. Larger ones are better where it ends with "second", smaller ones elsewhere.
        pairs: (ours, the peer's), measured one after the other.
        kept: shares of documents, (ours, the peer's) of the same text.
        measured: when and on what.
        error: why there are no pairs.
    """

    peer: str
    unit: str
    pairs: tuple[tuple[float, float], ...] = ()
    kept: tuple[float, float] | None = None
    measured: str = ""
    error: str = ""

    @property
    def ratios(self) -> list[float]:
        """How many times as fast as the peer, for each pair."""
        return [ours / peer if self.unit.endswith("second") else peer / ours for ours, peer in self.pairs]

    @property
    def times(self) -> float:
        return median(self.ratios)

    @property
    def medians(self) -> tuple[float, float]:
        """Of the figures: ours, the peer's."""
        ours, theirs = zip(*self.pairs)
        return median(ours), median(theirs)

    @property
    def same_share(self) -> bool:
        return self.kept is None or abs(self.kept[0] - self.kept[1]) <= 0.01

    def holds(self, ratio: float) -> bool:
        """Whether a ratio is within the spread."""
        return min(self.ratios) <= ratio <= max(self.ratios)


Results = Mapping[str, Result]


def write(path: Path, results: Results) -> None:
    records = {name: {key: value for key, value in asdict(results[name]).items() if value} for name in sorted(results)}
    path.write_text(json.dumps({"version": VERSION, "comparisons": records}, indent=1) + "\n", encoding="utf-8")


def read(content: str) -> dict[str, Result]:
    found: dict[str, Any] = json.loads(content)
    if found["version"] != VERSION:
        raise ValueError(f"results of version {found['version']}, expected {VERSION}")
    return {name: _result(record) for name, record in found["comparisons"].items()}


def _result(record: dict[str, Any]) -> Result:
    kept = record.pop("kept", None)
    return Result(pairs=tuple(map(tuple, record.pop("pairs"))), kept=kept and tuple(kept), **record)


def read_kept() -> dict[str, Result]:
    return read(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}


def read_at(source: str) -> dict[str, Result]:
    """The results in a file, or those that a commit has."""
    if Path(source).is_file():
        return read(Path(source).read_text(encoding="utf-8"))
    command = ["git", "show", f"{source}:./{KEPT.name}"]
    return read(subprocess.run(command, cwd=KEPT.parent, check=True, stdout=subprocess.PIPE, text=True).stdout)


def changes(before: Results, after: Results, source: str) -> Table:
    """Comparisons in both: medians of the ratios, and whether each is outside the spread of the other."""
    rows = []
    for name in sorted({*before} & {*after}):
        old, new = before[name], after[name]
        changed = "" if old.holds(new.times) or new.holds(old.times) else "**changed**"
        change = f"{new.times / old.times - 1:+.0%}"
        rows.append((name, f"{number(old.times)} ({spread(old)})", f"{number(new.times)} ({spread(new)})", change, changed))
    return Table(
        title=f"Beside {source}",
        note="How many times as fast as the peer, with the lowest and highest pair. Changed: outside both spreads.",
        header=("comparison", "before", "after", "change", "outside both spreads"),
        rows=rows,
        kept_in="print",
    )


def number(value: float) -> str:
    """Two digits or more."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def spread(result: Result) -> str:
    return f"{number(min(result.ratios))} to {number(max(result.ratios))}"
