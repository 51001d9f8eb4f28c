"""`datapipe bench`: the time of each kind of work on one core, a table for each source, and the bottleneck."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Console

from datapipe.bench.loader import LoaderBench
from datapipe.metrics import counted, size
from datapipe.report.funnel import number_table
from datapipe.report.layout import NumberTable, print_text
from datapipe.report.tables import Cell, Share, Table

_SMALL_BYTES = 4 << 20
"""Samples with less text spend a larger share than a run on opening files and loading the tokenizer."""

_BUSY = 0.9
"""With less than this share of its core, the process waited for others, and its times are too long."""


def print_bench(bench: Mapping[str, Any], console: Console) -> None:
    """Prints the result of `bench.bench.Bench.to_json`."""
    core = "one core" if bench["core"] is None else f"one core (number {bench['core']})"
    print_text(f"{bench['name']}: one process on {core}, files in the page cache", console, "bold")
    for name, source in bench["sources"].items():
        console.print(_table(name, source))
        for line, style in _findings(source, bench["cores"]):
            print_text(line, console, style)
        console.print()
    if len(bench["sources"]) > 1:
        total = bench["total"]
        print_text(f"all sources, weighted by size: {_whole(total, bench['cores'])}", console, "bold")
    print_text(f"peak memory {size(bench['peak_bytes'])}; temporary files {size(bench['scratch_bytes'])}, removed", console)


def _table(name: str, source: Mapping[str, Any]) -> NumberTable:
    sample = "the whole source" if source["is_whole"] else "a sample"
    title = f"{name}: {size(source['text_bytes'])} of text in {counted(source['documents'], 'document')}, {sample}"
    text_mb = source["text_bytes"] / 1e6
    rows: list[list[Cell]] = [
        [
            f"▶ {row['name']}" if row["name"] == source["bottleneck"] else row["name"],
            row["seconds"],
            "once" if row["share"] is None else Share(row["share"]),
            row["mb_per_s"],
            row["documents_in"],
            row["documents_out"],
            row["bytes"] / 1e6 if row["bytes"] else None,
        ]
        for row in source["rows"]
    ]
    rows.append(["whole chain", source["seconds"], Share(1), source["mb_per_s"], None, None, text_mb])
    table = Table(headings=["", "seconds", "share", "MB/s", "docs in", "out", "MB in"], rows=rows)
    return number_table(title, table, {f"▶ {source['bottleneck']}": "bold yellow", "whole chain": "bold"})


def _findings(source: Mapping[str, Any], cores: int) -> list[tuple[str, str]]:
    """Lines below the table, each with its style."""
    slowest = next(row for row in source["rows"] if row["name"] == source["bottleneck"])
    passes = (
        f"median of {source['passes']} passes" if source["passes"] > 1 else "one pass; raise --seconds for a median of several"
    )
    lines = [
        (f"▶ bottleneck: {slowest['name']}, {slowest['share'] or 0:.0%} of the time. {source['advice']}", "bold yellow"),
        (f"{_whole(source, cores)} ({passes})", ""),
    ]
    if source["quarantined"]:
        hint = "To see them, run `datapipe run --limit` and then `datapipe inspect --quarantined`."
        lines.append((f"{counted(source['quarantined'], 'document')} could not be read or processed. {hint}", ""))
    if source["text_bytes"] < _SMALL_BYTES:
        lines.append(("small sample: the fixed cost of a task is a larger share here than in a run; raise --sample", ""))
    if source["cpu_share"] < _BUSY:
        share = f"{source['cpu_share']:.0%} of its core"
        lines.append((f"this process had {share}: it waited for other processes or the disk, so the rates are too low", "red"))
    return lines


def _whole(figures: Mapping[str, Any], cores: int) -> str:
    """The rate and the time for everything, on one core, and multiplied for all cores of the machine."""
    rate, hours = figures["mb_per_s"], figures["estimated_core_hours"]
    if rate is None:
        return "too little text to estimate a rate"
    several = f"; on {cores} cores, if they scale: {rate * cores:,.1f} MB/s, {_duration(hours / cores)}" if cores > 1 else ""
    return f"{rate:,.2f} MB/s per core, {_duration(hours)} for about {size(figures['estimated_text_bytes'])} of text{several}"


def _duration(hours: float) -> str:
    if hours >= 1:
        return f"{hours:,.1f} hours"
    return f"{hours * 60:,.1f} minutes" if hours * 60 >= 1 else f"{hours * 3600:,.1f} seconds"


_PERCENTILES = (50, 95, 99, 100)


def print_loader_bench(bench: LoaderBench, console: Console) -> None:
    """Prints the diagnosis, and the figures behind it."""
    stats = bench.stats
    print_text(f"{stats.diagnosis}: {stats.reason}", console, "bold")
    for name, value in _figures(bench):
        print_text(f"  {name:<14} {value}", console, hanging=15)


def loader_bench_json(bench: LoaderBench) -> dict[str, Any]:
    """The same figures as JSON."""
    stats, total_s = bench.stats, bench.stats.wait_s + bench.stats.compute_s
    return {
        "diagnosis": stats.diagnosis,
        "reason": stats.reason,
        "step_s": bench.step_s,
        "steps": stats.steps,
        "open_s": bench.open_s,
        "first_batch_s": bench.first_batch_s,
        "wait_per_step_s": stats.wait_per_step_s,
        "lost_share": stats.lost_share,
        "wait_percentiles_s": _percentiles(bench.waits_s),
        "compute_rate": stats.compute_rate,
        "pipeline_rate": stats.pipeline_rate,
        "tokens_per_s": stats.tokens / stats.steps * stats.num_waits / total_s if total_s else 0.0,
        "bytes_per_s": stats.bytes / stats.steps * stats.num_waits / total_s if total_s else 0.0,
        "host_memory_bytes": stats.host_memory.bytes,
    }


def _figures(bench: LoaderBench) -> list[tuple[str, str]]:
    stats, numbers = bench.stats, loader_bench_json(bench)
    batch_tokens, batch_mb = stats.tokens / stats.steps, stats.bytes / stats.steps / 1e6
    taken = f"{numbers['tokens_per_s']:,.0f} tokens/s, {numbers['bytes_per_s'] / 1e6:,.1f} MB/s"
    most = f"{batch_tokens * stats.pipeline_rate:,.0f} tokens/s, {batch_mb * stats.pipeline_rate:,.1f} MB/s"
    return [
        ("trainer", f"{counted(stats.steps, 'step')} of {bench.step_s * 1e3:g} ms; it took {taken}"),
        ("loader", f"{stats.pipeline_rate:,.1f} batches/s: {most}"),
        ("stall", f"{stats.wait_per_step_s * 1e3:.3f} ms a step, {stats.lost_share:.3%} of the time"),
        ("stall spread", _milliseconds(bench.waits_s)),
        ("first batch", f"{bench.first_batch_s:.3f} s after opening, which took {bench.open_s:.3f} s"),
        ("buffer", f"{stats.buffer_mean:.1f} batches ready on average when one was asked for"),
        ("host memory", str(stats.host_memory)),
    ]


def _percentiles(seconds: tuple[float, ...]) -> dict[str, float]:
    if not seconds:
        return {}
    return {f"p{percentile}": float(np.percentile(seconds, percentile)) for percentile in _PERCENTILES}


def _milliseconds(seconds: tuple[float, ...]) -> str:
    shown = ", ".join(f"{name} {value * 1e3:.3f}" for name, value in _percentiles(seconds).items())
    return f"{shown} ms" if shown else "one step only"
