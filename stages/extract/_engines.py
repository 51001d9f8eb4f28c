"""The parsers that find the main text of a page, each behind one method; `_auto.py` combines them.

    resiliparse   one pass over the tree of lexbor, 8 times as fast; keeps more of what is around the text
    trafilatura   rules over the tree of libxml2, in its fast or full mode, without its memory of earlier pages; more precise
    module:Class  a class of the user's, made without arguments once per worker, with `extract(page: str) -> str | None`

An engine finds "" on a page without main text, and None where its parser gave up. libxml2 gives up below 256 nested elements
and beyond 10 MB in one text, without an error: it returns what it has read so far, and a note in its log.
"""

from __future__ import annotations

import importlib
import logging
import re
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from datapipe.errors import StageError

Favor = Literal["balance", "precision", "recall"]

BY_RESILIPARSE, BY_UNMARKED, BY_TRAFILATURA = "by_resiliparse", "by_resiliparse_unmarked", "by_trafilatura"
TRIED_FEW_WORDS, TRIED_SMALL_SHARE = "tried_again_few_words", "tried_again_small_share"
TRIED = (TRIED_FEW_WORDS, TRIED_SMALL_SHARE)
COUNTED = (BY_RESILIPARSE, BY_UNMARKED, BY_TRAFILATURA, *TRIED)
"""Counts of the report: kept pages by the engine whose text they have, and pages that `auto` tried again, by the reason, those
that are dropped all the same included."""
FULL_COST = 500_000
"""The cost of a page above which trafilatura's full mode gives way to the fast one: it compares paragraphs with each other, and
takes 2 s for 5,000, 100 s for 33,000."""

_DROPPED = {"tables": "table", "code": "pre", "lists": "ul ol dl", "headings": "h1 h2 h3 h4 h5 h6"}
"""The elements of each kind of content that an option drops."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What is kept of a page beside its paragraphs. Each is an option of `extract.html`."""

    tables: bool = True
    code: bool = True
    lists: bool = True
    headings: bool = True
    links: bool = False
    comments: bool = False

    @property
    def dropped(self) -> list[str]:
        """Names of the elements that are dropped with their content."""
        kept = {"tables": self.tables, "code": self.code, "lists": self.lists, "headings": self.headings}
        return [name for kind, names in _DROPPED.items() if not kept[kind] for name in names.split()]


_NUMERIC = re.compile(r"&#(?:[xX]0*([0-9a-fA-F]{1,6})|0*([0-9]{1,7}));?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """A page that is parsed.

    Attributes:
        html: without lone surrogates and NULs, its formulas as LaTeX.
        tree: the same as resiliparse's HTMLTree. Only `auto` changes it.
        shown: all text that the tree shows, menus and all, white space collapsed.
        cost: of its tags.
    """

    html: str
    tree: Any
    shown: str
    cost: int


class Found(NamedTuple):
    """The main text of a page: "" without one, None where the parser gave up; with those of `COUNTED` that it adds to."""

    text: str | None
    counted: tuple[str, ...] = ()


class Engine(Protocol):
    """Finds the main text of a page."""

    def find(self, page: Page) -> Found: ...


class Resiliparse:
    """Main text by resiliparse's rules, without comments, bylines and descriptions of pictures."""

    def __init__(self, wanted: Wanted) -> None:
        from resiliparse.extract.html2text import extract_plain_text

        self._extract: Any = extract_plain_text
        self._options: dict[str, Any] = {"links": wanted.links, "comments": wanted.comments}
        if wanted.dropped:
            self._options["skip_elements"] = wanted.dropped

    def find(self, page: Page) -> Found:
        return Found(self.text_of(page.tree), (BY_RESILIPARSE,))

    def text_of(self, tree: Any) -> str:
        return self._extract(tree, main_content=True, post_meta=False, alt_texts=False, **self._options)


class Trafilatura:
    """Main text by trafilatura, without the memory of pages that it can have: a page's text is the same in any order."""

    def __init__(self, wanted: Wanted, favor: Favor, *, full: bool) -> None:
        import trafilatura
        from trafilatura import utils

        logging.getLogger("trafilatura").setLevel(logging.CRITICAL + 1)  # it tells of pages, thousands an hour
        self._extract: Any = trafilatura.extract
        self._load: Any = utils.load_html
        self._parser: Any = utils.HTML_PARSER
        self._full = full
        self._options: dict[str, Any] = {
            "deduplicate": False,
            "include_comments": wanted.comments,
            "include_tables": wanted.tables,
            "include_links": wanted.links,
            "favor_precision": favor == "precision",
            "favor_recall": favor == "recall",
            "prune_xpath": [f"//{name}" for name in wanted.dropped] or None,
        }

    def find(self, page: Page) -> Found:
        return Found(self.text_of(page), (BY_TRAFILATURA,))

    def is_full(self, page: Page) -> bool:
        """Whether the page is read in the full mode."""
        return self._full and page.cost <= FULL_COST

    def text_of(self, page: Page) -> str | None:
        parsed = self._load(_NUMERIC.sub(_unless_refused, page.html))
        if parsed is None or any("LIMIT" in error.type_name for error in self._parser.error_log.filter_from_fatals()):
            return None
        return self._extract(parsed, fast=not self.is_full(page), **self._options) or ""


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
