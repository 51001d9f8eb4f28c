"""Trains supervised fastText models (Joulin et al. 2016): stochastic gradient descent, one text after another.

    distinct words             --list_grams-->   buckets of their n-grams
    numbers of texts' words    --train_epoch-->  rows of words, n-grams and labels

The features of a text, their order and the order of sums are those of `fasttext.py`, and each step is fastText's:

    hidden    = mean of the rows of the features
    chance    = softmax of hidden · output, or each label by itself (one-vs-all)
    step      = rate * (target - chance)              rate falls linearly to 0, by the words that were read
    gradient += step * output;  output += step * hidden
    row      += gradient / number of features         for every feature

One thread, a fixed order and `exponential.py`: the same texts and options give the same bits.
"""

from typing import Any, NamedTuple

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.hashing import mix64
from datapipe.kernels.learned.exponential import exp, logistic
from datapipe.kernels.learned.fasttext import (
    END_OF_LINE_CODE,
    queue_grams,
    queue_runs,
    spell,
    widened,
)
from datapipe.kernels.learned.fasttext_labels import SOFTMAX
from datapipe.kernels.learned.row_sums import add_rows
from datapipe.kernels.types import (
    Float32MatrixOut,
    Float32sOut,
    Float64s,
    Float64sOut,
    Int32s,
    Int32sOut,
    Int64Matrix,
    Int64s,
    Int64sOut,
    UInt8s,
    UInt32s,
    UInt32sOut,
    UInt64sOut,
)

_INCREMENT, _HIGH_BITS = np.uint64(0x9E3779B97F4A7C15), np.uint64(40)  # of splitmix64; what is above 24 bits


@kernel
def list_grams(
    spans: Int64Matrix,
    data: UInt8s,
    min_chars: int,
    max_chars: int,
    num_buckets: int,
    spelled: UInt32sOut,
    starts: Int64sOut,
    buckets: Int32sOut,
) -> None:
    """Lists buckets of n-grams of spans (num_words, 2). `spelled`: scratch, longest word + 2."""
    magic, all_buckets, listed = np.uint64((1 << 32) // num_buckets), np.empty(0, np.uint8), 0
    for word in range(len(spans)):
        starts[word] = listed
        length, first = spell(data, spans[word, 0], spans[word, 1], spelled), 0
        while first < length:
            first, listed = queue_grams(
                spelled, first, length, min_chars, max_chars, num_buckets, magic, all_buckets, buckets, listed
            )
    starts[len(spans)] = listed


@kernel
def randomise(seed: np.uint64, matrix: Float32MatrixOut) -> None:
    """Fills a matrix with numbers between -1 and 1, divided by its columns: the multiples of 2^-23 are equally likely."""
    state, scale = seed, np.float32(1.0 / matrix.shape[1])
    for row in range(len(matrix)):
        for column in range(matrix.shape[1]):
            state += _INCREMENT
            matrix[row, column] = (np.float32(mix64(state) >> _HIGH_BITS) * np.float32(2.0**-23) - np.float32(1)) * scale


class Texts(NamedTuple):
    offsets: Int64s  # (num_docs + 1,), where the words of each text begin in `ids`
    ids: Int32s  # numbers of distinct words
    targets: Int32s  # (num_docs,), labels
    weights: Float64s  # (num_docs,), factors of the rate
    order: Int64s  # the texts as they are read


class Words(NamedTuple):
    """Distinct words and their features: an input of kernels."""

    codes: UInt32s  # (num_distinct,), their hashes
    rows: Int32s  # (num_distinct,); -1 for a word that is too rare for its own row
    gram_starts: Int64s  # (num_distinct + 1,), in `grams`
    grams: Int32s  # buckets of n-grams of characters


class Plan(NamedTuple):
    run_words: int  # the longest run of words that is a feature
    num_words: int  # rows before those of the buckets; row 0 is that of `</s>`
    num_buckets: int  # 1 or more
    loss: int  # SOFTMAX or SIGMOID of `fasttext_labels.py`
    rate: float  # the rate at the start of training
    num_read: int  # words and ends of texts that earlier epochs read
    num_total: int  # those that all epochs read


class Scratch(NamedTuple):
    """Room for one text: its features, the hashes of its runs of words, hidden, gradient (dim,), chances (num_labels,)."""

    queue: Int64sOut
    run_hashes: UInt64sOut
    hidden: Float32sOut
    gradient: Float32sOut
    chances: Float64sOut


@kernel
def train_epoch(
    texts: Texts, words: Words, plan: Plan, inputs: Float32MatrixOut, outputs: Float32MatrixOut, scratch: Scratch
) -> None:
    """Reads each text once; `inputs`: (num_words + num_buckets, dim), `outputs`: (num_labels, dim)."""
    offsets, ids, targets, weights, order = texts
    codes, rows, gram_starts, grams = words
    run_words, num_words, num_buckets, loss, rate, num_read, num_total = plan
    queue, run_hashes, hidden, gradient, chances = scratch
    all_buckets = np.empty(0, np.uint8)
    for doc in order:
        first, last = offsets[doc], offsets[doc + 1]
        step = np.float32(rate * (1.0 - num_read / num_total) * weights[doc])
        num_read += last - first + 1
        if first == last:
            continue
        queued = _queue_words(ids, first, last, codes, rows, gram_starts, grams, num_words, queue, run_hashes)
        words_queued = queued
        for run in range(last - first + 1 if run_words > 1 else 0):
            queued = queue_runs(
                run_hashes, run, min(run + run_words, last - first + 1), num_buckets, all_buckets, queue, queued
            )
        for index in range(words_queued, queued):
            queue[index] += num_words
        share = np.float32(1.0 / queued)
        hidden[:] = 0
        add_rows(hidden, queue, queued, inputs)
        hidden *= share
        _learn_outputs(hidden, targets[doc], step, loss, outputs, chances, gradient)
        gradient *= share
        for index in range(queued):
            row = queue[index]
            for column in range(len(gradient)):
                inputs[row, column] += gradient[column]


@inline
def _queue_words(ids, first, last, codes, rows, gram_starts, grams, num_words, queue, run_hashes) -> Any:
    """Queues the rows of words, of their n-grams and of `</s>`; returns their number."""
    queued = 0
    for index in range(first, last):
        word = ids[index]
        run_hashes[index - first] = widened(np.int64(codes[word]))
        queue[queued] = rows[word]
        queued += rows[word] >= 0
        for gram in range(gram_starts[word], gram_starts[word + 1]):
            queue[queued] = num_words + grams[gram]
            queued += 1
    run_hashes[last - first] = widened(END_OF_LINE_CODE)
    queue[queued] = 0
    return queued + 1


@inline
def _learn_outputs(hidden, target, rate, loss, outputs, chances, gradient) -> None:
    """One step of the rows of all labels; writes the gradient of the hidden layer."""
    most = np.float32(-np.inf)
    for label in range(len(outputs)):
        product = np.float32(0)
        for column in range(len(hidden)):
            product += outputs[label, column] * hidden[column]
        chances[label], most = product, max(most, product)
    total = 0.0
    for label in range(len(outputs)):
        chances[label] = exp(chances[label] - most) if loss == SOFTMAX else logistic(chances[label])
        total += chances[label]
    gradient[:] = 0
    for label in range(len(outputs)):
        chance = chances[label] / total if loss == SOFTMAX else chances[label]
        step = rate * np.float32((1.0 if label == target else 0.0) - chance)
        for column in range(len(hidden)):
            gradient[column] += step * outputs[label, column]
            outputs[label, column] += step * hidden[column]
