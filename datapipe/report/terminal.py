"""Sections of a report on a terminal, and the tables of other commands."""

import os
from collections.abc import Iterable

from rich.console import Console

from datapipe.quantities import counted, size
from datapipe.report.cells import Section, Table, cell
from datapipe.report.layout import NumberTable, Screen, harmless_text, print_text
from datapipe.report.sections import fertility_table, tokenizer_notes
from datapipe.tokens.training import Trained


def print_sections(sections: Iterable[Section], console: Console) -> None:
    """Prints the tables of sections, with the notes below them."""
    for section in sections:
        print_tables(section.tables, section.notes, console)


def print_tables(tables: Iterable[Table], notes: Iterable[str], console: Console) -> None:
    for table in tables:
        console.print(number_table(table, continues=True), crop=False)
    for note in notes:
        console.print(harmless_text(note), crop=False)


def number_table(table: Table, *, continues: bool = False) -> NumberTable:
    """A table for a terminal. In a table by source, a line is drawn below a row that stands out."""
    shown = NumberTable(table.title, table.headings, caption=table.note, continues=continues)
    for row in table.rows:
        name = str(row[0])
        shown.add_row(*map(cell, row), style="bold" if name in table.strong else "dim" if name in table.weak else "")
        if table.by_source and name in table.strong:
            shown.add_section()
    return shown


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


def wide_console(*, to_stderr: bool = False) -> Console:
    """A console as wide as the terminal. Without a terminal, COLUMNS or 120, so that tables in a log are not cut."""
    console, columns = Screen(stderr=to_stderr), os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and int(columns) else 120
    return console if console.is_terminal else Screen(stderr=to_stderr, width=width)
