"""Fits lines and tables to the width of a terminal: lines are broken between words, tables lose their last columns.

A path, a URL or a `command` is broken only where it is longer than a line, an argument in quotes nowhere. `print_text` and
`print_lines` print text as it is where the output is no terminal, so that each line of a log can be searched.
"""

import os
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import IO, Any, Self

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from datapipe.machine.terminal import harmless, unfiltered
from datapipe.report.cells import Table as Cells
from datapipe.report.cells import cell

MOST_COLUMNS = 80
"""Of a line of prose. Tables and the texts of documents are as wide as the terminal."""

_LEAST_NAME = 24  # columns that the first column of a table has at least, where it has longer names
_UNLIMITED = 100_000

NO_BREAK = "\ue000"  # Stands for a space at which no line is broken
_COMMAND = re.compile(r"`[^`\s](?:[^`]*[^`\s])?`")
_QUOTED = re.compile(r"'[^']*'")
"""In a command: an argument with spaces, as `shlex.quote` writes it."""


class Screen(Console):
    """stdout or stderr. Text in brackets is no markup, and control characters of texts are escaped."""

    def __init__(self, *, stderr: bool = False, width: int | None = None, file: IO[str] | None = None) -> None:
        super().__init__(stderr=stderr, width=width, file=file, markup=False, emoji=False)

    @property
    def file(self) -> IO[str]:
        return unfiltered(super().file)

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(harmless(text), **options)  # before a table measures it

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(harmless(segment.text), segment.style)


def wide_console(*, to_stderr: bool = False) -> Console:
    """A console as wide as the terminal. Without a terminal, COLUMNS or 120, so that tables in a log are not cut."""
    console, columns = Screen(stderr=to_stderr), os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and int(columns) else 120
    return console if console.is_terminal else Screen(stderr=to_stderr, width=width)


def line_width(console: Console) -> int:
    """Columns of a line of prose."""
    return min(console.width, MOST_COLUMNS)


def harmless_text(text: str, style: str = "") -> Text:
    """A text of rich whose control characters are escaped before it is measured and folded."""
    return Text(harmless(text), style=style)


def print_text(text: str, console: Console, style: str = "", *, hanging: int = 2) -> None:
    """Prints a text: on a terminal each of its lines wrapped, elsewhere as it is."""
    if console.is_terminal:
        width = line_width(console)
        print_lines((part for line in text.split("\n") for part in wrapped(line, width, hanging)), console, style)
    else:
        print(harmless(text.replace(NO_BREAK, " ")), file=console.file)


def fitting(text: str, width: int) -> str:
    """Text of at most `width` cells; the end of a longer one is replaced by "…"."""
    if cell_len(text) <= width:
        return text
    return f"{set_cell_size(text, width - 1).rstrip()}…" if width > 0 else ""


def print_verbatim(text: str, console: Console, style: str = "") -> None:
    """Prints the text of a document: on a terminal folded at its width, its spaces kept."""
    if console.is_terminal:
        console.print(harmless_text(text, style))
    else:
        print(harmless(text), file=console.file)


def print_table_of_markdown(lines: Sequence[str], console: Console, indent: int) -> None:
    """Prints a table of Markdown with aligned columns. On a terminal its cells take several lines where they must."""
    rows = [[each.strip() for each in line.strip().strip("|").split("|")] for line in lines]
    rows = [row for row in rows if not all(each and set(each) <= set("-: ") for each in row)]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
    for cells in zip_longest(*rows, fillvalue=""):
        table.add_column(Text(cells[0]), overflow="fold")
    for row in rows[1:]:
        table.add_row(*map(Text, row))
    natural = Measurement.get(console, console.options.update(width=_UNLIMITED), table).maximum
    width = min(natural, console.width - indent) if console.is_terminal else natural
    table.show_lines = width < natural
    for line in console.render_lines(table, console.options.update(width=width)):
        print_lines([" " * indent + "".join(segment.text for segment in line).rstrip()], console)


def print_lines(lines: Iterable[str], console: Console, style: str = "") -> None:
    """Prints lines that are not wrapped again."""
    for line in lines:
        console.print(harmless_text(line, style), soft_wrap=True)


def print_wrapped(texts: Iterable[str], console: Console, style: str = "") -> None:
    """Prints texts, each wrapped at words, in a log too."""
    width = line_width(console)
    print_lines([line for text in texts for line in wrapped(text, width)], console, style)


def wrapped(text: str, width: int, hanging: int = 2) -> list[str]:
    """Text as lines of at most `width` cells, broken between words and outside of `commands`. A longer word stands alone.
    Control characters are escaped. Later lines have the indent of the text and `hanging` columns more."""
    indent = len(text) - len(text.lstrip(" "))
    lines: list[str] = []
    line = start = " " * indent
    for gap, word in _units(text.strip(), width - indent - hanging):
        longer = f"{line}{gap}{word}"
        if line != start and cell_len(longer) > width:
            lines.append(line)
            start = " " * (indent + hanging)
            longer = start + word
        line = longer
    return [*lines, line.rstrip()]


