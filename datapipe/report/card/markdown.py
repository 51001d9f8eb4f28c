"""Sections of a report in Markdown, for the card. Texts of cells are names of users, so they stand in code spans.

A table with a column for each source would be too wide: it has its names and its last column, that of all sources.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from datapipe.report.card.escaping import Markdown, code, prose, shown
from datapipe.report.cells import Cell, Section, Table, cell

MOST_COLUMNS = 12
MOST_ROWS = 100
_NUMBER = re.compile(r"−?[\d,.]+( \(.*\))?|")


def section_markdown(section: Section) -> Markdown:
    """A heading, the tables with their titles, and the notes."""
    tables = [table_markdown(table) for table in section.tables]
    return Markdown("\n\n".join([f"## {section.title}", *tables, *map(prose, section.notes)]) + "\n")


def table_markdown(table: Table) -> Markdown:
    """A table below its title. Columns of numbers are aligned on the right."""
    columns = range(len(table.headings))
    if len(columns) > MOST_COLUMNS or table.by_source:
        columns = [0, columns[-1]]
    rows = [[row[column] for column in columns] for row in table.rows[:MOST_ROWS]]
    sides = ["---" if any(_is_text(row[column]) for row in rows) else "---:" for column in range(len(columns))]
    head = [prose(table.headings[column]) for column in columns]
    lines = [f"| {' | '.join(line)} |" for line in (head, *([_cell(value) for value in row] for row in rows))]
    lines.insert(1, f"|{'|'.join(sides)}|")
    more = len(table.rows) - len(rows)
    notes = [*([table.note] if table.note else []), *([f"{more:,} more rows are in report.json."] if more else [])]
    title = [f"{prose(table.title)}."] if table.title else []
    return Markdown("\n\n".join([*title, "\n".join(lines), *map(prose, notes)]))


def _is_text(value: Cell) -> bool:
    return isinstance(value, str) and _NUMBER.fullmatch(value) is None


def _cell(value: Cell) -> Markdown:
    """A cell; the name of a row keeps its indent."""
    if not isinstance(value, str):
        return Markdown(cell(value))
    if isinstance(value, Markdown) or not value:
        return Markdown(value)
    if not _is_text(value):
        return Markdown(shown(value))
    indent = (len(value) - len(value.lstrip(" "))) // 2
    return Markdown("&emsp;" * indent + code(value.strip()))


def columns_markdown(names: Sequence[str], types: Sequence[str]) -> Markdown:
    """The columns of the data files; empty where they are not known."""
    table = Table(headings=["column", "type"], rows=[[name, type] for name, type in zip(names, types)])
    return Markdown(f"{table_markdown(table)}\n") if names else Markdown("")
