"""The funnel: what became of every document, source by source, and what each step cost. For people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from datapipe.report.drawing import drawing_table

_SHOWN_LANGUAGES = 12
"""Languages shown of each source, those with most text; report.json has all."""


def funnel(report: Mapping[str, Any]) -> RenderableType:
    """Tables of a report: documents, what is drawn of them, steps, and what the tokenizer made of the texts."""
    mixture = [drawing_table(report["mixture"])] if report["mixture"] else []
    return Group(_documents(report), *mixture, _steps(report), *tokenizer_tables(report["tokenizer"]))


def _documents(report: Mapping[str, Any]) -> Table:
    sources: Mapping[str, Any] = report["sources"]
    table = Table(title=f"{report['name']}: what became of the documents", title_justify="left", title_style="bold")
    table.add_column("", overflow="fold")
    for name in sources:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("total", justify="right", style="bold", no_wrap=True)
    columns = [*sources.values(), report["total"]]
    table.add_row("read", *(_count(one["documents"]["read"]) for one in columns))
    for reason in report["total"]["documents"]["dropped"]:
        table.add_row(f"  {reason}", *(_minus(one["documents"]["dropped"].get(reason, 0)) for one in columns))
    table.add_row("  quarantined", *(_minus(one["documents"]["quarantined"]) for one in columns))
    table.add_row("kept", *(_kept(one["documents"]) for one in columns), style="bold", end_section=True)
    table.add_row("text read", *(size(one["bytes"]) for one in columns))
    table.add_row("text kept", *(size(one["kept_bytes"]) for one in columns))
    table.add_row("tokens", *(_count(one["tokens"]) for one in columns))
    for length in report["total"]["packing"]:
        _add_packing(table, int(length), [one["packing"].get(length) for one in columns])
    for tally, count in report["total"]["tallies"].items():
        if count:
            table.add_row(tally, *(_count(one["tallies"].get(tally, 0)) for one in columns))
    return table


def _add_packing(table: Table, length: int, columns: Sequence[Mapping[str, Any] | None]) -> None:
    """Rows about sequences of one length; what nowhere happened is left out. None: a source without any."""
    table.add_row(f"rows of {length:,}", *("·" if one is None else _count(one["rows"]) for one in columns))
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
            table.add_row(f"  {name}", *(_count(number) + part for number, part in zip(counts, share)))


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
    table.add_column("source")
    for name in ("documents", "text", "tokens", "bytes per token", "tokens per word"):
        table.add_column(name, justify="right")
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
    """A console as wide as the terminal; 120 columns where there is none, so that a log keeps its tables whole."""
    console = Console()
    return console if console.is_terminal else Console(width=120)


def print_funnel(report: Mapping[str, Any], console: Console) -> None:
    console.print(funnel(report))
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
