"""The output of `datapipe loader-bench`: whether the data is the bottleneck, and the forecast for other prefetch depths."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Console

from datapipe.bench.loader import LoaderBench
from datapipe.metrics import counted
from datapipe.report.layout import NumberTable, print_text

_PERCENTILES = (50, 95, 99, 100)


def print_loader_bench(bench: LoaderBench, console: Console) -> None:
    """Prints the diagnosis, the figures behind it, and the forecast."""
    stats = bench.stats
    print_text(f"{stats.diagnosis}: {stats.reason}", console, "bold")
    for name, value in _figures(bench):
        print_text(f"  {name:<14} {value}", console, hanging=15)
    console.print(_forecast_table(bench))
    spread = _milliseconds(bench.build_s)
    print_text(f"computed from {counted(len(bench.build_s), 'batch', 'batches')} built alone: {spread}", console)


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
        "build_percentiles_s": _percentiles(bench.build_s),
        "compute_rate": stats.compute_rate,
        "pipeline_rate": stats.pipeline_rate,
        "tokens_per_s": stats.tokens / stats.steps * stats.num_waits / total_s if total_s else 0.0,
        "bytes_per_s": stats.bytes / stats.steps * stats.num_waits / total_s if total_s else 0.0,
        "host_memory_bytes": stats.host_memory.bytes,
        "forecasts": [
            {
                "prefetch": forecast.prefetch,
                "wait_s": forecast.wait_s,
                "longest_wait_s": forecast.longest_wait_s,
                "lost_share": forecast.lost_share,
                "host_memory_bytes": forecast.host_bytes,
            }
            for forecast in bench.forecasts
        ],
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


def _forecast_table(bench: LoaderBench) -> NumberTable:
    headings = ["prefetch", "stall ms/step", "of the time", "host MB", "longest ms"]
    table = NumberTable(f"other prefetch depths, for steps of {bench.step_s * 1e3:g} ms", headings)
    for forecast in bench.forecasts:
        is_current = forecast.prefetch == bench.stats.depth
        table.add_row(
            f"▶ {forecast.prefetch}" if is_current else str(forecast.prefetch),
            f"{forecast.wait_s * 1e3:.3f}",
            f"{forecast.lost_share:.3%}",
            f"{forecast.host_bytes / 1e6:,.1f}",
            f"{forecast.longest_wait_s * 1e3:.3f}",
        )
    return table


def _percentiles(seconds: tuple[float, ...]) -> dict[str, float]:
    if not seconds:
        return {}
    return {f"p{percentile}": float(np.percentile(seconds, percentile)) for percentile in _PERCENTILES}


def _milliseconds(seconds: tuple[float, ...]) -> str:
    shown = ", ".join(f"{name} {value * 1e3:.3f}" for name, value in _percentiles(seconds).items())
    return f"{shown} ms" if shown else "one step only"
