"""The parsers that find the main text of a page, each behind one method.

    resiliparse   one pass over the tree of lexbor, 8 times as fast; keeps more of what is around the text
    trafilatura   rules over the tree of libxml2, in its fast mode, without its memory of earlier pages; more precise
    fallback      trafilatura; resiliparse where it finds fewer than 100 words, or gives up
    module:Class  a class of the user's, made without arguments once per worker, with `extract(page: str) -> str | None`

An engine returns "" for a page without main text, and None for one that its parser gave up on. libxml2 gives up below 256
nested elements and beyond 10 MB in one text, without an error: it returns what it has read so far, and a note in its log.
"""

from __future__ import annotations

import importlib
import logging
import re
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from datapipe.errors import StageError

REACHES = ()  # the class that `OwnEngine` looks up is covered through `Stage.own_classes`

Favor = Literal["balance", "precision", "recall"]
FEW_WORDS = 100
"""Below so many words of trafilatura, `fallback` asks resiliparse: 25 of 311 articles."""

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


class Engine(Protocol):
    """Finds the main text of a page: "" without one, None where the parser gave up."""

    def main_text(self, page: str, tree: Any) -> str | None:
        """
        Args:
            page: without lone surrogates and NULs.
            tree: the page as resiliparse's HTMLTree. An engine leaves it as it is.
        """
        ...


class Resiliparse:
    """Main text by resiliparse's rules, without comments, bylines and descriptions of pictures."""

    def __init__(self, wanted: Wanted) -> None:
        from resiliparse.extract.html2text import extract_plain_text

        self._extract: Any = extract_plain_text
        self._options: dict[str, Any] = {"links": wanted.links, "comments": wanted.comments}
        if wanted.dropped:
            self._options["skip_elements"] = wanted.dropped

    def main_text(self, page: str, tree: Any) -> str | None:
        return self._extract(tree, main_content=True, post_meta=False, alt_texts=False, **self._options)


class Trafilatura:
    """Main text by trafilatura, without the memory of pages that it can have: a page's text is the same in any order."""

    def __init__(self, wanted: Wanted, favor: Favor) -> None:
        import trafilatura
        from trafilatura import utils

        logging.getLogger("trafilatura").setLevel(logging.CRITICAL + 1)  # it tells of pages, thousands an hour
        self._extract: Any = trafilatura.extract
        self._load: Any = utils.load_html
        self._parser: Any = utils.HTML_PARSER
        self._options: dict[str, Any] = {
            "fast": True,
            "deduplicate": False,
            "include_comments": wanted.comments,
            "include_tables": wanted.tables,
            "include_links": wanted.links,
            "favor_precision": favor == "precision",
            "favor_recall": favor == "recall",
            "prune_xpath": [f"//{name}" for name in wanted.dropped] or None,
        }

    def main_text(self, page: str, tree: Any) -> str | None:
        parsed = self._load(_NUMERIC.sub(_unless_refused, page))
        if parsed is None or any("LIMIT" in error.type_name for error in self._parser.error_log.filter_from_fatals()):
            return None
        return self._extract(parsed, **self._options) or ""


def _unless_refused(reference: re.Match[str]) -> str:
    """A numeric character reference; "" for a character that libxml2 puts into its tree and lxml refuses to take out again."""
    code = int(reference[1], 16) if reference[1] else int(reference[2])
    return "" if (code < 0x20 and code not in (0x09, 0x0A, 0x0D)) or code in (0xFFFE, 0xFFFF) else reference[0]


class Fallback:
    """Trafilatura; resiliparse for pages in which it finds few words."""

    def __init__(self, wanted: Wanted, favor: Favor) -> None:
        self._first, self._second = Trafilatura(wanted, favor), Resiliparse(wanted)

    def main_text(self, page: str, tree: Any) -> str | None:
        text = self._first.main_text(page, tree)
        if text is not None and len(text.split(maxsplit=FEW_WORDS)) >= FEW_WORDS:
            return text
        return self._second.main_text(page, tree) or text or ""


class OwnEngine:
    """A class of the user's."""

    def __init__(self, name: str) -> None:
        module, _, member = name.partition(":")
        self._name = name
        self._extract: Any = getattr(importlib.import_module(module), member)().extract

    def main_text(self, page: str, tree: Any) -> str | None:
        text = self._extract(page)
        if text is not None and not isinstance(text, str):
            raise StageError(
                f'{self._name}.extract returned a {type(text).__name__}. Expected the text, "" for a page without main text, '
                "or None where the parser gave up"
            )
        return text


def make_engine(name: str, wanted: Wanted, favor: Favor) -> Engine:
    """The engine of this name. Imports its library."""
    if name == "resiliparse":
        return Resiliparse(wanted)
    if name == "trafilatura":
        return Trafilatura(wanted, favor)
    return Fallback(wanted, favor) if name == "fallback" else OwnEngine(name)
