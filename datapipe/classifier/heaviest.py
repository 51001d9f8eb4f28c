"""The heaviest features of a linear model, as readable n-grams.

A model knows slots alone. The n-gram of a slot is looked for in the texts that it was trained on: of a text that has the slot,
the shortest part that has it, found by halving. Where several n-grams share a slot, one of them is shown.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from datapipe.classifier.linear_trainer import features_of
from datapipe.columns import text_lengths
from datapipe.kernels.learned.linear_scores import WEIGHT_SHIFT
from datapipe.stage.models.linear_file import LinearFile

_SEARCHED_BYTES = 8 << 20

Feature = tuple[str, float]
"""An n-gram, and the weight of one occurrence in a text of length 1."""


def heaviest_features(file: LinearFile, texts: pa.Array, number: int) -> dict[str, list[Feature]]:
    """The heaviest features for each label, those of the highest weight first.

    Args:
        file: the model.
        texts: that it was trained on, large_string; the first ones are searched.
        number: of features for each label.
    """
    searched = texts[: int(np.searchsorted(np.cumsum(text_lengths(texts)), _SEARCHED_BYTES)) + 1]
    stops, slots, _ = features_of(searched, file.word_bits, file.character_bits)
    known, first_feature = np.unique(slots, return_index=True)
    rows = np.searchsorted(stops[:, 1], first_feature, "right")
    weights = (file.entries[known] >> WEIGHT_SHIFT) * file.scales  # (num_known, num_columns)

    def heaviest(of_label: np.ndarray) -> list[Feature]:
        order = np.argsort(-of_label, kind="stable")[:number]
        return [
            (_ngram(searched[int(rows[index])].as_py(), int(known[index]), file), round(float(of_label[index]), 4))
            for index in order.tolist()
            if of_label[index] > 0
        ]

    if file.kind == "number":
        return {"higher": heaviest(weights[:, 0]), "lower": heaviest(-weights[:, 0])}
    if len(file.labels) == 2:
        return {file.labels[1]: heaviest(weights[:, 0]), file.labels[0]: heaviest(-weights[:, 0])}
    return {label: heaviest(weights[:, column]) for column, label in enumerate(file.labels)}


def _ngram(text: str, slot: int, file: LinearFile) -> str:
    """A shortest part of a text that has a slot."""

    def has(part: str) -> bool:
        return slot in features_of(pa.array([part], pa.large_string()), file.word_bits, file.character_bits)[1]

    part = text[: _halved(len(text), lambda size: has(text[:size]))]
    size = len(part)
    return part[size - _halved(size, lambda number: has(part[size - number :])) :].lower()


def _halved(size: int, has: Callable[[int], bool]) -> int:
    """A number of characters that has what one less has not; all characters have it."""
    without = 0
    while size - without > 1:
        middle = (size + without) // 2
        if has(middle):
            size = middle
        else:
            without = middle
    return size
