"""The score that a classifier gives to texts: the probability of one label, or the number that it predicts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.columns import compute as pc
from datapipe.dataclass import dataclass
from datapipe.errors import UserError, suggest
from datapipe.stage.models.classifier import Classifier, open_classifier, positive_label

_LISTED = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Scorer:
    """A model, and the number of the label whose score counts; None for the label with the highest."""

    model: Classifier
    number: int | None

    @classmethod
    def open(cls, path: Path, label: str, positive: Sequence[str], *, or_top: bool = False) -> Self:
        """Opens a model. Raises UserError where it does not know the label, or the label must be named. `label`: whose
        probability is the score; "" for the highest one where `or_top`, else for that of two labels which is among
        `positive`, names in lower case."""
        model = open_classifier(path)
        known = ", ".join(model.labels[:_LISTED])
        if model.kind == "number":
            return cls(model=model, number=0)
        if label:
            if label not in model.labels:
                raise UserError(f"label: {path} knows no label '{label}'.{suggest(label, model.labels)} It knows: {known}")
            return cls(model=model, number=model.labels.index(label))
        number = positive_label(model.labels, positive)
        if or_top or number is not None:
            return cls(model=model, number=None if or_top else number)
        raise UserError(
            f"label: expected the label of {path} whose probability is the score, one of: {known}. `label_column: NAME` writes "
            f"the most likely one of each document"
        )

    def scores(self, texts: pa.Array, max_chars: int | None = None) -> np.ndarray:
        """The score of each text, (num_docs,) float64, by its first characters."""
        every = self._every(texts, max_chars)
        return (every.max(axis=1) if self.number is None else every[:, self.number]).astype(np.float64)

    def labelled(self, texts: pa.Array, max_chars: int | None = None) -> tuple[np.ndarray, pa.Array]:
        """The scores, as `scores` has them, and the label of the highest one: (num_docs,) string, null where all are 0."""
        every = self._every(texts, max_chars)
        best = every.argmax(axis=1)
        highest = every[np.arange(len(every)), best]
        labels = pa.array(self.model.labels, pa.string()).take(pa.array(best, mask=highest <= 0))
        return (highest if self.number is None else every[:, self.number]).astype(np.float64), labels

    def _every(self, texts: pa.Array, max_chars: int | None) -> np.ndarray:
        """The scores of all labels, (num_docs, num_labels) float32."""
        read = texts if max_chars is None else pc.utf8_slice_codeunits(texts, 0, max_chars)
        offsets, data = columns.text_buffers(read)
        return self.model.scores(offsets[:-1], offsets[1:], data)
