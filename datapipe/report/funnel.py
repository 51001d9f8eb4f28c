"""The funnel of a run: documents read, dropped by reason and kept, by source; and the time of each step."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from datapipe.metrics import counted, size
from datapipe.report.layout import NumberTable, Screen, harmless_text, print_text
from datapipe.report.summary import second_attempts_text, starting_text, taken_down_text
from datapipe.report.tables import Table, cell, evaluation_table, fertility_table, mixture_table, work_table
from datapipe.terminal import harmless

if TYPE_CHECKING:
    from datapipe.engine.train_tokenizer import Trained

_BETWEEN_COLUMNS = 3
"""A space on each side of a cell, and a line."""

_LEAST_LABEL = 12
"""Columns that a label has at least, where there are longer ones."""


def funnel(report: Mapping[str, Any], width: int) -> list[RenderableType]:
    """The tables of a report: documents, mixture, steps and tokenizer."""
    work = number_table("time by step, summed over workers", work_table(report), {report["slowest_step"]: "bold yellow"})
    shown = [
        *_documents(report, width),
        taken_down_text(report),
        contamination_table(report["contamination"]) if report["contamination"] else "",
        _mixture(report["mixture"]) if report["mixture"] else "",
        work,
        starting_text(report),
        second_attempts_text(report),
        *tokenizer_tables(report["tokenizer"]),
    ]
    return [harmless_text(each) if isinstance(each, str) else each for each in shown if each]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """A row of the funnel: a cell for each source, and one for the total."""

    label: str
    cells: Sequence[str]
    style: str = ""
    ends_section: bool = False


def _documents(report: Mapping[str, Any], width: int) -> list[RichTable]:
    """The funnel as one table, or as several below each other where the sources do not fit the width. No number is cut; a long
    label or name takes several lines.

    The total of one source is left out.
    """
    names = [*map(harmless, report["sources"]), *(["total"] if len(report["sources"]) > 1 else [])]
    rows = [replace(row, label=harmless(row.label)) for row in _rows(report)]  # measured as they are shown
    room = width - 2 * _BETWEEN_COLUMNS - 1
    cell_widths = [max(len(row.cells[column]) for row in rows) for column in range(len(names))]
    widths = [max(cells, min(len(name), room // 2)) for cells, name in zip(cell_widths, names)]
    label_width = min(max(len(row.label) for row in rows), max(_LEAST_LABEL, room - max(widths)))
    title = harmless(f"{report['name']}: documents")
    tables = []
    for columns in _split_columns(widths, width - label_width - _BETWEEN_COLUMNS - 1):
        table = RichTable(title=title, title_justify="left", title_style="bold")
        table.add_column("", overflow="fold", min_width=label_width, max_width=label_width)
        for column in columns:
            style = "bold" if names[column] == "total" and column == len(report["sources"]) else ""
            heading = Text("\n".join(textwrap.wrap(names[column], widths[column])))
            table.add_column(heading, justify="right", style=style, no_wrap=True, min_width=widths[column])
        for row in rows:
            cells = [row.cells[column] for column in columns]
            table.add_row(Text(row.label), *cells, style=row.style, end_section=row.ends_section)
        tables.append(table)
        title = harmless(f"{report['name']}, continued")
    return tables


def _split_columns(widths: Sequence[int], width: int) -> list[list[int]]:
    """Numbers of columns, in order, split over as few tables as their widths allow. A column that is too wide stands alone."""
    tables: list[list[int]] = [[]]
    width_left = width
    for column, needed in enumerate(widths):
        if tables[-1] and needed + _BETWEEN_COLUMNS > width_left:
            tables.append([])
            width_left = width
        tables[-1].append(column)
        width_left -= needed + _BETWEEN_COLUMNS
    return tables


def _rows(report: Mapping[str, Any]) -> list[_Row]:
    columns = [*report["sources"].values(), report["total"]]
    counts = report["total"]["counts"]
    events = _in_stage_order([name for name, count in counts.items() if count], report)
    return [
        _Row(label="read", cells=[_count(column["documents"]["read"]) for column in columns]),
        *(row for stage, rules in dropped_by_stage(report).items() for row in _dropped_rows(stage, rules, columns)),
        *_quarantined_row(columns),
        _Row(label="kept", cells=[_kept(column["documents"]) for column in columns], style="bold", ends_section=True),
        _Row(label="text read", cells=[size(column["bytes"]) for column in columns]),
        _Row(label="text kept", cells=[size(column["kept_bytes"]) for column in columns]),
        *([_Row(label="tokens", cells=[_count(column["tokens"]) for column in columns])] if columns[-1]["tokens"] else []),
        *(
            row
            for length in report["total"]["packing"]
            for row in _packing_rows(int(length), [column["packing"].get(length) for column in columns])
        ),
        *(_Row(label=name, cells=[_count(column["counts"].get(name, 0)) for column in columns]) for name in events),
    ]


def dropped_by_stage(report: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Documents dropped in all, by stage and reason ("stage:rule"), stages in the order in which they ran."""
    dropped = report["total"]["documents"]["dropped"]
    by_stage: dict[str, dict[str, int]] = {}
    for reason in _in_stage_order((reason for reason, count in dropped.items() if count), report):
        by_stage.setdefault(reason.rpartition(":")[0], {})[reason] = dropped[reason]
    return by_stage


