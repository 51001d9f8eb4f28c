"""Filters with thresholds by language: the language overrides the profile.

    {"language": "de"}                   ->  {"profile": "datatrove", "max_mean_word_length": 15, ..., "language": "de"}
    {"language": {"column": "language"}} ->  the settings of each document's own language: a variant of the filter for each

Where documents have languages of their own, the record of a stage holds the default settings and the names of the given
options, and the table of languages is a file of the stage.

A batch is measured as a whole, and only thresholds, stop words and the rule for words differ by document. So a document is
decided as by the filter with `language` alone, and a batch of many languages costs about as much as one.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from datapipe.dataclass import dataclass
from datapipe.errors import UserError
from datapipe.kernels.text.icu_breaks import LIBRARY
from datapipe.kernels.text.words import Words
from datapipe.stage import FilterResult
from datapipe.stage.base import LANGUAGE_SETTINGS
from datapipe.stage.documents import DocumentBatch
from stages.filter._thresholds.fineweb2 import ENGLISH, TABLE, LanguageSettings, language_settings, settings_of
from stages.filter._thresholds.profiles import ProfiledFilter
from stages.filter._words import words_of_each

LEVELS = ("language", "script", "default")
Profiled = TypeVar("Profiled", bound="LanguageFilter")


class LanguageColumn(BaseModel):
    """The language of each document, by a column."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    column: str = Field(min_length=1, description="A column with languages: de, deu_Latn, as filter.language writes them.")
    given: SkipJsonSchema[tuple[str, ...]] = ()
    """Filled in: the options that are given, which hold in every language."""


@dataclass(frozen=True, slots=True, eq=False)
class Variants(Generic[Profiled]):
    """The filters by whose options the documents of a batch are decided."""

    filters: Sequence[Profiled]
    rows: np.ndarray  # (num_docs,) int64, the filter of each document
    # where the language is by document: the level of each filter's settings, and its limits, (num_filters, num_rules) float64
    levels: Sequence[str] = ()
    limits_of_filters: np.ndarray | None = None

    def values(self, option: str) -> list[Any]:
        """The option of each filter."""
        return [getattr(each, option) for each in self.filters]

    @property
    def limits(self) -> list[np.ndarray]:
        """Of each rule the thresholds by document, (num_docs,) float64; none where they are those of the stage."""
        return [] if self.limits_of_filters is None else list(self.limits_of_filters[self.rows].T)


