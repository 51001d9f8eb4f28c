"""Trains linear models over hashed n-grams, by scikit-learn: the kind `linear`.

    texts  ─ slices ─▶  slots and counts  ─▶  importances: rare slots count more  ─▶  values  ─ liblinear ─▶  weights

Training is liblinear's, by dual coordinate descent on one thread: the result depends on the examples, their order, the
options and the version of scikit-learn. Memory: 24 bytes a feature that occurs in a text, 36 for numbers: 10 times the text
for words and 35 times with characters (measured on web text); `examples.py` caps the text.

A model knows slots alone. The n-gram of a slot is the shortest part of a training text that has the slot, found by halving.
"""

import math
import warnings
from bisect import bisect_left
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field

from datapipe.columns import text_buffers, text_lengths
from datapipe.errors import UserError
from datapipe.kernels.learned.linear_scores import IMPORTANCE_MASK, PARTS, WEIGHT_SHIFT
from datapipe.kernels.learned.text_features import RowsOut, character_kinds, feature_rows, room_for_counting
from datapipe.models.training import Examples, Trainer
from datapipe.rng import seed_for
from datapipe.stage.models.linear import LinearFile, file_bytes, folded_slices, num_columns

_MOST_WEIGHT = (1 << 23) - 1
_MOST_FEATURES = (1 << 31) - 1  # That liblinear takes
_FEATURES_A_BYTE = 2, 3
"""No text has more features than this for each of its bytes: a word and a pair; n-grams of 3, 4 and 5 characters."""

_SEARCHED_BYTES = 8 << 20

Feature = tuple[str, float]  # an n-gram, and the weight of one occurrence in a text of length 1


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
        description="How much errors cost beside large weights, as C of liblinear: less for noisy labels.",
    )
    max_passes: int = Field(default=100, ge=1, description="Passes over the examples at most.")
    tolerance: float = Field(default=0.001, gt=0, description="When the training ends, as tol of scikit-learn.")

    def train(self, examples: Examples) -> bytes:
        character_bits = self.bits if self.characters else 0
        rows, importances = _rows(examples.texts, self.bits, character_bits)
        kind = "number" if examples.predicts_number else "classes"
        columns = [self._fit(examples, rows, column) for column in range(num_columns(kind, examples.labels))]
        entries, scales = _packed(np.stack([weights for weights, _ in columns], axis=1), importances)
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

    def _fit(self, examples: Examples, rows: Any, column: int) -> tuple[np.ndarray, float]:
        """The weights of one column, (num_slots,) float64, and its bias."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression
        from sklearn.svm import LinearSVR

        options: dict[str, Any] = {"C": self.cost, "tol": self.tolerance, "max_iter": self.max_passes, "dual": True}
        options["random_state"] = seed_for(self.seed, "linear", column) & 0xFFFFFFFF
        middle, spread = 0.0, 1.0  # the weighted mean and the standard deviation of targets
        if examples.predicts_number:
            weights, total = examples.weights, math.fsum(examples.weights.tolist())
            middle = math.fsum((examples.targets * weights).tolist()) / total
            spread = math.sqrt(math.fsum((weights * (examples.targets - middle) ** 2).tolist()) / total) or 1.0
            model, targets = LinearSVR(loss="squared_epsilon_insensitive", **options), (examples.targets - middle) / spread
        else:
            wanted = 1 if len(examples.labels) == 2 else column
            model, targets = LogisticRegression(solver="liblinear", **options), examples.targets == wanted
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # `max_passes` bounds it
            model.fit(rows, targets, examples.weights)
        return model.coef_.ravel() * spread, float(np.ravel(model.intercept_)[0]) * spread + middle


def _rows(texts: pa.Array, word_bits: int, character_bits: int) -> tuple[Any, np.ndarray]:
    """Texts as sparse rows, (num_docs, num_slots) float32, and the importance of each slot, (num_slots,) uint8. The words
    of a text and its n-grams of characters are each a part of length 1."""
    from scipy.sparse import csr_matrix
    from sklearn.preprocessing import normalize

    stops, slots, counts = features_of(texts, word_bits, character_bits)
    if len(slots) > _MOST_FEATURES:
        raise UserError(f"{len(slots):,} features, and liblinear takes {_MOST_FEATURES:,} at most. Give a smaller --sample")
    num_slots = (1 << word_bits) + (1 << character_bits if character_bits else 0)
    importances = _importances(np.bincount(slots, minlength=num_slots), len(texts))
    values = importances[slots].astype(np.float32) * counts
    columns, ends = slots.view(np.int32), np.append(0, stops.ravel()).astype(np.int32)
    normalize(csr_matrix((values, columns, ends), (2 * len(texts), num_slots)), copy=False)
    return csr_matrix((values, columns, ends[::2].copy()), (len(texts), num_slots)), importances


def features_of(texts: pa.Array, word_bits: int, character_bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The features of texts: stops (num_docs, 2) int64 as in `RowsOut`, slots (num_features,) uint32, counts uint8."""
    offsets, data = text_buffers(texts)
    scratch, kinds = room_for_counting(max(word_bits, character_bits)), character_kinds()
    all_stops, all_slots, all_counts, total = [np.zeros((0, 2), np.int64)], [np.zeros(0, np.uint32)], [np.zeros(0, np.uint8)], 0
    for _, part, folded in folded_slices(offsets[:-1], offsets[1:], data):
        sizes = np.diff(part)
        most = int(np.minimum(sizes * _FEATURES_A_BYTE[0], 1 << word_bits).sum())
        most += int(np.minimum(sizes * _FEATURES_A_BYTE[1], 1 << character_bits).sum()) if character_bits else 0
        out = RowsOut(np.empty((len(sizes), 2), np.int64), np.empty(most, np.uint32), np.empty(most, np.uint8))
        number = feature_rows(part, folded, kinds, word_bits, character_bits, scratch, out)
        all_stops.append(out.stops + total)
        all_slots.append(out.slots[:number].copy())
        all_counts.append(out.counts[:number].copy())
        total += number
    return np.concatenate(all_stops), np.concatenate(all_slots), np.concatenate(all_counts)


