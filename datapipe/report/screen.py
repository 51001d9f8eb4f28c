"""The last screen of a run, which `datapipe report` prints again: what is kept of each source, what is next, the warnings.

    heading ─▶ a line for each source ─▶ what dropped the rest ─▶ the snapshot ─▶ next commands ─▶ warnings

At most 80 columns, and 60 are enough. No word is broken; a path that is longer than the line stands alone. Of many sources
and of many warnings of a kind the screen shows some and counts the others; `print_full` shows all. A run that did not end well
shows what is committed and its warnings: its reason comes last.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from shlex import quote
from typing import Any

from rich.console import Console

from datapipe.credentials import masked
from datapipe.machine.terminal import harmless
from datapipe.quantities import counted, size
from datapipe.report.funnel import print_funnel
from datapipe.report.layout import MOST_COLUMNS, NO_BREAK, print_lines, print_wrapped
from datapipe.report.summary import taken_down_text
from datapipe.report.tables import dropped_by_stage

_MOST_SOURCES, _SHOWN_SOURCES = 12, 10
_SHOWN_STAGES = 3
_SHOWN_WARNINGS = 3
"""Of a kind."""

_LEAST_NAME = 12
"""Columns that a name has at least, where there are longer ones."""


def print_screen(
    report: Mapping[str, Any], output: str, console: Console, news: Sequence[str] = (), *, has_next: bool = True
) -> None:
    """Prints the short screen of a report.

    Args:
        output: the URL or path to name in commands, without credentials.
        news: paragraphs about the snapshot, from `snapshot_news`.
        has_next: whether to name the next commands, and how to load the rows.
    """
    width = min(console.width, MOST_COLUMNS)
    if report["status"] != "done":
        print_wrapped([_committed(report, output)], console)
    else:
        if report["total"]["documents"]["read"]:
            print_wrapped([_heading(report)], console, "bold")
            print_lines(["", *_table(report, width)], console)
            print_wrapped([_dropped(report), *_thresholds(report)], console)
        print_wrapped(filter(None, (_taken(report), taken_down_text(report))), console)
        print_wrapped(["", *news] if news else [], console)
        print_lines(["", *_next(report, output, width)] if has_next else [], console)
    print_warnings(report, console, f"`datapipe report {quote(output)} --full` shows them")


def print_full(report: Mapping[str, Any], console: Console) -> None:
    """Prints everything of a report: tables, all warnings, and why the run is not done."""
    print_funnel(report, console)
    print_warnings(report, console, "")


def print_warnings(report: Mapping[str, Any], console: Console, look: str) -> None:
    """Prints the warnings of a report, wrapped at words.

    Args:
        look: where the others are, for the first ones of each kind; empty for all.
    """
    shown = [f"warning: {text}" for text in _shown_warnings(report["warnings"], look)]
    print_wrapped(["", *shown] if shown else [], console, "yellow")


def print_problem(report: Mapping[str, Any], console: Console) -> None:
    """Prints why a run is not done."""
    if report["problem"]:
        style = "red" if report["status"] == "failed" else ""
        print_wrapped([masked(f"{report['status']}: {report['problem']}")], console, style)


def _shown_warnings(warnings: Sequence[Mapping[str, Any]], look: str) -> Iterator[str]:
    by_kind: dict[str, list[str]] = {}
    for warning in warnings:
        by_kind.setdefault(warning["kind"], []).append(warning["text"])
    for kind, texts in by_kind.items():
        some = texts[:_SHOWN_WARNINGS] if look and len(texts) > _SHOWN_WARNINGS + 1 else texts
        yield from some
        if len(some) < len(texts):
            yield f"{len(texts) - len(some):,} more of the kind {kind}: {look}"


# ------------------------------------------------------------------------------------------------ what is kept


def _heading(report: Mapping[str, Any]) -> str:
    total = report["total"]
    documents = total["documents"]
    of_read = f"{documents['kept']:,} of {counted(documents['read'], 'document')} kept ({_share(documents)})"
    what = counted(total["tokens"], "token") if total["packing"] else f"{size(total['kept_bytes'])} of text"
    return f"{report['name']}: {of_read}, {what}"


def _taken(report: Mapping[str, Any]) -> str:
    """What other snapshots gave: "rows of other snapshots: old.web 1,511,570 tokens, old.code 404,828 tokens"."""
    taken = [f"{name} {counted(entry['tokens'], 'token')}" for name, entry in report["taken"].items()]
    more = [f"{len(taken) - _SHOWN_SOURCES} more"] if len(taken) > _SHOWN_SOURCES else []
    return f"rows of other snapshots: {', '.join([*taken[:_SHOWN_SOURCES], *more])}" if taken else ""


def _share(documents: Mapping[str, Any]) -> str:
    """The share that is kept: whole per cents, with a decimal below ten; 100% is all, and 0% nothing."""
    kept, read = documents["kept"], documents["read"]
    share = kept / read if read else 0.0
    if share >= 0.995 and kept < read:
        return ">99%"
    if 0 < share < 0.0005:
        return "<0.1%"
    return f"{share:.1%}" if 0 < share < 0.0995 else f"{share:.0%}"


_Column = tuple[str, Callable[[str, Mapping[str, Any]], str]]


def _table(report: Mapping[str, Any], width: int) -> list[str]:
    """A line for each source, and for the total. Columns that the width does not hold are left out, the last one first."""
    rows = [*_rows(report["sources"])]
    total = [("total", report["total"])] if len(report["sources"]) > 1 else []
    epochs = {name: source["epochs"] for name, source in (report["mixture"] or {"sources": {}})["sources"].items()}
    columns: list[_Column] = [
        ("read", lambda name, entry: _number(entry["documents"]["read"])),
        ("kept", lambda name, entry: _number(entry["documents"]["kept"])),
        ("share", lambda name, entry: _share(entry["documents"])),
        ("tokens", lambda name, entry: _number(entry["tokens"])),
        ("epochs", lambda name, entry: "" if epochs.get(name) is None else f"{epochs[name]:,.1f}"),
        ("text", lambda name, entry: size(entry["kept_bytes"])),
    ]
    left_out = {"epochs"} if all(value is None for value in epochs.values()) else set()
    left_out |= set() if report["total"]["packing"] else {"tokens"}
    columns = [column for column in columns if column[0] not in left_out]
    names = ["source", *(harmless(name) for name, _ in (*rows, *total))]
    cells = [[heading, *(cell(name, entry) for name, entry in (*rows, *total))] for heading, cell in columns]
    wanted = min(max(map(len, names)), _LEAST_NAME)
    while len(cells) > 1 and wanted + sum(2 + max(map(len, column)) for column in cells) > width:
        cells.pop()
    name_width = min(max(map(len, names)), width - sum(2 + max(map(len, column)) for column in cells))
    left = [name if len(name) <= name_width else f"{name[: name_width - 1]}…" for name in names]
    right = ["".join(f"  {column[row]:>{max(map(len, column))}}" for column in cells) for row in range(len(names))]
    return [f"{name:<{name_width}}{numbers}".rstrip() for name, numbers in zip(left, right)]


def _rows(sources: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The sources with their entries; of many those with most tokens, and the sum of the others."""
    if len(sources) <= _MOST_SOURCES:
        yield from sources.items()
        return
    ranked = sorted(sources, key=lambda name: (-sources[name]["tokens"], -sources[name]["documents"]["read"], name))
    yield from ((name, sources[name]) for name in ranked[:_SHOWN_SOURCES])
    others = [sources[name] for name in ranked[_SHOWN_SOURCES:]]
    documents = {key: sum(other["documents"][key] for other in others) for key in ("read", "kept")}
    sums = {key: sum(other[key] for other in others) for key in ("tokens", "kept_bytes")}
    yield f"and {len(others):,} more", {"documents": documents, **sums}


