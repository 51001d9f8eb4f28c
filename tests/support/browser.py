"""A real browser for tests: Debian's chromium, driven by Playwright, and what every page must hold.

One browser serves all tests of a process; each test gets its own windows. A page may ask nothing but its own server, log no
error, scroll only downwards, and cut or overlap no text.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium")
AXE = os.environ.get("DATAPIPE_AXE", "")
"""The script of axe-core, a checker of accessibility: `npm pack axe-core` has it as package/axe.min.js."""

_ARGUMENTS = [
    "--no-sandbox",  # the tests run as root in a container
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",  # else it asks Google's hosts for updates
    "--disable-component-update",
    "--disable-sync",
]

NARROW, WIDE = 360, 1280


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser. Skips where there is none."""
    if CHROMIUM is None:
        pytest.skip("no chromium: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=_ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Window:
    """A window of the browser, and what went wrong in it.

    Attributes:
        page: of Playwright.
        origin: of the page; all else is a stranger. "file://" for files.
    """

    page: Any
    origin: str
    problems: list[str] = field(default_factory=list)

    def check(self) -> None:
        """Asserts what must hold for every page at every time."""
        assert self.problems == []
        size = self.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert size[0] <= size[1], f"the page scrolls sideways: {size}"
        assert self.page.evaluate(_CUT) == []
        assert self.page.evaluate(_SVG_TEXTS) == []

    def check_accessibility(self) -> None:
        """Asserts that axe-core finds nothing serious. Skips where it is not there."""
        if not os.path.isfile(AXE):
            pytest.skip("no axe-core: DATAPIPE_AXE names no axe.min.js")
        self.page.evaluate(Path(AXE).read_text(encoding="utf-8"))
        found = self.page.evaluate("axe.run().then(r => r.violations.map(v => [v.impact, v.id, v.nodes.map(n => n.html)]))")
        assert [each for each in found if each[0] in ("serious", "critical")] == []


@contextmanager
def window(browser: Any, url: str, width: int = WIDE, scheme: str = "light") -> Iterator[Window]:
    """A fresh window with a page.

    Args:
        url: of the page.
        scheme: "light" or "dark".
    """
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce")
    context.set_default_timeout(20_000)
    try:
        page = context.new_page()
        origin = "/".join(url.split("/")[:3])
        seen = Window(page=page, origin=origin)

        def note(is_problem: bool, text: str) -> None:
            seen.problems += [text] if is_problem else []

        page.on("console", lambda message: note(message.type in ("error", "warning"), message.text))
        page.on("pageerror", lambda error: note(True, str(error)))
        # A page stops a search itself, or leaves a view: such a request is aborted.
        page.on(
            "requestfailed", lambda request: note(request.failure != "net::ERR_ABORTED", f"{request.url}: {request.failure}")
        )
        page.on("request", lambda request: note(not request.url.startswith((origin, "data:")), f"a request to {request.url}"))
        page.goto(url)
        yield seen
    finally:
        context.close()


_CUT = """() => [...document.body.querySelectorAll('*')].filter(e =>
  !e.closest('.wide, .scroll, .text, figure, .skip, dialog:not([open]), svg, select, details:not([open])') &&
  [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())).filter(e => {
    const box = e.getBoundingClientRect();
    const isInline = getComputedStyle(e).display === 'inline' || !e.clientWidth;
    return box.width > 0 && (box.right > innerWidth + 1 || box.left < -1 || (!isInline && e.scrollWidth > e.clientWidth + 1));
  }).map(e => e.outerHTML.slice(0, 120))"""
"""Elements with text that stand outside of the window, or whose text is wider than they are."""

_SVG_TEXTS = """() => [...document.querySelectorAll('svg')].flatMap(svg => {
  const texts = [...svg.querySelectorAll('text')].filter(t => t.textContent.trim());
  const boxes = texts.map(t => t.getBBox()), view = svg.viewBox.baseVal, wrong = [];
  boxes.forEach((a, i) => {
    const isInside = a.x > -1 && a.y > -1 && a.x + a.width < view.width + 1 && a.y + a.height < view.height + 1;
    if (!isInside) wrong.push('cut: ' + texts[i].textContent);
    boxes.slice(i + 1).forEach((b, k) => {
      const across = Math.min(a.x + a.width, b.x + b.width) - Math.max(a.x, b.x);
      const down = Math.min(a.y + a.height, b.y + b.height) - Math.max(a.y, b.y);
      if (across > 1 && down > 3) wrong.push(texts[i].textContent + ' lies over ' + texts[i + 1 + k].textContent);
    });
  });
  return wrong;
})"""
"""Texts of charts that are cut, or lie over each other."""
