"""`datapipe inspect --sweep`: what other thresholds would keep, a table for each source. For people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rich.console import Console
from rich.table import Table
from rich.text import Text

from datapipe.report.funnel import size


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
    """What is shown; `executor.sweep.Sweep` has it."""

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
    shown = [*sweep.sources, *([sweep.total] if len(sweep.sources) > 1 else [])]
    for one in shown:
        console.print(_table(sweep, one))
    console.print(
        "Of the documents that the run kept. alone: by this threshold only. with the others: by the stage's others too."
    )
    if sweep.dropping:
        console.print(Text(f"Not shown, since the stage has no `mode: tag` there: {', '.join(sweep.dropping)}"), soft_wrap=True)
    if sweep.total.unsure:
        console.print(
            Text(
                f"{sweep.total.unsure:,} documents failed an earlier rule before one that cannot be tried again was noted; "
                f"they are counted as passing that one, so 'with the others' may be too high by as many."
            ),
            soft_wrap=True,
        )


def _table(sweep: Sweep, source: SourceSweep) -> Table:
    title = f"{source.name}: {source.tagged.documents:,} documents, {size(source.tagged.bytes)}"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column(sweep.option or sweep.rule, justify="right")
    for name in ("alone", "", "text", "", "with the others", "", "text", ""):
        table.add_column(name, justify="right")
    for one in source.kept:
        in_force = one.threshold == source.limit
        mark = f"▶ {_number(one.threshold)}" if in_force else _number(one.threshold)
        cells = [*_cells(one.alone, source.tagged), *_cells(one.together, source.tagged)]
        table.add_row(mark, *cells, style="bold yellow" if in_force else "")
    if any(one.threshold == source.limit for one in source.kept):
        table.caption, table.caption_justify = "▶ in force", "left"
    return table


def _cells(kept: Count, of: Count) -> list[str]:
    return [f"{kept.documents:,}", _share(kept.documents, of.documents), size(kept.bytes), _share(kept.bytes, of.bytes)]


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else ""


def _number(value: float) -> str:
    """As short as it can be and still be read back as the same threshold."""
    return f"{int(value):,}" if value == int(value) and abs(value) < 1e15 else repr(value)
