"""`datapipe bench`: what each piece of work costs on one core, a table for each source, and the bottleneck. For people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from datapipe.report.funnel import size

_SMALL_BYTES = 4 << 20
"""Text of a sample below which opening files and loading the tokenizer weigh more than they do in a run."""

_BUSY = 0.9
"""Below this share of its core, the process was held up, and the times are longer than they need be."""


def print_bench(bench: Mapping[str, Any], console: Console) -> None:
    """Prints what `executor.bench.Bench.to_json` gives."""
    where = "one core" if bench["core"] is None else f"one core (number {bench['core']})"
    console.print(Text(f"{bench['name']}: one process, {where}; reading is from the system's cache", style="bold"))
    for name, source in bench["sources"].items():
        console.print(_table(name, source))
        for line in _findings(source, bench["cores"]):
            console.print(line, soft_wrap=True)
        console.print()
    if len(bench["sources"]) > 1:
        total = bench["total"]
        console.print(Text(f"all sources, by their size: {_whole(total, bench['cores'])}", style="bold"), soft_wrap=True)
    console.print(f"peak memory {size(bench['peak_bytes'])}; {size(bench['scratch_bytes'])} of temporary files, removed")


def _table(name: str, source: Mapping[str, Any]) -> Table:
    sample = "all of it" if source["is_whole"] else "a sample"
    title = f"{name}: {size(source['text_bytes'])} of text in {source['documents']:,} documents, {sample}"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("")
    for column in ("documents in", "out", "MB in", "seconds", "share", "MB/s"):
        table.add_column(column, justify="right")
    for row in source["rows"]:
        slowest = row["name"] == source["bottleneck"]
        table.add_row(
            f"▶ {row['name']}" if slowest else row["name"],
            _count(row["documents_in"]),
            _count(row["documents_out"]),
            f"{row['bytes'] / 1e6:,.1f}" if row["bytes"] else "",
            f"{row['seconds']:,.3f}",
            "once" if row["share"] is None else f"{row['share']:.0%}",
            "" if row["mb_per_s"] is None else f"{row['mb_per_s']:,.1f}",
            style="bold yellow" if slowest else "",
        )
    table.add_section()
    rate = "" if source["mb_per_s"] is None else f"{source['mb_per_s']:,.2f}"
    chain = ["whole chain", "", "", f"{source['text_bytes'] / 1e6:,.1f}", f"{source['seconds']:,.3f}", "100%", rate]
    table.add_row(*chain, style="bold")
    return table


def _findings(source: Mapping[str, Any], cores: int) -> list[Text]:
    slowest = next(row for row in source["rows"] if row["name"] == source["bottleneck"])
    passes = f"median of {source['passes']} passes" if source["passes"] > 1 else "one pass: more --seconds give a median"
    lines = [
        Text(f"▶ bottleneck: {slowest['name']}, {slowest['share'] or 0:.0%} of the time. {source['advice']}", "bold yellow"),
        Text(f"{_whole(source, cores)} ({passes})"),
    ]
    if source["quarantined"]:
        see = "to see them: datapipe run --limit, then datapipe inspect --quarantined"
        lines.append(Text(f"{source['quarantined']:,} documents could not be read or processed; {see}"))
    if source["text_bytes"] < _SMALL_BYTES:
        lines.append(Text("a small sample: what each task costs whatever its size weighs more here than in a run"))
    if source["cpu_share"] < _BUSY:
        held = f"{source['cpu_share']:.0%} of its core: other processes or the disk held it up, so the rates are too low"
        lines.append(Text(f"this process had {held}", "red"))
    return lines


def _whole(found: Mapping[str, Any], cores: int) -> str:
    """The rate and the time for everything, on one core and, by plain multiplication, on those that are there."""
    rate, hours = found["mb_per_s"], found["estimated_core_hours"]
    if rate is None:
        return "too little was read to tell a rate"
    several = f"; {cores} cores, if they scale: {rate * cores:,.1f} MB/s, {_duration(hours / cores)}" if cores > 1 else ""
    return f"{rate:,.2f} MB/s per core, {_duration(hours)} for about {size(found['estimated_text_bytes'])} of text{several}"


def _duration(hours: float) -> str:
    if hours >= 1:
        return f"{hours:,.1f} hours"
    return f"{hours * 60:,.1f} minutes" if hours * 60 >= 1 else f"{hours * 3600:,.1f} seconds"


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"
