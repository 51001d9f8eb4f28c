"""One page after the other: measured, decoded, parsed, or read without a parser."""

import re
from collections.abc import Callable, Iterator
from html import unescape
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np
from pydantic import BaseModel, Field

from datapipe.kernels.arrays import BLOCK_BYTES
from datapipe.kernels.html.mentions import count_mentions
from datapipe.kernels.html.tags import measure_tags, strip_tags
from stages.extract._charsets import DETECTORS, UTF_16, Decoded, decode_page
from stages.extract._engines import LEAST_SHARE, TRIED, Engine, Page
from stages.extract._formulas import has_formulas, write_latex
from stages.extract._marks import Marks, marks_of

Values = TypeVar("Values")

EMPTY, BYTES, ATTRIBUTES, COST, DEPTH, GAVE_UP, NO_TEXT, LITTLE = range(8)
"""The rules of `extract.html`, in their order."""

WITH_BAD_BYTES = "with_bad_bytes"
"""The count of pages with bytes that their charset does not have; U+FFFD stands for them."""

_DEPTH_RATIO, _IMPLIED = 3, 8
"""No tree is deeper than 3 times what `measure_tags` finds, and the elements that a parser adds."""

_NOT_BLANK = re.compile(rb"[^\t\n\f\r \0]")
_ZEROS, _TOO_LARGE = re.compile(r"&#0+(?=[0-9])"), re.compile(r"&#[0-9]{8,};?")
"""References to no character: Python reads no number of more than 4,300 digits."""

_TIDIED = (
    (re.compile(r"[ \t\r\f\v]{2,}|[\t\r\f\v]"), " "),
    (re.compile(r" \n ?|\n "), "\n"),
    (re.compile(r"\n{3,}"), "\n\n"),
)
"""Replacements in a text without tags, in turn. Single spaces, which are most, match nothing."""


class Measures(NamedTuple, Generic[Values]):
    """Measures of pages before they are parsed, (num_docs,) int64 each, or those of one page: size, the most attributes of one
    tag, the sum of `tags.cost_of`, the depth of nested elements, at most the limit; how often they mention what has marks."""

    num_bytes: Values
    attributes: Values
    costs: Values
    depths: Values
    formulas: Values
    licenses: Values
    robots: Values


class Read(NamedTuple):
    """What became of a page: its text or the rule that it fails, with the measured value; its share of the characters that the
    page shows, NaN without a parser; the counts that the page adds to."""

    text: str = ""
    marks: Marks = Marks()
    rule: int = -1
    value: float = float("nan")
    share: float = float("nan")
    counted: tuple[str, ...] = ()


class PageOptions(BaseModel):
    """The options of `extract.html` for decoding pages and for their limits."""

    min_share: float = Field(
        default=LEAST_SHARE, ge=0, le=1, description="Minimum share of the visible characters of a page that are main text."
    )
    max_bytes: int = Field(default=5_000_000, ge=1, description="Maximum number of bytes in a page.")
    max_depth: int = Field(default=1_000, ge=1, le=100_000, description="Maximum depth of nested elements.")
    max_attributes: int = Field(default=2_000, ge=1, le=100_000, description="Maximum number of attributes of one tag.")
    max_cost: int = Field(default=5_000_000, ge=1, description="Maximum cost of parsing a page, summed over its tags.")
    beyond: Literal["drop", "plain_text"] = Field(
        default="drop", description="Pages beyond a limit; plain_text: their text without tags, found without a parser."
    )
    detector: Literal["both", "chardetng", "resiliparse"] = Field(
        default="both",
        description="Detector of charsets, for pages that no declared charset and not UTF-8 decodes. chardetng: Firefox's. "
        "resiliparse: uchardet, four times as fast, right less often. both: chardetng, and uchardet for the Latin letters of "
        "Western and Eastern Europe.",
    )


def measured(offsets: np.ndarray, data: np.ndarray, max_depth: int) -> Measures[np.ndarray]:
    """The measures of pages in charsets that have ASCII's bytes for ASCII alone."""
    num_bytes = np.diff(offsets)
    depths, attributes, costs, formulas, licenses, robots = np.zeros((6, len(num_bytes)), np.int64)
    measure_tags(offsets, data, np.empty(max_depth + 1, np.uint64), depths, attributes, costs)
    count_mentions(offsets, data, np.empty(BLOCK_BYTES + 8, np.uint8), formulas, licenses, robots)
    return Measures(num_bytes, attributes, costs, depths, formulas, licenses, robots)


