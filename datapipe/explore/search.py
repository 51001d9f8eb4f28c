"""Search in the texts of documents: a scan that streams its hits.

    kept texts under work/           ─▶ contains? ─▶ redacted ─▶ contains still? ─▶ hit
    other documents, in their files  ─▶ contains? ─▶ redacted ─▶ contains still? ─▶ hit

One record batch is in memory at a time. Only the redacted text counts, so a search cannot tell what stood behind a replacement.
The scan goes on as long as its lines are read, and stops when the client goes away.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import numpy as np
import pyarrow as pa

from datapipe.columns import compute, make_keys, numbers
from datapipe.errors import DatapipeError, UserError
from datapipe.exchange.partitions import read_table
from datapipe.explore.document.originals import Originals
from datapipe.explore.output import Output
from datapipe.explore.redaction import RedactionError, Redactor
from datapipe.explore.rows import Rows, check_fate, check_source
from datapipe.inputs.planned_input import PlannedInput
from datapipe.stage.reader import FieldNames, ReadBatch, Split

MOST_HITS = 2_000
MOST_CHARS = 1_000
_AROUND = 120
_MOST_RANGES = 20
_TOLD_EVERY_S = 0.5
_REDACTED_DOCS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchQuery:
    """What to search for. Empty strings do not restrict."""

    text: str
    source: str = ""
    fate: str = ""
    respects_case: bool = False
    limit: int = 200

    def check(self, sources: list[str]) -> None:
        """Raises UserError for a search that makes no sense."""
        if not self.text.strip() or len(self.text) > MOST_CHARS:
            raise UserError(f"Give q: a text of 1 to {MOST_CHARS:,} characters to search for.")
        check_source(self.source, sources)
        check_fate(self.fate)
        if not 1 <= self.limit <= MOST_HITS:
            raise UserError(f"limit {self.limit}: expected 1 to {MOST_HITS:,}.")

    @property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(re.escape(self.text), 0 if self.respects_case else re.IGNORECASE)


@dataclass(slots=True)
class _State:
    """How far a scan is."""

    of_documents: int
    documents: int = 0
    bytes: int = 0
    hits: int = 0
    started: float = field(default_factory=monotonic)
    told: float = field(default_factory=monotonic)
    problems: list[str] = field(default_factory=list)

    def progress(self) -> dict[str, Any]:
        seconds = monotonic() - self.started
        left = (self.of_documents - self.documents) * seconds / self.documents if self.documents else None
        return {
            "documents": self.documents,
            "of_documents": max(self.of_documents, self.documents),
            "bytes": self.bytes,
            "seconds_left": None if left is None else round(max(left, 0.0), 1),
        }


class Search:
    """Searches of an output."""

    def __init__(self, output: Output, rows: Rows, redactor: Redactor, originals: Originals) -> None:
        self._output, self._rows, self._redactor, self._originals = output, rows, redactor, originals

    def run(self, query: SearchQuery) -> Iterator[dict[str, Any]]:
        """The lines of the answer: hits, progress, and at the end what was done. Raises UserError at once."""
        query.check(self._output.sources)
        sources = [query.source] if query.source else self._output.sources
        return self._lines(query, sources, _State(of_documents=self._count(query, sources)))

    def _count(self, query: SearchQuery, sources: list[str]) -> int:
        """Documents that the scan reads: kept ones, and all of a source's to find the others."""
        reasons = [reason for reason in self._rows.reasons if reason.source in sources]
        kept = sum(reason.documents for reason in reasons if reason.fate == "kept") if query.fate in ("", "kept") else 0
        return kept + (sum(reason.documents for reason in reasons) if query.fate != "kept" else 0)

    def _lines(self, query: SearchQuery, sources: list[str], state: _State) -> Iterator[dict[str, Any]]:
        yield {"progress": state.progress()}
        for hit in self._hits(query, sources, state):
            if hit is None:
                if monotonic() - state.told >= _TOLD_EVERY_S:
                    state.told = monotonic()
                    yield {"progress": state.progress()}
                continue
            state.hits += 1
            yield {"hit": hit}
            if state.hits >= query.limit:
                break
        seconds = round(monotonic() - state.started, 2)
        done = {"hits": state.hits, "documents": state.documents, "seconds": seconds, "stopped": state.hits >= query.limit}
        yield {"done": {**done, "problems": state.problems[:10]}}

    def _hits(self, query: SearchQuery, sources: list[str], state: _State) -> Iterator[dict[str, Any] | None]:
        """Hits, and None after each batch."""
        if query.fate in ("", "kept"):
            yield from self._kept(query, sources, state)
        if query.fate != "kept":
            yield from self._others(query, sources, state)

    def _kept(self, query: SearchQuery, sources: list[str], state: _State) -> Iterator[dict[str, Any] | None]:
        for source, file in ((name, file) for name in sources for file in self._output.kept_files(name)):
            for batch in read_table(self._output.root, file, ["key", "text"]):
                keys, texts = batch.column("key"), batch.column("text")
                found = pa.array(_containing(texts, query))
                by_key = dict(zip(keys.take(found).to_pylist(), texts.take(found).to_pylist()))
                facts = self._rows.of_keys(list(by_key)) if by_key else {}
                yield from self._found(query, source, list(facts.values()), by_key)
                state.documents += batch.num_rows
                state.bytes += texts.nbytes
                yield None

    def _others(self, query: SearchQuery, sources: list[str], state: _State) -> Iterator[dict[str, Any] | None]:
        """Documents that were not kept, in the files of their sources. A file that has changed is left out, and told."""
        for file_hash, (source, file, reader) in self._output.locator.files.items():
            if source not in sources:
                continue
            spec = self._output.mixture.sources[source]
            fields = FieldNames(text=spec.text, id=spec.id, replaces_surrogates=spec.replaces_surrogates)
            try:
                difference = self._originals.difference(file)
                if difference:
                    state.problems.append(f"{source}/{file.path} {difference}, and was not searched.")
                    continue
                with PlannedInput(file) as planned:
                    for part in reader.read(Split(file=file), fields, planned.open):
                        if part.texts is None and len(part.positions):
                            state.problems.append(f"{source}/{file.path} holds pages, of which kept texts alone are searched.")
                            break
                        yield from self._of_part(query, source, file_hash, part)
                        state.documents += len(part.positions)
                        state.bytes += part.input_bytes
                        yield None
            except (DatapipeError, OSError, pa.ArrowException, ValueError, ImportError) as error:
                state.problems.append(f"{source}/{file.path} cannot be read again: {type(error).__name__}.")

    def _of_part(self, query: SearchQuery, source: str, file_hash: int, part: ReadBatch) -> Iterator[dict[str, Any]]:
        if part.texts is None or not len(part.positions):
            return
        found = pa.array(_containing(part.texts, query))
        keys = make_keys(file_hash, part.positions).take(found).to_pylist()
        facts = self._rows.of_keys(keys) if keys else {}
        wanted = [each for each in facts.values() if each["fate"] != "kept" and query.fate in ("", each["fate"])]
        yield from self._found(query, source, wanted, dict(zip(keys, part.texts.take(found).to_pylist())))

    def _found(
        self, query: SearchQuery, source: str, listed: list[dict[str, Any]], texts: Mapping[bytes, str]
    ) -> Iterator[dict[str, Any]]:
        """The hits among documents whose text contains the query before it is redacted. A few are redacted at a time."""
        for start in range(0, len(listed), _REDACTED_DOCS):
            part = listed[start : start + _REDACTED_DOCS]
            try:
                redacted = self._redactor.redacted(source, [texts[facts["key"]] for facts in part])
            except RedactionError:
                continue
            for facts, text in zip(part, redacted):
                hit = self._hit(query, facts, text)
                if hit is not None:
                    yield hit

    def _hit(self, query: SearchQuery, facts: Mapping[str, Any], text: str) -> dict[str, Any] | None:
        """The row of a document with an excerpt around the first place; None where a redaction has replaced it.

        Args:
            text: redacted.
        """
        first = query.pattern.search(text)
        if first is None:
            return None
        start = max(0, first.start() - _AROUND)
        excerpt = text[start : first.end() + _AROUND]
        ranges = [list(match.span()) for match in query.pattern.finditer(excerpt)]
        [row] = self._rows.shown([facts])
        return {**row, "excerpt": excerpt, "ranges": ranges[:_MOST_RANGES]}


def _containing(texts: pa.Array, query: SearchQuery) -> np.ndarray:
    """The rows whose text contains the query: (n,) int64."""
    matches: Callable[..., Any] = compute.match_substring
    found: pa.Array = matches(texts, query.text, ignore_case=not query.respects_case)
    return np.flatnonzero(numbers(found.fill_null(False)))


def search_query(options: Mapping[str, str], limit: int) -> SearchQuery:
    """The search that a request asks for."""
    return SearchQuery(
        text=options.get("q", ""),
        source=options.get("source", ""),
        fate=options.get("fate", ""),
        respects_case=options.get("case", "0") == "1",
        limit=limit,
    )
