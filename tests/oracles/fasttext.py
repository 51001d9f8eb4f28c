"""fastText's computation and training, written plainly: one number after another, in float32."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tests.oracles.texts import MASK, mix

END_OF_LINE, LABEL = b"</s>", b"__label__"


@lru_cache(maxsize=100_000)
def fnv(data: bytes) -> int:
    """FNV-1a of 32 bits over signed chars."""
    code = 2166136261
    for byte in data:
        code = (code ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * 16777619 % 2**32
    return code


def words(text: bytes) -> list[bytes]:
    return [word for word in re.split(rb"[ \n\r\t\v\f\0]+", text) if word not in (b"", END_OF_LINE)]


@lru_cache(maxsize=10_000)
def gram_buckets(word: bytes, least: int, most: int, num_buckets: int) -> list[int]:
    """Buckets of all n-grams of `<word>`, except `<` and `>` alone."""
    characters = re.findall(rb"(?s).[\x80-\xbf]*", b"<" + word + b">")
    buckets = []
    for first in range(len(characters)):
        for stop in range(first + 1, min(first + most, len(characters)) + 1):
            alone = stop == first + 1 and (first == 0 or stop == len(characters))
            if stop - first >= least and not alone:
                buckets.append(fnv(b"".join(characters[first:stop])) % num_buckets)
    return buckets


def run_buckets(run: Sequence[bytes], longest: int, num_buckets: int) -> list[int]:
    signed = [fnv(word) - (fnv(word) >> 31) * 2**32 for word in run]
    buckets = []
    for first in range(len(run)):
        code = signed[first] % 2**64
        for last in range(first + 1, min(first + longest, len(run))):
            code = (code * 116049371 + signed[last]) % 2**64
            buckets.append(code % num_buckets)
    return buckets


def rows_of(
    text: bytes,
    entries: Sequence[bytes],
    num_words: int,
    bucket_rows: dict[int, int] | None,
    chars: tuple[int, int],
    longest_run: int,
    num_buckets: int,
) -> list[int]:
    """The rows of a text's features, in fastText's order; none for a text without words.

    Args:
        bucket_rows: the row of each bucket that has one; None: each has one, behind the words.
    """
    numbers = {entry: number for number, entry in enumerate(entries)}
    rows, run = [], []

    def add_buckets(buckets: list[int]) -> None:
        if bucket_rows is None:
            rows.extend(num_words + bucket for bucket in buckets)
        else:
            rows.extend(bucket_rows[bucket] for bucket in buckets if bucket in bucket_rows)

    if not words(text):
        return []
    for word in words(text):
        if numbers.get(word, -1) >= num_words or (word not in numbers and word.startswith(LABEL)):
            continue
        rows.extend([numbers[word]] if word in numbers else [])
        add_buckets(gram_buckets(word, *chars, num_buckets))
        run.append(word)
    rows.extend([numbers[END_OF_LINE]] if END_OF_LINE in numbers else [])
    add_buckets(run_buckets([*run, END_OF_LINE], longest_run, num_buckets))
    return rows


def mean(rows: np.ndarray) -> np.ndarray:
    """(dim,) float32 of (num_rows, dim), added from the first to the last."""
    total = np.zeros(rows.shape[1], np.float32)
    for row in rows:
        total = total + row
    return total * np.float32(1.0 / max(len(rows), 1))


def dot(left_values: np.ndarray, right_values: np.ndarray) -> np.float32:
    total = np.float32(0)
    for left, right in zip(left_values, right_values, strict=True):
        total = np.float32(total + left * right)
    return total


def log(chance: float) -> np.float32:
    return np.float32(math.log(float(chance) + 1e-5))


def leaves(
    node: int, path: np.float32, hidden: np.ndarray, output: np.ndarray, norms: np.ndarray, left: np.ndarray, right: np.ndarray
) -> list[tuple[np.float32, int]]:
    """(score, label) of every label below `node` that is likelier than 1 in 100,000, from left to right."""
    if path < np.float32(math.log(1e-5)):
        return []
    if left[node] < 0:
        return [(path, node)]
    inner = node - len(output)
    chance = np.float32(1 / float(1 + np.exp(-dot(output[inner], hidden) * norms[inner])))
    ways = ((left[node], log(np.float32(1 - float(chance)))), (right[node], log(chance)))
    return [
        leaf for child, step in ways for leaf in leaves(int(child), np.float32(path + step), hidden, output, norms, left, right)
    ]


def softmax(products: np.ndarray) -> list[np.float32]:
    raised = [np.float32(math.exp(np.float32(product - products.max()))) for product in products]
    total = np.float32(0)
    for value in raised:
        total = np.float32(total + value)
    return [np.float32(value / total) for value in raised]


def sigmoid(product: np.float32, table: np.ndarray) -> np.float32:
    if abs(product) > 8:
        return np.float32(product > 0)
    return table[int((product + np.float32(8)) * np.float32(32))]


def softmax_scores(products: np.ndarray) -> list[float]:
    """Shares of the exponentials, as numbers of 64 bits."""
    raised = [math.exp(float(product) - float(products.max())) for product in products]
    return [value / sum(raised) for value in raised]


def logistic(power: float) -> float:
    return 1 / (1 + math.exp(-power))


def chances(node: int, chance: float, products: np.ndarray, left: np.ndarray, right: np.ndarray) -> dict[int, float]:
    """The chance of every label below `node`: a product of one factor for each node above it.

    Args:
        products: of the inner nodes, which are numbered after the labels.
    """
    if left[node] < 0:
        return {node: chance}
    product = float(products[node - len(products)])
    return chances(int(left[node]), chance * logistic(-product), products, left, right) | chances(
        int(right[node]), chance * logistic(product), products, left, right
    )


def best(scored: Sequence[tuple[np.float32, int]], k: int) -> tuple[list[int], list[float]]:
    """The k best labels with their rounded scores, the later of equal ones first; padded with -1 and 0."""
    order = sorted(range(len(scored)), key=lambda index: (-scored[index][0], -index))[:k]
    missing = k - len(order)
    labels = [scored[index][1] for index in order] + [-1] * missing
    return labels, [min(round(math.exp(scored[index][0]), 4), 1.0) for index in order] + [0.0] * missing


def trained_words(text: bytes, known: set[bytes]) -> list[bytes]:
    """The words that a text teaches: none that looks like a label, unless it is known."""
    return [word for word in words(text) if word in known or not word.startswith(LABEL)]


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
    hidden = mean(inputs[rows])
    products = np.array([dot(output, hidden) for output in outputs], np.float32)
    chances = softmax_scores(products) if is_softmax else [logistic(float(product)) for product in products]
    gradient = np.zeros_like(hidden)
    for label, chance in enumerate(chances):
        step = rate * np.float32((label == target) - chance)
        gradient = gradient + step * outputs[label]
        outputs[label] = outputs[label] + step * hidden
    for row in rows:
        inputs[row] = inputs[row] + gradient * share
