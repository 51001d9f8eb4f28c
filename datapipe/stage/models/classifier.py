"""A trained classifier of any kind, as stages and commands use it.

open_classifier(path)  ->  Classifier    by the first bytes of the file, whatever its name
scores(texts)          ->  per text, a probability for each label, or one number where the model predicts a number
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from datapipe.errors import UserError
from datapipe.stage.models import fasttext
from datapipe.stage.models.linear import MAGIC, LinearModel, read_file

POSITIVE = ("1", "true", "yes", "positive", "good", "high", "hq", "keep")
"""Labels that mean the wanted one of two, as public models name it. DCLM's is `hq`."""


class Classifier(Protocol):
    """A model that scores texts.

    Attributes:
        labels: the names of the classes, such as ("0", "1"); one name where the model predicts a number.
        kind: "classes": scores are probabilities from 0 to 1. "number": a score is the predicted number.
    """

    @property
    def labels(self) -> tuple[str, ...]: ...

    @property
    def kind(self) -> Literal["classes", "number"]: ...

    def scores(self, starts: np.ndarray, stops: np.ndarray, data: np.ndarray) -> np.ndarray:
        """The scores of texts, one column for each label: (num_docs, num_labels) float32.

        A text without any feature that the model knows has a score as well, the same for all such texts. Scores follow from the
        text and the model alone: they do not depend on other texts of the call, nor on the number of threads.

        Args:
            starts, stops: (num_docs,) int64, where each text lies in `data`.
            data: UTF-8 bytes, uint8.
        """
        ...


def open_classifier(path: Path) -> Classifier:
    """Opens the model in a local file. Raises UserError for a file that is no model, or a damaged one."""
    try:
        with path.open("rb") as file:
            first = file.read(len(MAGIC))
    except OSError as error:
        raise UserError(
            f"{path}: the model cannot be read: {error.strerror}. Expected a file of `datapipe classifier train`, or "
            f"a .bin or .ftz of fastText"
        ) from error
    return LinearModel(read_file(path)) if first == MAGIC else fasttext.open_model(path)


def positive_label(labels: Sequence[str], positive: Sequence[str] = POSITIVE) -> int | None:
    """The number of the label of two whose name, in lower case, is among `positive`; None where the names do not tell."""
    meant = [number for number, label in enumerate(labels) if label.lower() in positive]
    return meant[0] if len(labels) == 2 and len(meant) == 1 else None