def each_measured(measures: Measures[np.ndarray]) -> Iterator[Measures[int]]:
    """The measures of every page in turn."""
    return map(Measures._make, zip(*(measure.tolist() for measure in measures)))


class PageReader:
    def __init__(self, options: PageOptions, engine: Engine) -> None:
        from resiliparse.parse.html import HTMLTree

        self.options, self.engine = options, engine
        self._parse: Callable[[str], Any] = HTMLTree.parse
        self._detect = DETECTORS[options.detector]
        self._too_deep = ">".join("*" * (options.max_depth + 1))

    def read(self, raw: np.ndarray, header: str, measures: Measures[int]) -> Read:
        """The text of a page, or the rule that drops it. `header`: the charset of the HTTP header, "" for none."""
        if not _NOT_BLANK.search(raw.data):
            return Read(rule=EMPTY, value=len(raw))
        if measures.num_bytes > self.options.max_bytes and self.options.beyond == "drop":
            return Read(rule=BYTES, value=measures.num_bytes)
        page = raw.tobytes()
        decoded = decode_page(page, header, self._detect)
        if decoded.codec in UTF_16 or decoded.codec.startswith("iso2022"):  # its bytes are not those of ASCII
            measures = self._measured_again(decoded.text)
        rule, value = self._beyond(measures)
        if rule >= 0:
            return self._without_parser(decoded, rule, value)
        tree = self._parse(decoded.text)
        if _DEPTH_RATIO * measures.depths + _IMPLIED > self.options.max_depth and tree.document.query_selector(self._too_deep):
            return self._without_parser(decoded, DEPTH, max(measures.depths, self.options.max_depth + 1))
        return self._parsed(decoded, tree, measures)

    def _measured_again(self, text: str) -> Measures[int]:
        data = np.frombuffer(text.encode(), np.uint8)
        return next(each_measured(measured(np.array([0, len(data)]), data, self.options.max_depth)))

    def _beyond(self, measures: Measures[int]) -> tuple[int, int]:
        limits = (self.options.max_bytes, self.options.max_attributes, self.options.max_cost)
        for rule, value, limit in zip((BYTES, ATTRIBUTES, COST), measures, limits):
            if value > limit:
                return rule, value
        return -1, 0

    def _without_parser(self, decoded: Decoded, rule: int, value: int) -> Read:
        if self.options.beyond == "drop":
            return Read(rule=rule, value=value)
        text = plain_text(decoded.text)
        return Read(text, counted=_counted(decoded)) if text else Read(rule=NO_TEXT, value=value)

    def _parsed(self, decoded: Decoded, tree: Any, measures: Measures[int]) -> Read:
        html = decoded.text
        if measures.formulas and has_formulas(html) and write_latex(tree):
            html = tree.document.html
        marks = marks_of(tree, measures.licenses, measures.robots)  # before an engine changes the tree
        shown = tree.body.inner_text if tree.body is not None else ""
        main_text, num_bytes = (
            self.engine.find(Page(html=html, tree=tree, shown=shown, cost=measures.costs)),
            measures.num_bytes,
        )
        if main_text.text is None and shown.strip():
            return Read(rule=GAVE_UP, value=num_bytes)
        text, tried = (main_text.text or "").strip(), tuple(name for name in main_text.counted if name in TRIED)
        if not text:
            return Read(rule=NO_TEXT, value=num_bytes, counted=tried)
        share = len(text) / max(len(shown), 1)
        if share < self.options.min_share:
            return Read(rule=LITTLE, value=share, counted=tried)
        return Read(text, marks, share=share, counted=(*_counted(decoded), *main_text.counted))


def _counted(decoded: Decoded) -> tuple[str, ...]:
    return (WITH_BAD_BYTES,) if decoded.has_bad_bytes else ()


def plain_text(page: str) -> str:
    """All text of a page outside of tags, scripts and styles; blank lines and spaces collapsed."""
    data = np.frombuffer(page.encode(), np.uint8)
    offsets, out = np.zeros(2, np.int64), np.empty(len(data), np.uint8)
    strip_tags(np.array([0, len(data)]), data, offsets, out)
    text = _TOO_LARGE.sub("\ufffd", _ZEROS.sub("&#", str(out[: offsets[1]].data, "utf-8")))
    text = unescape(text).replace("\0", "")
    for expression, replacement in _TIDIED:
        text = expression.sub(replacement, text)
    return text.strip()
