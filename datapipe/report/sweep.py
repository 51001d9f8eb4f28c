"""`datapipe inspect --sweep`: the documents that other thresholds would keep, a table for each source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rich.console import Console
from rich.table import Table
from rich.text import Text

from datapipe.metrics import counted, size


class Count(Protocol):
    @property
    def documents(self) -> int: ...
    @property
    def bytes(self) -> int: ...


class Kept(Protocol):
    @property
    def threshold(self) -> float: ...
    @property
    def alone(self) -> Count: ...
    @property
    def together(self) -> Count: ...


class SourceSweep(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def limit(self) -> float | None: ...
    @property
    def tagged(self) -> Count: ...
    @property
    def kept(self) -> Sequence[Kept]: ...
    @property
    def unsure(self) -> int: ...


class Sweep(Protocol):
    """What this module shows of `inspect.sweep.Sweep`."""

    @property
    def stage(self) -> str: ...
    @property
    def rule(self) -> str: ...
    @property
    def option(self) -> str: ...
    @property
    def side(self) -> str: ...
    @property
    def sources(self) -> Sequence[SourceSweep]: ...
    @property
    def total(self) -> SourceSweep: ...
    @property
    def dropping(self) -> Sequence[str]: ...


def print_sweep(sweep: Sweep, console: Console) -> None:
    """Prints a table for each source, and for their sum where there are several."""
    passes = "this value or more" if sweep.side == "min" else "this value or less"
    console.print(Text(f"{sweep.stage}, {sweep.option or sweep.rule}: {passes} passes the rule '{sweep.rule}'", style="bold"))
    for source in [*sweep.sources, *([sweep.total] if len(sweep.sources) > 1 else [])]:
        console.print(_table(sweep, source))
    console.print("The counts cover the documents that the run kept.")
    console.print("alone: documents that pass this threshold. with the others: that also pass the other rules of the stage.")
    if sweep.dropping:
        dropping = ", ".join(sweep.dropping)
        console.print(Text(f"Sources left out, because the stage has no `mode: tag` there: {dropping}"), soft_wrap=True)
    if sweep.total.unsure:
        console.print(Text(_unsure(sweep.total.unsure)), soft_wrap=True)


def _unsure(num_documents: int) -> str:
    return (
        f"{counted(num_documents, 'document')} failed a rule before another one whose value is not stored. They count as "
        f"passing the other one, so 'with the others' may be too high by as many."
    )


def _table(sweep: Sweep, source: SourceSweep) -> Table:
    title = f"{source.name}: {counted(source.tagged.documents, 'document')}, {size(source.tagged.bytes)}"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column(sweep.option or sweep.rule, justify="right")
    for name in ("alone", "", "text", "", "with the others", "", "text", ""):
        table.add_column(name, justify="right")
    for kept in source.kept:
        in_force = kept.threshold == source.limit
        mark = f"▶ {_number(kept.threshold)}" if in_force else _number(kept.threshold)
        cells = [*_cells(kept.alone, source.tagged), *_cells(kept.together, source.tagged)]
        table.add_row(mark, *cells, style="bold yellow" if in_force else "")
    if any(kept.threshold == source.limit for kept in source.kept):
        table.caption, table.caption_justify = "▶ in force", "left"
    return table


def _cells(kept: Count, total: Count) -> list[str]:
    shares = _share(kept.documents, total.documents), _share(kept.bytes, total.bytes)
    return [f"{kept.documents:,}", shares[0], size(kept.bytes), shares[1]]


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else ""


def _number(value: float) -> str:
    """The shortest text that reads back as the same threshold."""
    return f"{int(value):,}" if value == int(value) and abs(value) < 1e15 else repr(value)
