"""report.html: every mark of every chart against the table behind it, hostile names, its size; and in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest
from lxml import html as lxml_html

from datapipe.report.drawing import cut
from datapipe.report.html.page import MOST_BYTES, report_html
from datapipe.report.report import Report
from datapipe.steps.warnings import RunWarning
from tests.support.browser import NARROW, WIDE, chromium, window
from tests.support.command_line import datapipe
from tests.support.reports import grid, report, rule


def _page(content: Report) -> Any:
    return lxml_html.document_fromstring(report_html(content))


def _figures(page: Any, kind: str = "") -> Iterator[tuple[Any, list[list[float]]]]:
    """Each chart, and the numbers of its table, row by row."""
    for figure in page.iter("figure"):
        chart = next(figure.iter("svg"), None)
        if chart is not None and kind in ("", chart.get("data-chart")):
            rows = [[float(cell.get("data-value")) for cell in row.xpath("*[@data-value != '']")] for row in figure.iter("tr")]
            yield chart, [row for row in rows if row]


def _marks(chart: Any) -> list[dict[str, float]]:
    names = {"x": "x", "y": "y", "width": "width", "height": "height", "data-value": "value"}
    return [{name: float(mark.get(key)) for key, name in names.items()} for mark in chart.xpath(".//rect[@data-value]")]


def test_every_mark_is_a_number_of_its_table() -> None:
    figures = list(_figures(_page(report())))

    assert {chart.get("data-chart") for chart, _ in figures} == {"flow", "histogram", "bars", "stacked"}
    for chart, rows in figures:
        numbers = [number for row in rows for number in row]
        marks = _marks(chart)
        assert marks
        assert all(any(mark["value"] == pytest.approx(number) for number in numbers) for mark in marks)
        assert chart.xpath("string(title)")


def test_page_of_compiled_templates_is_that_of_new_ones_also_where_a_file_of_theirs_is_damaged(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pages = [report_html(report())]
    kept = sorted((tmp_path / "datapipe/templates").iterdir())
    assert kept
    with monkeypatch.context() as context:
        context.setattr(jinja2.Environment, "compile", pytest.fail)
        pages.append(report_html(report()))
    for path in kept:
        path.write_bytes(path.read_bytes()[:-1])
    pages.append(report_html(report()))
    assert pages[0] == pages[1] == pages[2]


def test_bars_have_a_mark_for_each_row_as_long_as_its_number() -> None:
    for chart, rows in _figures(_page(report()), "bars"):
        marks = _marks(chart)
        assert len(marks) == len(rows)
        for mark, row in zip(marks, rows):
            assert mark["value"] in row
        scales = [mark["width"] / mark["value"] for mark in marks if mark["value"]]
        assert scales == pytest.approx([scales[0]] * len(scales), rel=0.01)


def test_areas_of_histograms_are_proportional_to_documents() -> None:
    histograms = list(_figures(_page(report()), "histogram"))

    assert len(histograms) == 2 + 4  # the rule and two kinds of lengths, of two sources
    for chart, rows in histograms:
        marks = _marks(chart)
        table = [row for row in rows if sum(row)][: len(rows) - (len(rows[0]) == 2)]  # without the row of sums
        assert sum(mark["value"] for mark in marks) == sum(map(sum, table))
        scales = [mark["width"] * mark["height"] / mark["value"] for mark in marks if mark["height"] > 1]
        assert scales == pytest.approx([scales[0]] * len(scales), rel=0.05)


def test_the_threshold_stands_between_those_that_pass_and_those_that_fail() -> None:
    chart, _ = next(_figures(_page(report()), "histogram"))

    x = float(chart.xpath("string(.//line[@data-threshold]/@x1)"))

    assert float(chart.xpath("string(.//line[@data-threshold]/@data-threshold)")) == rule()["threshold"]
    boxes = [(mark, float(mark.get("x")), float(mark.get("width"))) for mark in chart.xpath(".//rect[@data-value]")]
    passed = [left + width for mark, left, width in boxes if mark.get("class") == "passed" and left + width > x]
    failed = [left for mark, left, _ in boxes if mark.get("class") == "failed"]
    assert passed
    assert max(failed) < x


def _rule_with(**changes: Any) -> Report:
    return report(["web"], measured={"web": {"filter.some": {"rule": rule() | changes}}})


@pytest.mark.parametrize(("changes", "is_drawn"), [({}, True), ({"dropped": 0}, False), ({"dropped": 0, "mode": "tag"}, True)])
def test_rule_that_drops_nothing_has_no_histogram_unless_it_tags(changes: dict[str, Any], is_drawn: bool) -> None:
    charts = [chart for chart, _ in _figures(_page(_rule_with(**changes)), "histogram")]
    assert len(charts) - 2 == is_drawn  # two are of lengths


def test_axis_of_shares_ends_at_one() -> None:
    bins = [[0.5, 0.53125, 0, 4], [0.9375, 1.0, 7, 0], [1.0, 1.0625, 9, 0]]
    content = _rule_with(threshold=0.75, bins=bins, passed=16, failed=4, dropped=4)
    chart, _ = next(_figures(_page(content), "histogram"))
    ticks = [float(text) for text in chart.xpath(".//text[contains(@class, 'tick')]/text()")]
    assert max(ticks) == 1.0 and sum(mark["value"] for mark in _marks(chart)) == 20
    [table] = content.sections()[2].tables
    assert table.rows[0][4:6] == [0.5, 1.0]


def test_bars_of_counts_name_whole_numbers() -> None:
    bins = [[1.0, 1.0625, 9, 0], [4.0, 4.25, 7, 0], [100.0, 104.0, 0, 4]]
    content = _rule_with(threshold=50, bins=bins, passed=16, failed=4, dropped=4)
    section = content.sections()[2]
    assert [row[0] for row in section.figures[0].rows] == ["1", "4", "100 to 103", "all"]
    assert section.tables[0].rows[0][4:6] == [1.0, 103.0]


def test_the_stream_is_as_wide_as_its_documents_and_ends_with_those_kept() -> None:
    content = report(rules=["a", "b"])

    by_size = sorted(content.sources.values(), key=lambda entry: -entry.documents.read)
    for (chart, rows), entry in zip(_figures(_page(content), "flow"), by_size):
        marks, documents = _marks(chart), entry.documents
        assert marks[0]["value"] == documents.read
        assert marks[-1]["value"] == documents.kept
        widths = [marks[0], marks[-1]]
        leaving = marks[1:-1]
        assert sum(mark["value"] for mark in leaving) == documents.read - documents.kept
        scale = marks[0]["width"] / marks[0]["value"]
        assert [mark["width"] for mark in widths] == pytest.approx([scale * mark["value"] for mark in widths], abs=0.01)
        assert [mark["height"] for mark in leaving] == pytest.approx([scale * mark["value"] for mark in leaving], abs=0.01)
        assert rows[-1][0] == documents.kept


@pytest.mark.medium
@pytest.mark.parametrize(("num_sources", "num_rules"), [(1, 200), pytest.param(500, 200, marks=pytest.mark.slow), (2, 1)])
def test_the_page_is_small_however_many_sources_and_rules(num_sources: int, num_rules: int) -> None:
    content = report([f"s{number}" for number in range(num_sources)], [f"rule_{number}" for number in range(num_rules)])

    page = report_html(content)

    assert len(page) <= MOST_BYTES
    told = lxml_html.document_fromstring(page).text_content()
    assert (f"more source{'s' if num_sources > 2 else ''} in report.json" in told) == (num_sources > 2)


_HOSTILE = "<script>alert(1)</script>\"'&\u202egnp.exe\u2066\x00\x1b[31m {{ 7*7 }} ]]><svg onload=x>"


def test_hostile_names_stay_text() -> None:
    names = [_HOSTILE, "plain"]
    warnings = [RunWarning(kind="k", text=_HOSTILE)]
    content = report(names, names, language=_HOSTILE, warnings=warnings, name=_HOSTILE, status="failed", problem=_HOSTILE)

    written = report_html(content)
    page = lxml_html.document_fromstring(written)

    assert not list(page.iter("script", "img", "iframe"))
    assert not page.xpath("//@*[starts-with(name(), 'on')]")
    assert not page.xpath("//@src | //@href[not(starts-with(., '#'))]")
    assert b"7*7" in written
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]", written.decode())
    assert "⟨U+202E⟩gnp.exe" in page.text_content()


@pytest.mark.parametrize("missing", [("tokenizer",), ("mixture", "tokenizer", "shards", "run")])
def test_reports_of_runs_that_failed_are_drawn(missing: tuple[str, ...]) -> None:
    content = report(status="failed", problem="the disk is full", **dict.fromkeys(missing))

    page = _page(Report.model_validate_json(content.to_bytes()))

    assert "the disk is full" in page.text_content()
    assert list(_figures(page, "flow"))


def test_report_of_rows_of_other_snapshots_alone_is_drawn() -> None:
    assert not list(_figures(_page(report([], mixture=None)), "flow"))


def test_equal_reports_give_equal_bytes() -> None:
    assert report_html(report()) == report_html(report())


@pytest.mark.medium
def test_a_run_writes_its_page_and_so_does_the_command(plain: Path, tmp_path: Path) -> None:
    written = (plain / "out/report.html").read_bytes()
    charts = [chart.get("data-chart") for chart, _ in _figures(lxml_html.document_fromstring(written))]
    assert charts[:2] == ["flow", "histogram"]
    again = datapipe(["report", str(plain / "out"), "--html", str(tmp_path / "page.html")])
    assert again.returncode == 0
    assert (tmp_path / "page.html").read_bytes() == written
    for wrong in (["--html", str(tmp_path)], ["--html", "-"], ["--html", "x.html", "--json"], ["--html", "no/page.html"]):
        assert datapipe(["report", str(plain / "out"), *wrong], cwd=tmp_path).returncode == 2


_NAMES = [
    "web",
    "a_source_with_a_name_that_is_as_long_as_names_of_sources_may_well_become_in_real_life_2026",
    "<script>alert(1)</script>\u202eevil",
]


_CUT_CHARTS = """[...document.querySelectorAll('svg:not([data-chart=heat])')].filter(svg =>
  svg.getBoundingClientRect().right > innerWidth + 1
).map(svg => svg.textContent.slice(0, 60))"""
"""Charts of which a part is seen only after scrolling sideways, but for heat maps."""

_SMALL_TEXTS = """[...document.querySelectorAll('svg text')].filter(text => {
  const svg = text.ownerSVGElement, width = svg.getBoundingClientRect().width;
  return width && parseFloat(getComputedStyle(text).fontSize) * width / svg.viewBox.baseVal.width < 12;
}).map(text => text.textContent)"""
"""Texts of charts of less than 12 CSS pixels."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    rules = ["too_few_words", "a_rule_with_a_long_name_" * 4, "<img src=x onerror=alert(1)>"]
    warnings = [RunWarning(kind="k", text=f"source '{name}' is drawn 95.0 times. {'x' * 300}") for name in _NAMES]
    numbers, words = [str(number) for number in range(20)], [name.replace("/", "%2F") for name in _NAMES]
    grids = dict(zip(_NAMES, (grid(words, numbers[:7]), grid(words, words, numbers), grid(words))))
    problem = "the disk is full\n" + "/a/very/long/path" * 20
    content = report(_NAMES, rules, warnings=warnings, status="failed", problem=problem, grids=grids)
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_bytes(report_html(content))
    return path.as_uri()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [NARROW, WIDE])
