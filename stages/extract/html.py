"""The main text of web pages: without menus, advertisements and notices.

    bytes  ->  measured: size, nesting, attributes (`kernels/html/tags.py`)  ->  decoded (`_charsets.py`)  ->  parsed
           ->  its formulas become LaTeX (`_formulas.py`)  ->  main text (`_engines.py`), and what the page says of
               itself (`_marks.py`)

| rule | drops a page if |
|---|---|
| `empty_page` | it has no byte but white space and NULs |
| `too_many_bytes` | it has more than `max_bytes` |
| `too_many_attributes` | one of its tags has more than `max_attributes`: parsers compare each with each |
| `too_costly` | its tags cost more than `max_cost`: the sum of their depths, of squares of their attributes, and 100 each |
| `too_deep` | its elements are nested more deeply than `max_depth`: main-text detection takes time in the square of it |
| `parser_gave_up` | the parser stopped before the end of the page, as libxml2 does below 256 nested elements |
| `no_main_text` | the parser read all of the page, and the engine found no text in it |
| `little_of_page` | its main text is less than `min_share` of what it shows: the engine has probably missed it |

The four limits bound the time that any page takes without a clock, so what is kept does not depend on the machine. Pages beyond
them are dropped, or with `beyond: plain_text` read without a parser: all text outside of tags, menus included, and no columns.

Columns that come out, null where a page says nothing: `title`, `html_lang`, `license`, `robots`. The column `charset`, where
the source keeps it, is the one of the HTTP header. A loop over pages in Python is meant: a parser takes one page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, PrivateAttr, field_validator

from datapipe import columns
from datapipe.stage import Filter, FilterResult, Rule, StageContext
from datapipe.stage.documents import DocumentBatch
from stages.extract._engines import COUNTED, LEAST_SHARE, Engine, Favor, Wanted, make_engine
from stages.extract._marks import Marks
from stages.extract._pages import (
    ATTRIBUTES,
    BYTES,
    COST,
    DEPTH,
    LITTLE,
    WITH_BAD_BYTES,
    Limits,
    Measures,
    PageReader,
    Read,
    measured,
)

_OWN_CLASS = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*")
_ENGINES = ("auto", "resiliparse", "trafilatura", "fallback")


class Html(Filter):
    """Extracts the main text of HTML pages, and drops pages that have none or that would take a parser too long."""

    engine: str = Field(
        default="auto",
        description="auto: resiliparse, and trafilatura for pages of which resiliparse finds little. resiliparse: fastest. "
        "trafilatura: slower, more precise. fallback: trafilatura, and resiliparse where it finds fewer than 100 words. "
        "package.module:Class: a class of your own with a method extract(page: str) -> str | None.",
    )
    full: bool = Field(
        default=False, description="Trafilatura's full mode instead of its fast one: it finds more, in 1.6 times the time."
    )
    min_share: float = Field(
        default=LEAST_SHARE,
        ge=0,
        le=1,
        description="Least share of the text that a page shows, menus and all, which the main text is, in characters. 0: any.",
    )
    favor: Favor = Field(
        default="balance",
        description="What trafilatura favors where it is unsure: less text, or more. By default auto asks it for more.",
    )
    tables: bool = Field(default=True, description="Keep the text of tables.")
    code: bool = Field(default=True, description="Keep preformatted text, such as listings of programs.")
    lists: bool = Field(default=True, description="Keep lists.")
    headings: bool = Field(default=True, description="Keep headings.")
    links: bool = Field(default=False, description="Write the addresses of links behind their texts.")
    comments: bool = Field(default=False, description="Keep the comments of readers.")
    max_bytes: int = Field(default=5_000_000, ge=1, description="Most bytes of a page.")
    max_depth: int = Field(default=1_000, ge=1, le=100_000, description="Most elements inside each other.")
    max_attributes: int = Field(default=2_000, ge=1, le=100_000, description="Most attributes of one tag.")
    max_cost: int = Field(
        default=5_000_000,
        ge=1,
        description="Most work that a page may be: for each tag 100, its depth, a 32nd of the square of its attributes, and "
        "of an option a tenth of those before it.",
    )
    beyond: Literal["drop", "plain_text"] = Field(
        default="drop",
        description="What happens to pages beyond max_bytes, max_depth, max_attributes or max_cost. plain_text: their text "
        "without tags, menus and all, found without a parser.",
    )
    detector: Literal["both", "chardetng", "resiliparse"] = Field(
        default="both",
        description="Detector of charsets, for pages that no declared charset and not UTF-8 decodes. chardetng: Firefox's. "
        "resiliparse: uchardet, four times as fast, right less often. both: chardetng, and uchardet for the Latin letters of "
        "Western and Eastern Europe.",
    )

    extracts: ClassVar[bool] = True
    counts: ClassVar[tuple[str, ...]] = (WITH_BAD_BYTES, *COUNTED)

    libraries: ClassVar[tuple[str, ...]] = ("resiliparse", "webencodings", "pyarrow")
    writes = Marks._fields
    not_pickled = ("_engine",)
    _engine: Any = PrivateAttr(default=None)

    @field_validator("engine")
    @classmethod
    def _is_engine(cls, name: str) -> str:
        if name not in _ENGINES and not _OWN_CLASS.fullmatch(name):
            raise ValueError(f"found {name!r}, expected {', '.join(_ENGINES)}, or package.module:Class")
        return name

    def libraries_used(self) -> tuple[str, ...]:
        detector = ("chardetng-py",) if self.detector != "resiliparse" else ()
        trafilatura = ("trafilatura", "lxml") if self.engine in ("auto", "trafilatura", "fallback") else ()
        return (*self.libraries, *trafilatura, *detector)

    def own_classes(self) -> Mapping[str, str]:
        return {self.engine: "extract"} if ":" in self.engine else {}

    def rules(self) -> Sequence[Rule]:
        """`empty_page` measures bytes, as `parser_gave_up` and `no_main_text` do; the others what they limit."""
        return [
            Rule(name="empty_page", limit=0),
            self.at_most("too_many_bytes", "max_bytes"),
            self.at_most("too_many_attributes", "max_attributes"),
            self.at_most("too_costly", "max_cost"),
            self.at_most("too_deep", "max_depth"),
            Rule(name="parser_gave_up", limit=0),
            Rule(name="no_main_text", limit=0),
            self.at_least("little_of_page", "min_share"),
        ]

    def open(self, context: StageContext) -> None:
        self._engine = self._made_engine()

    def process(self, batch: DocumentBatch) -> FilterResult:
        if self._engine is None:
            self._engine = self._made_engine()
        limits = Limits(**self.model_dump(include=set(Limits.__slots__)))
        reader = PageReader(limits, self._engine, self.detector)
        offsets, data = columns.text_buffers(batch.html)
        measures = measured(offsets, data, self.max_depth)
        headers = _charsets_of(batch)
        read = [
            reader.read(data[start:stop], headers[row], [int(measure[row]) for measure in measures])
            for row, (start, stop) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist()))
        ]
        return self._result(read, measures)

    def _made_engine(self) -> Engine:
        wanted = Wanted(**self.model_dump(include=set(Wanted.__slots__)))
        return make_engine(self.engine, wanted, self.favor, full=self.full)

    def _result(self, read: list[Read], measures: Measures) -> FilterResult:
        """The decisions, and the columns of all pages."""
        num_docs, rule = len(read), np.array([page.rule for page in read], np.int16)
        value = np.array([page.value for page in read], np.float64)
        limited = {BYTES: measures.num_bytes, ATTRIBUTES: measures.attributes, COST: measures.costs, DEPTH: measures.depths}
        limited[LITTLE] = np.array([page.share for page in read], np.float64)
        unmeasured = np.full(num_docs, np.nan)
        tried = [
            (np.where(rule == index, value, limited.get(index, unmeasured)), rule == index)
            for index in range(len(self.rules()))
        ]
        marks = {
            name: pa.array([page.marks[index] for page in read], pa.large_string()) for index, name in enumerate(Marks._fields)
        }
        texts = pa.array([page.text for page in read], pa.large_string())
        counts = {name: np.zeros(num_docs, np.int32) for name in self.counts}
        for row, page in enumerate(read):
            for name in page.counted:
                counts[name][row] = 1
        counted = {name: pa.array(count) for name, count in counts.items()}
        return FilterResult.first_failing(num_docs, tried, {"text": texts, **marks, **counted})


def _charsets_of(batch: DocumentBatch) -> list[str]:
    """The charset of the HTTP header of every page; "" where there is none, or no such column."""
    if "charset" not in batch.record.schema.names:
        return [""] * batch.num_docs
    return [label or "" for label in batch.record.column("charset").cast(pa.large_string()).to_pylist()]
