"""Drops toxic documents, by lists of words, by a trained classifier, or where both agree.

| rule | drops a document if |
|---|---|
| `listed_words` | its density, the share of its words in the lists, is above `max_density`, in at least `min_hits` hits |
| `high_score` | the model's score is above `max_score` |

With lists and a model, `drop_if: both` (the default) drops what fails both, as `high_score`; `either` what fails one.

**A list alone proves little**, so it tags unless `drop_by_list: true`. Lists also hit quotes, medical texts, dialects and
names.

An entry of a list is one word or several in a row. Case, accents and signs between words are ignored. An entry matches whole
words; in scripts without spaces, such as Chinese and Thai, it matches anywhere. Disguised words (`w*rd`, `w0rd`, full-width
letters) are not found.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from datapipe.kernels.filters.word_lists import MOST_LISTS, count_listed
from datapipe.stage import Filter, FilterResult, Rule
from datapipe.stage.documents import DocumentBatch
from stages.filter._lists.word_lists import Lists, masks_of, read_lists
from stages.filter._scores import Scorer

TOXIC = ("1", "true", "toxic", "hateful", "offensive", "abusive", "hate")
"""Labels that mean toxic, of two, as public models name it."""

_ALONE = (
    "a list alone proves little: measured with LDNOOBW, its F1 is 0.58 on Wikipedia talk, and on HateCheck it hits 17.6 % of "
    "the cases that are not hateful, and 7.8 % of the hateful. Set `model`, or `mode: tag` to inspect its hits, or "
    "`drop_by_list: true` to drop by it all the same"
)


class Toxicity(Filter):
    """Drops documents that a toxicity classifier, lists of words, or both find toxic."""

    lists: dict[str, Path] = Field(
        default={},
        description="Lists of words by names of your choice, or by language: {en: words/en.txt}. Text files of one word or "
        "phrase a line; lines that begin with # are comments.",
    )
    language_column: str = Field(
        default="", description="Column with the language of a document: only the list of that name counts for it."
    )
    max_density: float = Field(
        default=0.01, ge=0.0, le=1.0, description="Maximum share of the words of a document that occur in a list."
    )
    min_hits: int = Field(default=3, ge=1, description="Number of hits below which `max_density` does not apply.")
    model: Path | None = Field(
        default=None, description="A classifier of `datapipe classifier train` on labelled text, or a fastText .bin or .ftz."
    )
    label: str = Field(
        default="", description=f"The model's label for toxic text. Default: of two labels the one of {', '.join(TOXIC)}."
    )
    max_score: float = Field(default=0.5, description="Maximum score of the model for a kept document.")
    drop_if: Literal["both", "either"] = Field(
        default="both", description="With lists and a model: drop documents that fail both, or one of them."
    )
    drop_by_list: bool = Field(
        default=False, description="Drop documents by lists without a model, although a list proves little."
    )
    write: bool = Field(
        default=False, description="Write the columns `listed_words`, `listed_density` and, with a model, `toxicity_score`."
    )

    libraries: ClassVar[tuple[str, ...]] = ("numba", "numpy", "pyarrow")
    writes = ("listed_words", "listed_density", "toxicity_score")

    def check_options(self) -> None:
        if not self.lists and self.model is None:
            raise ValueError(
                "expected `model` or `lists`; none ships with datapipe. `datapipe classifier train --help` shows how to train "
                "a model on labelled text, and stages/filter/README.md the whole way"
            )
        if self.lists and self.model is None and not self.drop_by_list and self.mode == "drop":
            raise ValueError(_ALONE)
        if len(self.lists) > MOST_LISTS:
            raise ValueError(f"lists: found {len(self.lists)}, expected at most {MOST_LISTS}. Join some of them")
        if self.language_column and not self.lists:
            raise ValueError("language_column is used with lists, and there are none")
        if self.model is not None:
            Scorer.open(self.model, self.label, TOXIC)

    def input_files(self) -> tuple[str, ...]:
        return (*map(str, self.lists.values()), *([str(self.model)] if self.model else []))

    def columns_read(self) -> Mapping[str, str]:
        return {self.language_column: "language_column"} if self.language_column else {}

    def notes(self) -> tuple[str, ...]:
        return read_lists(self.lists).notes if self.lists else ()

    def rules(self) -> Sequence[Rule]:
        by_list, by_model = self.at_most("listed_words", "max_density"), self.at_most("high_score", "max_score")
        if self.model is None:
            return [by_list]
        return [by_list, by_model] if self.lists and not self._must_agree else [by_model]

    @property
    def _must_agree(self) -> bool:
        return bool(self.lists) and self.model is not None and self.drop_if == "both" and self.mode == "drop"

    def process(self, batch: DocumentBatch) -> FilterResult:
        scorer, (hits, density) = self._scorer, self._density(batch)
        counted = np.where(hits >= self.min_hits, density, 0.0)
        score = np.zeros(batch.num_docs) if scorer is None else scorer.scores(batch.texts)
        is_listed = counted > self.max_density
        measured = {"listed_words": counted, "high_score": np.where(is_listed, score, 0.0) if self._must_agree else score}
        rules = self.rules()
        written: dict[str, pa.Array] = {}
        if self.write:
            written = {"listed_words": pa.array(hits), "listed_density": pa.array(density)}
            written |= {} if scorer is None else {"toxicity_score": pa.array(score)}
        return FilterResult.from_rules(rules, [measured[rule.name] for rule in rules], written)

    def _density(self, batch: DocumentBatch) -> tuple[np.ndarray, np.ndarray]:
        """Hits (num_docs,) int64, and the share of words in them (num_docs,) float64."""
        if not self.lists:
            return np.zeros(batch.num_docs, np.int64), np.zeros(batch.num_docs)
        languages = batch.column(self.language_column, "filter.toxicity") if self.language_column else None
        num_listed = count_listed(*batch.buffers, self._lists.table, masks_of(self._lists, languages, batch.num_docs))
        return num_listed.hits, num_listed.listed / np.maximum(num_listed.words, 1)

    @cached_property
    def _lists(self) -> Lists:
        return read_lists(self.lists)

    @cached_property
    def _scorer(self) -> Scorer | None:
        return None if self.model is None else Scorer.open(self.model, self.label, TOXIC)
