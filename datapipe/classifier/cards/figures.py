"""What a trained model does on the held-out documents: its figures as a record for the card, and the tables that are printed.

| model | figures |
|---|---|
| two classes | AUC, average precision, F1, precision and recall at 0.5 and at the best threshold, the curve of thresholds |
| several classes | accuracy, macro F1, F1 of each label, the confusion matrix |
| a number | RMSE, Spearman; F1, precision and recall of "at least", for several numbers |

The curve tells which threshold keeps which share of documents like the held-out ones, and what is in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from datapipe.classifier import metrics
from datapipe.classifier.metrics import AtThreshold, Estimate
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
    figures: dict[str, Any] = {"documents": len(held_out)}
    if held_out.predicts_number:
        return figures | _of_numbers(held_out.targets, scores[:, 0].astype(np.float64))
    in_order = scores[:, [model.labels.index(label) for label in held_out.labels]]
    targets = held_out.targets.astype(np.int64)
    figures["labels"] = {label: int((targets == number).sum()) for number, label in enumerate(held_out.labels)}
    if len(held_out.labels) == 2:
        return figures | _of_two(targets == 1, in_order[:, 1].astype(np.float64))
    return figures | _of_several(targets, in_order.argmax(axis=1), held_out.labels)


def _of_two(is_positive: np.ndarray, scores: np.ndarray) -> dict[str, Any]:
    ranking = metrics.ranking(is_positive, scores)
    return {
        "auc": _estimate(ranking.auc),
        "average_precision": _estimate(ranking.average_precision),
        "at_half": _at(metrics.at_threshold(is_positive, scores, 0.5)),
        "best_f1": None if ranking.best is None else _at(ranking.best),
        "curve": _curve(is_positive, scores),
    }


def _curve(is_positive: np.ndarray, scores: np.ndarray) -> list[dict[str, Any]]:
    """What thresholds keep: for each of `SHARES` the highest threshold that keeps so many documents."""
    ranked, points = np.sort(scores)[::-1], {}
    for share in SHARES if len(scores) else ():
        number = max(math.ceil(share * len(scores)), 1)
        points[float(ranked[number - 1])] = None
    return [_at(metrics.at_threshold(is_positive, scores, threshold)) for threshold in points]


def _of_several(targets: np.ndarray, predicted: np.ndarray, labels: tuple[str, ...]) -> dict[str, Any]:
    confusion = metrics.confusion(targets, predicted, labels)
    return {
        "accuracy": _estimate(confusion.accuracy),
        "macro_f1": _estimate(confusion.macro_f1),
        "by_label": {
            label: {
                "f1": _finite(confusion.f1(number).value),
                "precision": _finite(confusion.precision(number).value),
                "recall": _finite(confusion.recall(number).value),
            }
            for number, label in enumerate(labels)
        },
        "confusion": confusion.counts.tolist(),
    }


def _of_numbers(targets: np.ndarray, predicted: np.ndarray) -> dict[str, Any]:
    agreement = metrics.agreement(targets, predicted)
    return {
        "rmse": _estimate(agreement.rmse),
        "spearman": _estimate(agreement.spearman),
        "at_least": [
            {"auc": _estimate(metrics.ranking(targets >= cut, predicted).auc)}
            | _at(metrics.at_threshold(targets >= cut, predicted, cut))
            for cut in _cuts(targets)
        ],
    }


def _cuts(targets: np.ndarray) -> Sequence[float]:
    """Numbers at which a filter may cut: each of a few whole numbers, else the quartiles."""
    distinct = np.unique(targets)
    if len(distinct) <= _MOST_CUTS + 1 and (distinct == np.rint(distinct)).all():
        return distinct[1:].tolist()
    return np.unique(np.quantile(targets, (0.25, 0.5, 0.75), method="nearest")).tolist()


def _at(found: AtThreshold) -> dict[str, Any]:
    return {
        "threshold": found.threshold,
        "share_kept": _finite(found.share_above),
        "f1": _finite(found.f1.value),
        "precision": _finite(found.precision.value),
        "recall": _finite(found.recall.value),
    }


def _estimate(estimate: Estimate) -> list[float | None]:
    """A figure and the bounds of its 95 % interval."""
    return [_finite(estimate.value), _finite(estimate.low), _finite(estimate.high)]


def _finite(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None
