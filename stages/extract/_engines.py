"""The parsers that find the main text of a page, each behind one method, and two engines that ask
another one where the first finds little.

    resiliparse   one pass over the tree of lexbor, 8 times as fast; keeps more of what is around the text
    trafilatura   rules over the tree of libxml2, in its fast or full mode, without its memory of earlier pages; more precise
    module:Class  a class of the user's, made without arguments once per worker, with `extract(page: str) -> str | None`
    auto          resiliparse -> resiliparse without misleading names -> trafilatura; the longest text is kept
    fallback      trafilatura -> resiliparse

An engine finds "" on a page without main text, and None where its parser gave up. libxml2 gives up
below 256 nested elements and beyond 10 MB in one text, without an error.

`auto` tries a page again where resiliparse finds fewer than 100 words, or less than a tenth of what the page shows. Classes,
ids and roles mislead resiliparse: `post` of Substack's articles, `hidden` of pages that React streams. Elements that hold half
of the text of a page lose them, and resiliparse is asked again, which takes a tenth of trafilatura's time. Trafilatura
follows, in its mode that favors recall, where at least 300 words outside of links would still be lost. Where resiliparse has
found some words, the later tries do not see hidden elements, dialogs, cookie banners, advertisements, comments, sidebars
and footers.
"""

import importlib
import logging
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, Field, field_validator

from datapipe.dataclass import dataclass, replace
from datapipe.errors import StageError

Favor = Literal["balance", "precision", "recall"]

BY_RESILIPARSE, BY_UNMARKED, BY_TRAFILATURA = "by_resiliparse", "by_resiliparse_unmarked", "by_trafilatura"
TRIED_FEW_WORDS, TRIED_SMALL_SHARE = "tried_again_few_words", "tried_again_small_share"
TRIED = (TRIED_FEW_WORDS, TRIED_SMALL_SHARE)
COUNTED = (BY_RESILIPARSE, BY_UNMARKED, BY_TRAFILATURA, *TRIED)
"""Counts of the report: kept pages by the engine of their text, and pages that `auto` tried again, by the reason."""
FULL_COST = 500_000
"""The cost of a page above which trafilatura's full mode gives way to the fast one: it compares
paragraphs with each other, and takes 2 s for 5,000, 100 s for 33,000."""

_DROPPED = {"tables": "table", "code": "pre", "lists": "ul ol dl", "headings": "h1 h2 h3 h4 h5 h6"}
"""The elements of each kind of content that an option drops."""

FEW_WORDS, SMALL_SHARE, LEAST_SHARE = 100, 0.1, 0.05
ALL_OF_PAGE = 0.9
"""The share of a page from which on trafilatura's text counts as the whole page, menus and all. It does not replace a text."""

SOME_WORDS = 5  # words below which a text counts as none: "Loading", "Skip to content"
LOST_WORDS = 300
"""Words that a page shows beyond its main text, below which trafilatura is not asked. With words of links among them, F1 on
pages of seven kinds would be 0.002 better, and crawl pages would take a quarter more time."""

_ADVERTISED = ("data-ad", "data-advertisement", "data-text-ad")
_MARKS = ("class", "id", "role", "style", "hidden", "aria-hidden", "aria-expanded", *_ADVERTISED)
"""Attributes by which resiliparse takes an element for a menu, an advertisement, or hidden."""

_BANNERS = ("cookie", "consent", "gdpr", "advert")
_ASIDE = ("comments", "comment-list", "commentlist", "sidebar", "widget-area", "footer", "site-footer", "ads", "ad-container")
_BOILERPLATE = ", ".join(
    (
        *('[hidden]:not([id^="S:"])', '[aria-hidden="true" i]', '[style*="display:none" i]', '[style*="display: none" i]'),
        *('[role="dialog" i]', '[role="alertdialog" i]', "dialog", "template", "footer"),
        *(f'[{name}*="{banner}" i]' for banner in _BANNERS for name in ("class", "id")),
        *(f".{name}, #{name}" for name in _ASIDE),
    )
)
"""No main text where another text was found. React shows the parts of a page that it streams as `<div hidden id="S:0">`."""

_MANY_CHARACTERS = 2_000  # characters of a text whose words are not counted: it has enough
_MOST_READ = 20
"""How often the text of a page is read at most for boilerplate: elements inside each other are read once for each."""

_MOST_WRAPPERS = 100
"""Nested elements that `remove_marks` goes through: their texts are read once for each."""