@pytest.mark.browser
def test_the_report_is_whole_in_any_window(browser: Any, address: str, width: int, scheme: str) -> None:
    with window(browser, address, width, scheme) as seen:
        seen.check()
        for summary in seen.page.locator("summary").all():
            summary.click()
        seen.check()
        assert seen.page.locator("figure svg").count() > 10
        assert seen.page.evaluate(_CUT_CHARTS) == seen.page.evaluate(_SMALL_TEXTS) == []
        tops = seen.page.evaluate("[...document.querySelectorAll('.tiles div')].map(tile => tile.getBoundingClientRect().top)")
        assert len(set(tops)) == 1, "tiles are one row"
        if width == WIDE:
            seen.check_accessibility()
        paper = "rgb(255, 255, 255)" if scheme == "light" else "rgb(13, 17, 23)"
        assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") == paper


@pytest.mark.each_kind
@pytest.mark.browser
def test_the_report_is_read_by_keyboard(browser: Any, address: str) -> None:
    with window(browser, address) as seen:
        numbers = seen.page.locator("details").first
        was_open = numbers.get_attribute("open") is not None
        seen.page.locator("summary").first.focus()
        seen.page.keyboard.press("Enter")
        assert (numbers.get_attribute("open") is not None) is not was_open
        link = seen.page.locator("nav a").first
        link.focus()
        seen.page.keyboard.press("Enter")
        assert seen.page.evaluate("location.hash") == link.get_attribute("href")
        assert seen.page.locator(link.get_attribute("href")).is_visible()


@pytest.mark.parametrize("most", [1, 2, 9, 10])
def test_long_names_keep_their_beginning_and_their_end(most: int) -> None:
    name = "abcdefghij" + "x" * 90
    shown = cut(name, most)
    head, tail = shown.split("…")
    assert (len(shown), name.startswith(head), name.endswith(tail)) == (most, True, True)
    assert len(tail) - len(head) in (0, 1)
    assert cut(name[:most], most) == name[:most]
