"""The grid of a source that is cut into cells, in tables of sums and in a picture of all cells."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lxml import html as lxml_html

from datapipe.loader.order.batch_order import run_order
from datapipe.report.drawing import HEAT_COLORS, MOST_TITLED, WIDTH
from datapipe.report.grid import cells, grids
from datapipe.report.html.page import MOST_BYTES, report_html
from datapipe.report.report import Report
from datapipe.report.summary import epoch_warnings, mixture_shares
from datapipe.shards.manifest import read_snapshot
from datapipe.shards.shard_table import CellRun, ShardTable
from datapipe.storage.root import Root
from tests.support.reports import grid, report
from tests.support.snapshots import make_cells, make_snapshot

LANGUAGES = [f"{first}{second}" for first in "abcdefgh" for second in "vwxyz"]
TOPICS = ["science_and_mathematics", "news", "law", "a%2Fb", "none"]
AXES = [
    [[str(number) for number in range(23)]],
    [LANGUAGES],
    [LANGUAGES[:6], ["-1", "0", "10", "9", "none"]],
    [LANGUAGES[:3], TOPICS, ["0", "1"]],
    [LANGUAGES, TOPICS, [str(number) for number in range(20)]],
    [LANGUAGES[:2], TOPICS, ["true", "false"], [str(number) for number in range(12)]],
    [[str(number) for number in range(3000)], ["x"]],
    [["x"], [f"w{number}" for number in range(3000)]],
]


def _tables(axes: Sequence[Sequence[str]]) -> tuple[dict[str, Any], list[Any]]:
    content = grid(*axes)
    return content["cells"], list(cells(report(grids={"crawl": content})).tables)


@pytest.mark.parametrize("axes", AXES)
def test_tables_are_small_and_add_up_every_cell_once(axes: Sequence[Sequence[str]]) -> None:
    all_cells, (tokens, shares, named) = _tables(axes)
    for table, key in ((tokens, "tokens"), (shares, "share")):
        rows = [row for row in table.rows if row[0] != "all"] if len(table.rows) > 1 else table.rows
        assert len(rows) <= 20 and len(table.headings) <= 12
        whole = sum(cell[key] for cell in all_cells.values())
        for row in table.rows:
            assert sum(number or 0 for number in row[1:-1]) == pytest.approx(row[-1])
        for column in range(1, len(table.headings)):
            numbers = [row[column] or 0 for row in rows]
            assert sum(numbers) == pytest.approx(table.rows[-1][column])
        assert table.rows[-1][-1] == pytest.approx(whole)
        is_whole = math.prod(map(len, axes)) == len(rows) * (len(table.headings) - 2)
        assert ("together" in table.note or "summed" in table.note) is not is_whole
    largest = max(all_cells.values(), key=lambda cell: cell["share"])["share"]
    assert named.rows[0][3] == largest and f"{largest:.2%}" in named.title
    reached = [name for name, cell in all_cells.items() if cell["is_exhausted"]]
    assert f"{len(reached):,} cells reach their max_epochs" in named.title
    first = max(reached, key=lambda name: all_cells[name]["tokens"])
    assert f"crawl/{first}" in [row[0] for row in named.rows]


def test_numbers_ascend_words_follow_by_tokens_and_the_rest_is_put_together() -> None:
    _, (tokens, *_) = _tables(AXES[2])
    assert tokens.headings == ["axis 0", "-1", "0", "9", "10", "none", "all"] and not tokens.note
    sums = [row[-1] for row in tokens.rows[:-1]]
    assert sums == sorted(sums, reverse=True) and tokens.rows[-1][0] == "all"
    _, (tokens, *_) = _tables(AXES[4])
    assert tokens.headings[:3] == ["axis 0", "0–1", "2–3"] and tokens.rows[-2][0] == "21 others"
    assert tokens.note == (
        "In the table, summed over axis 1; axis 0: the 19 with most tokens, and 21 others together; axis 2: 2 together."
    )
    _, (tokens, *_) = _tables(AXES[0])
    assert tokens.headings == [
        "source",
        "0–2",
        "3–5",
        "6–8",
        "9–12",
        "13–15",
        "16–18",
        "19–22",
        "all",
    ]  # 10 and 21 have no cell


def _squares(chart: Any) -> Iterator[tuple[int, str, tuple[float, ...]]]:
    """Color, title, and x, y, width and height of each square of a picture, but for those of its key."""
    for path in chart.xpath(".//path"):
        found = re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)h-([\d.]+)z", path.get("d"))
        assert len(found) == path.get("d").count("M")
        for square in (tuple(map(float, square[:4])) for square in found):
            if square[2:] != (14, 12):
                yield int(path.get("class")[1:]), path.xpath("string(title)"), square


@pytest.mark.parametrize("axes", AXES)
def test_heat_map_has_a_square_for_each_cell_which_overlaps_no_other(axes: Sequence[Sequence[str]]) -> None:
    content = grid(*axes)
    page = lxml_html.document_fromstring(report_html(report(grids={"crawl": content})))
    tokens, shares = page.xpath("//svg[@data-chart='heat']")
    for chart, key in ((tokens, "tokens"), (shares, "share")):
        numbers = {name: cell[key] for name, cell in content["cells"].items()}
        colors, titles, squares = zip(*_squares(chart))
        assert len(set(squares)) == len(numbers)
        for at, last in ((0, WIDTH), (1, float(chart.get("viewbox").split()[3]))):
            places = sorted({square[at] for square in squares})
            assert places[0] >= 0 and places[-1] + squares[0][at + 2] <= last
            assert all(after - before >= squares[0][at + 2] - 0.002 for before, after in pairwise(places))
        assert colors.count(0) == sum(not number for number in numbers.values())
        if len(numbers) <= MOST_TITLED:
            by_name = {title.partition(": ")[0]: color for title, color in zip(titles, colors)}
            ranked = [by_name[name] for name in sorted(numbers, key=lambda name: numbers[name])]
            assert ranked == sorted(ranked) and ranked[-1] == HEAT_COLORS
        else:
            assert not any(titles)


@pytest.mark.medium
def test_page_of_ten_thousand_cells_is_small_and_report_json_has_all_of_them() -> None:
    content = grid(LANGUAGES, [f"topic-{number}" for number in range(14)], [str(number) for number in range(20)])
    whole = report(grids={"crawl": content, "again": content})
    assert len(content["cells"]) > 10_000
    assert len(report_html(whole)) <= MOST_BYTES
    assert Report.model_validate_json(whole.to_bytes()).grids["again"].cells.keys() == content["cells"].keys()


def test_shares_and_epochs_of_cells_are_those_of_the_rows_that_are_drawn(tmp_path: Path) -> None:
    runs = [(0, False, 20), (1, False, 10), (1, True, 5), (2, False, 3), (0, False, 8), (3, False, 9)]
    cut = make_cells(["en/0", "en/1", "ja/0", "ja/1"], [4, 3, 2, 0], ["1", "5/2", "2", "1"], [9, None, 3.5, None])
    options: dict[str, Any] = {"exhausted": "redistribute", "cells": {"crawl": (cut, runs)}}
    make_snapshot(tmp_path, {"books": 30, "crawl": 55}, weights={"books": 1, "crawl": 3}, total_tokens=16 * 400, **options)
    snapshot = read_snapshot(Root(str(tmp_path)))
    shards = [
        shard if shard.cells is None else shard.model_copy(update={"cells": tuple(map(_with_counts, shard.cells))})
        for shard in snapshot.shards
    ]
    snapshot = snapshot.model_copy(update={"shards": ShardTable.of(shards)})
    order = run_order(snapshot)
    cell_of = [cell for cell, _, rows in runs for _ in range(rows)]
    drawn = Counter(cell_of[row - 30] for row in order.addresses_of(np.arange(400)).tolist() if row >= 30)  # 30 are books
    [(source, found)] = grids(snapshot, order).items()
    assert source == "crawl" and [*found.cells] == [*cut.names]
    rows, epochs = [28, 15, 3, 9], [28, 10 * 2 + 5 * 3, 3 * 2, 9]
    for number, cell in enumerate(found.cells.values()):
        assert (cell.documents, cell.tokens) == (2 * rows[number], 15 * rows[number])
        assert cell.share == drawn[number] / 400 and cell.epochs == pytest.approx(drawn[number] / epochs[number], abs=1e-6)
    assert [cell.max_epochs for cell in found.cells.values()] == [9, None, 3.5, None]
    assert [cell.is_exhausted for cell in found.cells.values()] == [False, False, True, False]
    assert found.exhausted == ["ja/0"] and found.cells["en/1"].times == 3 * (found.cells["en/1"].epochs or 0)
    shares = mixture_shares(snapshot, order)
    assert shares.sources["crawl"].share == pytest.approx(sum(cell.share for cell in found.cells.values()))
    assert {name for interval in shares.schedule for name in interval.tokens} == {"books", "crawl"}
    [warning] = epoch_warnings(shares, {source: found})
    assert (
        warning.source == "crawl" and "the cell en/1 is drawn 9.7 times" in warning.text and "max_epochs to 1.3" in warning.text
    )


def _with_counts(run: CellRun) -> CellRun:
    return run._replace(tokens=15 * run.rows, documents=2 * run.rows)


def test_shares_of_an_endless_run_are_those_of_the_weights(tmp_path: Path) -> None:
    cut = make_cells(["en", "ja"], [3, 1])
    options: dict[str, Any] = {"weights": {"crawl": 3, "books": 1}, "cells": {"crawl": (cut, [(0, False, 5), (1, False, 2)])}}
    make_snapshot(tmp_path, {"books": 3, "crawl": 7}, **options)
    snapshot = read_snapshot(Root(str(tmp_path)))
    order = run_order(snapshot)
    assert [cell.share for cell in grids(snapshot, order)["crawl"].cells.values()] == pytest.approx([9 / 16, 3 / 16])
    assert all(cell.epochs is None and cell.times == 0 for cell in grids(snapshot, order)["crawl"].cells.values())
    assert epoch_warnings(mixture_shares(snapshot, order), grids(snapshot, order)) == []
