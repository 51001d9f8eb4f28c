"""The main text of web pages: without menus, advertisements and cookie banners.

    bytes  ->  measured: size, nesting, attributes (`kernels/html/tags.py`)  ->  decoded (`_charsets.py`)  ->  parsed
           ->  its formulas become LaTeX (`_formulas.py`)  ->  main text (`_engines.py`), title, language … (`_marks.py`)

| rule | drops a page if |
|---|---|
| `empty_page` | it contains only white space and NULs |
| `too_many_bytes` | it has more than `max_bytes` |
| `too_many_attributes` | one of its tags has more than `max_attributes`: parsers compare each with each |
| `too_costly` | its tags cost more than `max_cost`: the sum of their depths, of squares of their attributes, and 100 each |
| `too_deep` | its elements are nested more deeply than `max_depth`: main-text detection takes time in the square of it |
| `parser_gave_up` | the parser stopped before the end of the page, as libxml2 does below 256 nested elements |
| `no_main_text` | the parser read all of the page, and the engine found no text in it |
| `little_of_page` | its main text is less than `min_share` of what it shows: the engine has probably missed it |

The four limits bound the time of a page without a clock, so the result does not depend on the machine. `beyond: plain_text`
reads pages beyond them without a parser: all text outside of tags, menus included, and no columns.

The stage adds the columns of `Marks`; a value that a page lacks is null. A column `charset` that the source keeps holds the
charset of the HTTP header.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.stage import Filter, FilterResult, Rule
from datapipe.stage.documents import DocumentBatch
from stages.extract import _pages
from stages.extract._engines import COUNTED, Engine, EngineOptions, make_engine
from stages.extract._marks import Marks


class Html(_pages.PageOptions, EngineOptions, Filter):
    """Extracts the main text of HTML pages, and drops pages that have none or that would take a parser too long."""

    extracts: ClassVar[bool] = True
    counts: ClassVar[tuple[str, ...]] = (_pages.WITH_BAD_BYTES, *COUNTED)

    libraries: ClassVar[tuple[str, ...]] = ("resiliparse", "webencodings", "pyarrow")
    writes = Marks._fields

    def libraries_used(self) -> tuple[str, ...]:
        detector = ("chardetng-py",) if self.detector != "resiliparse" else ()
        trafilatura = ("trafilatura", "lxml") if self.engine in ("auto", "trafilatura", "fallback") else ()
        return (*self.libraries, *trafilatura, *detector)

    def user_classes(self) -> Mapping[str, str]:
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

    @cached_property
    def _engine(self) -> Engine:
        return make_engine(self)

    def process(self, batch: DocumentBatch) -> FilterResult:
        reader = _pages.PageReader(self, self._engine)
        offsets, data = columns.text_buffers(batch.html)
        measures = _pages.measured(offsets, data, self.max_depth)
        headers: list[str | None] = [None] * batch.num_docs
        if "charset" in batch.record.schema.names:
            headers = batch.record.column("charset").cast(pa.large_string()).to_pylist()
        spans, each = pairwise(offsets.tolist()), _pages.each_measured(measures)
        read = [reader.read(data[start:stop], header or "", own) for (start, stop), header, own in zip(spans, headers, each)]
        return self._result(read, measures)

    def _result(self, read: list[_pages.Read], measures: _pages.Measures[np.ndarray]) -> FilterResult:
        num_docs, rule = len(read), np.array([page.rule for page in read], np.int16)
        value = np.array([page.value for page in read], np.float64)
        limits = (_pages.BYTES, _pages.ATTRIBUTES, _pages.COST, _pages.DEPTH)
        limited = dict(zip(limits, measures)) | {_pages.LITTLE: np.array([page.share for page in read], np.float64)}
        unmeasured = np.full(num_docs, np.nan)
        tried = [
            (np.where(rule == index, value, limited.get(index, unmeasured)), rule == index)
            for index in range(len(self.rules()))
        ]
        marks = {
            name: pa.array([page.marks[index] for page in read], pa.large_string()) for index, name in enumerate(Marks._fields)
        }
        texts = pa.array([page.text for page in read], pa.large_string())
        counted = {name: pa.array([int(name in page.counted) for page in read], pa.int32()) for name in self.counts}
        return FilterResult.first_failing(num_docs, tried, {"text": texts, **marks, **counted})
