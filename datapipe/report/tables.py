"""The tables of a report. Each is computed once: the terminal, the page and the card show the same rows.

report.json  ─▶  Table: headings, rows of texts and numbers  ─▶  columns of a terminal · <table> and bars · Markdown
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datapipe.metrics import counted, size

_SHOWN_LANGUAGES = 12
"""Languages shown of each source: those with most text. report.json has all of them."""


class Bytes(int):
    """A number of bytes, shown with a unit."""


class Share(float):
    """A part of a whole, shown in per cent."""


Cell = str | float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Rows of texts and numbers. The first cell of a row is its name; None stands for a number that does not exist."""

    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]


def cell(value: Cell) -> str:
    """A cell as text. Floats have four significant digits."""
    if value is None:
        return "·"
    if isinstance(value, str):
        return value
    if isinstance(value, Bytes):
        return size(value)
    if isinstance(value, Share):
        return f"{value:.2%}"
    return f"{int(value):,}" if value == int(value) else f"{value:,.4g}"


def share_of(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "0%"


def mixture_table(mixture: Mapping[str, Any]) -> Table:
    """What training draws of each source. Tokens and epochs of an endless run are None."""
    columns = ("share", "tokens", "epochs", "epoch_tokens", "max_epochs")
    return Table(
        headings=["source", "share", "tokens", "epochs", "tokens an epoch", "max epochs"],
        rows=[
            [name, Share(entry["share"]), *(entry[column] for column in columns[1:])]
            for name, entry in mixture["sources"].items()
        ],
    )


def work_table(report: Mapping[str, Any]) -> Table:
    """The time of each kind of work, summed over workers."""
    steps = report["total"]["steps"]
    total = sum(step["seconds"] for step in steps.values()) or 1.0
    return Table(
        headings=["step", "seconds", "of the time", "MB/s", "text", "documents"],
        rows=[
            [name, step["seconds"], Share(step["seconds"] / total), step["mb_per_s"], Bytes(step["bytes"]), step["documents"]]
            for name, step in steps.items()
        ],
    )


def fertility_table(tokenizer: Mapping[str, Any]) -> Table:
    """Bytes per token and tokens per word: of each source, of its languages with most text, and of all sources."""
    rows: list[list[Cell]] = []
    for name, entry in tokenizer["sources"].items():
        rows.append(_fertility(name, entry))
        languages: Mapping[str, Any] = entry["languages"] or {}
        by_size = sorted(languages, key=lambda language: (-languages[language]["bytes"], language))
        for language in by_size[:_SHOWN_LANGUAGES]:
            rows.append(_fertility(f"{name} · {language or '(no language)'}", languages[language]))
        if len(by_size) > _SHOWN_LANGUAGES:
            rows.append([f"{name} · {counted(len(by_size) - _SHOWN_LANGUAGES, 'more language')}", *[None] * 5])
    if len(tokenizer["sources"]) > 1:
        rows.append(_fertility("total", tokenizer["total"]))
    return Table(headings=["source", "tokens", "bytes per token", "tokens per word", "documents", "text"], rows=rows)


def _fertility(name: str, entry: Mapping[str, Any]) -> list[Cell]:
    numbers = (entry[key] for key in ("tokens", "bytes_per_token", "tokens_per_word", "documents"))
    return [name, *numbers, Bytes(entry["bytes"])]


def language_counts(report: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Documents, bytes and tokens by language, most documents first. "" are documents without a language. Empty where languages
    were not counted."""
    counts: dict[str, dict[str, int]] = {}
    for source in (report["tokenizer"] or {"sources": {}})["sources"].values():
        for name, entry in (source["languages"] or {}).items():
            sums = counts.setdefault(name, {"documents": 0, "bytes": 0, "tokens": 0})
            for column in sums:
                sums[column] += entry[column]
    return dict(sorted(counts.items(), key=lambda item: (-item[1]["documents"], item[0])))


def kept_table(heading: str, entries: Mapping[str, Mapping[str, Any]]) -> Table:
    """What is kept, by licence or by who wrote it."""
    rows: list[list[Cell]] = [
        [
            name,
            numbers["documents"],
            None if numbers["bytes"] is None else Bytes(numbers["bytes"]),
            numbers["tokens"],
            numbers["drawn_tokens"],
        ]
        for name, numbers in entries.items()
    ]
    return Table(headings=[heading, "documents", "text", "tokens", "tokens drawn"], rows=rows)


def evaluation_table(lists: Sequence[Mapping[str, Any]]) -> Table:
    """A row for each evaluation set: its items, and how many of them are of each kind."""
    columns = ("name", "entries", "contaminated", "clean", "undetectable", "stage")
    headings = ["benchmark", "items", "contaminated", "clean", "undetectable", "stage"]
    return Table(headings=headings, rows=[[counts[column] for column in columns] for counts in lists])