def _number(number: int) -> str:
    """A number in full below ten million, else with three digits or more: 12.3M, 4,560B."""
    if number < 10_000_000:
        return f"{number:,}"
    unit, value = next((unit, number / scale) for unit, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6)) if number >= scale)
    return f"{value:,.0f}{unit}" if value >= 99.95 else f"{value:.1f}{unit}"


def _thresholds(report: Mapping[str, Any]) -> Iterator[str]:
    """A line for each share that a filter keeps: what it is of, and the threshold that makes it."""
    for source, stages in report["thresholds"].items():
        for stage, cut in stages.items():
            least = "nothing is left to keep" if cut["threshold"] is None else f"scores from {cut['threshold']:.4g} on"
            earlier = f", as in {masked(cut['from'])}" if cut["from"] else ""
            yield f"{source}: {stage} keeps {cut['share']:.4g} of the {cut['of']}: {least}{earlier}"


def _dropped(report: Mapping[str, Any]) -> str:
    """Which stages dropped most, in one line."""
    by_stage = {stage: sum(rules.values()) for stage, rules in dropped_by_stage(report).items()}
    quarantined = report["total"]["documents"]["quarantined"]
    ranked = sorted(by_stage, key=lambda stage: -by_stage[stage])
    parts = [f"{stage}{NO_BREAK}{by_stage[stage]:,}" for stage in ranked[:_SHOWN_STAGES]]
    others = ranked[_SHOWN_STAGES:]
    if len(others) == 1:
        parts.append(f"{others[0]}{NO_BREAK}{by_stage[others[0]]:,}")
    elif others:
        parts.append(f"{len(others):,} other stages {sum(by_stage[stage] for stage in others):,}")
    parts += [f"quarantined {quarantined:,}"] if quarantined else []
    return f"dropped: {', '.join(parts)}" if parts else "dropped: nothing"


