"""The tables of a report. Each is computed once: the terminal, the page and the card show the same rows.

report.json  ─▶  Table: headings, rows of texts and numbers  ─▶  columns of a terminal · <table> and bars · Markdown
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datapipe.quantities import counted, size

_SHOWN_LANGUAGES = 12
"""Languages shown of each source: those with most text. report.json has all of them."""


class Bytes(int):
    """A number of bytes, shown with a unit."""


class Dropped(int):
    """A number of documents, shown as a loss."""


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
    if isinstance(value, Dropped):
        return f"−{value:,}" if value else "·"
    if isinstance(value, Share):
        return f"{value:.2%}"
    return f"{int(value):,}" if value == int(value) else f"{value:,.4g}"


def share_of(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "0%"


# ------------------------------------------------------------------------------------------------ documents

Entry = Mapping[str, Any]
"""Of a source, or of all sources."""


def funnel_table(report: Mapping[str, Any]) -> Table:
    """What became of the documents, and what they are packed into: a column for each source, and for all of several."""
    names, entries = [*report["sources"]], [*report["sources"].values()]
    if len(names) > 1:
        names, entries = [*names, "total"], [*entries, report["total"]]
    total = report["total"]
    *rows, kept = document_rows(report, entries)
    shares = [f" ({Share(number / read):.0%})" if read else "" for read, number in zip(rows[0][1:], kept[1:])]
    rows.append(["kept", *(f"{number:,}{share}" for number, share in zip(kept[1:], shares))])
    rows.append(["text read", *(Bytes(entry["bytes"]) for entry in entries)])
    rows.append(["text kept", *(Bytes(entry["kept_bytes"]) for entry in entries)])
    rows += [["tokens", *(entry["tokens"] for entry in entries)]] if total["tokens"] else []
    for length in total["packing"]:
        rows += _packing_rows(int(length), [entry["packing"].get(length) for entry in entries])
    events = _in_stage_order([name for name, count in total["counts"].items() if count], report)
    rows += [[name, *(entry["counts"].get(name, 0) for entry in entries)] for name in events]
    return Table(headings=["", *names], rows=rows)


def document_rows(report: Mapping[str, Any], entries: Sequence[Entry], most: int | None = None) -> list[list[Any]]:
    """What became of every document, from "read" to "kept": a row for each stage with its reasons indented below it, and a
    number for each entry. Rows of zeros are left out.

    Args:
        most: reasons of a stage, and of quarantine; None for all.
    """
    documents = [entry["documents"] for entry in entries]

    def lost(label: str, kind: str, reasons: Iterable[str]) -> list[Any]:
        return [label, *(Dropped(sum(each[kind].get(reason, 0) for reason in reasons)) for each in documents)]

    rows: list[list[Any]] = []
    for stage, reasons in dropped_by_stage(report).items():
        if len(reasons) == 1:
            rows.append(lost(f"  {next(iter(reasons))}", "dropped", reasons))
        else:
            rows.append(lost(f"  {stage}", "dropped", reasons))
            rows += [lost(f"    {reason.rpartition(':')[2]}", "dropped", [reason]) for reason in list(reasons)[:most]]
    rows.append(["  quarantined", *(Dropped(each["quarantined"]) for each in documents)])
    reasons = list(documents[-1]["quarantine_reasons"])[:most]
    rows += [lost(f"    {reason}", "quarantine_reasons", [reason]) for reason in reasons]
    between = [each["read"] - each["kept"] - each["quarantined"] - sum(each["dropped"].values()) for each in documents]
    rows.append(["  between steps", *map(Dropped, between)])
    first, last = (([key, *(each[key] for each in documents)]) for key in ("read", "kept"))
    return [first, *(row for row in rows if any(row[1:])), last]


def dropped_by_stage(report: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Documents dropped in all, by stage and reason ("stage:rule"), stages in the order in which they ran."""
    dropped = report["total"]["documents"]["dropped"]
    by_stage: dict[str, dict[str, int]] = {}
    for reason in _in_stage_order((reason for reason, count in dropped.items() if count), report):
        by_stage.setdefault(reason.rpartition(":")[0], {})[reason] = dropped[reason]
    return by_stage


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


def _packing_rows(length: int, columns: Sequence[Mapping[str, Any] | None]) -> Iterator[list[Any]]:
    """Rows about sequences of one length, without rows of zeros. A column is None for a source without sequences."""
    yield [f"rows of {length:,}", *(None if packing is None else packing["rows"] for packing in columns)]
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
            shares = [f" ({packing['padding_share']:.3%})" if packing and name == "padding" else "" for packing in columns]
            yield [f"  {name}", *(f"{count:,}{share}" for count, share in zip(counts, shares))]


# ------------------------------------------------------------------------------------------------ mixture, time, tokens


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


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRule:
    """A rule of the entry `measured` of a report, with what is known of it there."""

    source: str
    stage: str
    name: str
    facts: Mapping[str, Any]

    @property
    def label(self) -> str:
        return f"{self.source}: {self.stage}:{self.name}"

    @property
    def failed_share(self) -> float | None:
        counted = self.facts["passed"] + self.facts["failed"]
        return self.facts["failed"] / counted if counted else None


def measured_rules(report: Mapping[str, Any]) -> list[MeasuredRule]:
    """The rules that measured documents, in the order of sources and stages."""
    return [
        MeasuredRule(source=source, stage=stage, name=name, facts=facts)
        for source, stages in report.get("measured", {}).items()
        for stage, rules in stages.items()
        for name, facts in rules.items()
    ]


def evaluation_table(lists: Sequence[Mapping[str, Any]]) -> Table:
    """A row for each evaluation set: its items, and how many of them are of each kind."""
    columns = ("name", "entries", "contaminated", "clean", "undetectable", "stage")
    headings = ["benchmark", "items", "contaminated", "clean", "undetectable", "stage"]
    return Table(headings=headings, rows=[[counts[column] for column in columns] for counts in lists])
