"""Measures of classifiers on labelled documents, with 95 % confidence intervals by formula: no resampling.

    two classes      targets, scores   ->  Ranking      AUC, average precision, the best F1 and its threshold
                     a threshold       ->  AtThreshold  F1, precision, recall
    several classes  targets, labels   ->  Confusion    counts, macro figures, F1 of each label
    numbers          targets, numbers  ->  Agreement    RMSE, Spearman's correlation

`README.md` names the source of each interval. Curves, ranks and Wilson's interval are
scikit-learn's and SciPy's, which have the other intervals by resampling alone: that takes minutes
with many groups and gives none where all documents are right.

Documents of equal scores share a rank, and a threshold has all of them on one side. A measure that the documents do not
define is NaN, as are its bounds. The records have the names of `--json` and of cards.
"""

import math
from statistics import NormalDist

import numpy as np
from scipy.stats import binomtest, rankdata

from datapipe.dataclass import dataclass

CONFIDENCE = 0.95  # of all intervals
_Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measure and the bounds of its confidence interval; NaN where it is not defined."""

    value: float
    low: float
    high: float


_UNDEFINED = Estimate(math.nan, math.nan, math.nan)


def share(part: float, whole: float) -> Estimate:
    """part / whole with Wilson's interval."""
    if whole <= 0:
        return _UNDEFINED
    value, interval = part / whole, binomtest(round(part), round(whole)).proportion_ci(CONFIDENCE, "wilson")
    return Estimate(value, min(float(interval.low), value), max(float(interval.high), value))


def f1_of(hits: int, num_predicted: int, num_positives: int) -> Estimate:
    """F1 of one class: 2J / (1 + J) of the share J = tp / (tp + fp + fn), which has Wilson's interval."""
    jaccard = share(hits, num_predicted + num_positives - hits)
    return Estimate(*(2 * bound / (1 + bound) for bound in (jaccard.value, jaccard.low, jaccard.high)))


@dataclass(frozen=True, kw_only=True, slots=True)
class AtThreshold:
    """Decisions of a threshold: documents with that score or a higher one are predicted positive. NaN without documents."""

    threshold: float
    true_positives: int
    false_positives: int
    false_negatives: int
    true_negatives: int
    share_kept: float
    f1: Estimate
    precision: Estimate
    recall: Estimate
    accuracy: Estimate


