"""fastText's training for a few texts, written plainly: one text after another, one number after another, in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.oracles import fasttext as oracle
from tests.oracles.hashing import MASK, mix


def words(text: bytes, known: set[bytes]) -> list[bytes]:
    """The words that a text teaches: none that looks like a label, unless it is known."""
    return [word for word in oracle.words(text) if word in known or not word.startswith(oracle.LABEL)]


def random_rows(seed: int, num_rows: int, dim: int) -> np.ndarray:
    """(num_rows, dim) float32 of splitmix64, between -1 / dim and 1 / dim."""
    values = []
    for _ in range(num_rows * dim):
        seed = (seed + 0x9E3779B97F4A7C15) & MASK
        values.append(np.float32((mix(seed) >> 40) / 2**23 - 1) * np.float32(1 / dim))
    return np.array(values, np.float32).reshape(num_rows, dim)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How to train.

    Attributes:
        rate: at the start.
        num_read, num_total: words and ends of texts: those read before, and those of all epochs.
        is_softmax: else each label by itself.
    """

    rate: float
    num_read: int
    num_total: int
    is_softmax: bool


def read_once(
    rows_by_text: Sequence[Sequence[int]],
    num_words: Sequence[int],
    targets: Sequence[int],
    weights: Sequence[float],
    setting: Setting,
    inputs: np.ndarray,
    outputs: np.ndarray,
) -> None:
    """Learns from each text in turn, and changes `inputs` and `outputs`. Texts without words are skipped."""
    num_read = setting.num_read
    for rows, count, target, weight in zip(rows_by_text, num_words, targets, weights):
        rate = np.float32(setting.rate * (1 - num_read / setting.num_total) * weight)
        num_read += count + 1
        if count:
            _learn(rows, target, rate, setting.is_softmax, inputs, outputs)


def _learn(
    rows: Sequence[int], target: int, rate: np.float32, is_softmax: bool, inputs: np.ndarray, outputs: np.ndarray
) -> None:
    share = np.float32(1 / len(rows))
    hidden = oracle.mean(inputs[rows])
    products = np.array([oracle.dot(output, hidden) for output in outputs], np.float32)
    chances = oracle.softmax_scores(products) if is_softmax else [oracle.logistic(float(product)) for product in products]
    gradient = np.zeros_like(hidden)
    for label, chance in enumerate(chances):
        step = rate * np.float32((label == target) - chance)
        gradient = gradient + step * outputs[label]
        outputs[label] = outputs[label] + step * hidden
    for row in rows:
        inputs[row] = inputs[row] + gradient * share
