"""`datapipe bench`: the time of each kind of work on one core and the bottleneck, by source; the diagnosis of a loader."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console

from datapipe.quantities import counted, rough_duration, size
from datapipe.report.cells import Cell, Share, Table
from datapipe.report.layout import NumberTable, print_text

_SMALL_BYTES = 4 << 20
"""Samples with less text spend a larger share than a run on opening files and loading the tokenizer."""

_BUSY = 0.9
"""With less than this share of its core, the process waited for others, and its times are too long."""


def print_bench(bench: Mapping[str, Any], console: Console) -> None:
    core = "one core" if bench["core"] is None else f"one core (number {bench['core']})"
    print_text(f"{bench['name']}: one process on {core}, files in the page cache", console, "bold")
    for name, source in bench["sources"].items():
        console.print(_table(name, source))
        for line, style in _findings(source, bench["cores"]):
            print_text(line, console, style)
        console.print()
    if len(bench["sources"]) > 1:
        print_text(f"all sources, weighted by size: {_whole(bench['total'], bench['cores'])}", console, "bold")
    print_text(f"peak memory {size(bench['peak_bytes'])}; temporary files {size(bench['scratch_bytes'])}, removed", console)


def _table(name: str, source: Mapping[str, Any]) -> NumberTable:
    sample = "the whole source" if source["is_whole"] else "a sample"
    title = f"{name}: {size(source['text_bytes'])} of text in {counted(source['documents'], 'document')}, {sample}"
    slowest = f"▶ {source['bottleneck']}"
    rows: list[list[Cell]] = [
        [
            slowest if row["name"] == source["bottleneck"] else row["name"],
            row["seconds"],
            "once" if row["share"] is None else Share(row["share"]),
            row["mb_per_s"],
            row["documents_in"],
            row["documents_out"],
            row["bytes"] / 1e6 if row["bytes"] else None,
        ]
        for row in source["rows"]
    ]
    rows.append(["whole chain", source["seconds"], Share(1), source["mb_per_s"], None, None, source["text_bytes"] / 1e6])
    headings = ["", "seconds", "share", "MB/s", "docs in", "out", "MB in"]
    return NumberTable.of(Table(title=title, headings=headings, rows=rows, strong=[slowest, "whole chain"]))


def _findings(source: Mapping[str, Any], cores: int) -> Iterator[tuple[str, str]]:
    """Lines below the table, each with its style."""
    slowest = next(row for row in source["rows"] if row["name"] == source["bottleneck"])
    yield f"▶ bottleneck: {slowest['name']}, {slowest['share'] or 0:.0%} of the time. {source['advice']}", "bold yellow"
    several = f"median of {source['passes']} passes"
    passes = several if source["passes"] > 1 else "one pass; raise --seconds for a median of several"
    yield f"{_whole(source, cores)} ({passes})", ""
    if source["quarantined"]:
        hint = "To see them, run `datapipe run --limit` and then `datapipe inspect --quarantined`."
        yield f"{counted(source['quarantined'], 'document')} could not be read or processed. {hint}", ""
    if source["text_bytes"] < _SMALL_BYTES and not source["is_whole"]:
        yield "small sample: the fixed cost of a task is a larger share here than in a run; raise --sample", ""
    if source["cpu_share"] < _BUSY:
        share = f"{source['cpu_share']:.0%} of its core"
        yield f"this process had {share}: it waited for other processes or the disk, so the rates are too low", "red"


def _whole(figures: Mapping[str, Any], cores: int) -> str:
    """The rate and the time for everything, on one core, and multiplied for all cores of the machine."""
    rate, seconds = figures["mb_per_s"], 3600 * figures["estimated_core_hours"]
    if rate is None:
        return "too little text to estimate a rate"
    text = f"{rough_duration(seconds)} for about {size(figures['estimated_text_bytes'])} of text"
    all_cores = f"; on {cores} cores, if they scale: {rate * cores:,.1f} MB/s, {rough_duration(seconds / cores)}"
    return f"{rate:,.2f} MB/s per core, {text}{all_cores if cores > 1 else ''}"


def print_loader_bench(bench: Mapping[str, Any], console: Console) -> None:
    """Prints the diagnosis, and the figures of `bench.loader.bench_loader` behind it."""
    rate, batch_mb = bench["pipeline_rate"], bench["batch_bytes"] / 1e6
    taken = f"{bench['tokens_per_s']:,.0f} tokens/s, {bench['bytes_per_s'] / 1e6:,.1f} MB/s"
    spread = ", ".join(f"{name} {seconds * 1e3:.3f}" for name, seconds in bench["wait_percentiles_s"].items())
    print_text(f"{bench['diagnosis']}: {bench['reason']}", console, "bold")
    for name, value in (
        ("trainer", f"{counted(bench['steps'], 'step')} of {bench['step_s'] * 1e3:g} ms; it took {taken}"),
        ("loader", f"{rate:,.1f} batches/s: {bench['batch_tokens'] * rate:,.0f} tokens/s, {batch_mb * rate:,.1f} MB/s"),
        ("stall", f"{bench['wait_per_step_s'] * 1e3:.3f} ms a step, {bench['lost_share']:.3%} of the time"),
        ("stall spread", f"{spread} ms" if spread else "one step only"),
        ("first batch", f"{bench['first_batch_s']:.3f} s after opening, which took {bench['open_s']:.3f} s"),
        ("buffer", f"{bench['buffer_mean']:.1f} batches ready on average when one was asked for"),
        ("host memory", bench["host_memory"]),
    ):
        print_text(f"  {name:<14} {value}", console, hanging=15)
