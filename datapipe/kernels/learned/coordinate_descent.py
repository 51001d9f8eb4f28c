"""Training of linear models: dual coordinate descent over sparse rows, one example at a time.

    texts  ─ feature_rows ─▶  slots and counts of each text  ─ row_values ─▶  values  ─ fit_classes, fit_numbers ─▶  weights

Both minimise the sum of squares of the weights, halved, plus C times the losses of all examples, as liblinear does: logistic
regression (Yu, Huang and Lin 2011), and least squares as L2-loss regression without a tube (Ho and Lin 2012). The bias is the
weight of a feature that is 1 in every example. A step makes the dual variable of one example exact, while the others stay. Here
the step of the logistic loss is a search for the margin m that solves m = m0 + q (C sigmoid(-m) - alpha), by Newton's method
within a bracket, which needs the sigmoid alone and no logarithm.

The order of every pass is a shuffle by `seed`. One thread, float64 and no library of mathematics: weights follow from rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.hashing import mix64
from datapipe.kernels.learned.exponential import logistic
from datapipe.kernels.learned.text_features import Counting, count_characters, count_words
from datapipe.kernels.types import (
    Float32s,
    Float32sOut,
    Float64s,
    Float64sOut,
    Int64s,
    Int64sOut,
    UInt8s,
    UInt8sOut,
    UInt32s,
    UInt32sOut,
)
from datapipe.rng import GOLDEN

_MOST_STEPS, _CLOSE = 50, 1e-10


class RowsOut(NamedTuple):
    """Features of texts, an output of kernels.

    Attributes:
        stops: (num_docs,) int64, where the features of each text end; they begin where those of the text before end.
        slots: uint32, those of characters after all those of words.
        counts: uint8.
    """

    stops: Int64sOut
    slots: UInt32sOut
    counts: UInt8sOut


@kernel
def feature_rows(
    offsets: Int64s, data: UInt8s, kinds: UInt8s, word_bits: int, character_bits: int, scratch: Counting, out: RowsOut
) -> int:
    """The features of texts; returns their number.

    Args:
        offsets: (num_docs + 1,) int64.
        data: uint8, texts without case.
        kinds, word_bits, character_bits: as in `linear_scores.Weights`.
        scratch: with counts of 0, as this kernel leaves them.
        out: with room for all features.
    """
    slots, counts = scratch
    stops, out_slots, out_counts = out
    num_words, written = np.int64(1) << word_bits if word_bits else np.int64(0), np.int64(0)
    for doc in range(len(offsets) - 1):
        if word_bits:
            found = count_words(data, offsets[doc], offsets[doc + 1], kinds, word_bits, slots, counts)
            written = _write(slots, counts, found, 0, out_slots, out_counts, written)
        if character_bits:
            found = count_characters(data, offsets[doc], offsets[doc + 1], kinds, character_bits, slots, counts)
            written = _write(slots, counts, found, num_words, out_slots, out_counts, written)
        stops[doc] = written
    return int(written)


@inline
def _write(slots, counts, found, first_slot, out_slots, out_counts, written) -> Any:
    for index in range(found):
        slot = slots[index]
        out_slots[written + index], out_counts[written + index] = first_slot + slot, counts[slot]
        counts[slot] = 0
    return written + found


@kernel
def row_values(
    stops: Int64s,
    slots: UInt32s,
    counts: UInt8s,
    importances: UInt8s,
    num_words: int,
    squares: Float64sOut,
    values: Float32sOut,
) -> None:
    """The values of features, those of words and those of characters each divided by their Euclidean length.

    Args:
        stops, slots, counts: as in `RowsOut`.
        importances: (num_slots,) uint8, in parts of `PARTS`.
        num_words: slots of words.
        squares: (num_docs,) float64, the sum of the squares of each row, which is 0, 1 or 2 but for rounding.
        values: (num_features,) float32.
    """
    start = np.int64(0)
    for doc in range(len(stops)):
        words, characters = np.int64(0), np.int64(0)
        for index in range(start, stops[doc]):
            value = np.int64(importances[slots[index]]) * np.int64(counts[index])
            if slots[index] < num_words:
                words += value * value
            else:
                characters += value * value
        by_words, by_characters = 1.0 / np.sqrt(np.float64(max(words, 1))), 1.0 / np.sqrt(np.float64(max(characters, 1)))
        total = 0.0
        for index in range(start, stops[doc]):
            value = np.float64(importances[slots[index]]) * np.float64(counts[index])
            values[index] = value * (by_words if slots[index] < num_words else by_characters)
            total += np.float64(values[index]) * np.float64(values[index])
        squares[doc] = total
        start = stops[doc]


class Rows(NamedTuple):
    """Examples as sparse rows, an input of kernels.

    Attributes:
        stops: (num_docs,) int64, where each row ends.
        slots: (num_features,) uint32.
        values: (num_features,) float32.
        squares: (num_docs,) float64, the sum of the squares of each row.
    """

    stops: Int64s
    slots: UInt32s
    values: Float32s
    squares: Float64s


class Fit(NamedTuple):
    """A model in training, an output of kernels.

    Attributes:
        weights: (num_slots + 1,) float64, the last one is the bias; 0 at the start.
        duals: (num_docs,) float64; 0 at the start.
        order: (num_docs,) int64, scratch.
    """

    weights: Float64sOut
    duals: Float64sOut
    order: Int64sOut


@kernel
def fit_classes(
    rows: Rows, signs: Float64s, costs: Float64s, seed: np.uint64, max_passes: int, tolerance: float, out: Fit
) -> int:
    """Fits a logistic regression; returns the number of passes.

    Args:
        rows: the examples.
        signs: (num_docs,) float64, 1 for the class and -1 for the others.
        costs: (num_docs,) float64, C of each example, above 0.
        seed: of the order of examples.
        max_passes: passes over the examples at most.
        tolerance: no further pass where none changed a dual variable by more than this share of its cost.
        out: the model.
    """
    stops, slots, values, squares = rows
    weights, duals, order = out
    bias = len(weights) - 1
    for number in range(max_passes):
        _shuffle(order, seed, number)
        largest = 0.0
        for index in range(len(order)):
            doc = order[index]
            start, stop = stops[doc - 1] if doc else np.int64(0), stops[doc]
            margin = weights[bias]
            for position in range(start, stop):
                margin += weights[slots[position]] * np.float64(values[position])
            dual = _best_dual(signs[doc] * margin, squares[doc] + 1.0, costs[doc], duals[doc])
            change = (dual - duals[doc]) * signs[doc]
            duals[doc] = dual
            for position in range(start, stop):
                weights[slots[position]] += change * np.float64(values[position])
            weights[bias] += change
            largest = max(largest, abs(change) / costs[doc])
        if largest <= tolerance:
            return number + 1
    return max_passes


@kernel
def fit_numbers(
    rows: Rows, targets: Float64s, costs: Float64s, seed: np.uint64, max_passes: int, tolerance: float, out: Fit
) -> int:
    """Fits a least-squares regression; returns the number of passes.

    Arguments as for `fit_classes`, but `targets` (num_docs,) float64, and `tolerance` is a change of a prediction.
    """
    stops, slots, values, squares = rows
    weights, duals, order = out
    bias = len(weights) - 1
    for number in range(max_passes):
        _shuffle(order, seed, number)
        largest = 0.0
        for index in range(len(order)):
            doc = order[index]
            start, stop = stops[doc - 1] if doc else np.int64(0), stops[doc]
            predicted = weights[bias]
            for position in range(start, stop):
                predicted += weights[slots[position]] * np.float64(values[position])
            missing = targets[doc] - predicted - duals[doc] / (2.0 * costs[doc])
            change = missing / (squares[doc] + 1.0 + 1.0 / (2.0 * costs[doc]))
            duals[doc] += change
            for position in range(start, stop):
                weights[slots[position]] += change * np.float64(values[position])
            weights[bias] += change
            largest = max(largest, abs(change) * (squares[doc] + 1.0))
        if largest <= tolerance:
            return number + 1
    return max_passes


@inline
def _shuffle(order, seed, number) -> None:
    """A random order of the examples (Fisher and Yates)."""
    state = mix64(seed + np.uint64(number) * GOLDEN)
    for index in range(len(order)):
        order[index] = index
    for index in range(len(order) - 1, 0, -1):
        state += GOLDEN
        other = np.int64(mix64(state) % np.uint64(index + 1))
        order[index], order[other] = order[other], order[index]


@inline
def _best_dual(margin, square, cost, dual) -> Any:
    """The dual variable that is best while the others stay, from 0 to `cost`.

    Args:
        margin: sign times prediction, with the dual variable as it is.
        square: of the length of the row.
    """
    low, high = margin - square * dual, margin + square * (cost - dual)
    guess = margin
    for _ in range(_MOST_STEPS):
        share = logistic(-guess)
        excess = guess - margin - square * (cost * share - dual)
        if excess > 0:
            high = guess
        else:
            low = guess
        step = excess / (1.0 + square * cost * share * (1.0 - share))
        following = guess - step
        if following <= low or following >= high:
            following = 0.5 * (low + high)
        if abs(following - guess) <= _CLOSE:
            break
        guess = following
    return cost * logistic(-guess)
