"""Trains fastText models: the standard `.bin` that fasttext, fasttext-predict and `open_classifier` read.

    texts  ─▶  numbers of words  ─▶  rows, n-grams  ─▶  epochs over all texts  ─▶  .bin

The training is fastText's (`kernels/learned/fasttext_training.py`), on one thread. It differs in random numbers and order:
rows start with other numbers, every epoch has another order, and the rate falls with each text. The memory is the model's,
twice the texts, 20 bytes for each word, and the n-grams of each distinct word.
"""

from __future__ import annotations

import struct
from typing import Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from datapipe import columns, rng
from datapipe.columns import compute as pc
from datapipe.dataclass import dataclass
from datapipe.errors import UserError
from datapipe.kernels.hashing import num_slots_for
from datapipe.kernels.learned import fasttext_training as kernels
from datapipe.kernels.learned.fasttext import HALF, LOW_HALF, index_words
from datapipe.kernels.learned.fasttext_labels import SIGMOID, SOFTMAX
from datapipe.kernels.types import input_record
from datapipe.models.examples import Examples, Trainer
from datapipe.stage.models import fasttext_file
from datapipe.stage.models.fasttext_file import LABEL

_END_OF_LINE = b"</s>"
_FILE_VERSION = 12
_UNUSED_WINDOW, _UNUSED_NEGATIVES, _LABEL_UPDATES, _UNUSED_SAMPLING = 5, 5, 100, 1e-4  # fastText's defaults

MOST_BYTES = 16 << 30  # of the rows of a model. Training and writing the file take twice this.


