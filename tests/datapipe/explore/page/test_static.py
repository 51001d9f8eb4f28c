"""The page of `datapipe browse` in a real browser, on a run over ordinary, hostile and very long documents."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from datapipe.explore.endpoints import open_server
from tests.datapipe.explore.test_server import serving
from tests.support import corpora, runs
from tests.support.browser import NARROW, WIDE, Window, chromium, window
from tests.support.finished import finish

pytestmark = pytest.mark.browser

_HOSTILE = (
    "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\"></textarea></script>{{7*7}} "
    "\u202ereversed\u202c \u2028line\u2029 \x00\x1b[31m zero\u200bwidth javascript:alert(1) soft\u00adhyphen \U000e0041tag "
)
_MAIL = "planted.person@example-mail.org"

_LENGTH = "filter.length: {min_chars: 60, max_chars: 3000000}"
_STAGES = f"stages: [{_LENGTH}, filter.gopher_quality: {{mode: tag}}, dedup.exact, dedup.minhash, redact.pii]"
_TAIL = "tokenizer: {train: {vocab_size: 500}}\npack: {sequence_length: 64}\n"


def _texts() -> list[str]:
    rng = random.Random(11)
    texts = [corpora.prose(rng, rng.randrange(4, 120)) for _ in range(240)]
    copied = corpora.prose(rng, 150)
    hostile = [_HOSTILE * 8, f"<b>{_HOSTILE}</b>", f"{_MAIL} " * 3, f"write to {_MAIL} " + corpora.prose(rng, 40)]
    return [*texts, texts[0], copied, copied + " and one end", *hostile, "x" * 2_000_000]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("browse")
    name = "<img src=x onerror=alert(1)>.jsonl"
    rows = [{"text": text, "url": f"https://e.org/{n}?<script>", "id": f"doc-{n}"} for n, text in enumerate(_texts())]
    corpora.write_jsonl(folder / "web" / name, rows)
    path = runs.write_mixture(folder, f"  web: {{path: {folder}/web/*.jsonl, keep: [url]}}\n", _STAGES, _TAIL)
    finish(path)
    with serving(open_server(str(folder / "out"), 0)) as server:
        yield server.url


@contextmanager
def _view(browser: Any, address: str, view: str, width: int = WIDE, scheme: str = "light") -> Iterator[Window]:
    """A window with a view that is drawn."""
    with window(browser, f"{address}#/{view}", width, scheme) as seen:
        _drawn(seen, view.split("?", maxsplit=1)[0].split("/", maxsplit=1)[0])
        yield seen


def _drawn(seen: Window, view: str) -> None:
    seen.page.locator(f"main[data-view={view}]").wait_for(state="attached")


_VIEWS = ["overview", "documents", "documents?fate=dropped&sort=distance", "borderline", "clusters", "lookup?q=doc-3"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_every_view_is_whole_and_without_a_serious_barrier_in_any_window(
    browser: Any, address: str, width: int, scheme: str
) -> None:
    for view in _VIEWS:
        with window(browser, f"{address}#/{view}", width, scheme) as seen:
            seen.page.locator("main[data-view]").wait_for(state="attached")
            seen.check()
            assert seen.page.locator("main h2").count() >= 1
            if width == WIDE:
                seen.check_accessibility()


def test_clicks_lead_from_the_overview_to_a_document_and_back(browser: Any, address: str) -> None:
    with _view(browser, address, "overview") as seen:
        page = seen.page
        page.locator("main .row-list a").first.click()
        _drawn(seen, "borderline")
        assert page.locator("section[aria-labelledby=just-kept] .row-list a").first.inner_text().count("https://e.org/") == 1
        assert page.locator("#just-kept").inner_text().startswith("Just kept")
        page.locator("section[aria-labelledby=just-dropped] .row-list a").first.click()
        _drawn(seen, "document")
        assert page.locator(".badge.dropped").count() >= 1
        assert page.locator("ol.path li").count() >= 2
        page.go_back()
        _drawn(seen, "borderline")
        page.locator("nav a", has_text="Clusters").click()
        _drawn(seen, "clusters")
        page.locator("main .row-list a").first.click()
        _drawn(seen, "cluster")
        assert page.locator(".card").count() >= 2
        page.reload()
        _drawn(seen, "cluster")
        seen.check()


def test_the_keyboard_alone_is_enough(browser: Any, address: str) -> None:
    with _view(browser, address, "overview") as seen:
        keys = seen.page.keyboard
        keys.press("Tab")
        assert seen.page.evaluate("document.activeElement.id") == "skip"
        keys.press("Enter")
        assert seen.page.evaluate("document.activeElement.id") == "main"
        keys.press("g")
        keys.press("d")
        _drawn(seen, "documents")
        keys.press("j")
        keys.press("j")
        keys.press("k")
        first = seen.page.locator("main .row-list a").first
        assert first.evaluate("e => e === document.activeElement")
        keys.press("Enter")
        _drawn(seen, "document")
        keys.press("Escape")
        _drawn(seen, "documents")
        keys.press("/")
        keys.type("doc-3")
        keys.press("Enter")
        _drawn(seen, "document")
        assert seen.page.locator("main").inner_text().count("doc-3") >= 1
        keys.press("?")
        assert seen.page.locator("#help").is_visible()
        keys.press("Escape")
        assert not seen.page.locator("#help").is_visible()
        seen.check()


def test_filters_and_search_find_documents(browser: Any, address: str) -> None:
    with _view(browser, address, "documents") as seen:
        page = seen.page
        for fate, other in (("dropped", "kept"), ("kept", "dropped")):
            page.locator("select[name=fate]").select_option(fate)
            page.locator(f"main[data-view] .badge.{fate}").first.wait_for()
            assert page.locator(f".row-list .badge.{other}").count() == 0
        page.locator("select[name=fate]").select_option("")
        page.locator("input[name=q]").fill("reversed")
        page.locator("main form button").click()
        page.locator("main[data-view] mark").first.wait_for()
        assert {text.lower() for text in page.locator("mark").all_inner_texts()} == {"reversed"}
        seen.check()
    with _view(browser, address, "documents?fate=kept&min=999999") as seen:
        assert "No document matches" in seen.page.locator("main").inner_text()


def test_the_slider_reports_what_a_threshold_keeps_and_gives_its_yaml(browser: Any, address: str) -> None:
    rule = "borderline?source=web&stage=filter.gopher_quality&rule=too_few_words"
    with _view(browser, address, rule) as seen:
        page, kept = seen.page, []
        page.locator("#threshold").focus()
        for key in ("Home", "End"):
            page.keyboard.press(key)
            told = page.locator("#would-keep").inner_text()
            kept.append(int(told.split("keep ")[1].split(" of")[0].replace(",", "")))
        assert kept[0] > kept[1]
        page.locator("input[name=typed]").fill("30")
        yaml = page.locator("#yaml").inner_text()
        assert "filter.gopher_quality" in yaml
        assert "min_words: 30" in yaml.replace('"', "")
        seen.check()


def test_hostile_documents_stay_text_and_redacted_text_is_not_shown(browser: Any, address: str) -> None:
    with _view(browser, address, "documents?q=reversed") as seen:
        page = seen.page
        page.locator("mark").first.wait_for()
        page.locator("main .row-list a").first.click()
        _drawn(seen, "document")
        assert "taken" not in page.title()
        assert page.locator("main script, main img, main iframe").count() == 0
        text = page.locator(".text").inner_text()
        assert all(shown in text for shown in ("<script>", "{{7*7}}", "U+202E", "U+E0041"))
        assert not {"\u202e", "\u00ad", "\U000e0041"} & set(page.content())
        seen.check()
        page.goto(f"{address}#/documents?q=write%20to")
        page.locator("mark").first.wait_for()
        assert _MAIL not in page.content()
        page.locator("main .row-list a").first.click()
        page.locator(".text ins").first.wait_for()
        assert _MAIL not in page.content()
