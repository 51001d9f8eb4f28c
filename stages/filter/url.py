"""Drops documents by their URL: lists of domains and URLs, and words that a URL must not contain.

    column of URLs  ->  the form of C4  ->  host             rules `domain` and `not_allowed`
                                        ->  whole URL        rule `url`
                                        ->  words            rules `hard_word` (one) and `soft_words` (two)
                                        ->  joined words     rule `strict_substring` (anywhere)

The word rules are those of RefinedWeb (Penedo et al. 2023, appendix G.1), in the order of DCLM.

- URLs and entries are brought into one form: no scheme, `www.`, tracking parameters at the start of the query or slashes at the
  end, the host in lower case (`datapipe/kernels/filters/url.py`).
- A domain matches its host and all hosts below it: example.com matches a.example.com, never badexample.com. (DCLM matches the
  host alone.) An entry of `urls` matches that URL alone.
- Words are runs of ASCII letters and digits, in any case, and of bytes above 127; percent signs are not decoded. An entry of
  several words matches consecutive words. A word counts once for a URL, however often it occurs.
- `strict_substrings` are searched in the URL without the characters between words, as in datatrove; DCLM removes `-` and `.`.

datapipe contains no lists. RefinedWeb uses UT1 (Université Toulouse Capitole), category `adult`, of domains and URLs. LDNOOBW
lists words; DCLM (`baselines/mappers/banlists`) and datatrove list all three kinds of words.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from datapipe import columns
from datapipe.errors import UserError
from datapipe.kernels.filters import url, url_lists
from datapipe.stage import Filter, FilterResult, Rule
from datapipe.stage.documents import DocumentBatch
from stages.filter._lists import url_lists as lists

_LISTS = ("domains", "allow_domains", "urls", "strict_substrings", "hard_words", "soft_words")

_LIST_OF_RULE = {
    "not_allowed": "allow_domains",
    "domain": "domains",
    "url": "urls",
    "strict_substring": "strict_substrings",
    "hard_word": "hard_words",
}
"""The list of each rule that drops a document at the first hit."""


def _entries(what: str) -> Any:
    return Field(default=(), description=what)


def _files(of: str) -> Any:
    return Field(
        default=(),
        description=f"Files with entries of `{of}`: text, one entry a line, lines that start with # are comments; .gz and .zst "
        "too. Relative paths start at the working directory.",
    )


class Url(Filter):
    """Drops documents whose URL is in a list of domains or URLs, or contains words of a list."""

    field: str = Field(default="url", description="Column with the URL; the source must list it in `keep`.")
    missing: Literal["keep", "drop"] = Field(
        default="keep", description="What happens to a document whose URL is null or empty; no other rule applies to it."
    )
    domains: tuple[str, ...] = _entries("Hosts to drop, with all hosts below them, such as example.com.")
    domain_files: tuple[Path, ...] = _files("domains")
    allow_domains: tuple[str, ...] = _entries("The only hosts to keep, with all hosts below them.")
    allow_domain_files: tuple[Path, ...] = _files("allow_domains")
    urls: tuple[str, ...] = _entries("URLs to drop, compared without scheme, `www.` and a slash at the end.")
    url_files: tuple[Path, ...] = _files("urls")
    strict_substrings: tuple[str, ...] = _entries(
        "Texts that drop a document when its URL contains them, also within and across words."
    )
    strict_substring_files: tuple[Path, ...] = _files("strict_substrings")
    hard_words: tuple[str, ...] = _entries("Words that drop a document wherever they occur in its URL.")
    hard_word_files: tuple[Path, ...] = _files("hard_words")
    soft_words: tuple[str, ...] = _entries(
        "Words that drop a document when its URL contains more than `max_soft_words` different ones."
    )
    soft_word_files: tuple[Path, ...] = _files("soft_words")
    before_text: ClassVar[bool] = True
    counts: ClassVar[tuple[str, ...]] = ("without_url",)
    """Documents whose URL is null or empty."""

    max_soft_words: int = Field(
        default=1, ge=0, description="Maximum number of different soft words in a URL. The published rule drops at two."
    )

    libraries = ("pyarrow",)
    writes = ()

    def check_options(self) -> None:
        if self.missing == "keep" and not any(any(self._given(name)) for name in _LISTS):
            raise ValueError(f"no list is given. Expected at least one of: {', '.join(_LISTS)}, or their files")

    def _given(self, name: str) -> tuple[tuple[str, ...], tuple[Path, ...]]:
        return getattr(self, name), getattr(self, f"{name.removesuffix('s')}_files")

    def input_files(self) -> tuple[str, ...]:
        return tuple(str(path) for name in _LISTS for path in self._given(name)[1])

    def columns_read(self) -> Mapping[str, str]:
        return {self.field: "field"}

    def rules(self) -> Sequence[Rule]:
        """The rules whose list has entries. All but `soft_words` drop at the first hit."""
        single_hit = [Rule(name=rule, limit=0, side="max") for rule, name in _LIST_OF_RULE.items() if any(self._given(name))]
        missing = [Rule(name="missing", limit=0, side="max")] if self.missing == "drop" else []
        soft = [self.at_most("soft_words", "max_soft_words")] if any(self._given("soft_words")) else []
        return [*missing, *single_hit, *soft]

    @cached_property
    def _tables(self) -> dict[str, Any]:
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
        given, data = columns.text_buffers(self._column(batch))
        offsets, data = url.normalize_urls(given[:-1], given[1:], data)
        missing = np.diff(offsets) == 0
        measured = {"missing": missing, **self._list_hits(offsets, data), **self._word_hits(offsets, data)}
        measured["not_allowed"] = (measured["not_allowed"] == 0) & ~missing
        rules = self.rules()
        without = {"without_url": pa.array(missing.astype(np.int32))}
        return FilterResult.from_rules(rules, [measured[rule.name] for rule in rules], without)

    def _column(self, batch: DocumentBatch) -> pa.Array:
        column = batch.column(self.field, "filter.url")
        if not any(check(column.type) for check in (pa.types.is_string, pa.types.is_large_string, pa.types.is_null)):
            raise UserError(
                f"filter.url: the column '{self.field}' holds {column.type}, expected text. Set `field` to another column."
            )
        return columns.as_large_string(column).fill_null("")

    def _list_hits(self, offsets: np.ndarray, data: np.ndarray) -> dict[str, np.ndarray]:
        """By rule on domains and URLs, whether each URL is in the list of the rule: (num_docs,) uint8, 1 or 0."""
        num_docs = len(offsets) - 1
        hits = {rule: np.zeros(num_docs, np.uint8) for rule in ("not_allowed", "domain", "url")}
        starts, stops = np.empty(num_docs, np.int64), np.empty(num_docs, np.int64)
        url.find_hosts(offsets, data, starts, stops)
        for rule in ("not_allowed", "domain"):
            if _LIST_OF_RULE[rule] in self._tables:
                url_lists.find_domains(starts, stops, data, self._tables[_LIST_OF_RULE[rule]], hits[rule])
        if "urls" in self._tables:
            url_lists.find_hashes(url_lists.hashes_of(offsets[:-1], offsets[1:], data), self._tables["urls"], hits["url"])
        return hits

    def _word_hits(self, offsets: np.ndarray, data: np.ndarray) -> dict[str, np.ndarray]:
        """By rule on words, the number of distinct listed words in each URL: (num_docs,) int64."""
        strict, words = np.zeros((len(offsets) - 1, 2), np.int64), np.zeros((len(offsets) - 1, 2), np.int64)
        if "strict_substrings" in self._tables:
            automaton = self._tables["strict_substrings"]
            url_lists.count_words(offsets, data, automaton, automaton.num_patterns, False, strict)
        if "words" in self._tables:
            automaton, first_soft = self._tables["words"]
            url_lists.count_words(offsets, data, automaton, first_soft, True, words)
        return {"strict_substring": strict[:, 0], "hard_word": words[:, 0], "soft_words": words[:, 1]}
