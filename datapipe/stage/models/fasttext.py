"""The labels and scores of many texts by a fastText model.

Labels of `best(starts, stops, data, k)` are those of fastText, and scores are equal to 4 digits; the order of equal scores is
undefined there. `scores` gives all labels in float32 (losses ns and ova without the 512 steps of fastText's sigmoids). The word
`</s>`, fastText's end mark, is skipped, and a newline is white space, so that nothing hides the rest of a text.

A dense matrix stays in its file. A quantised matrix becomes dense if that takes at most
`MAX_DENSE_BYTES`; otherwise its rows are decoded during prediction.
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from datapipe.errors import UserError
from datapipe.kernels.hashing import num_slots_for
from datapipe.kernels.learned import fasttext as features
from datapipe.kernels.learned import fasttext_labels as kernels
from datapipe.kernels.learned.fasttext_labels import flat_scores, tree_scores
from datapipe.kernels.types import input_record
from datapipe.stage.models import fasttext_file
from datapipe.stage.models.fasttext_file import Dictionary, Matrix, ModelFile

MAX_DENSE_BYTES = 64 << 20

_MOST_CHARS, _MOST_RUN, _MOST_BUCKETS = 100, 100, 1 << 27  # limits of `embed`; real models have 6, 5 and 2 million
_END_OF_LINE = b"</s>"


def open_model(path: Path) -> CompiledModel:
    """Opens the model in a file. Raises UserError."""
    file = fasttext_file.read_model(path)
    problem = _beyond_kernels(file)
    if problem:
        raise UserError(
            f"{path} has {problem}. Expected n-grams of up to {_MOST_CHARS} characters, runs of up to {_MOST_RUN} words, "
            f"{_MOST_BUCKETS:,} buckets at most where some are pruned, and all words before the labels."
        )
    return CompiledModel(file)


def _beyond_kernels(file: ModelFile) -> str:
    """What of a model the kernels do not support; "" if nothing."""
    options, dictionary = file.options, file.dictionary
    if not (0 <= options.min_chars <= _MOST_CHARS and 0 <= options.max_chars <= _MOST_CHARS):
        return f"n-grams of {options.min_chars} to {options.max_chars} characters"
    if options.run_words > _MOST_RUN:
        return f"runs of {options.run_words} words"
    if dictionary.pruned is not None and options.num_buckets > _MOST_BUCKETS:
        return f"{options.num_buckets:,} pruned buckets"
    if dictionary.kinds[: dictionary.num_words].any() or not dictionary.kinds[dictionary.num_words :].all():
        return "labels among the words"
    return ""


def _made_dense(matrix: Matrix) -> Matrix:
    """The matrix, dense if it is small. As in fastText each value is norm times centroid, rounded to float32."""
    if len(matrix.dense) or matrix.num_rows * matrix.dense.shape[1] * 4 > MAX_DENSE_BYTES:
        return matrix
    dense = matrix.directions() * matrix.norms[:, None]
    return Matrix(dense=dense, codes=matrix.codes[:0], centroids=matrix.centroids, norms=matrix.norms)


class CompiledModel:
    """A model that kernels evaluate, many texts per call, without the GIL."""

    kind: Literal["classes", "number"] = "classes"
    """A probability for each label."""

    def __init__(self, file: ModelFile) -> None:
        self.labels, self._path, self._options = file.labels, file.path, file.options
        matrix = _made_dense(file.matrix)
        coded = input_record(features.CodedRows, (matrix.codes, matrix.centroids, matrix.norms))
        self._model = features.Model(entries=_indexed(file.data, file.dictionary), features=_features(file), coded=coded)
        self._dense, self._layer = matrix.dense, _layer(file)

    def best(self, starts: np.ndarray, stops: np.ndarray, data: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The best labels of each text, the best first, as indices in `labels` (num_docs, k) int32, and their scores
        (num_docs, k) float64. Missing labels are -1 with score 0; a text without words has none."""
        embedding = self._embedding(starts, stops, data)
        labels, scores = np.empty((len(starts), k), np.int32), np.empty((len(starts), k), np.float64)
        best, num_labels = np.empty(k, np.float32), len(self.labels)
        if isinstance(self._layer, kernels.TreeLayer):
            scratch = kernels.TreeScratch(nodes=np.empty(num_labels + 1, np.int32), paths=np.empty(num_labels + 1, np.float32))
            kernels.tree_labels(embedding.means, embedding.num_rows, self._layer, scratch, best, labels, scores)
        else:
            chances = np.empty(num_labels, np.float32)
            kernels.flat_labels(embedding.means, embedding.num_rows, self._layer, chances, best, labels, scores)
        return labels, scores

    def scores(self, starts: np.ndarray, stops: np.ndarray, data: np.ndarray) -> np.ndarray:
        """See `LinearModel.scores`. A text without words has score 0 for every label."""
        embedding, layer, num_labels = self._embedding(starts, stops, data), self._layer, len(self.labels)
        scores = np.empty((len(starts), num_labels), np.float32)
        if isinstance(layer, kernels.TreeLayer):
            tree_scores(embedding.means, embedding.num_rows, layer, np.empty(2 * num_labels - 1), scores)
        else:
            flat_scores(embedding.means, embedding.num_rows, layer, np.empty(num_labels), scores)
        self._check_numbers(scores)
        return scores

    def _embedding(self, starts: np.ndarray, stops: np.ndarray, data: np.ndarray) -> features.Embedding:
        longest = int((stops - starts).max(initial=0))
        out = features.room_for_embedding(len(starts), self._options.dim, longest, self._options.max_chars)
        features.embed(starts, stops, data, self._model, self._dense, out)
        self._check_numbers(out.means)
        return out

    def _check_numbers(self, values: np.ndarray) -> None:
        if not np.isfinite(values).all():
            raise UserError(f"{self._path} holds values that are no numbers. Expected a whole model; get the file again.")


