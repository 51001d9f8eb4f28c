"""What a trained model does on the held-out documents: its figures as a record for the card, and the tables that are printed.

The figures are those of `datapipe classifier evaluate --json`. Two classes also have the curve of thresholds, which tells which
threshold keeps which share of documents like the held-out ones, and what is in it; numbers have what "at least" decides, for
several numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from datapipe.classifier.evaluation import measures_of
from datapipe.classifier.evaluation_tables import at_threshold_record, record_of
from datapipe.classifier.metrics import at_threshold
from datapipe.classifier.training import Examples
from datapipe.columns import text_buffers
from datapipe.stage.models.classifier import Classifier

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Of the curve."""

_MOST_CUTS = 10


def figures_of(model: Classifier, held_out: Examples) -> dict[str, Any]:
    """The figures of a model, of values that JSON has; None where a figure is not defined."""
    offsets, data = text_buffers(held_out.texts)
    scores = model.scores(np.ascontiguousarray(offsets[:-1]), np.ascontiguousarray(offsets[1:]), data)
    if held_out.predicts_number:
        figures = _of_numbers(held_out.targets, scores[:, 0].astype(np.float64), held_out.labels)
    else:
        in_order = scores[:, [model.labels.index(label) for label in held_out.labels]]
        figures = _of_classes(held_out.targets.astype(np.int64), in_order, held_out.labels)
    return json.loads(json.dumps(figures), parse_constant=lambda name: None)  # NaN, where a figure is not defined


def _of_classes(targets: np.ndarray, scores: np.ndarray, labels: tuple[str, ...]) -> dict[str, Any]:
    counts = {"labels": {label: int((targets == number).sum()) for number, label in enumerate(labels)}}
    if len(labels) > 2:
        return record_of(measures_of("several classes", targets, scores.argmax(axis=1), labels, None)) | counts
    positive = scores[:, 1].astype(np.float64)
    curve = [at_threshold_record(at_threshold(targets == 1, positive, threshold)) for threshold in _thresholds(positive)]
    return record_of(measures_of("two classes", targets, positive, labels, 0.5)) | counts | {"curve": curve}


def _thresholds(scores: np.ndarray) -> Sequence[float]:
    """For each of `SHARES` the highest threshold that keeps so many documents."""
    ranked = np.sort(scores)[::-1].tolist()
    return list(dict.fromkeys(ranked[max(math.ceil(share * len(ranked)), 1) - 1] for share in SHARES if ranked))


def _of_numbers(targets: np.ndarray, predicted: np.ndarray, labels: tuple[str, ...]) -> dict[str, Any]:
    found = [record_of(measures_of("number", targets, predicted, labels, cut)) for cut in _cuts(targets)]
    at_least = [{"auc": record["auc"]} | record["at_threshold"] for record in found]
    return record_of(measures_of("number", targets, predicted, labels, None)) | {"at_least": at_least}


def _cuts(targets: np.ndarray) -> Sequence[float]:
    """Numbers at which a filter may cut: each of a few whole numbers, else the quartiles."""
    distinct = np.unique(targets)
    if len(distinct) <= _MOST_CUTS + 1 and (distinct == np.rint(distinct)).all():
        return distinct[1:].tolist()
    return np.unique(np.quantile(targets, (0.25, 0.5, 0.75), method="nearest")).tolist()
