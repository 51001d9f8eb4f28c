"""The last screen of a run, which `datapipe report` prints again: what is kept of each source, what is next, the warnings.

    heading ─▶ a line for each source ─▶ what dropped the rest ─▶ the snapshot ─▶ next commands ─▶ warnings

At most 80 columns, and 60 are enough. No word is broken; a path that is longer than the line stands alone. Of many sources
and of many warnings of a kind the screen shows some and counts the others; `print_full` shows all. A run that did not end well
shows what is committed and its warnings: its reason comes last.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from shlex import quote
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from datapipe.credentials import masked
from datapipe.machine.terminal import harmless
from datapipe.quantities import counted, size
from datapipe.report.cells import Section, Table, short_share
from datapipe.report.documents import dropped_by_stage, note_of_removed
from datapipe.report.layout import (
    NO_BREAK,
    NumberTable,
    fitting,
    line_width,
    print_lines,
    print_text,
    print_wrapped,
)
from datapipe.report.report import Report
from datapipe.report.sections import fertility_table, heading, sources, tokenizer_notes
from datapipe.snapshots.clean import WorkBytes
from datapipe.steps.warnings import RunWarning
from datapipe.tokens.training import Trained

_MOST_SOURCES, _SHOWN_SOURCES = 12, 10
_SHOWN_STAGES = 3
_SHOWN_WARNINGS = 3  # of a kind
_LEAST_NAME = 12  # columns that a name has at least, where there are longer ones


def print_screen(report: Report, output: str, console: Console, lines: Sequence[str] = (), *, has_next: bool = True) -> None:
    """Prints the short screen of a report, with paragraphs about the snapshot from `snapshot_lines`,
    and with the next commands, which name `output`, a URL or path without credentials."""
    width = line_width(console)
    if report.status != "finished":
        print_wrapped([_committed(report, output)], console)
    else:
        if report.total.documents.read:
            print_wrapped([heading(report)], console, "bold")
            print_lines(["", *_table(report, width)], console)
            print_wrapped([_dropped(report), *_thresholds(report)], console)
        print_wrapped((*_taken(report), *note_of_removed(report)), console)
        print_wrapped(["", *lines] if lines else [], console)
        print_lines((line.replace(NO_BREAK, " ") for line in ("", *_next(report, output, width)) if has_next), console)
    print_warnings(report.warnings, console, f"`datapipe report {quote(output)} --full` shows them")


def print_full(report: Report, console: Console) -> None:
    """Prints everything of a report: its sections, and all warnings."""
    print_sections(report.sections(), console)
    print_warnings(report.warnings, console, "")


def print_sections(sections: Iterable[Section], console: Console) -> None:
    for section in sections:
        if section.tables or section.notes:  # figures alone are for a page
            console.print()
            console.print(Rule(Text(section.title, style="bold"), align="left"))
            print_tables(section.tables, section.notes, console)


def print_tables(tables: Iterable[Table], notes: Iterable[str], console: Console) -> None:
    for table in tables:
        console.print(NumberTable.of(table, continues=True), crop=False)
    print_wrapped(notes, console)


def print_training(trained: Trained, console: Console) -> None:
    read, used = (trained.read_bytes, trained.read_s), (trained.sample_bytes, trained.train_s)
    for verb, (num_bytes, seconds) in (("read", read), ("trained on", used)):
        console.print(f"{verb} {size(num_bytes)} of text in {seconds:,.1f} s: {num_bytes / 1e6 / max(seconds, 1e-9):,.1f} MB/s")
    if trained.rejected:
        console.print(f"{counted(trained.rejected, 'document')} could not be read and left out")
    for file in trained.unreadable_files:
        print_text(f"warning: {file.path} cannot be read from {file.position:,} on: {file.error}", console, "yellow")
    if trained.tokenizer is None:
        console.print("too few documents to hold some out, so bytes per token and tokens per word were not measured")
    else:
        print_tables([fertility_table(trained.tokenizer)], tokenizer_notes(trained.tokenizer), console)


def print_warnings(warnings: Sequence[RunWarning], console: Console, hint: str) -> None:
    """Prints the first warnings of each kind, and `hint`: where the others are; without it, all."""
    by_kind: dict[str, list[str]] = {}
    for warning in warnings:
        by_kind.setdefault(warning.kind, []).append(f"warning: {warning}")
    for kind, texts in by_kind.items():
        if hint and len(texts) > _SHOWN_WARNINGS + 1:
            texts[_SHOWN_WARNINGS:] = [f"warning: {len(texts) - _SHOWN_WARNINGS:,} more of the kind {kind}: {hint}"]
    shown = [text for texts in by_kind.values() for text in texts]
    print_wrapped(["", *shown] if shown else [], console, "yellow")


def print_problem(report: Report, console: Console) -> None:
    if report.problem:
        style = "red" if report.status == "failed" else ""
        print_wrapped([masked(f"{report.status}: {report.problem}")], console, style)


def _taken(report: Report) -> Iterator[str]:
    """ "rows of other snapshots: old.web 1,511,570 tokens, old.code 404,828 tokens"."""
    taken = [f"{name} {counted(source.tokens, 'token')}" for name, source in report.taken.items()]
    more = [f"{len(taken) - _SHOWN_SOURCES} more"] if len(taken) > _SHOWN_SOURCES else []
    if taken:
        yield f"rows of other snapshots: {', '.join([*taken[:_SHOWN_SOURCES], *more])}"


_Row = Mapping[str, Any]  # Cells of the table of sources by heading


def _table(report: Report, width: int) -> list[str]:
    """A line for each source, and for the total. Columns that the width does not hold are left out, the last one first."""
    table, num_own = sources(report).tables[0], len(report.sources)
    own = [dict(zip(table.headings, row)) for row in table.rows]
    rows = [*_most(own[:num_own]), *(own[num_own : num_own + 1] if num_own > 1 else [])]
    names = ["source", *(harmless(row["source"]) for row in rows)]
    columns = {heading: _COLUMNS[heading] for heading in table.headings if heading in _COLUMNS}
    cells = [[heading, *(text(row) for row in rows)] for heading, text in columns.items()]
    widths = [2 + max(map(len, column)) for column in cells]
    longest = max(map(len, names))
    while len(widths) > 1 and min(longest, _LEAST_NAME) + sum(widths) > width:
        widths.pop()
    name_width = min(longest, width - sum(widths))
    numbers = ["".join(f"{cell:>{room}}" for cell, room in zip(row, widths)) for row in zip(*cells)]
    return [f"{fitting(name, name_width):<{name_width}}{text}".rstrip() for name, text in zip(names, numbers)]


def _most(rows: Sequence[_Row]) -> list[_Row]:
    """The rows of sources; of many those with most tokens, and the sum of the others."""
    if len(rows) <= _MOST_SOURCES:
        return [*rows]
    ranked = sorted(rows, key=lambda row: (-(row.get("tokens") or 0), -row["read"], row["source"]))
    others = ranked[_SHOWN_SOURCES:]
    sums = {name: sum(row.get(name) or 0 for row in others) for name in ("read", "kept", "tokens", "text")}
    return [*ranked[:_SHOWN_SOURCES], {"source": f"and {len(others):,} more", **sums}]


def _number(number: int) -> str:
    """A number in full below ten million, else with three digits or more: 12.3M, 4,560B."""
    if number < 10_000_000:
        return f"{number:,}"
    unit, value = next((unit, number / scale) for unit, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6)) if number >= scale)
    return f"{value:,.0f}{unit}" if value >= 99.95 else f"{value:.1f}{unit}"


_COLUMNS: Mapping[str, Callable[[_Row], str]] = {
    "read": lambda row: _number(row["read"]),
    "kept": lambda row: _number(row["kept"]),
    "share": lambda row: short_share(row["kept"], row["read"]),
    "tokens": lambda row: _number(row["tokens"]),
    "epochs": lambda row: "" if row.get("epochs") is None else f"{row['epochs']:,.1f}",
    "text": lambda row: size(row["text"]),
}


def _thresholds(report: Report) -> Iterator[str]:
    """A line for each share that a filter keeps: what it is of, and the threshold that makes it."""
    for source, stages in report.thresholds.items():
        for stage, cut in stages.items():
            least = "nothing is left to keep" if cut.threshold is None else f"scores from {cut.threshold:.4g} on"
            earlier = f", as in {masked(cut.earlier)}" if cut.earlier else ""
            yield f"{source}: {stage} keeps {cut.share:.4g} of the {cut.of}: {least}{earlier}"


def _dropped(report: Report) -> str:
    by_stage = {stage: sum(rules.values()) for stage, rules in dropped_by_stage(report).items()}
    ranked = sorted(by_stage.items(), key=lambda each: -each[1])
    shown = len(ranked) if len(ranked) <= _SHOWN_STAGES + 1 else _SHOWN_STAGES
    parts = [f"{stage}{NO_BREAK}{count:,}" for stage, count in ranked[:shown]]
    if others := ranked[shown:]:
        parts.append(f"{len(others):,} other stages {sum(count for _, count in others):,}")
    if quarantined := report.total.documents.quarantined:
        parts.append(f"quarantined {quarantined:,}")
    return f"dropped: {', '.join(parts) or 'nothing'}"


def _committed(report: Report, output: str) -> str:
    tasks = report.tasks.values()
    done = sum(step.planned is not None and step.committed >= step.planned for step in tasks)
    read = counted(report.total.documents.read, "document")
    steps = f"after {done:,} of {counted(len(tasks), 'step')}" if done < len(tasks) else f"with all {len(tasks):,} steps done"
    hint = f"`datapipe report {quote(output)} --full` shows the counts"
    return f"{report.name}: {report.status} {steps}, {read} read; {hint}"


def snapshot_lines(
    output: str, newest: str, before: str, changes: Sequence[str], work: Iterable[str], *, loads_before: bool = True
) -> list[str]:
    """Paragraphs about a publication. `newest` and `before` are fingerprints; `before` is empty
    where there was no snapshot. `changes` are a line each, `work` are the lines about work/. `loads_before`: whether the
    loader reads the snapshot before; it reads none of documents."""
    lines = [f"snapshot {newest[:12]}{', as before' if newest == before else ''}"]
    if before and newest != before:
        lines = [f"snapshot {newest[:12]} is the newest. Changed since {before[:12]}:"]
        lines += [f"  {masked(change)}" for change in changes]
        how = f'Loader({_literal(output)}, snapshot="{before[:12]}")' if loads_before else "`datapipe snapshots` lists it"
        lines += [f"The one before stays: {how}"]
    return [*lines, *work]


def work_lines(output: str, work: WorkBytes, width: int) -> Iterator[str]:
    """What work/ takes, and which command deletes how much of it."""
    command = f"datapipe clean {quote(output)}"
    yield f"work/: {size(work.total)}{'' if work.clean or work.work else '; the report is made of it'}"
    if work.clean:
        yield from _command(command, f"deletes {size(work.clean)} that no snapshot needs", width)
    if work.work:
        yield from _command(f"{command} --work", f"deletes {size(work.work)} that only later runs and `inspect` need", width)


def _command(command: str, about: str, width: int) -> list[str]:
    """A command with a comment behind it, or where that is too long above it."""
    line = f"  {command}  # {about}"
    return [line] if cell_len(line) <= width else [f"  # {about}", f"  {command.replace(' ', NO_BREAK)}"]


def _next(report: Report, output: str, width: int) -> Iterator[str]:
    yield "next:"
    yield from _command(f"datapipe report {quote(output)} --full", "all numbers; as charts: report.html", width)
    yield from _command(f"datapipe inspect {quote(output)} --dropped all", "what was dropped", width)
    for number, length in enumerate(report.total.packing):
        yield from ["", "    from datapipe.loader import Loader"] if not number else [""]
        rows = f", sequence_length={length}" if number else ""
        yield f"    for batch in Loader({_literal(output)}, batch_size=8{rows}):"
        yield f'        batch["input_ids"], batch["labels"]  # (8, {length})'
    if report.shards and report.shards.held_out:
        yield from ["", f'  held out: Loader({_literal(output)}, split="validation", batch_size=8)']


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