class FastTextTrainer(Trainer):
    """A fastText model: words, runs of words and n-grams of characters, averaged, and a linear layer above them."""

    dim: int = Field(default=50, ge=1, le=2000, description="Numbers in the row of a feature.")
    epochs: int = Field(default=5, ge=1, le=10_000, description="How often every text is read.")
    lr: float = Field(default=0.5, gt=0, le=1000, description="Rate of learning at the start; it falls to 0.")
    word_ngrams: int = Field(default=2, ge=1, le=100, description="The longest run of words that is a feature.")
    min_char_ngram: int = Field(default=0, ge=0, le=100, description="The shortest n-gram of characters that is a feature.")
    max_char_ngram: int = Field(
        default=0, ge=0, le=100, description="The longest n-gram of characters that is a feature; 0: none."
    )
    buckets: int = Field(
        default=100_000,
        ge=1,
        le=1 << 30,
        description="Rows that runs of words and n-grams of characters share by hash. fastText's default of 2,000,000 makes "
        "files of 845 MB with 100 dimensions.",
    )
    min_count: int = Field(default=1, ge=1, description="Least occurrences of a word that has a row.")
    loss: Literal["softmax", "ova"] = Field(
        default="softmax", description="softmax: the scores of all labels make 1. ova: every label has a score by itself."
    )

    @model_validator(mode="after")
    def _check_chars(self) -> FastTextTrainer:
        if self.max_char_ngram and self.min_char_ngram > self.max_char_ngram:
            raise ValueError(f"min_char_ngram: {self.min_char_ngram} is above max_char_ngram: {self.max_char_ngram}.")
        return self

    def train(self, examples: Examples) -> bytes:
        for label in examples.labels:
            if "\0" in label:
                raise UserError(f"label {label!r} holds a NUL, which ends a label in the file. Rename it.")
        texts = _number(examples.texts)
        if not len(texts.ids):
            raise UserError(f"the {len(examples):,} texts hold no words. Expected texts to learn from.")
        num_buckets = self.buckets if self.word_ngrams > 1 or self.max_char_ngram else 0
        rows = self._rows(texts)
        inputs = self._inputs(1 + int(rows.max(initial=0)) + num_buckets)
        outputs = np.zeros((len(examples.labels), self.dim), np.float32)
        self._learn(examples, texts, self._features(texts, rows), inputs, outputs)
        by_row = np.flatnonzero(rows > 0)[np.argsort(rows[rows > 0])]
        words = [_END_OF_LINE, *(word.encode() for word in texts.words.take(pa.array(by_row)).to_pylist())]
        entries = [(word, count, 0) for word, count in zip(words, [len(examples), *texts.counts[by_row].tolist()])]
        label_counts = np.bincount(examples.targets.astype(np.int64), minlength=len(examples.labels)).tolist()
        entries += [(LABEL + label.encode(), count, 1) for label, count in zip(examples.labels, label_counts)]
        numbers = (len(entries), len(words), len(label_counts), len(texts.ids) + 2 * len(examples), -1)
        parts = [self._head(num_buckets), struct.pack("<3i2q", *numbers)]
        parts += [name + struct.pack("<Bqb", 0, count, kind) for name, count, kind in entries]
        for matrix in (inputs, outputs):
            parts += [struct.pack("<B2q", 0, *matrix.shape), np.ascontiguousarray(matrix, "<f4").tobytes()]
        return b"".join(parts)

    def _head(self, num_buckets: int) -> bytes:
        """The first bytes of a file of fastText 0.9: magic, version, options."""
        loss = fasttext_file.SOFTMAX if self.loss == "softmax" else fasttext_file.ONE_VS_ALL
        options = (self.dim, _UNUSED_WINDOW, self.epochs, self.min_count, _UNUSED_NEGATIVES, self.word_ngrams, loss)
        options += (fasttext_file.SUPERVISED, num_buckets, self.min_char_ngram, self.max_char_ngram, _LABEL_UPDATES)
        return struct.pack("<2i12id", fasttext_file.MAGIC, _FILE_VERSION, *options, _UNUSED_SAMPLING)

    def _inputs(self, num_rows: int) -> np.ndarray:
        """The rows at the start, (num_rows, dim) float32. Raises UserError for too much memory."""
        num_bytes = num_rows * self.dim * 4
        if num_bytes > MOST_BYTES:
            raise UserError(
                f"the model would have {num_rows:,} rows of {self.dim:,} numbers, {num_bytes / 1e9:,.0f} GB, and the most is "
                f"{MOST_BYTES / 1e9:,.0f} GB. Lower buckets or dim, or raise min_count so that rare words have no row."
            )
        inputs = np.empty((num_rows, self.dim), np.float32)
        kernels.randomise(np.uint64(rng.seed_for(self.seed, "fasttext", "rows")), inputs)
        return inputs

    def _rows(self, texts: _NumberedTexts) -> np.ndarray:
        """The row of each distinct word, the most frequent first, behind `</s>`: (num_distinct,) int32, -1 for rare ones."""
        rows = np.full(len(texts.counts), -1, np.int32)
        by_count = np.argsort(-texts.counts, kind="stable")
        frequent = by_count[texts.counts[by_count] >= self.min_count]
        rows[frequent] = 1 + np.arange(len(frequent), dtype=np.int32)
        return rows

    def _features(self, texts: _NumberedTexts, rows: np.ndarray) -> kernels.Words:
        bounds, data = columns.text_buffers(texts.words)
        spans, lengths = np.stack([bounds[:-1], bounds[1:]], axis=1), np.diff(bounds)  # bytes
        most = int((lengths + 2).sum()) * (self.max_char_ngram - max(self.min_char_ngram, 1) + 1) if self.max_char_ngram else 0
        starts, grams = np.empty(len(rows) + 1, np.int64), np.empty(most, np.int32)
        spelled = np.empty(int(lengths.max(initial=0)) + 3, np.uint32)
        chars = (self.min_char_ngram, self.max_char_ngram)
        kernels.list_grams(spans, data, *chars, self.buckets, spelled, starts, grams)
        table = np.zeros(num_slots_for(len(spans)), np.uint64)
        index_words(spans, data, table)
        filled, codes = table[table != 0], np.empty(len(rows), np.uint32)
        codes[(filled & LOW_HALF).astype(np.int64) - 1] = filled >> HALF
        return input_record(kernels.Words, (codes, rows, starts, grams[: starts[-1]].copy()))

    def _learn(
        self, examples: Examples, texts: _NumberedTexts, words: kernels.Words, inputs: np.ndarray, outputs: np.ndarray
    ) -> None:
        num_words = len(inputs) - (self.buckets if self.word_ngrams > 1 or self.max_char_ngram else 0)
        num_read = len(texts.ids) + len(examples)  # words and ends of texts
        loss = SOFTMAX if self.loss == "softmax" else SIGMOID
        scratch = self._scratch(texts, words, len(outputs))
        targets = examples.targets.astype(np.int32)
        for epoch in range(self.epochs):
            seed = np.uint64(rng.seed_for(self.seed, "fasttext", "order", epoch))
            order = np.argsort(rng.mix64(np.arange(len(examples), dtype=np.uint64) + seed), kind="stable")
            read = input_record(kernels.Texts, (texts.offsets, texts.ids, targets, examples.weights, order))
            numbers = (num_words, self.buckets, loss, self.lr, epoch * num_read, self.epochs * num_read)
            kernels.train_epoch(read, words, kernels.Plan(self.word_ngrams, *numbers), inputs, outputs, scratch)
            if not (np.isfinite(outputs).all() and (epoch + 1 < self.epochs or np.isfinite(inputs).all())):
                raise UserError(
                    f"the training diverged in epoch {epoch + 1} of {self.epochs}: with lr {self.lr:g} the numbers of the "
                    f"model grew beyond all bounds. Try lr {self.lr / 4:g}."
                )

    def _scratch(self, texts: _NumberedTexts, words: kernels.Words, num_labels: int) -> kernels.Scratch:
        grams = np.concatenate([[0], np.cumsum(np.diff(words.gram_starts)[texts.ids])])  # before each word
        num_words = np.diff(texts.offsets)  # of each text
        most = int((num_words * self.word_ngrams + np.diff(grams[texts.offsets])).max(initial=0)) + self.word_ngrams + 1
        return kernels.Scratch(
            queue=np.empty(most, np.int64),
            run_hashes=np.empty(int(num_words.max(initial=0)) + 1, np.uint64),
            hidden=np.empty(self.dim, np.float32),
            gradient=np.empty(self.dim, np.float32),
            chances=np.empty(num_labels, np.float64),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _NumberedTexts:
    """Texts as numbers of words, which are between ASCII white space or NULs."""

    # words, counts: (num_distinct,) large_string, by their first occurrence, and int64, their occurrences
    words: pa.Array
    counts: np.ndarray
    ids: np.ndarray  # (num_words,) int32, the number of each word
    offsets: np.ndarray  # (num_docs + 1,) int64, where the words of each text begin in `ids`


def _number(texts: pa.Array) -> _NumberedTexts:
    split = pc.ascii_split_whitespace(pc.replace_substring(texts, "\0", " "))
    words = split.flatten()
    is_left_out = pc.or_(
        pc.is_in(words, pa.array(["", _END_OF_LINE.decode()], words.type)), pc.starts_with(words, LABEL.decode())
    )
    encoded = words.filter(pc.invert(is_left_out)).dictionary_encode()
    ids = columns.numbers(encoded.indices)
    before = np.append(0, np.cumsum(~is_left_out.to_numpy(zero_copy_only=False)))  # words before each part
    counts = np.bincount(ids, minlength=len(encoded.dictionary))
    return _NumberedTexts(words=encoded.dictionary, counts=counts, ids=ids, offsets=before[columns.numbers(split.offsets)])