def _layer(file: ModelFile) -> kernels.TreeLayer | kernels.FlatLayer:
    norms = file.output.norms if len(file.output.codes) else np.ones(len(file.labels), np.float32)
    rows = file.output.directions()
    if file.options.loss == fasttext_file.TREE:
        return input_record(kernels.TreeLayer, (rows, norms, *_huffman(file.dictionary.counts.tolist())))
    kind = kernels.SOFTMAX if file.options.loss == fasttext_file.SOFTMAX else kernels.SIGMOID
    return input_record(kernels.FlatLayer, (np.ascontiguousarray(rows.T), norms, kind, _sigmoids()))


def _features(file: ModelFile) -> features.Features:
    options, dictionary = file.options, file.dictionary
    starts, lengths = dictionary.starts, (dictionary.stops - dictionary.starts)[: dictionary.num_words]
    near = np.flatnonzero(lengths == len(_END_OF_LINE)).tolist()
    ends = [entry for entry in near if file.data[starts[entry] : dictionary.stops[entry]].tobytes() == _END_OF_LINE]
    keeps_none = dictionary.pruned is not None and not len(dictionary.pruned)
    features_of = (0, 0, 1) if keeps_none else (options.min_chars, options.max_chars, options.run_words)
    numbers = (dictionary.num_words, ends[-1] if ends else -1, *features_of, max(options.num_buckets, 1))
    return input_record(features.Features, (*numbers, *_bucket_rows(options.num_buckets, dictionary)))


def _indexed(data: np.ndarray, dictionary: Dictionary) -> features.Entries:
    """The dictionary as `embed` takes it, with its hash table at most half full."""
    spans = np.stack([dictionary.starts, dictionary.stops], axis=1)
    table = np.zeros(num_slots_for(len(spans)), np.uint64)
    features.index_words(spans, data, table)
    return input_record(features.Entries, (spans, data, table))


def _bucket_rows(num_buckets: int, dictionary: Dictionary) -> tuple[np.ndarray, np.ndarray]:
    """The row of every bucket, and a bit for each bucket with a row; both empty without pruning."""
    if dictionary.pruned is None:
        return np.empty(0, np.int32), np.empty(0, np.uint8)
    left = dictionary.pruned[dictionary.pruned[:, 0] < num_buckets]
    rows = np.full(max(num_buckets, 1), -1, np.int32)
    rows[left[:, 0]] = dictionary.num_words + left[:, 1]
    return rows, np.packbits(rows >= 0, bitorder="little")


def _huffman(counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Left and right child of every node of fastText's Huffman tree over labels; -1 for the labels. The two nodes with the
    lowest counts are joined until one remains. fastText takes labels from the last on, as if sorted."""
    num_labels = len(counts)
    totals = counts + [fasttext_file.NO_COUNT] * (num_labels - 1)
    children = np.full((2, 2 * num_labels - 1), -1, np.int32)
    leaf, inner = num_labels - 1, num_labels
    for node in range(num_labels, 2 * num_labels - 1):
        for side in range(2):
            if leaf >= 0 and totals[leaf] < totals[inner]:
                children[side, node], leaf = leaf, leaf - 1
            else:
                children[side, node], inner = inner, inner + 1
        totals[node] = totals[children[0, node]] + totals[children[1, node]]
    return children[0], children[1]


@lru_cache(maxsize=1)
def _sigmoids() -> np.ndarray:
    """fastText's table of the sigmoid at 513 points from -8 to 8: (513,) float32."""
    points = (np.arange(513) / 32 - 8).tolist()
    return np.array([1.0 / (1.0 + float(np.float32(math.exp(-point)))) for point in points], np.float32)
