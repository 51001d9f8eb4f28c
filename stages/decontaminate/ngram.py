"""Removes items of evaluation sets: drops documents that hold them, or cuts them out with the text around them.

    evaluation files  ─▶  items  ─▶  hashed n-grams and whole short items  ─┐
    documents  ─▶  words without case, accents and punctuation  ────────────┴▶  matches  ─▶  documents dropped, or texts cut

`gpt3` is the rule of GPT-3 (Brown et al. 2020, appendix C) as lm-evaluation-harness has it. It cuts an n-gram of an item, or a
whole short item, with 200 characters on either side, and joins the remaining pieces of at least 200 by a blank line. Every
n-gram at every position is a match, so a copied item of 24 words is 12 matches and drops the document. `strict` drops a
document with any match. `coverage` drops one with most n-grams of an item, weighted by their rarity as in AI2's decon.

Words are compared without case, accents, punctuation and typographic variants, in every script.
README.md beside this file has examples and measurements. `datapipe inspect OUTPUT --contamination`
prints contaminated, clean and undetectable items, and which item was found in which document.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from datapipe import columns
from datapipe.dataclass import replace
from datapipe.errors import UserError
from datapipe.kernels.decontaminate import cutting
from datapipe.kernels.text.icu_breaks import LIBRARY
from datapipe.kernels.text.replace import replace_spans
from datapipe.kernels.text.spaced_words import spaced_texts
from datapipe.stage import Filter, FilterResult, Rule
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.findings import FOUND, SearchedList
from datapipe.stage.segmentation.spaced_words import spaced_words
from stages.decontaminate import _matches
from stages.decontaminate._evaluation_files import Benchmark, read_set
from stages.decontaminate._index import Index, Rules, build_index

_OPTIONS_OF = {"gpt3": ("margin_chars", "min_piece_chars", "max_matches"), "coverage": ("min_coverage",)}
"""Options that one profile alone reads."""


class Ngram(Filter):
    """Drops documents that hold items of evaluation sets, or cuts the items out of them."""

    against: tuple[Path | Benchmark, ...] = Field(
        min_length=1,
        description="Evaluation sets: files, URLs or patterns of .jsonl or .parquet, or {path, name, question, context, "
        "answer, choices, gold, id}, where all but `path` may be left out. `datapipe plan` lists which fields are used.",
    )
    profile: Literal["gpt3", "strict", "coverage"] = Field(
        default="gpt3",
        description="gpt3: cut n-grams out with the text around them. strict: drop documents with any n-gram. coverage: drop "
        "documents with most n-grams of an item, with n: 5.",
    )
    n: int | None = Field(
        default=None, ge=2, le=50, description="Number of words in an n-gram. Default: 13, and 5 for coverage."
    )
    margin_chars: int = Field(default=200, ge=0, description="gpt3: number of characters to cut on each side of a match.")
    min_piece_chars: int = Field(
        default=200, ge=1, description="gpt3: minimum number of characters of a piece of text that is kept."
    )
    max_matches: int = Field(
        default=10,
        ge=0,
        description="gpt3: maximum number of matches in a document. Documents with more are dropped, others are cut.",
    )
    min_coverage: float = Field(
        default=0.8,
        gt=0,
        le=1,
        description="coverage: share of the n-grams of an item that must occur in a document to drop it. It holds for "
        "items of at least 50 words; items of up to 20 words must occur whole; between the two the share "
        "is interpolated.",
    )
    min_words: int = Field(
        default=8,
        ge=4,
        description="Minimum number of words in the question and answer of an item. Shorter items occur by chance.",
    )

    words: Literal["characters", "dictionary"] = Field(
        default="characters",
        description="What a word is in scripts without spaces. characters: each character, of which two ideographs or four "
        "others weigh as much as a word. dictionary: the words of ICU's dictionaries (`pip install 'datapipe[words]'`).",
    )

    libraries: ClassVar[tuple[str, ...]] = ("numpy", "pyarrow")
    writes = ("contaminated_by",)
    counts: ClassVar[tuple[str, ...]] = ("cut_documents", "removed_bytes")
    """Documents that were cut and kept, and bytes cut out of them."""

    def libraries_used(self) -> tuple[str, ...]:
        return (*self.libraries, LIBRARY) if self.words == "dictionary" else self.libraries

    def check_options(self) -> None:
        given = self.model_dump()
        for profile, options in _OPTIONS_OF.items():
            changed = [option for option in options if given[option] != type(self).model_fields[option].default]
            unused = changed if self.profile != profile else []
            if unused:
                raise ValueError(
                    f"{unused[0]}: only `profile: {profile}` reads it, and the profile is {self.profile}. Leave it out"
                )

    @property
    def num_words(self) -> int:
        return self.n or (5 if self.profile == "coverage" else 13)

    def benchmarks(self) -> tuple[Benchmark, ...]:
        entries = [Benchmark(path=entry) if isinstance(entry, Path) else entry for entry in self.against]
        return tuple(benchmark for entry in entries for benchmark in entry.sets())

    def input_files(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(str(path) for benchmark in self.benchmarks() for path in benchmark.files()))

    def rules(self) -> Sequence[Rule]:
        if self.profile != "gpt3":
            return [Rule(name="contaminated", limit=0.0)]
        return [self.at_most("too_many_matches", "max_matches"), Rule(name="nothing_left", limit=1, side="min")]

    def notes(self) -> tuple[str, ...]:
        index = self._index
        lost = int(index.undetectable.sum())
        summaries = [evaluation.summary() for evaluation in index.sets]
        sizes = f"{index.num_grams:,} n-grams of {len(index.set_of):,} items, {index.num_bytes / 1e6:,.0f} MB in every worker"
        return (*summaries, f"{sizes}; {lost:,} items cannot be detected")

    def searched_lists(self) -> Sequence[SearchedList]:
        index, lists = self._index, []
        for number, evaluation in enumerate(index.sets):
            lost = np.flatnonzero(index.undetectable[index.set_of == number])
            names = tuple(evaluation.items[item].name for item in lost.tolist())
            lists.append(SearchedList(name=evaluation.name, entries=len(evaluation.items), undetectable=names))
        return lists

    @cached_property
    def _index(self) -> Index:
        sets = [read_set(benchmark) for benchmark in self.benchmarks()]
        names = [evaluation.name for evaluation in sets]
        again = next((name for name in names if names.count(name) > 1), None)
        if again is not None:
            raise UserError(f"decontaminate.ngram: against: two benchmarks are called '{again}'. Give one another `name`.")
        covers = self.min_coverage if self.profile == "coverage" else None
        by_dictionary = self.words == "dictionary"
        return build_index(
            sets, Rules(n=self.num_words, least_words=self.min_words, min_coverage=covers, by_dictionary=by_dictionary)
        )

    def _found(self, batch: DocumentBatch) -> tuple[_matches.Hits, _matches.Findings]:
        covers = self.profile == "coverage"
        if self.words == "characters":
            return _matches.find(*batch.buffers, self._index, self.num_words, covers)
        spaced = spaced_texts(spaced_words(batch), *batch.buffers)
        hits, findings = _matches.find(spaced.offsets, spaced.data, self._index, self.num_words, covers)
        before = spaced.positions_before
        hits = hits._replace(starts=before(hits.starts), stops=before(hits.stops))
        return hits, findings._replace(starts=before(findings.starts), stops=before(findings.stops))

    def process(self, batch: DocumentBatch) -> FilterResult:
        index, offsets = self._index, batch.buffers[0]
        hits, findings = self._found(batch)
        result = self._cut(batch, hits) if self.profile == "gpt3" else self._dropped(batch, hits, findings)
        if self.mode == "tag":
            tagged = {**result.columns, "contaminated_by": _names(findings, index, batch.num_docs)}
            result = replace(result, columns=tagged)
        return replace(result, findings=_findings(findings, index, offsets))

    def _dropped(self, batch: DocumentBatch, hits: _matches.Hits, findings: _matches.Findings) -> FilterResult:
        measured = np.zeros(batch.num_docs)
        if self.profile == "coverage":
            np.maximum.at(measured, findings.documents, findings.values)
        else:
            measured += np.bincount(hits.documents, minlength=batch.num_docs)
        nothing = pa.array(np.zeros(batch.num_docs, np.int64))
        return FilterResult.first_failing(batch.num_docs, [(measured, measured > 0)], dict.fromkeys(self.counts, nothing))

    def _cut(self, batch: DocumentBatch, hits: _matches.Hits) -> FilterResult:
        offsets, data = batch.buffers
        num_matches = np.bincount(hits.documents, minlength=batch.num_docs)
        removed = cutting.removed_of(offsets, data, *hits, self.margin_chars, self.min_piece_chars)
        result = FilterResult.from_rules(self.rules(), [num_matches, removed.pieces])
        is_cut = result.keep & (num_matches > 0)
        new: dict[str, pa.Array] = {"cut_documents": pa.array(is_cut.astype(np.int64))}
        if not is_cut.any():
            return replace(result, columns={**new, "removed_bytes": pa.array(np.zeros(batch.num_docs, np.int64))})
        of_document = np.searchsorted(offsets, removed.starts, "right") - 1
        chosen = is_cut[of_document]
        spans = removed.stops[chosen] - removed.starts[chosen]
        lost = np.bincount(of_document[chosen], spans, batch.num_docs).astype(np.int64)
        texts = _without(offsets, data, *(column[chosen] for column in removed[:3]))
        return replace(result, columns={**new, "removed_bytes": pa.array(lost), "text": texts})


def _without(offsets: np.ndarray, data: np.ndarray, starts: np.ndarray, stops: np.ndarray, lengths: np.ndarray) -> pa.Array:
    """The texts without the spans, a blank line in place of those between two pieces."""
    rows = np.zeros((len(starts), 32), np.uint8)
    rows[:, : len(cutting.SEPARATOR)] = np.frombuffer(cutting.SEPARATOR, np.uint8)
    out_offsets = np.empty(len(offsets), np.int64)
    out = np.empty(int(offsets[-1] - offsets[0] - (stops - starts).sum() + lengths.sum()), np.uint8)
    replace_spans(offsets, data, starts, stops, rows, lengths, out_offsets, out)
    return columns.texts_from(out_offsets, out)


def _findings(findings: _matches.Findings, index: Index, offsets: np.ndarray) -> pa.RecordBatch:
    order = np.lexsort((findings.items, findings.starts, findings.documents))
    documents, items, starts, stops, values = (column[order] for column in findings)
    lists = pa.array([evaluation.name for evaluation in index.sets], pa.string()).take(pa.array(index.set_of[items]))
    begins = offsets[documents]
    arrays = [documents, lists, _entries(items, index), starts - begins, stops - begins, values.astype(np.float64)]
    return pa.RecordBatch.from_arrays(arrays, schema=FOUND)


def _entries(items: np.ndarray, index: Index) -> pa.Array:
    first = np.searchsorted(index.set_of, index.set_of[items])
    pairs = zip(index.set_of[items].tolist(), (items - first).tolist())
    return pa.array([index.sets[number].items[item].name for number, item in pairs], pa.string())


def _names(findings: _matches.Findings, index: Index, num_docs: int) -> pa.Array:
    """The items of each document as "BENCHMARK:ITEM", (num_docs,) lists."""
    lists = [index.sets[number].name for number in index.set_of[findings.items].tolist()]
    names = [f"{name}:{entry}" for name, entry in zip(lists, _entries(findings.items, index).to_pylist())]
    offsets = np.searchsorted(findings.documents, np.arange(num_docs + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(names, pa.string()))