def _units(text: str, width: int) -> Iterator[tuple[str, str]]:
    """The words of a text, each behind the spaces before it; a `command` that fits the width is one of them."""

    def whole(command: re.Match[str]) -> str:
        if cell_len(command[0]) <= width:
            return command[0].replace(" ", NO_BREAK)
        return _QUOTED.sub(lambda quoted: quoted[0].replace(" ", NO_BREAK), command[0])

    gap = ""
    for part in re.split(r"(\s+)", _COMMAND.sub(whole, text)):
        if part.isspace():
            gap = part if set(part) == {" "} else " "
        elif part:
            yield gap, harmless(part.replace(NO_BREAK, " "))


class NumberTable:
    """A table of numbers by name, as wide as it may be: headings are folded, then names, then
    columns are left out, the last one first, or with `continues` put into further tables. No number
    is cut. With `edges`, lines separate the columns."""

    def __init__(
        self,
        title: str,
        headings: Sequence[str],
        rows: Iterable[Sequence[str]] = (),
        *,
        caption: str = "",
        edges: bool = True,
        continues: bool = False,
    ) -> None:
        self.title, self.headings, self.caption, self.edges, self.continues = title, headings, caption, edges, continues
        self._rows: list[tuple[Sequence[str], str]] = []
        self._sections: set[int] = set()
        for cells in rows:
            self.add_row(*cells)

    @classmethod
    def of(cls, table: Cells, *, continues: bool = False) -> Self:
        """A table for a terminal. One by source has a line below each row that stands out."""
        shown = cls(table.title, table.headings, caption=table.note, continues=continues)
        for row in table.rows:
            name = str(row[0])
            shown.add_row(*map(cell, row), style="bold" if name in table.strong else "dim" if name in table.weak else "")
            if table.by_source and name in table.strong:
                shown.add_section()
        return shown

    def add_row(self, *cells: str, style: str = "") -> None:
        """Adds a row; cells that are not given are empty."""
        self._rows.append(([*map(harmless, cells), *[""] * (len(self.headings) - len(cells))], style))

    def add_section(self) -> None:
        """Draws a line below the last row."""
        self._sections.add(len(self._rows) - 1)

    def markdown(self) -> list[str]:
        """The lines of the table in Markdown, without its title and caption."""
        rows = [self.headings, ["---"] * len(self.headings), *(cells for cells, _ in self._rows)]
        return [f"| {' | '.join(cells)} |" for cells in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room, between = (options.max_width - 1, 3) if self.edges else (options.max_width, 2)  # lines, and spaces around cells
        headings, columns = [*map(harmless, self.headings)], list(zip(*(cells for cells, _ in self._rows)))

        def widths() -> list[int]:
            cells = (heading.split("\n") for heading in headings)
            return [between + max(map(cell_len, [*own, *column])) for own, column in zip_longest(cells, columns, fillvalue=())]

        if sum(widths()) > room:
            folded = ([textwrap.fill(word, max(1, room // 3)) for word in heading.split(" ")] for heading in headings)
            headings = ["\n".join(words) for words in folded]
        name, *others = widths()
        least, start, title, width = min(name, _LEAST_NAME + between), 0, self.title, min(options.max_width, MOST_COLUMNS)
        while start < len(others) and (self.continues or not start):
            stop = start + 1
            while stop < len(others) and least + sum(others[start : stop + 1]) <= room:
                stop += 1
            left = room - sum(others[start:stop])
            yield from (Text(line, style="bold") for line in wrapped(title, width) if title)
            yield self._table(headings, range(start + 1, stop + 1), max(1, left - between) if left < name else None)
            start, title = stop, f"{self.title}, continued"
        yield from (Text(line, style="dim") for line in wrapped(self.caption, width) if self.caption)

    def _table(self, headings: Sequence[str], shown: Iterable[int], name_width: int | None) -> Table:
        edges: dict[str, Any] = {} if self.edges else {"box": box.SIMPLE_HEAD, "pad_edge": False, "padding": (0, 1, 0, 0)}
        table = Table(**edges)
        table.add_column(headings[0], overflow="fold", width=name_width)
        for column in shown:
            table.add_column(Text(headings[column]), justify="right", no_wrap=True)
        for number, (cells, style) in enumerate(self._rows):
            name = cells[0] if name_width is None else _name_lines(cells[0], name_width)
            others = (Text(cells[column]) for column in shown)
            table.add_row(Text(name), *others, style=style, end_section=number in self._sections)
        return table


def _name_lines(name: str, width: int) -> str:
    """A name in lines of at most `width` cells, broken behind a sign or a space; rich folds a longer word."""
    lines = [""]
    for part in re.findall(r"[^\s.:/_-]*[\s.:/_-]?", name):
        if lines[-1] and cell_len(lines[-1] + part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)
