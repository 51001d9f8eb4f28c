"""Writes model files of fastText 0.9 (version 12): supervised, dense, not pruned. `fasttext_file.py` reads them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from datapipe.stage.models.fasttext_file import LABEL, MAGIC, SUPERVISED

_VERSION = 12
_UNUSED_WINDOW, _UNUSED_NEGATIVES, _LABEL_UPDATES, _UNUSED_SAMPLING = 5, 5, 100, 1e-4  # fastText's defaults


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """What a model file holds.

    Attributes:
        words: the dictionary, in the order of the rows, with `</s>`.
        word_counts: their occurrences in training.
        labels: without fastText's prefix.
        label_counts: their texts in training.
        num_read: words, ends of texts and labels of one epoch.
        inputs: (num_words + num_buckets, dim) float32.
        outputs: (num_labels, dim) float32.
        loss: SOFTMAX or ONE_VS_ALL of `fasttext_file.py`.
        run_words: the longest run of words that is a feature.
        num_buckets: 0 where there are no n-grams of characters and no runs of words.
        min_chars, max_chars: of the n-grams of characters.
        min_count: least occurrences of a word with a row of its own.
        epochs: how often the texts were read.
    """

    words: Sequence[bytes]
    word_counts: Sequence[int]
    labels: Sequence[str]
    label_counts: Sequence[int]
    num_read: int
    inputs: np.ndarray
    outputs: np.ndarray
    loss: int
    run_words: int
    num_buckets: int
    min_chars: int
    max_chars: int
    min_count: int
    epochs: int

    def to_bytes(self) -> bytes:
        """The content of the file."""
        options = (self.inputs.shape[1], _UNUSED_WINDOW, self.epochs, self.min_count, _UNUSED_NEGATIVES, self.run_words)
        options += (self.loss, SUPERVISED, self.num_buckets, self.min_chars, self.max_chars, _LABEL_UPDATES)
        num_words, num_labels = len(self.words), len(self.labels)
        parts = [struct.pack("<2i", MAGIC, _VERSION), struct.pack("<12id", *options, _UNUSED_SAMPLING)]
        parts.append(struct.pack("<3i2q", num_words + num_labels, num_words, num_labels, self.num_read, -1))
        parts += [word + struct.pack("<Bqb", 0, count, 0) for word, count in zip(self.words, self.word_counts)]
        names = [LABEL + label.encode() for label in self.labels]
        parts += [name + struct.pack("<Bqb", 0, count, 1) for name, count in zip(names, self.label_counts)]
        for matrix in (self.inputs, self.outputs):
            parts += [struct.pack("<B2q", 0, *matrix.shape), np.ascontiguousarray(matrix, "<f4").tobytes()]
        return b"".join(parts)