class LanguageFilter(ProfiledFilter):
    """A filter with options `profile`, `language` and `words`. Options that are given override what both imply."""

    of_languages: ClassVar[Mapping[str, Any]]
    """The options that any language but English implies: the profile of FineWeb-2's thresholds, and the rules that it lacks."""

    @classmethod
    def _completed(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        language, profile = given.get("language"), given.get("profile")
        if isinstance(language, dict) and "column" in language:
            fixed = {"given": tuple(sorted(given.keys() - {"language", "mode"}))}
            return {**cls._options_of(settings_of(None), profile), **given, "language": fixed | language}
        if language is None:
            return super()._completed(given)
        if not isinstance(language, str):
            raise ValueError(f"language: found {language!r}, expected a language such as de, or {{column: NAME}}")
        try:
            return {**cls._options_of(language_settings(language), profile), **given}
        except UserError as error:
            raise ValueError(str(error)) from error

    @classmethod
    def _options_of(cls, settings: LanguageSettings, profile: Any) -> dict[str, Any]:
        """The options that a language decides, with the profile that is given, or else with the one that published it."""
        implied: Mapping[str, Any] = {"profile": "datatrove"} if settings.code == ENGLISH else cls.of_languages
        profile = implied["profile"] if profile is None else profile
        own = {name: value for name, value in settings.options.items() if name in cls.model_fields}
        return {**cls._with_profile(profile), **implied, **own, "profile": profile}

    @property
    def _column(self) -> LanguageColumn | None:
        language = getattr(self, "language", None)
        return language if isinstance(language, LanguageColumn) else None

    @property
    def counts(self) -> tuple[str, ...]:  # type: ignore[override]
        """Documents by whose settings they have: those of the language, of its script, or the default."""
        return LANGUAGE_SETTINGS if self._column else ()

    def columns_read(self) -> Mapping[str, str]:
        return {self._column.column: "language"} if self._column else {}

    def libraries_used(self) -> tuple[str, ...]:
        rule = getattr(self, "words", None)
        if self._column and rule and "words" not in self._column.given:
            rule = "dictionary"  # by the languages of the documents
        return (*self.libraries, LIBRARY) if rule == "dictionary" else self.libraries

    def input_files(self) -> tuple[str, ...]:
        return (str(TABLE),) if self._column else ()

    def variants(self, batch: DocumentBatch) -> Variants[Self]:
        """The filters of the languages of a batch; this filter where all documents have the same settings. Raises UserError."""
        if self._column is None:
            return Variants([self], np.zeros(batch.num_docs, np.int64))
        labels = languages_of(batch, self._column.column, f"{type(self).__module__.removeprefix('stages.')} (language)")
        known = labels.dictionary.to_pylist()
        settings = [settings_of(label) for label in ([*known, None] if labels.null_count or not known else known)]
        different = {(each.level, each.code): each for each in settings}
        numbers = {of: number for number, of in enumerate(different)}
        number_of_label = np.array([numbers[each.level, each.code] for each in settings])
        rows = number_of_label[labels.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
        filters, limits = zip(*(self._variant(each) for each in different.values()))
        return Variants(filters, rows, [each.level for each in different.values()], np.array(limits))

    def _variant(self, settings: LanguageSettings) -> tuple[Self, list[float]]:
        """The filter of a language, and the limits of its rules."""
        known, of = self._variants, (settings.level, settings.code)
        if of not in known:
            variant = self._with_settings(settings)
            known[of] = variant, [float(rule.limit) for rule in variant.rules()]
        return known[of]

    @cached_property
    def _variants(self) -> dict[tuple[str, str], tuple[Self, list[float]]]:
        return {}

    def _with_settings(self, settings: LanguageSettings) -> Self:
        """This filter with the options that it has where `language` is this one alone."""
        assert self._column is not None
        fixed = {name: getattr(self, name) for name in (*self._column.given, "mode")}
        defaults = {name: option.default for name, option in type(self).model_fields.items()}
        options = {**defaults, **self._options_of(settings, fixed.get("profile")), **fixed, "language": None}
        return type(self).model_construct(**options)

    def words_of(self, batch: DocumentBatch, variants: Variants[Self]) -> Words:
        """The words of a batch, by the option `words` of each document's filter."""
        return words_of_each(batch, variants.values("words"), variants.rows)

    def decided(self, measured: Sequence[np.ndarray], variants: Variants[Self]) -> FilterResult:
        """The result of the rules, which measured these values, by the thresholds of each document's filter."""
        counts = {
            name: pa.array(np.array([level == counted for level in variants.levels])[variants.rows].astype(np.int32))
            for name, counted in zip(self.counts, LEVELS)
        }
        return FilterResult.from_rules(self.rules(), measured, counts, variants.limits)


def languages_of(batch: DocumentBatch, column: str, asked_by: str) -> pa.DictionaryArray:
    """The languages of documents, (num_docs,) dictionary of text. Raises UserError for a column of another type."""
    labels = batch.column(column, asked_by)
    kind = labels.type.value_type if pa.types.is_dictionary(labels.type) else labels.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)):
        raise UserError(
            f"{asked_by}: the column '{column}' holds {labels.type}, expected the names of languages as text, such as de or "
            "deu_Latn. Name another column, or label the documents with filter.language: {keep: [], write: true}."
        )
    return labels if pa.types.is_dictionary(labels.type) else labels.cast(kind).dictionary_encode()
