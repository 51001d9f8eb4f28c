"""Sections of a report in Markdown, for the card. Names, paths and messages of users are shown as they are, never as markup.

Texts of cells are names of users, so they stand in code spans. A table with a column for
each source would be too wide: it has its names and its last column, that of all sources.
"""

import re
import unicodedata
from collections.abc import Sequence

from datapipe.credentials import masked
from datapipe.report.cells import Cell, Section, Table, cell

MOST_COLUMNS = 12
MOST_ROWS = 100
_NUMBER = re.compile(r"−?[\d,.]+( \(.*\))?|")
MOST_CHARS = 300  # of a text in the card. Longer ones end in "…".
_SPECIAL = re.compile(r"[\\`*_\[\]<>&|~#$!]")
_PLAIN_CODE = re.compile(r"[^`|\\]+")
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of characters that change how others are shown, or show nothing: controls, bidirectional marks, surrogates."""


class Markdown(str):
    """Text that is Markdown already."""

    __slots__ = ()


def plain(text: str) -> str:
    """One line of visible characters, without credentials."""
    line = " ".join(masked(text[: 4 * MOST_CHARS]).split())
    shown = "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(char) in _HIDDEN else char for char in line)
    return shown if len(shown) <= MOST_CHARS else f"{shown[: MOST_CHARS - 1]}…"


def prose(text: str) -> Markdown:
    """Text of a user within a sentence or a heading."""
    return Markdown(_SPECIAL.sub(_entity, plain(text)))


def _entity(match: re.Match[str]) -> str:
    return f"&#{ord(match[0])};"


def code(text: str) -> Markdown:
    """Text of a user in a code span, with a bar in HTML: it would end the cell of a table."""
    shown = plain(text)
    if _PLAIN_CODE.fullmatch(shown):
        return Markdown(f"`{shown}`")
    return Markdown(f"<code>{_SPECIAL.sub(_entity, shown)}</code>")


def link(url: str) -> Markdown:
    """A web page. Its address has no spaces, which the mixture checks."""
    shown = plain(url)
    return Markdown(f"<{shown}>") if not re.search(r"[<>\s|`]", shown) else code(shown)


def shown(value: Cell) -> str:
    """A value in the template: Markdown as it is, other text escaped, numbers as in the report."""
    if isinstance(value, Markdown):
        return value
    return prose(value) if isinstance(value, str) else cell(value)


def section_markdown(section: Section) -> Markdown:
    tables = [table_markdown(table) for table in section.tables]
    return Markdown("\n\n".join([f"## {section.title}", *tables, *map(prose, section.notes)]) + "\n")


def table_markdown(table: Table) -> Markdown:
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
