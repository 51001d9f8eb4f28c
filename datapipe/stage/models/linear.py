"""Linear models over hashed n-grams: scores of many texts per call, without the GIL.

    texts  ─ slices ─▶  without case (`case_folding.py`)  ─▶  sums (`linear_scores.py`)  ─▶  probabilities, or a number

Memory: a few times a slice, or the longest text, and a byte and a half a slot. The file is small and is read whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from datapipe.kernels.dedup.case_folding import fold_texts, visible_folding
from datapipe.kernels.dedup.substring import copy_spans
from datapipe.kernels.learned import linear_scores as kernels
from datapipe.kernels.learned.text_features import character_kinds, room_for_counting
from datapipe.kernels.types import input_record
from datapipe.stage.models.linear_file import LinearFile

SLICE_BYTES = 1 << 22
"""Bytes of text that are folded at once; a longer text is a slice by itself."""


def folded_slices(starts: np.ndarray, stops: np.ndarray, data: np.ndarray) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Texts in the form that features are counted in, in slices: their numbers, offsets (num_docs + 1,) int64, and bytes.

    Args:
        starts, stops: (num_docs,) int64, where each text lies in `data`.
        data: UTF-8 bytes, uint8.
    """
    ends, first = np.cumsum(stops - starts), 0
    while first < len(starts):
        before = int(ends[first - 1]) if first else 0
        last = max(int(np.searchsorted(ends, before + SLICE_BYTES, "right")), first + 1)
        yield slice(first, last), *fold_texts(*_contiguous(starts[first:last], stops[first:last], data), visible_folding())
        first = last


def _contiguous(starts: np.ndarray, stops: np.ndarray, data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The texts as offsets and bytes, copied where they do not follow each other."""
    if np.array_equal(starts[1:], stops[:-1]):
        return np.append(starts, stops[-1:]).astype(np.int64), data
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(stops - starts)])
    out = np.empty(int(offsets[-1]), np.uint8)
    copy_spans(np.ascontiguousarray(starts), np.ascontiguousarray(stops), data, out)
    return offsets, out


class LinearModel:
    """A linear model that kernels evaluate."""

    def __init__(self, file: LinearFile) -> None:
        self.labels = file.labels
        self.kind: Literal["classes", "number"] = file.kind
        self._bits = max(file.word_bits, file.character_bits)
        fields = (character_kinds(), file.word_bits, file.character_bits, file.entries, file.scales, file.biases)
        self._weights = input_record(kernels.Weights, fields)

    def sums(self, starts: np.ndarray, stops: np.ndarray, data: np.ndarray) -> np.ndarray:
        """What the features of each text sum up to, (num_docs, num_columns) float64; arguments as for `Classifier.scores`."""
        sums, scratch = np.empty((len(starts), len(self._weights.biases))), room_for_counting(self._bits)
        for part, offsets, folded in folded_slices(starts, stops, data):
            kernels.weigh_texts(offsets, folded, self._weights, scratch, sums[part])
        return sums

    def scores(self, starts: np.ndarray, stops: np.ndarray, data: np.ndarray) -> np.ndarray:
        """See `Classifier.scores`."""
        sums = self.sums(starts, stops, data)
        if self.kind == "number":
            return sums.astype(np.float32)
        scores = np.empty((len(starts), len(self.labels)), np.float32)
        kernels.sigmoids(sums, scores)
        return scores
