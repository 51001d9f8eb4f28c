"""Search in the texts of documents: a scan that streams its hits.

    kept texts under work/           ─▶ contains? ─▶ redacted ─▶ contains still? ─▶ hit
    other documents, in their files  ─▶ contains? ─▶ redacted ─▶ contains still? ─▶ hit

One record batch is in memory at a time. Only the redacted text counts. The scan stops when the client goes away.
"""

import re
from collections.abc import Callable, Generator, Iterator, Sequence
from time import monotonic
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, Field

from datapipe.columns import compute, make_keys, numbers
from datapipe.errors import DatapipeError
from datapipe.exchange.tables import read_table
from datapipe.explore.documents import FATES, Fate
from datapipe.explore.redaction import RedactionError
from datapipe.explore.rows import Rows
from datapipe.inputs.planned_input import PlannedInput
from datapipe.stage.reader import Split
from datapipe.steps.read_batches import with_content
from datapipe.steps.request import field_names

_AROUND = 120
_MOST_RANGES = 20
_PROGRESS_EVERY_S = 0.5
_REDACTED_DOCS = 64


class SearchQuery(BaseModel, frozen=True):
    text: str = Field(alias="q", pattern=r"\S", max_length=1_000)
    source: str = ""
    fate: Fate | Literal[""] = ""
    respects_case: bool = Field(default=False, alias="case")
    limit: int = Field(default=200, ge=1, le=2_000)

    @property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(re.escape(self.text), 0 if self.respects_case else re.IGNORECASE)


class _Batch(NamedTuple):
    """Documents to search: keys and texts, bytes that were read, and the fates of the documents that it is read for."""

    source: str
    keys: pa.Array
    texts: pa.Array
    num_bytes: int
    fates: Sequence[str]


def search_lines(rows: Rows, query: SearchQuery, sources: Sequence[str]) -> Generator[dict[str, Any]]:
    """The lines of the answer: hits, progress, and at the end what was done."""
    started = shown_at = monotonic()
    num_docs = num_bytes = num_hits = 0
    of_documents, problems = _count(rows, query, sources), list[str]()

    def progress() -> dict[str, Any]:
        left = (of_documents - num_docs) * (monotonic() - started) / num_docs if num_docs else None
        shown = {"documents": num_docs, "of_documents": max(of_documents, num_docs), "bytes": num_bytes}
        return {"progress": {**shown, "seconds_left": None if left is None else round(max(left, 0.0), 1)}}

    yield progress()
    for batch in _batches(rows, query, sources, problems):
        for hit in _hits(rows, query, batch):
            if num_hits < query.limit:
                num_hits += 1
                yield {"hit": hit}
        num_docs, num_bytes = num_docs + len(batch.keys), num_bytes + batch.num_bytes
        if num_hits >= query.limit:
            break
        if monotonic() - shown_at >= _PROGRESS_EVERY_S:
            shown_at = monotonic()
            yield progress()
    done = {"hits": num_hits, "documents": num_docs, "seconds": round(monotonic() - started, 2)}
    yield {"done": {**done, "stopped": num_hits >= query.limit, "problems": problems[:10]}}


def _count(rows: Rows, query: SearchQuery, sources: Sequence[str]) -> int:
    """Documents that the scan reads: kept ones, and all of a source's to find the others."""
    counts = [(reason["fate"], reason["documents"]) for reason in rows.reasons if reason["source"] in sources]
    kept = sum(documents for fate, documents in counts if fate == "kept") if query.fate in ("", "kept") else 0
    return kept + (sum(documents for _, documents in counts) if query.fate != "kept" else 0)


def _batches(rows: Rows, query: SearchQuery, sources: Sequence[str], problems: list[str]) -> Iterator[_Batch]:
    """Kept texts, then all texts of input files. `problems` gets the files that have changed."""
    if query.fate in ("", "kept"):
        for source, file in ((name, file) for name in sources for file in rows.output.kept_files(name)):
            for each in read_table(rows.output.root, file, ["key", "text"]):
                yield _Batch(source, each.column("key"), each.column("text"), each.column("text").nbytes, ["kept"])
    for file_hash, (source, file, reader) in rows.output.locator.files.items():
        if source not in sources or query.fate == "kept":
            continue
        spec = rows.output.mixture.sources[source]
        fields = field_names(spec)
        try:
            difference = rows.output.locator.difference(file)
            if difference:
                problems.append(f"{source}/{file.path} {difference}, and was not searched.")
                continue
            with PlannedInput(file) as planned:
                for read in reader.read(Split(file=file), fields, planned.open):
                    part = with_content(read, fields)
                    if pa.types.is_large_binary(part.content.type) and len(part.positions):
                        problems.append(f"{source}/{file.path} holds pages, of which kept texts alone are searched.")
                        break
                    if pa.types.is_large_string(part.content.type):
                        keys, fates = make_keys(file_hash, part.positions), [query.fate] if query.fate else FATES[1:]
                        yield _Batch(source, keys, part.content, part.input_bytes, fates)
        except (DatapipeError, OSError, pa.ArrowException, ValueError, ImportError) as error:
            problems.append(f"{source}/{file.path} cannot be read again: {type(error).__name__}.")


def _hits(rows: Rows, query: SearchQuery, batch: _Batch) -> Iterator[dict[str, Any]]:
    """The documents whose redacted text, too, contains the query; an excerpt of each."""
    matches: Callable[..., Any] = compute.match_substring
    contains: pa.Array = matches(batch.texts, query.text, ignore_case=not query.respects_case)
    matching = pa.array(np.flatnonzero(numbers(contains.fill_null(False))))
    texts = dict(zip(batch.keys.take(matching).to_pylist(), batch.texts.take(matching).to_pylist()))
    facts = rows.output.facts_of(list(texts)) if texts else {}
    listed = [each for each in facts.values() if each["fate"] in batch.fates]
    for start in range(0, len(listed), _REDACTED_DOCS):
        part = listed[start : start + _REDACTED_DOCS]
        try:
            redacted = rows.redactor.redacted(batch.source, [texts[each["key"]] for each in part])
        except RedactionError:
            continue
        for row, text in zip(rows.shown(part), redacted):
            first = query.pattern.search(text)
            if first is not None:
                excerpt = text[max(0, first.start() - _AROUND) : first.end() + _AROUND]
                ranges = [list(match.span()) for match in query.pattern.finditer(excerpt)]
                yield {**row, "excerpt": excerpt, "ranges": ranges[:_MOST_RANGES]}
