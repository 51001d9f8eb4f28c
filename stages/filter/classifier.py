"""Keeps documents that trained classifiers score high, as DCLM and FineWeb-Edu choose web pages.

    text  ->  the score of each model  ->  one score (`combine`)  ->  rules, in this order

| rule | drops a document if |
|---|---|
| `low_score` | its score is below `min_score` |
| `high_score` | its score is above `max_score` |
| `below_share` | it is not among the highest scores that make up `keep_share` of what the source has left |

A model is what `datapipe classifier train` writes, or any fastText model (`.bin`, `.ftz`). Its score is the probability of one
label, or the number that the model predicts. `label_column` writes the label of the highest probability into a column, such as
one of 24 topics.

`keep_share` finds a threshold for each source from all of its documents. It keeps exactly this share of the documents, rounded
down, or of the bytes of text, to within the longest document. Among documents whose score equals the threshold, a keyed hash
decides. The report publishes the threshold. DCLM (Li et al. 2024, arXiv 2406.11794) kept the highest tenth of its pages by a
fastText model; Nemotron-CC (Su et al. 2024, arXiv 2412.02595) takes the highest score of several models.
"""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from datapipe.dataclass import replace
from datapipe.errors import suggest
from datapipe.stage import Filter, FilterResult, Rule
from datapipe.stage.base import KeptShare, Share
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.models.classifier import POSITIVE
from stages.filter._scores import Scorer


class Classifier(Filter):
    """Keeps documents by the score of trained classifiers: above a threshold, or a share of the highest."""

    model: Path | None = Field(
        default=None, description="The model: a file or URL of `datapipe classifier train`, or a fastText .bin or .ftz."
    )
    models: dict[str, Path] = Field(
        default={}, description="Several models by names of your choice, instead of `model`: {edu: edu.model, web: hq.bin}."
    )
    label: str | dict[str, str] = Field(
        default="",
        description="The label whose probability is the score; for several models one for all, or {NAME: LABEL}. Default: of "
        f"two labels the one of {', '.join(POSITIVE)}. Models that predict a number have none.",
    )
    combine: Literal["max", "mean"] = Field(default="max", description="How the scores of several models become one.")
    min_score: float | None = Field(default=None, description="Minimum score of a kept document.")
    max_score: float | None = Field(default=None, description="Maximum score of a kept document.")
    keep_share: Share | None = Field(
        default=None,
        description="Share of the documents of each source to keep, those with the highest scores within the bounds: 10%.",
    )
    share_of: Literal["documents", "bytes"] = Field(
        default="documents", description="With keep_share: a share of the documents, or of the bytes of their text."
    )
    threshold_from: str = Field(
        default="", description="With keep_share: output of an earlier run, or one of its snapshots, whose thresholds hold."
    )
    score_column: str | None = Field(
        default=None, min_length=1, description="Name of a new column in kept documents: the score."
    )
    label_column: str | None = Field(
        default=None,
        min_length=1,
        description="Name of a new column in kept documents: the label of the highest probability; null where fastText knows "
        "no word of the text. Without `label`, the score is that probability.",
    )
    write_each: bool = Field(
        default=False, description="Write the score of each of `models` into a column of its name, with `mode: tag` too."
    )
    max_chars: int | None = Field(
        default=None, ge=1, description="Characters that are read from the start of the text; all by default."
    )

    libraries: ClassVar[tuple[str, ...]] = ("numba", "numpy", "pyarrow")

    def check_options(self) -> None:
        if (self.model is None) == (not self.models):
            raise ValueError("expected `model: FILE`, or `models: {NAME: FILE, …}` for several")
        decides = not (self.min_score is self.max_score is self.keep_share is None)
        if not (decides or self.score_column or self.label_column or self.write_each or self.mode == "tag"):
            raise ValueError(
                "nothing is decided or written. Set min_score, max_score or keep_share to drop documents, score_column or "
                "label_column to write what the model says, or `mode: tag` to see the scores first"
            )
        if self.threshold_from and self.keep_share is None:
            raise ValueError("threshold_from is used with keep_share, and there is none")
        if isinstance(self.label, dict) and self.label.keys() - self.models.keys():
            unknown = min(self.label.keys() - self.models.keys())
            raise ValueError(f"label: there is no model '{unknown}'.{suggest(unknown, self.models)}")
        if self.label_column is not None and self.model is None:
            raise ValueError("label_column needs `model`: write a stage for each model, with another column and name (`as`)")
        if self.label_column is not None and self.label_column == self.score_column:
            raise ValueError(f"label_column: found '{self.label_column}', which is score_column too. Expected another name")
        scorers = self._open()
        if self.label_column is not None and scorers[0].model.kind == "number":
            raise ValueError(f"label_column: {self.model} predicts a number and has no labels. Write score_column instead")
        if len({scorer.model.kind for scorer in scorers}) > 1:
            raise ValueError("models: some score a probability and some predict a number. Use two stages, one for each kind")

    @property
    def writes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The columns that the options name."""
        columns = (self.label_column, self.score_column)
        return (*(name for name in columns if name), *(self.models if self.write_each else []))

    def input_files(self) -> tuple[str, ...]:
        return tuple(map(str, self._paths.values()))

    def notes(self) -> tuple[str, ...]:
        moves = "keep_share: new or changed files move the threshold, and all documents of the source are decided again; "
        is_moved = self.keep_share is not None and not self.threshold_from
        return (f"{moves}threshold_from: OUTPUT keeps an earlier one",) if is_moved else ()

    def rules(self) -> Sequence[Rule]:
        least = -math.inf if self.min_score is None else self.min_score
        most = math.inf if self.max_score is None else self.max_score
        bounds = [
            Rule(name="low_score", limit=least, side="min", option="min_score"),
            Rule(name="high_score", limit=most, side="max", option="max_score"),
        ]
        return [*bounds, *([] if self.keep_share is None else [self.below_share("min_score")])]

    def kept_share(self) -> KeptShare | None:
        if self.keep_share is None:
            return None
        share = Fraction(repr(self.keep_share))  # the decimal number that was written, not its nearest binary one
        return KeptShare(share=share, of=self.share_of, threshold_from=self.threshold_from)

    def process(self, batch: DocumentBatch) -> FilterResult:
        written: dict[str, pa.Array] = {}
        if self.label_column is None:
            each = [scorer.scores(batch.texts, self.max_chars) for scorer in self._scorers]
        else:
            scores, written[self.label_column] = self._scorers[0].labelled(batch.texts, self.max_chars)
            each = [scores]
        combined = np.max(each, axis=0) if self.combine == "max" else np.mean(each, axis=0, dtype=np.float64)
        score = np.asarray(combined, np.float64)
        written |= {self.score_column: pa.array(score)} if self.score_column else {}
        if self.write_each:
            written |= {name: pa.array(scores) for name, scores in zip(self._paths, each)}
        rules = self.rules()
        return replace(FilterResult.from_rules(rules, [score] * len(rules), written), value=score)

    @property
    def _paths(self) -> Mapping[str, Path]:
        return self.models if self.model is None else {"": self.model}

    @cached_property
    def _scorers(self) -> list[Scorer]:
        return self._open()

    def _open(self) -> list[Scorer]:
        labels = self.label if isinstance(self.label, dict) else dict.fromkeys(self._paths, self.label)
        top = self.label_column is not None
        return [Scorer.open(path, labels.get(name, ""), POSITIVE, or_top=top) for name, path in self._paths.items()]
