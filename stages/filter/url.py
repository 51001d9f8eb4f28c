"""Drops documents by their URL: lists of domains and URLs, and words that a URL may not have.

    column of URLs  ->  the form of C4  ->  host            in `domains`, or not in `allow_domains`?
                                        ->  whole           in `urls`?
                                        ->  words           one of `hard_words`? two of `soft_words`?
                                        ->  words run together: any of `strict_substrings` inside?

The word rules are those of RefinedWeb (Penedo et al. 2023, appendix G.1) as DCLM and datatrove have them, in DCLM's order. What
these leave open, or do in different ways, is settled so:

- URLs and entries are first brought into one form: no scheme, `www.`, tracking parameters at the start of the query or slashes
  at the end, the host in lower case (`datapipe/kernels/filters/url.py` lists what C4 does, and what this stage adds).
- A domain stands for that host and for all below it: example.com for a.example.com too, never for badexample.com. (DCLM takes
  the host alone.)
- An entry of `urls` stands for that URL alone, in its form.
- Words are runs of ASCII letters and digits, in any case, and of bytes above 127; percent signs are not decoded. An entry of
  several words is found where they follow each other. A word in a list counts once for a URL, however often it is there.
- `strict_substrings` are sought with all between the words left out, as in datatrove; DCLM leaves out `-` and `.` alone.

No list comes with datapipe. For domains and URLs there are the blocklists of the Université Toulouse Capitole (UT1, category
`adult`: files `domains` and `urls`, which RefinedWeb and datatrove use), for words the LDNOOBW lists; the banlists of DCLM
(`baselines/mappers/banlists`) and the `banned_*` files of datatrove (`src/datatrove/assets`) hold all three kinds of words.

One core of a 2-core AMD EPYC: 850,000 URLs a second against a million domains and 1,200 words, 53 MB/s of URLs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, PrivateAttr, model_validator

from datapipe import columns
from datapipe.errors import UserError
from datapipe.kernels.filters import url, url_lists
from datapipe.kernels.types import input_record
from datapipe.stage import Filter, FilterResult, Rule, StageContext
from datapipe.stage.documents import DocumentBatch
from stages.filter import _url_lists as lists

_LISTS = ("domains", "allow_domains", "urls", "strict_substrings", "hard_words", "soft_words")

_AT_ONCE = {
    "not_allowed": "allow_domains",
    "domain": "domains",
    "url": "urls",
    "strict_substring": "strict_substrings",
    "hard_word": "hard_words",
}
"""The list of each rule that one hit fails."""


def _entries(what: str) -> Any:
    return Field(default=(), description=what)


def _files(of: str) -> Any:
    return Field(
        default=(),
        description=f"Files of `{of}`: text, one entry a line, lines with # are comments; .gz and .zst too. "
        "Relative paths are from the working directory.",
    )


class Url(Filter):
    """Drops documents whose URL is in a list of domains or URLs, or has words of a list."""

    field: str = Field(default="url", description="The column that holds the URL; name it in the source's `keep`.")
    missing: Literal["keep", "drop"] = Field(
        default="keep", description="What becomes of a document whose URL is null or empty; no other rule is tried on it."
    )
    domains: tuple[str, ...] = _entries("Hosts to drop, with all hosts below them: example.com.")
    domain_files: tuple[Path, ...] = _files("domains")
    allow_domains: tuple[str, ...] = _entries("The only hosts to keep, with all hosts below them.")
    allow_domain_files: tuple[Path, ...] = _files("allow_domains")
    urls: tuple[str, ...] = _entries("URLs to drop, whole; scheme, `www.` and a slash at the end do not matter.")
    url_files: tuple[Path, ...] = _files("urls")
    strict_substrings: tuple[str, ...] = _entries("What may be nowhere in a URL, even inside words or across them.")
    strict_substring_files: tuple[Path, ...] = _files("strict_substrings")
    hard_words: tuple[str, ...] = _entries("Words of which one in a URL is enough to drop it.")
    hard_word_files: tuple[Path, ...] = _files("hard_words")
    soft_words: tuple[str, ...] = _entries("Words of which a URL may have `max_soft_words` different ones.")
    soft_word_files: tuple[Path, ...] = _files("soft_words")
    counts: ClassVar[tuple[str, ...]] = ("without_url",)
    """Documents whose URL is null or empty: all of them, where the field has another name."""

    max_soft_words: int = Field(
        default=1, ge=0, description="Most different soft words in a URL; the published rule drops two."
    )

    libraries = ("pyarrow",)
    reaches: ClassVar[tuple[str, ...]] = ()
    """`_given` looks up options."""

    _loaded: dict[str, Any] | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _has_a_list(self) -> Url:
        if self.missing == "keep" and not any(any(self._given(name)) for name in _LISTS):
            raise ValueError(
                f"there is no list to judge URLs by. Expected at least one of: {', '.join(_LISTS)}, or their files"
            )
        return self

    def _given(self, name: str) -> tuple[tuple[str, ...], tuple[Path, ...]]:
        """What a list has in the mixture, and its files."""
        return getattr(self, name), getattr(self, f"{name.removesuffix('s')}_files")

    def input_files(self) -> tuple[str, ...]:
        return tuple(str(path) for name in _LISTS for path in self._given(name)[1])

    def rules(self) -> Sequence[Rule]:
        """Those that have a list. All but `soft_words` drop at the first hit; `not_allowed`: not in `allow_domains`."""
        at_once = [Rule(name=rule, limit=0, side="max") for rule, name in _AT_ONCE.items() if any(self._given(name))]
        missing = [Rule(name="missing", limit=0, side="max")] if self.missing == "drop" else []
        soft = [self.at_most("soft_words", "max_soft_words")] if any(self._given("soft_words")) else []
        return [*missing, *at_once, *soft]

    def open(self, context: StageContext) -> None:
        self._loaded = self._load()

    def _load(self) -> dict[str, Any]:
        """Every list that has entries, ready to look up. Raises UserError."""
        read = {name: lists.read_entries(name, *self._given(name)) for name in _LISTS}
        loaded: dict[str, Any] = {name: lists.domain_table(read[name]) for name in _LISTS[:2] if read[name]}
        if read["urls"]:
            loaded["urls"] = lists.url_table(read["urls"])
        if read["strict_substrings"]:
            loaded["strict_substrings"] = lists.substring_automaton(read["strict_substrings"])
        if read["hard_words"] or read["soft_words"]:
            loaded["words"] = lists.word_automaton(read["hard_words"], read["soft_words"])
        return loaded

    def process(self, batch: DocumentBatch) -> FilterResult:
        if self._loaded is None:
            self._loaded = self._load()
        given, data = columns.text_buffers(self._column(batch))
        offsets, data = url.normalize_urls(given[:-1], given[1:], data)
        missing = np.diff(offsets) == 0
        measured = {"missing": missing, **self._listed(offsets, data), **self._worded(offsets, data)}
        measured["not_allowed"] = (measured["not_allowed"] == 0) & ~missing
        rules = self.rules()
        without = {"without_url": pa.array(missing.astype(np.int32))}
        return FilterResult.judged(rules, [measured[rule.name] for rule in rules], without)

    def _column(self, batch: DocumentBatch) -> pa.Array:
        """The URLs, (num_docs,) large_string, with empty ones for nulls. Raises UserError."""
        names = batch.record.schema.names
        if self.field not in names:
            raise UserError(
                f"filter.url: the documents have no column '{self.field}', only {', '.join(names)}. "
                f"Write `keep: [{self.field}]` in the source if its files have that field, or name another by `field`."
            )
        found = batch.record.column(self.field)
        if not any(check(found.type) for check in (pa.types.is_string, pa.types.is_large_string, pa.types.is_null)):
            raise UserError(
                f"filter.url: the column '{self.field}' holds {found.type}, expected text. Name another by `field`."
            )
        return columns.as_large_string(found).fill_null("")

    def _listed(self, offsets: np.ndarray, data: np.ndarray) -> dict[str, np.ndarray]:
        """Per rule on domains and URLs, where the URLs are in its list: (num_docs,) uint8, 1 where so."""
        assert self._loaded is not None
        num_docs = len(offsets) - 1
        found = {rule: np.zeros(num_docs, np.uint8) for rule in ("not_allowed", "domain", "url")}
        starts, stops = np.empty(num_docs, np.int64), np.empty(num_docs, np.int64)
        url.find_hosts(offsets, data, starts, stops)
        for rule in ("not_allowed", "domain"):
            if _AT_ONCE[rule] in self._loaded:
                url_lists.find_domains(starts, stops, data, self._loaded[_AT_ONCE[rule]], found[rule])
        if "urls" in self._loaded:
            url_lists.find_hashes(url_lists.hashes_of(offsets[:-1], offsets[1:], data), self._loaded["urls"], found["url"])
        return found

    def _worded(self, offsets: np.ndarray, data: np.ndarray) -> dict[str, np.ndarray]:
        """Per rule on words, how many different ones of its list are in each URL: (num_docs,) int64."""
        assert self._loaded is not None
        strict, words = np.zeros((len(offsets) - 1, 2), np.int64), np.zeros((len(offsets) - 1, 2), np.int64)
        if "strict_substrings" in self._loaded:
            _count(offsets, data, self._loaded["strict_substrings"], None, strict)
        if "words" in self._loaded:
            automaton, first_soft = self._loaded["words"]
            _count(offsets, data, automaton, first_soft, words)
        return {"strict_substring": strict[:, 0], "hard_word": words[:, 0], "soft_words": words[:, 1]}


def _count(
    offsets: np.ndarray, data: np.ndarray, automaton: url_lists.Automaton, first_soft: int | None, out: np.ndarray
) -> None:
    """Counts words below `first_soft` and from it on, or, where that is None, all entries as parts of words."""
    first = automaton.num_patterns if first_soft is None else first_soft
    tables = input_record(url_lists.Automaton, automaton)  # a stage that was pickled has writable arrays
    url_lists.count_words(offsets, data, tables, first, first_soft is not None, out)