class EngineOptions(BaseModel):
    """The options of `extract.html` that engines read."""

    engine: str = Field(
        default="auto",
        description="auto: resiliparse, and trafilatura for pages of which resiliparse finds little. resiliparse: fastest. "
        "trafilatura: slower, more precise. fallback: trafilatura, and resiliparse where it finds fewer than 100 words. "
        "package.module:Class: a class of your own with a method extract(page: str) -> str | None.",
    )
    full: bool = Field(
        default=False, description="Trafilatura's full mode instead of its fast one: it finds more, in 1.6 times the time."
    )
    favor: Favor = Field(
        default="balance", description="What trafilatura favors where it is unsure. By default auto asks it for more text."
    )
    tables: bool = Field(default=True, description="Keep the text of tables.")
    code: bool = Field(default=True, description="Keep preformatted text, such as listings of programs.")
    lists: bool = Field(default=True, description="Keep lists.")
    headings: bool = Field(default=True, description="Keep headings.")
    links: bool = Field(default=False, description="Write the address of each link after its text.")
    comments: bool = Field(default=False, description="Keep the comments of readers.")

    @field_validator("engine")
    @classmethod
    def _is_engine(cls, name: str) -> str:
        if name not in _ENGINES and not _OWN_CLASS.fullmatch(name):
            raise ValueError(f"found {name!r}, expected {', '.join(_ENGINES)}, or package.module:Class")
        return name

    def dropped(self) -> list[str]:
        """Names of the elements that are dropped with their content."""
        return [name for kind, names in _DROPPED.items() if not getattr(self, kind) for name in names.split()]


