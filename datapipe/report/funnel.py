"""The funnel of a run: documents read, dropped by reason and kept, by source; and the time of each step."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from rich.console import Console, RenderableType

from datapipe.quantities import counted, size
from datapipe.report.layout import NumberTable, Screen, harmless_text, print_text
from datapipe.report.summary import second_attempts_text, starting_text, taken_down_text
from datapipe.report.tables import Table, cell, evaluation_table, fertility_table, funnel_table, mixture_table, work_table
from datapipe.tokens.training import Trained

EVALUATION = "evaluation sets"


def print_funnel(report: Mapping[str, Any], console: Console) -> None:
    """Prints the tables of a report: documents, mixture, steps and tokenizer."""
    steps = report["total"]["steps"]
    slowest = max(steps, key=lambda name: steps[name]["seconds"], default="")
    work = number_table("time by step, summed over workers", work_table(report), {slowest: "bold yellow"})
    shown = [
        _documents(report),
        taken_down_text(report),
        number_table(EVALUATION, evaluation_table(report["contamination"])) if report["contamination"] else "",
        _mixture(report["mixture"]) if report["mixture"] else "",
        work,
        starting_text(report),
        second_attempts_text(report),
        *tokenizer_tables(report["tokenizer"]),
    ]
    for each in filter(None, shown):
        console.print(harmless_text(each) if isinstance(each, str) else each, crop=False)


def _documents(report: Mapping[str, Any]) -> NumberTable:
    table = funnel_table(report)
    shown = NumberTable(f"{report['name']}: documents", table.headings, continues=True)
    for row in table.rows:
        is_kept, is_reason = row[0] == "kept", str(row[0]).startswith("    ")
        shown.add_row(*map(cell, row), style="bold" if is_kept else "dim" if is_reason else "")
        if is_kept:
            shown.add_section()
    return shown


def number_table(title: str, table: Table, styles: Mapping[str, str] = MappingProxyType({})) -> NumberTable:
    """A table for a terminal.

    Args:
        styles: of rows, by name.
    """
    shown = NumberTable(title, table.headings)
    for row in table.rows:
        shown.add_row(*map(cell, row), style=styles.get(str(row[0]), ""))
    return shown


def _mixture(mixture: Mapping[str, Any]) -> NumberTable:
    """The mixture, with the strata of each source below it."""
    table = mixture_table(mixture)
    shown = NumberTable(_mixture_title(mixture), table.headings)
    for row, source in zip(table.rows, mixture["sources"].values()):
        shown.add_row(*map(cell, row))
        for number, stratum in enumerate(source["strata"] or ()):
            documents, times = counted(stratum["documents"], "document"), counted(stratum["repeat"], "time")
            label = f"  stratum {number}: {documents}, {times} an epoch"
            shown.add_row(label, "", "", "", f"{stratum['tokens']:,}", style="dim")
    return shown


def _mixture_title(mixture: Mapping[str, Any]) -> str:
    total, requested = mixture["tokens"], mixture["asked_tokens"]
    title = "mixture: " + ("endless" if total is None else counted(total, "token"))
    if total is not None and (requested is None or total < requested - requested // 1000):
        title += ", where sources reach their max_epochs" + ("" if requested is None else f", of {requested:,} requested")
    if mixture["phases"] > 1:
        title += f", in {counted(mixture['phases'], 'phase')}"
    return title


def tokenizer_tables(tokenizer: Mapping[str, Any] | None) -> list[RenderableType]:
    """A table of bytes per token and tokens per word, and a line on unused ids; empty before anything is tokenized."""
    if tokenizer is None:
        return []
    title = f"tokenizer of {tokenizer['vocab_size']:,} ids (tokens exclude those around documents)"
    table = number_table(title, fertility_table(tokenizer), {"total": "bold"})
    unknown = {name: entry["unknown_tokens"] for name, entry in tokenizer["sources"].items()}
    listed = ", ".join(f"{name} {count:,}" for name, count in unknown.items() if count)
    lines = [harmless_text(f"tokens of text that the tokenizer does not know: {listed}")] if listed else []
    unused = tokenizer["unused"]
    if unused is None or not tokenizer["total"]["documents"]:
        return [table, *lines]
    examples = ", ".join(f"{example['id']} {example['token']!r}" for example in unused["examples"])
    counts = f"{unused['count']:,} of {tokenizer['vocab_size']:,} ids never occur in these texts (special tokens not counted)"
    return [table, *lines, harmless_text(f"{counts}: {examples}" if examples else counts)]


def print_training(trained: Trained, console: Console) -> None:
    """Prints the text that was read and trained on, with rates, and the tokenizer table of the held-out documents."""
    for verb, num_bytes, seconds in (
        ("read", trained.read_bytes, trained.read_s),
        ("trained on", trained.sample_bytes, trained.train_s),
    ):
        console.print(f"{verb} {size(num_bytes)} of text in {seconds:,.1f} s: {num_bytes / 1e6 / max(seconds, 1e-9):,.1f} MB/s")
    if trained.rejected:
        console.print(f"{counted(trained.rejected, 'document')} could not be read and left out")
    for file in trained.unreadable_files:
        print_text(f"warning: {file.path} cannot be read from {file.position:,} on: {file.error}", console, "yellow")
    if trained.tokenizer is None:
        console.print("too few documents to hold some out, so bytes per token and tokens per word were not measured")
    for shown in tokenizer_tables(trained.tokenizer):
        console.print(shown)


def wide_console(*, to_stderr: bool = False) -> Console:
    """A console as wide as the terminal. Without a terminal, COLUMNS or 120, so that tables in a log are not cut."""
    console, columns = Screen(stderr=to_stderr), os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and int(columns) else 120
    return console if console.is_terminal else Screen(stderr=to_stderr, width=width)
