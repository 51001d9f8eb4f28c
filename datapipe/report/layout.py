"""Fits lines and tables to the width of a terminal: lines are broken between words, tables lose their last columns.

A path, a URL or a `command` is broken only where it is longer than a line. `say` and `print_lines` print text as it is where
the output is no terminal, so that each line of a log can be searched.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

MOST_COLUMNS = 80
"""Of a line of prose. Tables and the texts of documents are as wide as the terminal."""

_LEAST_NAME = 24
"""Columns that the first column of a table has at least, where it has longer names."""

_UNLIMITED = 100_000

_NO_BREAK = "\u00a0"
_COMMAND = re.compile(r"`[^`]*`")


def say(text: str, style: str = "", *, to_stderr: bool = False) -> None:
    """Prints a text to stdout or stderr: on a terminal wrapped and in a style, elsewhere as it is."""
    console = Console(stderr=to_stderr)
    if console.is_terminal:
        print_text(text, console, style)
    else:
        print(text, file=sys.stderr if to_stderr else sys.stdout)


def print_text(text: str, console: Console, style: str = "") -> None:
    """Prints a text: on a terminal each of its lines wrapped, elsewhere as it is."""
    width = min(console.width, MOST_COLUMNS)
    lines = text.split("\n")
    print_lines([part for line in lines for part in wrapped(line, width)] if console.is_terminal else lines, console, style)


def print_lines(lines: Iterable[str], console: Console, style: str = "") -> None:
    """Prints lines that are not wrapped again."""
    for line in lines:
        console.print(Text(line, style=style), soft_wrap=True)


def print_paragraphs(texts: Iterable[str], console: Console) -> None:
    """Prints texts that are not empty, each after an empty line and wrapped at words, in a log too."""
    width = min(console.width, MOST_COLUMNS)
    print_lines([line for text in texts if text for line in ("", *wrapped(text, width))], console)


def wrapped(text: str, width: int, hanging: int = 2) -> list[str]:
    """Text as lines of at most `width` cells, broken between words and outside of `commands`. A longer word stands alone.

    What cannot be printed is replaced. A line that is indented stays so.

    Args:
        hanging: columns by which the later lines are indented further.
    """
    indent = len(text) - len(text.lstrip(" "))
    lines: list[str] = []
    line, start = "", " " * indent
    for word in _units(" ".join(map(_printable, text.split())), width - indent - hanging):
        longer = f"{line} {word}" if line else start + word
        if line and cell_len(longer) > width:
            lines.append(line)
            start = " " * (indent + hanging)
            longer = start + word
        line = longer
    return [each.replace(_NO_BREAK, " ") for each in [*lines, line]]


def _units(text: str, width: int) -> list[str]:
    """The words of a text; a `command` that fits the width is one of them."""

    def whole(command: re.Match[str]) -> str:
        return command[0].replace(" ", _NO_BREAK) if cell_len(command[0]) <= width else command[0]

    return _COMMAND.sub(whole, text).split(" ") if text else []


def _printable(word: str) -> str:
    return "".join(character if character.isprintable() else "\ufffd" for character in word)


class NumberTable:
    """A table of numbers by name, as wide as it may be: headings are folded, then columns left out, the last one first.

    The first column holds the names. Where these are long they take two lines or more. No other cell is cut.

    Args:
        headings: of all columns. Those that matter most come first.
        caption: a line below the table.
        edges: whether lines separate the columns.
    """

    def __init__(self, title: str, headings: Sequence[str], *, caption: str = "", edges: bool = True) -> None:
        self.title, self.headings, self.caption, self.edges = title, headings, caption, edges
        self._rows: list[tuple[Sequence[str], str]] = []

    def add_row(self, *cells: str, style: str = "") -> None:
        """Adds a row; cells that are not given are empty."""
        self._rows.append((cells, style))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unlimited, width = options.update(width=_UNLIMITED), options.max_width
        names = [self.headings[0], *(cells[0] for cells, _ in self._rows)]
        spare = max(0, max(map(cell_len, names)) - _LEAST_NAME)

        def needed(headings: Sequence[str]) -> int:
            return Measurement.get(console, unlimited, self._table(headings)).maximum

        headings = list(self.headings)
        if needed(headings) > width:
            headings = [heading.replace(" ", "\n") for heading in headings]
        while len(headings) > 2 and needed(headings) - spare > width:
            headings.pop()
        excess = max(0, needed(headings) - width)
        yield self._table(headings, max(1, max(map(cell_len, names)) - excess) if excess else None)

    def _table(self, headings: Sequence[str], name_width: int | None = None) -> Table:
        look: dict[str, Any] = {} if self.edges else {"box": box.SIMPLE_HEAD, "pad_edge": False, "padding": (0, 1, 0, 0)}
        table = Table(title=self.title, title_justify="left", title_style="bold", **look)
        table.add_column(headings[0], overflow="fold", width=name_width)
        for heading in headings[1:]:
            table.add_column(heading, justify="right", no_wrap=True)
        for cells, style in self._rows:
            table.add_row(*map(Text, cells[: len(headings)]), style=style)
        if self.caption:
            table.caption, table.caption_justify = self.caption, "left"
        return table
