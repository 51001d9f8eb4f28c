"""Measures equal their definitions, counted pair by pair; intervals hold what they promise."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from datapipe.classifier import metrics
from datapipe.classifier.metrics import Estimate


def _sample(seed: int, num_docs: int = 60, num_scores: int = 15, positive: float = 0.4) -> tuple[np.ndarray, np.ndarray]:
    """Classes and scores with many ties."""
    draw = np.random.default_rng(seed)
    is_positive = draw.random(num_docs) < positive
    return is_positive, np.round((draw.normal(is_positive, 1.2)) * num_scores / 5) / num_scores


@pytest.mark.parametrize("seed", range(5))
def test_ranking_equals_its_definitions(seed: int) -> None:
    is_positive, scores = _sample(seed)
    found = metrics.ranking(is_positive, scores)
    pairs = [(high > low) + (high == low) / 2 for high in scores[is_positive] for low in scores[~is_positive]]
    assert found.auc.value == pytest.approx(sum(pairs) / len(pairs))
    cuts = [metrics.at_threshold(is_positive, scores, score) for score in scores]
    assert found.best is not None
    assert found.best.f1.value == max(cut.f1.value for cut in cuts)
    precisions = [cut.precision.value for cut, positive in zip(cuts, is_positive) if positive]
    assert found.average_precision.value == pytest.approx(sum(precisions) / len(precisions))
    assert (found.num_positives, found.num_negatives) == (is_positive.sum(), (~is_positive).sum())


def test_delongs_variance_is_that_of_the_jackknife() -> None:
    """Leaving out one document at a time gives nearly the same error: a check by another way."""
    is_positive, scores = _sample(3, num_docs=300, num_scores=1000)
    below, above = metrics.auc_components(is_positive, scores)
    delong = below.var(ddof=1) / len(below) + above.var(ddof=1) / len(above)
    others = [np.arange(len(scores)) != left_out for left_out in range(len(scores))]
    aucs = np.array([metrics.ranking(is_positive[kept], scores[kept]).auc.value for kept in others])
    jackknife = (len(aucs) - 1) / len(aucs) * ((aucs - aucs.mean()) ** 2).sum()
    assert jackknife == pytest.approx(delong, rel=0.02)


Measure = Callable[[np.ndarray, np.ndarray], Estimate]
MEASURES: dict[str, Measure] = {
    "auc": lambda is_positive, scores: metrics.ranking(is_positive, scores).auc,
    "average precision": lambda is_positive, scores: metrics.ranking(is_positive, scores).average_precision,
    "f1": lambda is_positive, scores: metrics.at_threshold(is_positive, scores, 0.5).f1,
    "macro f1": lambda is_positive, scores: (
        metrics.confusion(is_positive.astype(int), (scores >= 0.5).astype(int), ("no", "yes")).macro_f1
    ),
    "spearman": lambda is_positive, scores: metrics.agreement(is_positive.astype(float), scores).spearman,
    "rmse": lambda is_positive, scores: metrics.agreement(is_positive.astype(float), scores).rmse,
}


@pytest.mark.medium
@pytest.mark.parametrize("name", MEASURES)
def test_intervals_hold_the_true_value_in_nineteen_of_twenty_samples(name: str) -> None:
    measure = MEASURES[name]
    true = measure(*_sample(0, num_docs=400_000, num_scores=1000)).value
    found = [measure(*_sample(seed, num_docs=200, num_scores=1000)) for seed in range(1, 401)]
    assert np.mean([each.low <= true <= each.high for each in found]) == pytest.approx(0.95, abs=0.03)
    assert all(each.low <= each.value <= each.high for each in found)


def test_one_class_and_no_documents_are_not_defined() -> None:
    for is_positive in ([True, True], [False, False], []):
        found = metrics.ranking(np.array(is_positive, bool), np.array([0.2, 0.9][: len(is_positive)]))
        assert np.isnan([found.auc.value, found.auc.low, found.average_precision.value]).all()
        assert found.best is None
    nothing = metrics.at_threshold(np.zeros(0, bool), np.zeros(0), 0.5)
    agreements = metrics.agreement(np.zeros(0), np.zeros(0)).rmse, metrics.agreement(np.ones(5), np.arange(5.0)).spearman
    assert np.isnan([nothing.f1.value, nothing.share_above, *(each.value for each in agreements)]).all()


def test_perfect_separation_has_an_interval_below_one() -> None:
    is_positive = np.arange(20) >= 10
    found = metrics.ranking(is_positive, np.arange(20.0))
    assert (found.auc.value, found.auc.high) == (1.0, 1.0)
    assert 0.6 < found.auc.low < 0.8
    assert found.average_precision.value == 1.0
    constant = metrics.ranking(is_positive, np.zeros(20))
    assert constant.auc.value == 0.5
    assert constant.best is not None
    assert constant.best.recall.value == 1.0


def test_wilsons_interval_has_the_published_values() -> None:
    found = metrics.share(15, 148)  # Newcombe 1998, table I, method 3
    assert (round(found.low, 4), round(found.high, 4)) == (0.0624, 0.1605)


def test_a_difference_of_paired_scores_is_narrower_than_its_parts() -> None:
    is_positive, scores = _sample(1, num_docs=400, num_scores=1000)
    others = scores + np.random.default_rng(2).normal(0, 0.1, 400)
    difference = metrics.auc_difference(is_positive, scores, others)
    single = metrics.ranking(is_positive, scores).auc
    assert difference.value == pytest.approx(single.value - metrics.ranking(is_positive, others).auc.value)
    assert difference.high - difference.low < (single.high - single.low) / 2
    assert metrics.auc_difference(is_positive, scores, scores) == Estimate(0.0, 0.0, 0.0)


def test_confusion_of_several_classes() -> None:
    targets, predicted = np.array([0, 0, 1, 1, 1, 2]), np.array([0, 1, 1, 1, 0, 0])
    found = metrics.confusion(targets, predicted, ("a", "b", "c", "never"))
    assert found.counts.tolist() == [[1, 1, 0, 0], [1, 2, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert found.accuracy.value == 0.5
    f1s = [found.f1(label).value for label in range(4)]
    assert f1s[:3] == pytest.approx([0.4, 2 / 3, 0.0])
    assert math.isnan(f1s[3])
    assert found.macro_f1.value == pytest.approx((0.4 + 2 / 3) / 3)
    assert found.macro_precision == pytest.approx((1 / 3 + 2 / 3 + 0) / 3)
    assert found.macro_recall == pytest.approx((1 / 2 + 2 / 3 + 0) / 3)
    assert (found.precision(1).value, found.recall(1).value) == (pytest.approx(2 / 3), pytest.approx(2 / 3))


def test_macro_figures_are_those_of_labels_that_documents_have() -> None:
    found = metrics.confusion(np.array([0, 0, 0, 0]), np.array([0, 0, 0, 1]), ("a", "b"))
    assert found.macro_f1.value == found.f1(0).value == pytest.approx(6 / 7)
    assert (found.macro_precision, found.macro_recall) == (1.0, 0.75)


def test_agreement_of_numbers() -> None:
    targets, predicted = np.array([0.0, 1, 2, 3, 4, 5]), np.array([0.5, 1, 2, 2, 9, 10])
    found = metrics.agreement(targets, predicted)
    assert found.rmse.value == pytest.approx(math.sqrt((0.25 + 1 + 25 + 25) / 6))
    assert found.spearman.value == pytest.approx(0.9856, abs=1e-4)
    assert found.spearman.low < found.spearman.value < found.spearman.high <= 1
