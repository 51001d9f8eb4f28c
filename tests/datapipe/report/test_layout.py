"""Lines and tables at the width of a terminal: words, commands and numbers stay whole."""

from __future__ import annotations

import io
import re
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from datapipe.report.layout import NO_BREAK, NumberTable, print_table_of_markdown, print_text, print_verbatim, say, wrapped
from datapipe.terminal import harmless


@given(st.text(st.characters(exclude_characters=NO_BREAK), max_size=200), st.integers(20, 100))
def test_wrapped_text_keeps_its_words_within_the_width(text: str, width: int) -> None:
    lines = wrapped(text, width)
    assert harmless("".join(lines)) == "".join(lines)
    assert [word for line in lines for word in line.split()] == [harmless(word) for word in text.split()]
    for line in lines:
        assert cell_len(line) <= width or len(line.split()) == 1


_WORDS = st.text(st.sampled_from("ab/:-."), min_size=1, max_size=9)


@given(st.lists(st.one_of(_WORDS, st.lists(_WORDS, min_size=1, max_size=3).map(lambda words: f"`{' '.join(words)}`"))))
def test_wrapped_text_breaks_no_command_that_fits_a_line(parts: list[str]) -> None:
    text = " ".join(parts)
    lines = wrapped(text, 40)
    assert " ".join(line.strip() for line in lines) == text
    assert all(line.count("`") % 2 == 0 for line in lines)
    for line, after in zip(lines, lines[1:]):
        following = re.match(r"`[^`]*`|\S+", after.strip())
        assert following is not None
        assert len(line) + 1 + len(following[0]) > 40  # no line ends early


def test_wrapped_command_is_not_broken_inside_a_quoted_argument() -> None:
    lines = wrapped("look with `datapipe report 'a folder with spaces' --full`", 20)
    assert [line for line in lines if "'a folder with spaces'" in line]


def test_text_is_wrapped_on_a_terminal_alone() -> None:
    text = "datapipe: " + "/a/long/path/of/a/file.jsonl:12 is damaged. " * 4 + "\n  Second\x1b[2J line"
    printed = {}
    modes: tuple[tuple[bool, Literal["standard"] | None], ...] = ((True, "standard"), (False, None))
    for terminal, colors in modes:
        stream = io.StringIO()
        print_text(text, Console(file=stream, width=60, force_terminal=terminal, color_system=colors), "red")
        printed[terminal] = re.sub(r"\x1b\[(31|0)m", "", stream.getvalue())
        assert ("\x1b[31m" in stream.getvalue()) == terminal
    assert max(map(len, printed[True].splitlines())) <= 60
    assert printed[True].count("/a/long/path/of/a/file.jsonl:12 ") + printed[True].count("file.jsonl:12\n") == 4
    assert printed[True].endswith("\n  Second\\u001b[2J line\n")
    assert printed[False] == text.replace("\x1b", "\\u001b") + "\n"


def test_said_text_in_a_pipe_is_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    say("word " * 60, "red", to_stderr=True)
    say("[bold]other[/bold] " * 20)
    assert tuple(capsys.readouterr()) == ("[bold]other[/bold] " * 20 + "\n", "word " * 60 + "\n")


_ODD_TABLES = [["| a | b |", "|---|:-:|", "| one | two | three |", "| four |"], ["|---|"], ["|"], ["| only |"]]


@pytest.mark.parametrize("lines", _ODD_TABLES)
@pytest.mark.parametrize("terminal", [True, False])
def test_table_of_markdown_keeps_every_cell_of_any_rows(lines: list[str], terminal: bool) -> None:
    stream = io.StringIO()
    print_table_of_markdown(lines, Console(file=stream, width=40, force_terminal=terminal), 2)
    assert re.findall(r"\w+", stream.getvalue()) == re.findall(r"\w+", " ".join(lines))


@pytest.mark.parametrize("terminal", [True, False])
def test_text_of_a_document_keeps_its_spaces_and_cannot_control_the_terminal(terminal: bool) -> None:
    text = "def f():\n    return 'a  b'\x1b[31m\r\n"
    stream = io.StringIO()
    print_verbatim(text, Console(file=stream, width=40, force_terminal=terminal, color_system=None))
    assert stream.getvalue() == text.replace("\x1b", "\\u001b").replace("\r", "\\u000d") + "\n"


def _table(width: int, names: tuple[str, ...] = ("web", "dedup.minhash: fetch signatures")) -> str:
    table = NumberTable("figures", ["step", "unique tokens", "seconds of all", "[share]", "text"], caption="below")
    for name in names:
        table.add_row(name, "123,456,789", "1,234.56", "100%", "1.2 GB", style="bold")
    stream = io.StringIO()
    Console(file=stream, width=width).print(table)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("width", "last"), [(100, "1.2 GB"), (70, "1.2 GB"), (63, "100%"), (60, "100%"), (53, "1,234.56"), (44, "123,456,789")]
)
def test_table_leaves_out_columns_from_the_right_and_cuts_no_number(width: int, last: str) -> None:
    printed = _table(width)
    assert max(map(len, printed.splitlines())) <= width
    assert "…" not in printed
    row = next(line for line in printed.splitlines() if "│ web" in line)
    assert [cell.strip() for cell in row.split("│")[1:-1]] == [
        "web",
        *["123,456,789", "1,234.56", "100%", "1.2 GB"][: ["123,456,789", "1,234.56", "100%", "1.2 GB"].index(last) + 1],
    ]
    names = "".join(line.split("│")[1].strip() for line in printed.splitlines() if line.startswith("│"))
    assert names.replace(" ", "") == "webdedup.minhash:fetchsignatures"
