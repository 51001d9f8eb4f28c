"""Engines that ask a second one where the first finds little.

    auto      resiliparse -> resiliparse without misleading names -> trafilatura; the longest text is kept
    fallback  trafilatura -> resiliparse

`auto` tries a page again where resiliparse finds fewer than 100 words, or less than a tenth of what the page shows. Resiliparse
goes by classes, ids and roles, and some of them mislead it: `post` of Substack's articles, `content-sidebar-wrap` of Genesis,
`BlogItem` of Squarespace, `hidden` of pages that React streams. An element that holds half of the text of a page is no menu and
no footer whatever it is called. So such elements lose their names, and resiliparse is asked again, which takes a tenth of
trafilatura's time. Trafilatura follows where at least 300 words outside of links would still be lost, since crawl pages are
often short by nature, or lists of links. It favors recall then: it is right on more of these pages, in three quarters of the
time.

Where resiliparse has found some words, the later tries do not see what the page hides, dialogs, and what is called a notice of
cookies, an advertisement, comments, a sidebar or a footer. Where it has found none, they see all of the page.

Measured in November 2026, see `stages/extract/README.md`: F1 on 250 pages of seven kinds 0.83, with resiliparse alone 0.77. Of
48 pages that resiliparse loses there, its second try finds 10. A try with the comments of readers would find some forums, and
take comments for the article on as many pages of news.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from stages.extract._engines import (
    BY_RESILIPARSE,
    BY_TRAFILATURA,
    BY_UNMARKED,
    TRIED_FEW_WORDS,
    TRIED_SMALL_SHARE,
    Engine,
    Favor,
    Found,
    OwnEngine,
    Page,
    Resiliparse,
    Trafilatura,
    Wanted,
)

FEW_WORDS, SMALL_SHARE, LEAST_SHARE = 100, 0.1, 0.05
ALL_OF_PAGE = 0.9
"""The share of a page from which on trafilatura's text counts as the whole page, menus and all. It does not replace a text."""

SOME_WORDS = 5
"""Words below which a text counts as none: "Loading", "Skip to content"."""

LOST_WORDS = 300
"""Words that a page shows beyond its main text, below which trafilatura is not asked. With words of links among them, F1 on
pages of seven kinds would be 0.002 better, and crawl pages would take a quarter more time."""

_MARKS = (
    "class",
    "id",
    "role",
    "style",
    "hidden",
    *("aria-hidden", "aria-expanded", "data-ad", "data-advertisement", "data-text-ad"),
)
"""Attributes by which resiliparse takes an element for a menu, an advertisement, or hidden."""

_NOTICES = ("cookie", "consent", "gdpr", "advert")
_ASIDE = ("comments", "comment-list", "commentlist", "sidebar", "widget-area", "footer", "site-footer", "ads", "ad-container")
_BOILERPLATE = ", ".join(
    (
        *('[hidden]:not([id^="S:"])', '[aria-hidden="true" i]', '[style*="display:none" i]', '[style*="display: none" i]'),
        *('[role="dialog" i]', '[role="alertdialog" i]', "dialog", "template", "footer"),
        *(f'[{name}*="{notice}" i]' for notice in _NOTICES for name in ("class", "id")),
        *(f".{name}, #{name}" for name in _ASIDE),
    )
)
"""No main text where another text was found. React shows the parts of a page that it streams as `<div hidden id="S:0">`."""

_MANY_CHARACTERS = 2_000
"""Characters of a text whose words are not counted: it has enough."""

_MOST_READ = 20
"""How often the text of a page is read at most for boilerplate: elements inside each other are read once for each."""

_MOST_WRAPPERS = 100
"""Elements inside each other that `remove_marks` goes through: their texts are read once for each."""


class Auto:
    """Resiliparse; where it finds little, resiliparse without misleading names, then trafilatura. The longest text is kept."""

    def __init__(self, wanted: Wanted, favor: Favor, *, full: bool) -> None:
        favor = "recall" if favor == "balance" else favor  # it is asked for what was missed
        self._first, self._second = Resiliparse(wanted), Trafilatura(wanted, favor, full=full)

    def find(self, page: Page) -> Found:
        text = self._first.text_of(page.tree)
        reason = _too_little(text, page.shown)
        if not reason or num_words(page.shown) - num_words(text) < FEW_WORDS:
            return Found(text, (BY_RESILIPARSE,))
        if num_words(text) >= SOME_WORDS:
            page = _without_boilerplate(page, text)
            if num_words(page.shown) - num_words(text) < FEW_WORDS:
                return Found(text, (BY_RESILIPARSE,))
        return Found(*self._again(page, text, reason))

    def _again(self, page: Page, text: str, reason: str) -> tuple[str, tuple[str, str]]:
        engine, is_none = BY_RESILIPARSE, num_words(text) < SOME_WORDS
        if remove_marks(page.tree):
            text, engine = _longer(text, engine, self._first.text_of(page.tree), BY_UNMARKED)
        is_none &= num_words(text) < SOME_WORDS
        if is_none or (_too_little(text, page.shown) and _lost_words(text, page) >= LOST_WORDS):
            found = self._second.text_of(page)
            if is_none or len(found or "") < ALL_OF_PAGE * len(page.shown):
                text, engine = _longer(text, engine, found, BY_TRAFILATURA)
        return text, (reason, engine)