def _importances(frequencies: np.ndarray, num_docs: int) -> np.ndarray:
    """How much a slot counts by the number of texts that have it, (num_slots,) uint8, in parts of
    `PARTS` so that every processor agrees: 1 + ln((1 + texts) / (1 + texts with the slot)), the
    smoothed inverse document frequency of scikit-learn."""
    distinct, of_slot = np.unique(frequencies, return_inverse=True)
    values = [round(PARTS * (1 + math.log((1 + num_docs) / (1 + count)))) for count in distinct.tolist()]
    return np.minimum(np.array(values), IMPORTANCE_MASK).astype(np.uint8)[of_slot]


def _packed(weights: np.ndarray, importances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The entries of a model, (num_slots, num_columns) int32, and the unit of each column's weights."""
    of_counts = weights * (importances[:, None] / PARTS)
    largest = np.abs(of_counts).max(axis=0)
    scales = np.where(largest > 0, largest, 1.0) / _MOST_WEIGHT
    whole = np.rint(of_counts / scales).astype(np.int32)
    return whole << WEIGHT_SHIFT | importances[:, None].astype(np.int32), scales


def heaviest_features(file: LinearFile, texts: pa.Array, number: int) -> dict[str, list[Feature]]:
    """The features of the highest weight of each label, searched in the texts that the model was
    trained on."""
    searched = texts[: int(np.searchsorted(np.cumsum(text_lengths(texts)), _SEARCHED_BYTES)) + 1]
    stops, slots, _ = features_of(searched, file.word_bits, file.character_bits)
    known, first_feature = np.unique(slots, return_index=True)
    rows = np.searchsorted(stops[:, 1], first_feature, "right")
    weights = (file.entries[known] >> WEIGHT_SHIFT) * file.scales  # (num_known, num_columns)

    def heaviest(of_label: np.ndarray) -> list[Feature]:
        order = np.argsort(-of_label, kind="stable")[:number]
        return [
            (_ngram(searched[int(rows[index])].as_py(), int(known[index]), file), round(float(of_label[index]), 4))
            for index in order.tolist()
            if of_label[index] > 0
        ]

    if file.kind == "number":
        return {"higher": heaviest(weights[:, 0]), "lower": heaviest(-weights[:, 0])}
    if len(file.labels) == 2:
        return {file.labels[1]: heaviest(weights[:, 0]), file.labels[0]: heaviest(-weights[:, 0])}
    return {label: heaviest(weights[:, column]) for column, label in enumerate(file.labels)}


def _ngram(text: str, slot: int, file: LinearFile) -> str:
    """A shortest part of a text that has a slot."""

    def has(part: str) -> bool:
        return slot in features_of(pa.array([part], pa.large_string()), file.word_bits, file.character_bits)[1]

    stop = bisect_left(range(len(text)), True, key=lambda stop: has(text[:stop]))
    start = bisect_left(range(stop), True, key=lambda start: not has(text[start:stop])) - 1
    return text[start:stop].lower()