def _dropped_rows(stage: str, reasons: Mapping[str, int], columns: Sequence[Mapping[str, Any]]) -> Iterator[_Row]:
    """A row for a stage with one reason; for one with several their sum, and a row for each below it."""
    drops = [column["documents"]["dropped"] for column in columns]
    if len(reasons) > 1:
        sums = [sum(each.get(reason, 0) for reason in reasons) for each in drops]
        yield _Row(label=f"  {stage}", cells=list(map(_minus, sums)))
    for reason in reasons:
        label = f"    {reason.rpartition(':')[2]}" if len(reasons) > 1 else f"  {reason}"
        style = "dim" if len(reasons) > 1 else ""
        yield _Row(label=label, cells=[_minus(each.get(reason, 0)) for each in drops], style=style)


def _quarantined_row(columns: Sequence[Mapping[str, Any]]) -> Iterator[_Row]:
    counts = [column["documents"]["quarantined"] for column in columns]
    if any(counts):
        yield _Row(label="  quarantined", cells=list(map(_minus, counts)))
    reasons = [column["documents"]["quarantine_reasons"] for column in columns]
    for reason in reasons[-1]:
        yield _Row(label=f"    {reason}", cells=[_minus(each.get(reason, 0)) for each in reasons], style="dim")


def _in_stage_order(names: Iterable[str], report: Mapping[str, Any]) -> list[str]:
    """Names such as "stage:rule" in the order in which the stages ran. Names of one stage keep their order."""
    order: list[str] = []
    for entry in report["sources"].values():
        index = 0
        for step in entry["steps"]:  # a stage that earlier sources lack goes behind the stage before it in this source
            stage = step.removesuffix(": apply")
            if stage not in order:
                order.insert(index, stage)
            index = max(index, order.index(stage) + 1)
    ranks = {stage: rank for rank, stage in enumerate(order)}
    return sorted(names, key=lambda name: ranks.get(name.rpartition(":")[0], len(order)))


def _packing_rows(length: int, columns: Sequence[Mapping[str, Any] | None]) -> Iterator[_Row]:
    """Rows about sequences of one length, without rows of zeros. A column is None for a source without sequences."""
    yield _Row(label=f"rows of {length:,}", cells=["·" if packing is None else _count(packing["rows"]) for packing in columns])
    for name, key in (
        ("padding", "padding_tokens"),
        ("documents split", "split_documents"),
        ("split for padding", "split_for_padding"),
        ("pieces", "pieces"),
        ("tokens dropped", "dropped_tokens"),
        ("documents dropped", "dropped_documents"),
    ):
        counts = [0 if packing is None else packing.get(key, 0) for packing in columns]
        if any(counts):
            shares = [
                f" ({packing['padding_share']:.3%})" if packing and key == "padding_tokens" else "" for packing in columns
            ]
            yield _Row(label=f"  {name}", cells=[_count(count) + share for count, share in zip(counts, shares)])


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


def print_funnel(report: Mapping[str, Any], console: Console) -> None:
    for shown in funnel(report, console.width):
        console.print(shown, crop=False)


def _count(number: int) -> str:
    return f"{number:,}"


def _minus(number: int) -> str:
    return f"−{number:,}" if number else "·"


def _kept(documents: Mapping[str, Any]) -> str:
    share = f" ({documents['kept'] / documents['read']:.0%})" if documents["read"] else ""
    return f"{documents['kept']:,}{share}"


def contamination_table(lists: Sequence[Mapping[str, Any]]) -> NumberTable:
    return number_table("evaluation sets", evaluation_table(lists))