_OWN_CLASS = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*")
_NUMERIC = re.compile(r"&#(?:[xX]0*([0-9a-fA-F]{1,6})|0*([0-9]{1,7}));?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """A page that is parsed: without lone surrogates and NULs, its formulas as LaTeX."""

    html: str
    tree: Any  # resiliparse's HTMLTree. Only `auto` changes it.
    shown: str  # all text that the tree shows, menus and all, white space collapsed
    cost: int  # of its tags


class Found(NamedTuple):
    """The main text of a page: "" without one, None where the parser gave up; with those of `COUNTED` that it adds to."""

    text: str | None
    counted: tuple[str, ...] = ()


class Resiliparse:
    """Main text by resiliparse's rules, without comments, bylines and descriptions of pictures."""

    def __init__(self, options: EngineOptions) -> None:
        from resiliparse.extract.html2text import extract_plain_text

        self._extract: Any = extract_plain_text
        self._options: dict[str, Any] = {"links": options.links, "comments": options.comments}
        if dropped := options.dropped():
            self._options["skip_elements"] = dropped

    def find(self, page: Page) -> Found:
        return Found(self.text_of(page.tree), (BY_RESILIPARSE,))

    def text_of(self, tree: Any) -> str:
        return self._extract(tree, main_content=True, post_meta=False, alt_texts=False, **self._options)


class Trafilatura:
    """Main text by trafilatura, without the memory of pages that it can have: a page's text is the same in any order."""

    def __init__(self, options: EngineOptions, favor: Favor) -> None:
        import trafilatura
        from trafilatura import utils

        logging.getLogger("trafilatura").setLevel(logging.CRITICAL + 1)  # it logs pages, thousands an hour
        self._extract: Any = trafilatura.extract
        self._load: Any = utils.load_html
        self._parser: Any = utils.HTML_PARSER
        self._full = options.full
        self._options: dict[str, Any] = {
            "deduplicate": False,
            "include_comments": options.comments,
            "include_tables": options.tables,
            "include_links": options.links,
            "favor_precision": favor == "precision",
            "favor_recall": favor == "recall",
            "prune_xpath": [f"//{name}" for name in options.dropped()] or None,
        }

    def find(self, page: Page) -> Found:
        return Found(self.text_of(page), (BY_TRAFILATURA,))

    def text_of(self, page: Page) -> str | None:
        parsed = self._load(_NUMERIC.sub(_unless_refused, page.html))
        if parsed is None or any("LIMIT" in error.type_name for error in self._parser.error_log.filter_from_fatals()):
            return None
        is_full = self._full and page.cost <= FULL_COST
        return self._extract(parsed, fast=not is_full, **self._options) or ""


def _unless_refused(reference: re.Match[str]) -> str:
    """A numeric character reference; "" for a character that libxml2 puts into its tree and lxml refuses to take out again."""
    code = int(reference[1], 16) if reference[1] else int(reference[2])
    return "" if (code < 0x20 and code not in (0x09, 0x0A, 0x0D)) or code in (0xFFFE, 0xFFFF) else reference[0]


class OwnEngine:
    """A class of the user's."""

    def __init__(self, name: str) -> None:
        module, _, member = name.partition(":")
        self._name = name
        self._extract: Any = getattr(importlib.import_module(module), member)().extract

    def find(self, page: Page) -> Found:
        text = self._extract(page.html)
        if text is not None and not isinstance(text, str):
            raise StageError(
                f'{self._name}.extract returned a {type(text).__name__}. Expected the text, "" for a page without main text, '
                "or None where the parser gave up"
            )
        return Found(text)


class Auto:
    """Resiliparse; where it finds little, resiliparse without misleading names, then trafilatura. The longest text is kept."""

    def __init__(self, options: EngineOptions) -> None:
        favor = "recall" if options.favor == "balance" else options.favor  # it is asked for what was missed
        self._first, self._second = Resiliparse(options), Trafilatura(options, favor)

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
            second_text = self._second.text_of(page)
            if is_none or len(second_text or "") < ALL_OF_PAGE * len(page.shown):
                text, engine = _longer(text, engine, second_text, BY_TRAFILATURA)
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
    longest, budget = _unspaced(max(text.splitlines(), key=len)), _MOST_READ * len(page.shown)
    for element in page.tree.body.query_selector_all(_BOILERPLATE).values():
        its_text = element.inner_text
        budget -= len(its_text)
        if budget < 0:
            break
        if element.parent is not None and longest not in _unspaced(its_text):
            element.remove()
    return replace(page, html=page.tree.document.html, shown=page.tree.body.inner_text)


def _unspaced(text: str) -> str:
    return "".join(text.split())


def remove_marks(tree: Any) -> bool:
    """Removes the names of the elements that hold at least half of the text of a page; returns whether there were any. Where
    the innermost of them has most of its text in links, it is a menu, and they keep their names."""
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

    def __init__(self, options: EngineOptions) -> None:
        self._first, self._second = Trafilatura(options, options.favor), Resiliparse(options)

    def find(self, page: Page) -> Found:
        text = self._first.text_of(page)
        if text is not None and num_words(text) >= FEW_WORDS:
            return Found(text, (BY_TRAFILATURA,))
        other = self._second.text_of(page.tree)
        return Found(other, (BY_RESILIPARSE,)) if other else Found(text or "", (BY_TRAFILATURA,))


Engine = Resiliparse | Trafilatura | OwnEngine | Auto | Fallback
"""Finds the main text of a page, by `find(page)`."""

_ENGINES: Mapping[str, Callable[[EngineOptions], Engine]] = {
    "auto": Auto,
    "resiliparse": Resiliparse,
    "trafilatura": lambda options: Trafilatura(options, options.favor),
    "fallback": Fallback,
}


def make_engine(options: EngineOptions) -> Engine:
    """The engine of the options. Imports its library."""
    return _ENGINES.get(options.engine, lambda options: OwnEngine(options.engine))(options)


_UNSPACED = ((0x0E00, 0x1100, 4), (0x1780, 0x1800, 4), (0x3040, 0xA000, 2), (0xF900, 0xFB00, 2), (0x20000, 0x40000, 2))
"""Scripts without spaces between words: first character, the one behind the last, and characters of a word. Han and kana have
1.5 to 2.5, Thai, Lao, Tibetan, Burmese and Khmer with their vowel signs 4 to 5."""

_AVERAGE = 5
"""The least characters of a word between spaces, on average: a page of digits has fewer words than numbers."""


@lru_cache(maxsize=8)  # a page that is tried again asks up to ten times for two texts
def num_words(text: str) -> int:
    """The words between spaces, of at least five characters on average, and those of scripts that write none."""
    if text.isascii():
        return min(len(text.split()), len(text) // _AVERAGE)
    characters = np.frombuffer(text.encode("utf-32-le", "replace"), np.uint32)
    characters, unspaced, words = characters[characters >= _UNSPACED[0][0]], 0, 0
    for start, stop, size in _UNSPACED if len(characters) else ():
        num_here = int(np.count_nonzero((characters >= start) & (characters < stop)))
        unspaced, words = unspaced + num_here, words + num_here // size
    return words + min(len(text.split()), (len(text) - unspaced) // _AVERAGE)
