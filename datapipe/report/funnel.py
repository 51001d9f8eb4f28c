"""The funnel: what became of every document, source by source, and what each step cost. For people."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from datapipe.report.mixture_shares import drawing_table

_SHOWN_LANGUAGES = 12
"""Languages shown of each source, those with most text; report.json has all."""

_BETWEEN_COLUMNS = 3
"""A space on either side of a cell, and a line."""


def funnel(report: Mapping[str, Any], width: int) -> list[RenderableType]:
    """Tables of a report: documents, what is drawn of them, steps, and what the tokenizer made of the texts."""
    mixture = [drawing_table(report["mixture"])] if report["mixture"] else []
    return [*_documents(report, width), *mixture, _steps(report), *tokenizer_tables(report["tokenizer"])]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """A row of the funnel: a cell of each source, and one of the total."""

    label: str
    cells: Sequence[str]
    style: str = ""
    ends_section: bool = False


def _documents(report: Mapping[str, Any], width: int) -> list[Table]:
    """The funnel: one table, or several below each other where the sources do not fit the width. Nothing is cut, ever."""
    names = [*report["sources"], "total"]
    rows = _rows(report)
    label_width = max(len(row.label) for row in rows)
    widths = [max(len(name), *(len(row.cells[at]) for row in rows)) for at, name in enumerate(names)]
    title = f"{report['name']}: what became of the documents"
    tables = []
    for columns in _side_by_side(widths, width - label_width - _BETWEEN_COLUMNS - 1):
        table = Table(title=title, title_justify="left", title_style="bold")
        table.add_column("", no_wrap=True, min_width=label_width)
        for at in columns:
            style = "bold" if at == len(names) - 1 else ""
            table.add_column(names[at], justify="right", style=style, no_wrap=True, min_width=widths[at])
        for row in rows:
            cells = [row.cells[at] for at in columns]
            table.add_row(row.label, *cells, style=row.style, end_section=row.ends_section)
        tables.append(table)
        title = f"{report['name']}, continued"
    return tables


def _side_by_side(widths: Sequence[int], width: int) -> list[list[int]]:
    """Numbers of columns, in order, in as few tables as their widths allow; one that is too wide stands alone."""
    tables: list[list[int]] = [[]]
    left = width
    for at, needed in enumerate(widths):
        if tables[-1] and needed + _BETWEEN_COLUMNS > left:
            tables.append([])
            left = width
        tables[-1].append(at)
        left -= needed + _BETWEEN_COLUMNS
    return tables


def _rows(report: Mapping[str, Any]) -> list[_Row]:
    columns = [*report["sources"].values(), report["total"]]
    dropped, counts = report["total"]["documents"]["dropped"], report["total"]["counts"]
    return [
        _Row(label="read", cells=[_count(one["documents"]["read"]) for one in columns]),
        *(
            _Row(label=f"  {reason}", cells=[_minus(one["documents"]["dropped"].get(reason, 0)) for one in columns])
            for reason in _as_run(dropped, report)
        ),
        _Row(label="  quarantined", cells=[_minus(one["documents"]["quarantined"]) for one in columns]),
        _Row(label="kept", cells=[_kept(one["documents"]) for one in columns], style="bold", ends_section=True),
        _Row(label="text read", cells=[size(one["bytes"]) for one in columns]),
        _Row(label="text kept", cells=[size(one["kept_bytes"]) for one in columns]),
        _Row(label="tokens", cells=[_count(one["tokens"]) for one in columns]),
        *(
            row
            for length in report["total"]["packing"]
            for row in _packing_rows(int(length), [one["packing"].get(length) for one in columns])
        ),
        *(
            _Row(label=counted, cells=[_count(one["counts"].get(counted, 0)) for one in columns])
            for counted in _as_run([counted for counted, count in counts.items() if count], report)
        ),
    ]


def _as_run(names: Iterable[str], report: Mapping[str, Any]) -> list[str]:
    """Names such as "stage:rule" in the order in which the stages ran, those of one stage in the order given."""
    order: list[str] = []
    for entry in report["sources"].values():
        at = 0
        for step in entry["steps"]:  # a step that earlier sources have not goes behind the one it follows here
            stage = step.removesuffix(": apply")
            if stage not in order:
                order.insert(at, stage)
            at = max(at, order.index(stage) + 1)
    places = {stage: at for at, stage in enumerate(order)}
    return sorted(names, key=lambda name: places.get(name.rpartition(":")[0], len(order)))


def _packing_rows(length: int, columns: Sequence[Mapping[str, Any] | None]) -> Iterator[_Row]:
    """Rows about sequences of one length; what nowhere happened is left out. None: a source without any."""
    yield _Row(label=f"rows of {length:,}", cells=["·" if one is None else _count(one["rows"]) for one in columns])
    for name, key in (
        ("padding", "padding_tokens"),
        ("documents split", "split_documents"),
        ("pieces", "pieces"),
        ("tokens dropped", "dropped_tokens"),
        ("documents dropped", "dropped_documents"),
    ):
        counts = [0 if one is None else one[key] for one in columns]
        if any(counts):
            share = [f" ({one['padding_share']:.3%})" if one and key == "padding_tokens" else "" for one in columns]
            yield _Row(label=f"  {name}", cells=[_count(number) + part for number, part in zip(counts, share)])


def _steps(report: Mapping[str, Any]) -> Table:
    table = Table(title="what each step cost (summed over workers)", title_justify="left", title_style="bold")
    table.add_column("step")
    for name in ("seconds", "share", "text", "MB/s"):
        table.add_column(name, justify="right")
    steps: Mapping[str, Any] = report["total"]["steps"]
    total = sum(step["seconds"] for step in steps.values()) or 1.0
    for name, step in steps.items():
        rate = "" if step["mb_per_s"] is None or not step["bytes"] else f"{step['mb_per_s']:,.1f}"
        style = "bold yellow" if name == report["slowest_step"] else ""
        share = f"{step['seconds'] / total:.0%}"
        table.add_row(name, f"{step['seconds']:,.2f}", share, size(step["bytes"]), rate, style=style)
    return table


def tokenizer_tables(tokenizer: Mapping[str, Any] | None) -> list[RenderableType]:
    """A table of bytes per token and tokens per word, and a line on unused ids; nothing where nothing was encoded."""
    if tokenizer is None:
        return []
    title = f"tokenizer of {tokenizer['vocab_size']:,} ids (tokens without those that end documents)"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("source", overflow="fold")
    for name in ("documents", "text", "tokens", "bytes per token", "tokens per word"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, entry in tokenizer["sources"].items():
        table.add_row(name, *_fertility(entry))
        languages: Mapping[str, Any] = entry["languages"] or {}
        by_size = sorted(languages, key=lambda one: (-languages[one]["bytes"], one))
        for language in by_size[:_SHOWN_LANGUAGES]:
            table.add_row(f"  {language or '(no language)'}", *_fertility(languages[language]), style="dim")
        if len(by_size) > _SHOWN_LANGUAGES:
            table.add_row(f"  {len(by_size) - _SHOWN_LANGUAGES} more languages", *[""] * 5, style="dim")
    if len(tokenizer["sources"]) > 1:
        table.add_row("total", *_fertility(tokenizer["total"]), style="bold")
    unused = tokenizer["unused"]
    if unused is None:
        return [table]
    examples = ", ".join(f"{one['id']} {one['token']!r}" for one in unused["examples"])
    of = f" of {tokenizer['vocab_size']:,} ids never occur in them (special tokens apart)"
    return [table, Text(f"{unused['count']:,}{of}{': ' if examples else ''}{examples}")]


class Training(Protocol):
    """What is shown of a training from files; `executor.train_files.Trained` has it."""

    @property
    def read_bytes(self) -> int: ...
    @property
    def read_s(self) -> float: ...
    @property
    def sample_bytes(self) -> int: ...
    @property
    def train_s(self) -> float: ...
    @property
    def rejected(self) -> int: ...
    @property
    def tokenizer(self) -> Mapping[str, Any] | None: ...


def print_training(trained: Training, console: Console) -> None:
    """Prints what was read and trained on, with rates, and what the tokenizer makes of the held-out documents."""
    for verb, num_bytes, seconds in (
        ("read", trained.read_bytes, trained.read_s),
        ("trained on", trained.sample_bytes, trained.train_s),
    ):
        console.print(f"{verb} {size(num_bytes)} of text in {seconds:,.1f} s: {num_bytes / 1e6 / max(seconds, 1e-9):,.1f} MB/s")
    if trained.rejected:
        console.print(f"{trained.rejected:,} documents could not be read and were left out")
    if trained.tokenizer is None:
        console.print("too few documents to hold any out, so nothing was measured")
    for shown in tokenizer_tables(trained.tokenizer):
        console.print(shown)


def _fertility(entry: Mapping[str, Any]) -> list[str]:
    ratios = [entry["bytes_per_token"], entry["tokens_per_word"]]
    shown = ["" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
    return [_count(entry["documents"]), size(entry["bytes"]), _count(entry["tokens"]), *shown]


def wide_console() -> Console:
    """A console as wide as the terminal; where there is none, as COLUMNS says, or 120, so that a log keeps its tables whole."""
    console = Console()
    told = os.environ.get("COLUMNS", "")
    return console if console.is_terminal else Console(width=int(told) if told.isdecimal() and int(told) else 120)


def print_funnel(report: Mapping[str, Any], console: Console) -> None:
    for shown in funnel(report, console.width):
        console.print(shown, crop=False)
    for excess in report["excesses"]:
        if excess["on_excess"] == "warn":
            console.print(Text(f"warning: {excess['text']}", style="yellow"), soft_wrap=True)
    if report["problem"]:
        console.print(Text(f"{report['status']}: {report['problem']}"), soft_wrap=True)


def _count(number: int) -> str:
    return f"{number:,}"


def _minus(number: int) -> str:
    return f"−{number:,}" if number else "·"


def _kept(documents: Mapping[str, Any]) -> str:
    share = f" ({documents['kept'] / documents['read']:.0%})" if documents["read"] else ""
    return f"{documents['kept']:,}{share}"


def size(num_bytes: float) -> str:
    """Bytes for people: 1.2 MB, in steps of 1,000."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if num_bytes < 1000 or unit == "TB":
            return f"{num_bytes:,.0f} {unit}" if unit == "B" else f"{num_bytes:,.1f} {unit}"
        num_bytes /= 1000
    raise AssertionError