def at_threshold(is_positive: np.ndarray, scores: np.ndarray, threshold: float) -> AtThreshold:
    """The measures at a threshold. `is_positive`: (num_docs,) bool; `scores`: (num_docs,) float."""
    predicted, num_docs = scores >= threshold, len(scores)
    hits, num_predicted, num_positives = (int(each.sum()) for each in (is_positive & predicted, predicted, is_positive))
    true_negatives = num_docs - num_predicted - num_positives + hits
    return AtThreshold(
        threshold=float(threshold),
        true_positives=hits,
        false_positives=num_predicted - hits,
        false_negatives=num_positives - hits,
        true_negatives=true_negatives,
        share_kept=share(num_predicted, num_docs).value,
        f1=f1_of(hits, num_predicted, num_positives),
        precision=share(hits, num_predicted),
        recall=share(hits, num_positives),
        accuracy=share(hits + true_negatives, num_docs),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranking:
    positives: int  # documents of the positive class
    # the chance that a positive document has a higher score than a negative one; ties count half
    auc: Estimate
    average_precision: Estimate  # mean precision at the score of each positive document
    # at the threshold of the highest F1, the lowest of several; None where there is one class only
    best_f1: AtThreshold | None


def ranking(is_positive: np.ndarray, scores: np.ndarray) -> Ranking:
    """The measures of scores. `is_positive`: (num_docs,) bool; `scores`: (num_docs,) float without NaN."""
    from sklearn.metrics import confusion_matrix_at_thresholds

    positives, best, average_precision = int(is_positive.sum()), None, _UNDEFINED
    if 0 < positives < len(scores):
        _, false_positives, missed, hits, thresholds = confusion_matrix_at_thresholds(is_positive, scores)  # the highest first
        f1s = 2 * hits / (2 * hits + false_positives + missed)
        best = at_threshold(is_positive, scores, thresholds[len(f1s) - 1 - np.argmax(f1s[::-1])])
        value = float((np.diff(hits, prepend=0) * hits / (hits + false_positives)).sum() / positives)
        average_precision = _on_logit_scale(value, math.sqrt(value * (1 - value) / positives), positives)
    return Ranking(positives=positives, auc=_auc(is_positive, scores), average_precision=average_precision, best_f1=best)


def auc_components(is_positive: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each positive the share of negatives below it, and for each negative the share of positives above it; ties count
    half (midranks, Sun and Xu 2014). Their means are the AUC, and their variances give its variance."""
    everywhere, positives, negatives = map(rankdata, (scores, scores[is_positive], scores[~is_positive]))
    num_negatives, num_positives = max(len(negatives), 1), max(len(positives), 1)
    below = (everywhere[is_positive] - positives) / num_negatives
    return below, 1 - (everywhere[~is_positive] - negatives) / num_positives


def _auc(is_positive: np.ndarray, scores: np.ndarray) -> Estimate:
    below, above = auc_components(is_positive, scores)
    if not (len(below) and len(above)):
        return _UNDEFINED
    variance = _variance(below) / len(below) + _variance(above) / len(above)
    return _on_logit_scale(float(below.mean()), math.sqrt(variance), min(len(below), len(above)))


def auc_difference(is_positive: np.ndarray, scores: np.ndarray, others: np.ndarray) -> Estimate:
    """The AUC of `scores` less that of `others` on the same documents, with DeLong's interval for paired scores."""
    pairs = list(zip(auc_components(is_positive, scores), auc_components(is_positive, others)))
    differences = [left - right for left, right in pairs]
    if not all(len(values) for values in differences):
        return _UNDEFINED
    value = float(differences[0].mean())
    half = _Z * math.sqrt(sum(_variance(values) / len(values) for values in differences))
    return Estimate(value, max(value - half, -1.0), min(value + half, 1.0))


def _variance(values: np.ndarray) -> float:
    """Of a sample; of a single value, the greatest that values from 0 to 1 can have."""
    return float(values.var(ddof=1)) if len(values) > 1 else 0.25


def _on_logit_scale(value: float, error: float, num_docs: int) -> Estimate:
    """A value between 0 and 1 with a standard error. Without any error (0, 1): Wilson's interval of `num_docs`."""
    if not 0 < value < 1 or error == 0:
        return share(value * num_docs, num_docs)
    logit, half = math.log(value / (1 - value)), _Z * error / (value * (1 - value))
    return Estimate(value, 1 / (1 + math.exp(min(half - logit, 700))), 1 / (1 + math.exp(-min(logit + half, 700))))


@dataclass(frozen=True, kw_only=True, slots=True)
class OfLabel:
    precision: Estimate
    recall: Estimate
    f1: Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class Confusion:
    """Documents by their label and the predicted one. Macro figures: of labels that occur."""

    accuracy: Estimate
    macro_f1: Estimate
    macro_precision: float  # 0 counts for a label that is never predicted; NaN without documents
    macro_recall: float
    confusion: list[list[int]]  # documents of each label, by what is predicted
    by_label: dict[str, OfLabel]


def confusion(targets: np.ndarray, predicted: np.ndarray, labels: tuple[str, ...]) -> Confusion:
    """The measures of numbers of labels, (num_docs,) int each."""
    counts = np.bincount(targets * len(labels) + predicted, minlength=len(labels) ** 2).reshape(len(labels), len(labels))
    hits, of_label, of_prediction = np.diag(counts), counts.sum(axis=1), counts.sum(axis=0)  # (num_labels,)
    occurs, num_docs = of_label > 0, len(targets)
    return Confusion(
        accuracy=share(int(hits.sum()), num_docs),
        macro_f1=_macro_f1(counts / num_docs, num_docs) if num_docs else _UNDEFINED,
        macro_precision=float((hits / np.maximum(of_prediction, 1))[occurs].mean()) if num_docs else math.nan,
        macro_recall=float((hits / np.maximum(of_label, 1))[occurs].mean()) if num_docs else math.nan,
        confusion=counts.tolist(),
        by_label={
            label: OfLabel(precision=share(hit, guessed), recall=share(hit, real), f1=f1_of(hit, guessed, real))
            for label, hit, guessed, real in zip(labels, hits.tolist(), of_prediction.tolist(), of_label.tolist())
        },
    )


def _macro_f1(shares: np.ndarray, num_docs: int) -> Estimate:
    """The mean F1 of the labels that documents have, whose `shares` are [label, predicted]: delta method for
    multinomial counts (Takahashi et al. 2022). A label that is only predicted lowers the recall of others."""
    sums = shares.sum(axis=0) + shares.sum(axis=1)  # (num_labels,)
    occurs = shares.sum(axis=1) > 0
    f1s = np.where(occurs, 2 * np.diag(shares) / np.where(occurs, sums, 1), 0.0)
    slopes = np.where(occurs, f1s / np.where(occurs, sums, 1), 0.0)
    gradient = np.diag(np.where(occurs, 2 / np.where(occurs, sums, 1), 0.0)) - slopes[:, None] - slopes[None, :]
    gradient /= occurs.sum()
    variance = ((gradient**2 * shares).sum() - (gradient * shares).sum() ** 2) / num_docs
    return _on_logit_scale(float(f1s.sum() / occurs.sum()), math.sqrt(max(variance, 0.0)), num_docs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """How near predicted numbers come to those of the documents; Spearman is NaN where all numbers are equal."""

    rmse: Estimate
    spearman: Estimate


def agreement(targets: np.ndarray, predicted: np.ndarray) -> Agreement:
    return Agreement(rmse=_rmse(targets - predicted), spearman=_spearman(targets, predicted))


def _rmse(errors: np.ndarray) -> Estimate:
    if not len(errors):
        return _UNDEFINED
    squares = errors.astype(np.float64) ** 2
    mean = float(squares.mean())
    if len(errors) == 1:
        return Estimate(math.sqrt(mean), math.nan, math.nan)
    half = _Z * math.sqrt(float(squares.var(ddof=1)) / len(errors))
    return Estimate(math.sqrt(mean), math.sqrt(max(mean - half, 0.0)), math.sqrt(mean + half))


def _spearman(targets: np.ndarray, predicted: np.ndarray) -> Estimate:
    if len(targets) < 2 or np.ptp(targets) == 0 or np.ptp(predicted) == 0:
        return _UNDEFINED
    value = float(np.corrcoef(rankdata(targets), rankdata(predicted))[0, 1])
    if len(targets) <= 3 or abs(value) >= 1:
        return Estimate(value, math.nan, math.nan)
    half = _Z * math.sqrt((1 + value * value / 2) / (len(targets) - 3))
    return Estimate(value, math.tanh(math.atanh(value) - half), math.tanh(math.atanh(value) + half))
