"""What each engine writes for tables, listings, lists, headings, links, comments and formulas: the examples of the README."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from stages.extract.html import Html
from tests.support.articles import batch_of
from tests.support.decisions import opened
from tests.support.pages import PARAGRAPHS, article

pytestmark = pytest.mark.needs("resiliparse", "trafilatura")

README = Path(__file__).resolve().parents[3] / "stages/extract/README.md"
CELL = re.compile(r"`([^`]*)`")


def _rows(num_cells: int) -> list[list[str]]:
    """The rows of examples with so many cells: HTML, options, and what the two engines write; or HTML and its text."""
    lines = [line for line in README.read_text(encoding="utf-8").splitlines() if line.startswith("| `<")]
    rows = [[cell.strip() for cell in line.replace("\\|", "¦").strip("| ").split(" | ")] for line in lines]
    return [row for row in rows if len(row) == num_cells]


def _written(html: str, **options: Any) -> str:
    """What stands between two halves of an article, where the HTML stood."""
    page = article(f"{PARAGRAPHS}{html}<p>The last of the paragraphs is here, and it ends the page.</p>")
    [text] = opened(Html.model_validate(options)).process(batch_of([page.encode()])).columns["text"].to_pylist()
    before, _, behind = text.rpartition("The wall has held the river ever since.")
    assert before.count("1912") == 1
    return "⏎".join(line.rstrip() for line in behind.partition("The last of")[0].strip("\n").split("\n"))


def _code(cell: str) -> str:
    found = CELL.fullmatch(cell)
    return found[1].replace("¦", "|") if found else ""


@pytest.mark.parametrize("row", _rows(4), ids=lambda row: f"{row[0][:20]} {row[1]}")
@pytest.mark.parametrize("engine", ["resiliparse", "trafilatura"])
def test_example_of_the_readme_is_what_the_engine_writes(row: list[str], engine: str) -> None:
    html, options, *written = row
    given = {name: value == "true" for name, value in re.findall(r"(\w+): (true|false)", options)}
    expected = written[engine == "trafilatura"]
    assert _written(_code(html).replace("⏎", "\n"), engine=engine, **given).replace("\t", "⇥") == _code(expected)


@pytest.mark.parametrize("row", _rows(2), ids=lambda row: row[1])
def test_formula_of_the_readme_is_latex_with_every_engine(row: list[str]) -> None:
    html, expected = map(_code, row)
    assert [_written(html, engine=engine) for engine in ("auto", "resiliparse", "trafilatura")] == [expected] * 3


def test_readme_has_an_example_of_every_option_and_formulas() -> None:
    named = {name for _, options, *_ in _rows(4) for name in re.findall(r"(\w+): ", options)}
    assert named == {"tables", "code", "lists", "headings", "links", "comments"}
    assert len(_rows(2)) > 10
