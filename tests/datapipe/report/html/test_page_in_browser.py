"""report.html in a real browser: wide and narrow, light and dark, on paper, by keyboard, with hostile names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from datapipe.report.html.page import report_html
from tests.support.browser import NARROW, WIDE, chromium, window
from tests.support.reports import report

pytestmark = pytest.mark.browser

_NAMES = [
    "web",
    "a_source_with_a_name_that_is_as_long_as_names_of_sources_may_well_become_in_real_life_2026",
    "<script>alert(1)</script>\u202eevil",
]


_CUT_CHARTS = """[...document.querySelectorAll('figure')].filter(figure =>
  figure.scrollWidth > figure.clientWidth + 1 || figure.querySelector('svg')?.getBoundingClientRect().right > innerWidth + 1
).map(figure => figure.textContent.slice(0, 60))"""
"""Charts of which a part is seen only after scrolling sideways."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    rules = ["too_few_words", "a_rule_with_a_long_name_" * 4, "<img src=x onerror=alert(1)>"]
    warnings = [{"kind": "k", "source": None, "text": f"source '{name}' is drawn 95.0 times. {'x' * 300}"} for name in _NAMES]
    content = report(_NAMES, rules, warnings=warnings, status="failed", problem="the disk is full\n" + "/a/very/long/path" * 20)
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_bytes(report_html(content, report(["web"])))
    return path.as_uri()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_the_report_is_whole_in_any_window(browser: Any, address: str, width: int, scheme: str) -> None:
    with window(browser, address, width, scheme) as seen:
        seen.check()
        for summary in seen.page.locator("summary").all():
            summary.click()
        seen.check()
        assert seen.page.locator("figure svg").count() > 10
        assert seen.page.evaluate(_CUT_CHARTS) == []
        if width == WIDE:
            seen.check_accessibility()
        paper = "rgb(255, 255, 255)" if scheme == "light" else "rgb(13, 17, 23)"
        assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") == paper


@pytest.mark.each_kind
def test_the_report_is_read_by_keyboard(browser: Any, address: str) -> None:
    with window(browser, address) as seen:
        seen.page.locator("summary").first.focus()
        seen.page.keyboard.press("Enter")
        assert seen.page.locator("details").first.get_attribute("open") is not None
        seen.page.locator("nav a").first.focus()
        seen.page.keyboard.press("Enter")
        assert seen.page.evaluate("location.hash") == "#funnel"


def test_the_report_prints(browser: Any, address: str, tmp_path: Path) -> None:
    with window(browser, address) as seen:
        seen.page.pdf(path=str(tmp_path / "report.pdf"), format="A4")
        assert (tmp_path / "report.pdf").stat().st_size > 20_000
        seen.page.emulate_media(media="print")
        seen.check()