def _too_little(text: str, shown: str) -> str:
    """Why a text is too little of what its page shows; "" for one that is not."""
    if len(text) < SMALL_SHARE * len(shown):
        return TRIED_SMALL_SHARE
    return TRIED_FEW_WORDS if len(text) < _MANY_CHARACTERS and num_words(text) < FEW_WORDS else ""


def _lost_words(text: str, page: Page) -> int:
    """The words that a page shows beyond a text; where there is a text, without those of links."""
    lost = num_words(page.shown) - num_words(text)
    links = page.tree.document.query_selector_all("a").values() if text.strip() else ()
    return lost - num_words(" ".join(link.inner_text for link in links))


def _longer(text: str, engine: str, other: str | None, its_engine: str) -> tuple[str, str]:
    return (other, its_engine) if other and num_words(other) > num_words(text) else (text, engine)


def _without_boilerplate(page: Page, text: str) -> Page:
    """The page without its boilerplate, but for elements that hold the text."""
    found, budget = _unspaced(max(text.splitlines(), key=len)), _MOST_READ * len(page.shown)
    for element in page.tree.body.query_selector_all(_BOILERPLATE).values():
        its_text = element.inner_text
        budget -= len(its_text)
        if budget < 0:
            break
        if element.parent is not None and found not in _unspaced(its_text):
            element.remove()
    return replace(page, html=page.tree.document.html, shown=page.tree.body.inner_text)


def _unspaced(text: str) -> str:
    return "".join(text.split())


def remove_marks(tree: Any) -> bool:
    """Removes the names of the elements that hold at least half of the text of a page; returns whether there were any.

    Where the innermost of them has most of its text in links, it is a menu, and they keep their names.
    """
    wrappers, element = [], tree.body
    least = len(element.inner_text) / 2
    while element is not None and len(wrappers) < _MOST_WRAPPERS:
        wrappers.append(element)
        element = element.first_element_child
        while element is not None and len(element.inner_text) < least:
            element = element.next_element_sibling
    linked = sum(len(link.inner_text) for link in wrappers[-1].query_selector_all("a").values())
    if linked > len(wrappers[-1].inner_text) / 2:
        return False
    marked = [(wrapper, name) for wrapper in wrappers for name in _MARKS if wrapper.hasattr(name)]
    for wrapper, name in marked:
        wrapper.remove_attribute(name)
    return bool(marked)


class Fallback:
    """Trafilatura; resiliparse for pages in which it finds few words."""

    def __init__(self, wanted: Wanted, favor: Favor, *, full: bool) -> None:
        self._first, self._second = Trafilatura(wanted, favor, full=full), Resiliparse(wanted)

    def find(self, page: Page) -> Found:
        text = self._first.text_of(page)
        if text is not None and num_words(text) >= FEW_WORDS:
            return Found(text, (BY_TRAFILATURA,))
        other = self._second.text_of(page.tree)
        return Found(other, (BY_RESILIPARSE,)) if other else Found(text or "", (BY_TRAFILATURA,))


def make_engine(name: str, wanted: Wanted, favor: Favor, *, full: bool) -> Engine:
    """The engine of this name. Imports its library."""
    if name == "resiliparse":
        return Resiliparse(wanted)
    if name == "trafilatura":
        return Trafilatura(wanted, favor, full=full)
    if name == "auto":
        return Auto(wanted, favor, full=full)
    return Fallback(wanted, favor, full=full) if name == "fallback" else OwnEngine(name)


_UNSPACED = ((0x0E00, 0x1100, 4), (0x1780, 0x1800, 4), (0x3040, 0xA000, 2), (0xF900, 0xFB00, 2), (0x20000, 0x40000, 2))
"""Scripts without spaces between words: first character, the one behind the last, and characters of a word. Han and kana have
1.5 to 2.5, Thai, Lao, Tibetan, Burmese and Khmer with their vowel signs 4 to 5."""


_AVERAGE = 5
"""The least characters of a word between spaces, on average: a page of digits has fewer words than numbers."""


def num_words(text: str) -> int:
    """The words between spaces, of at least five characters on average, and those of scripts that write none."""
    if text.isascii():
        return min(len(text.split()), len(text) // _AVERAGE)
    characters = np.frombuffer(text.encode("utf-32-le", "replace"), np.uint32)
    unspaced = words = 0
    if characters.max() >= _UNSPACED[0][0]:
        for start, stop, size in _UNSPACED:
            found = int(np.count_nonzero((characters >= start) & (characters < stop)))
            unspaced, words = unspaced + found, words + found // size
    return words + min(len(text.split()), (len(text) - unspaced) // _AVERAGE)
