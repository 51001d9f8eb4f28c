"""Trains linear models over hashed n-grams: the kind `linear`.

    texts  ─ slices ─▶  slots and counts  ─▶  importances: rare slots count more  ─▶  values  ─ coordinate descent ─▶  weights

Everything follows from the examples, their order and the options. Memory: 9 to 14 bytes a feature that occurs in a text, which
is 4 times the text for words and 15 times with characters (measured on web text); `examples.py` caps the text.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field

from datapipe.classifier.training import Examples, Trainer
from datapipe.columns import text_buffers
from datapipe.kernels.learned import coordinate_descent as kernels
from datapipe.kernels.learned.linear_scores import IMPORTANCE_MASK, PARTS, WEIGHT_SHIFT
from datapipe.kernels.learned.text_features import character_kinds, room_for_counting
from datapipe.kernels.types import input_record
from datapipe.rng import seed_for
from datapipe.stage.models.linear import folded_slices
from datapipe.stage.models.linear_file import LinearFile, file_bytes, num_columns

_MOST_WEIGHT = (1 << 23) - 1
_FEATURES_A_BYTE = 2, 3
"""No text has more features than this for each of its bytes: a word and a pair; n-grams of 3, 4 and 5 characters."""


class LinearTrainer(Trainer):
    """Words and pairs of words, perhaps n-grams of 3 to 5 characters, and logistic regression or least squares."""

    predicts_numbers: ClassVar[bool] = True

    characters: bool = Field(
        default=False,
        description="Also n-grams of 3 to 5 characters: for short texts and misspelt words. A third of the speed.",
    )
    bits: int = Field(default=18, ge=10, le=22, description="2^bits weights, of 4 bytes each; as many again with characters.")
    cost: float = Field(
        default=10.0,
        gt=0,
        description="How much errors count against large weights, as C of liblinear: less for noisy labels.",
    )
    max_passes: int = Field(default=100, ge=1, description="Passes over the examples at most.")
    tolerance: float = Field(default=0.001, gt=0, description="No further pass when no example changes by more than this.")

    def train(self, examples: Examples) -> bytes:
        """See `Trainer.train`."""
        character_bits = self.bits if self.characters else 0
        rows, importances = self._rows(examples.texts, character_bits)
        kind = "number" if examples.predicts_number else "classes"
        columns = [self._fit(examples, rows, len(importances), column) for column in range(num_columns(kind, examples.labels))]
        weights = np.stack([weights for weights, _ in columns], axis=1)
        entries, scales = _packed(weights, importances)
        return file_bytes(
            LinearFile(
                kind=kind,
                labels=examples.labels,
                word_bits=self.bits,
                character_bits=character_bits,
                entries=entries,
                scales=scales,
                biases=np.array([bias for _, bias in columns]),
            )
        )

    def _rows(self, texts: pa.Array, character_bits: int) -> tuple[kernels.Rows, np.ndarray]:
        """The examples as sparse rows, and the importance of each slot: (num_slots,) uint8."""
        stops, slots, counts = features_of(texts, self.bits, character_bits)
        num_words, num_slots = 1 << self.bits, (1 << self.bits) + (1 << character_bits if character_bits else 0)
        importances = _importances(np.bincount(slots, minlength=num_slots), len(texts))
        squares, values = np.empty(len(texts)), np.empty(len(slots), np.float32)
        kernels.row_values(stops, slots, counts, importances, num_words, squares, values)
        return input_record(kernels.Rows, (stops, slots, values, squares)), importances

    def _fit(self, examples: Examples, rows: kernels.Rows, num_slots: int, column: int) -> tuple[np.ndarray, float]:
        """The weights of one column, (num_slots,) float64, and its bias."""
        num_docs = len(examples)
        fit = kernels.Fit(np.zeros(num_slots + 1), np.zeros(num_docs), np.empty(num_docs, np.int64))
        seed = np.uint64(seed_for(self.seed, "linear", column))
        costs = self.cost * examples.weights
        if examples.predicts_number:
            middle, spread = _middle_and_spread(examples.targets, examples.weights)
            targets = (examples.targets - middle) / spread
            kernels.fit_numbers(rows, targets, costs, seed, self.max_passes, self.tolerance, fit)
            return fit.weights[:-1] * spread, float(fit.weights[-1]) * spread + middle
        wanted = 1 if len(examples.labels) == 2 else column
        signs = np.where(examples.targets == wanted, 1.0, -1.0)
        kernels.fit_classes(rows, signs, costs, seed, self.max_passes, self.tolerance, fit)
        return fit.weights[:-1], float(fit.weights[-1])


def features_of(texts: pa.Array, word_bits: int, character_bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The features of texts: the stop of each text (num_docs,) int64, slots (num_features,) uint32 and counts, uint8."""
    offsets, data = text_buffers(texts)
    scratch, kinds = room_for_counting(max(word_bits, character_bits)), character_kinds()
    all_stops, all_slots, all_counts, total = [np.zeros(0, np.int64)], [np.zeros(0, np.uint32)], [np.zeros(0, np.uint8)], 0
    for _, part, folded in folded_slices(offsets[:-1], offsets[1:], data):
        sizes = np.diff(part)
        most = int(np.minimum(sizes * _FEATURES_A_BYTE[0], 1 << word_bits).sum())
        most += int(np.minimum(sizes * _FEATURES_A_BYTE[1], 1 << character_bits).sum()) if character_bits else 0
        out = kernels.RowsOut(np.empty(len(sizes), np.int64), np.empty(most, np.uint32), np.empty(most, np.uint8))
        number = kernels.feature_rows(part, folded, kinds, word_bits, character_bits, scratch, out)
        all_stops.append(out.stops + total)
        all_slots.append(out.slots[:number].copy())
        all_counts.append(out.counts[:number].copy())
        total += number
    return np.concatenate(all_stops), np.concatenate(all_slots), np.concatenate(all_counts)


def _importances(frequencies: np.ndarray, num_docs: int) -> np.ndarray:
    """How much a slot counts by the number of texts that have it, (num_slots,) uint8, in parts of `PARTS`.

    1 + ln((1 + texts) / (1 + texts with the slot)), the smoothed inverse document frequency of scikit-learn. Rounding to a
    sixteenth makes it the same on every processor.
    """
    found, of_slot = np.unique(frequencies, return_inverse=True)
    values = [round(PARTS * (1 + math.log((1 + num_docs) / (1 + count)))) for count in found.tolist()]
    return np.minimum(np.array(values), IMPORTANCE_MASK).astype(np.uint8)[of_slot]


def _middle_and_spread(targets: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """The weighted mean and the standard deviation of targets; 1 for targets that are all equal. Sums are exact."""
    total = math.fsum(weights.tolist())
    middle = math.fsum((targets * weights).tolist()) / total
    spread = math.sqrt(math.fsum((weights * (targets - middle) ** 2).tolist()) / total)
    return middle, spread or 1.0


def _packed(weights: np.ndarray, importances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The entries of a model, (num_slots, num_columns) int32, and the unit of the weights of each column.

    Args:
        weights: (num_slots, num_columns) float64, of values.
    """
    of_counts = weights * (importances[:, None] / PARTS)
    largest = np.abs(of_counts).max(axis=0)
    scales = np.where(largest > 0, largest, 1.0) / _MOST_WEIGHT
    whole = np.rint(of_counts / scales).astype(np.int32)
    return whole << WEIGHT_SHIFT | importances[:, None].astype(np.int32), scales
