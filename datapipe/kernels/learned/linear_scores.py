"""Scores of linear models: the sum of a text's features, each by its weight.

    folded text  ─▶  counts of slots (`text_features.py`)  ─▶  for words and for characters: sum of weight · count / length
                                                           ─▶  plus bias  ─▶  sigmoid

The vector of a text has the values count · importance, divided by its Euclidean length (TF-IDF),
apart for words and characters. Importances are whole sixteenths and weights whole numbers of a
small unit, so all sums are integers and scores are the same on every processor.
"""

from typing import NamedTuple

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.learned.exponential import logistic
from datapipe.kernels.learned.text_features import Counting, count_characters, count_words
from datapipe.kernels.types import (
    Float32MatrixOut,
    Float64Matrix,
    Float64MatrixOut,
    Float64s,
    Int32Matrix,
    Int64s,
    UInt8s,
)

PARTS = 16  # an importance of 1 is stored as this number
IMPORTANCE_MASK, WEIGHT_SHIFT = 0xFF, 8  # the fields of an entry of a model


class Weights(NamedTuple):
    """A linear model: an input of kernels. The slots of words come first, then those of characters."""

    kinds: UInt8s  # (0x110000,), `text_features.character_kinds`
    # word_bits, character_bits: 2^bits slots; no features of a kind with 0 bits
    word_bits: int
    character_bits: int
    # (num_slots, num_columns): in the upper 24 bits the weight of a count of 1, a whole number; in the
    # lower 8 bits the importance, in parts of `PARTS`, the same in every column. One lookup gets both.
    entries: Int32Matrix
    scales: Float64s  # (num_columns,), what a weight of 1 stands for in a text of length 1
    biases: Float64s  # (num_columns,)


@kernel
def weigh_texts(offsets: Int64s, data: UInt8s, model: Weights, scratch: Counting, out: Float64MatrixOut) -> None:
    """Sums of features, `out` (num_docs, num_columns). The counts of `scratch` start, end at 0."""
    kinds, word_bits, character_bits, entries, scales, biases = model
    slots, counts = scratch
    num_words = np.int64(1) << word_bits if word_bits else np.int64(0)
    for doc in range(len(offsets) - 1):
        for column in range(len(biases)):
            out[doc, column] = biases[column]
    for doc in range(len(offsets) - 1 if word_bits else 0):
        num_slots = count_words(data, offsets[doc], offsets[doc + 1], kinds, word_bits, slots, counts)
        _add(slots, counts, num_slots, entries[:num_words], scales, out[doc])
    for doc in range(len(offsets) - 1 if character_bits else 0):
        num_slots = count_characters(data, offsets[doc], offsets[doc + 1], kinds, character_bits, slots, counts)
        _add(slots, counts, num_slots, entries[num_words:], scales, out[doc])


@inline
def _add(slots, counts, num_slots, entries, scales, sums) -> None:
    """Adds the weights of a text's features, divided by its length, and clears the counts."""
    squares, first = np.int64(0), np.int64(0)
    for index in range(num_slots):
        slot = slots[index]
        entry, count = np.int64(entries[slot, 0]), np.int64(counts[slot])
        value = (entry & IMPORTANCE_MASK) * count
        squares += value * value
        first += (entry >> WEIGHT_SHIFT) * count
    length = np.sqrt(np.float64(max(squares, 1))) / PARTS
    sums[0] += np.float64(first) * scales[0] / length
    for column in range(1, len(sums)):
        total = np.int64(0)
        for index in range(num_slots):
            slot = slots[index]
            total += (np.int64(entries[slot, column]) >> WEIGHT_SHIFT) * np.int64(counts[slot])
        sums[column] += np.float64(total) * scales[column] / length
    for index in range(num_slots):
        counts[slots[index]] = 0


@kernel
def sigmoids(sums: Float64Matrix, out: Float32MatrixOut) -> None:
    """Probabilities of classes, (num_docs, num_labels). One column of `sums` separates two classes: its sigmoid is the
    probability of the second. Several columns are one class or any other each, and their sigmoids are divided by their sum."""
    for doc in range(len(sums)):
        if sums.shape[1] == 1:
            out[doc, 0], out[doc, 1] = logistic(-sums[doc, 0]), logistic(sums[doc, 0])
            continue
        total = 0.0
        for column in range(sums.shape[1]):
            total += logistic(sums[doc, column])
        for column in range(sums.shape[1]):
            out[doc, column] = logistic(sums[doc, column]) / total