def _committed(report: Mapping[str, Any], output: str) -> str:
    """What a run that is not done has committed."""
    tasks = report["tasks"].values()
    done = sum(step["planned"] is not None and step["committed"] >= step["planned"] for step in tasks)
    read = counted(report["total"]["documents"]["read"], "document")
    steps = f"after {done:,} of {counted(len(tasks), 'step')}" if done < len(tasks) else f"with all {len(tasks):,} steps done"
    look = f"`datapipe report {quote(output)} --full` shows the counts"
    return f"{report['name']}: {report['status']} {steps}, {read} read; {look}"


# ------------------------------------------------------------------------------------------------ what is next


def snapshot_news(
    output: str, newest: str, before: str, changes: Sequence[str], num_work_bytes: int, *, loads_before: bool = True
) -> list[str]:
    """Paragraphs about a publication.

    Args:
        newest, before: fingerprints; `before` is empty where there was no snapshot.
        changes: between the two, a line each.
        num_work_bytes: of the files to resume from.
        loads_before: whether the loader reads the snapshot before; it reads none of documents.
    """
    news = [f"snapshot {newest[:12]}{', as before' if newest == before else ''}"]
    if before and newest != before:
        news = [f"snapshot {newest[:12]} is the newest. Changed since {before[:12]}:"]
        news += [f"  {masked(change)}" for change in changes]
        place = json.dumps(output, ensure_ascii=False)
        how = f'Loader({place}, snapshot="{before[:12]}")' if loads_before else "`datapipe snapshots` lists it"
        news += [f"The one before stays: {how}"]
    return [*news, f"work/: {size(num_work_bytes)} to resume from; `datapipe clean` deletes what nothing needs"]


def _next(report: Mapping[str, Any], output: str, width: int) -> Iterator[str]:
    """The next commands, and how to load the rows of each length."""
    yield "next:"
    for command, about in (
        (f"datapipe report {quote(output)} --full", "all numbers; as charts: report.html"),
        (f"datapipe inspect {quote(output)} --dropped all", "what was dropped"),
    ):
        line = f"  {command}  # {about}"
        yield line if len(line) <= width else f"  {command}"
    for number, length in enumerate(report["total"]["packing"]):
        yield from ["", "    from datapipe.loader import Loader"] if not number else [""]
        folder = f"{output}/length-{length}" if number else output
        yield f"    for batch in Loader({json.dumps(folder, ensure_ascii=False)}, batch_size=8):"
        yield f'        batch["input_ids"], batch["labels"]  # (8, {length})'
    if report["shards"] and report["shards"]["held_out"]:
        yield from ["", f'  held out: Loader({json.dumps(output, ensure_ascii=False)}, split="validation", batch_size=8)']
