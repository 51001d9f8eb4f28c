"""Models of a metric as a function of shares, and which of them the runs speak for.

    shares        a + Σ b share                                  linear models are ridge regressions, whose strength is
    log shares    a + Σ b log share                              chosen by leave-one-out error
    both          a + Σ b share + Σ c log share
    interactions  a + Σ b log share + Σ d log share · log share, squares too, of the three strongest sources
    trees         gradient boosting, of depth 3

The simplest model within one standard error of the smallest cross-validated error is chosen, as Breiman et al. (1984) prune
trees: a complex one is worth its freedom only where runs show it. On made-up laws with 64 runs (sums of powers of mixed
shares, exponentials, sums of logarithms; 6 and 12 sources; 2026-11-30) the mixtures so found lost 2 and 7 % of what there was
to win, 7 and 10 % with noise of half the runs' spread. Interactions alone lost 6 to 19 %, trees alone 10 to 24 %.

A log share is log(share / mean + 1/50), so that a share of 0 is far and not infinitely far. Terms have variance 1 over the
runs; constant ones count nothing. With hundreds of sources the penalty grows until little but the strongest terms is left.
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from datapipe.dataclass import dataclass, replace
from datapipe.mixtures.draws import uniforms

_FLOOR = 1 / 50
_NUM_STRONGEST = 3
_FOLDS = 8
_LEAST_RUNS_OF_TREES = 24
_ALPHAS = np.logspace(-3, 6, 37)

Predict = Callable[[np.ndarray], np.ndarray]
"""Shares (n, num_sources) to values (n,)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Linear:
    """A ridge regression on terms of shares, and once it is tuned, its strength."""

    name: str
    uses_shares: bool
    uses_logs: bool
    num_strongest: int = 0
    alphas: tuple[float, float] | None = None  # of the main effects alone, and of all terms

    def num_terms(self, num_sources: int) -> int:
        return (self.uses_shares + self.uses_logs) * num_sources + self.num_strongest * (self.num_strongest + 1) // 2

    def tuned(self, shares: np.ndarray, values: np.ndarray) -> "_Linear":
        from sklearn.linear_model import RidgeCV

        main, all_terms, _ = self._designs(shares, lambda design: RidgeCV(_ALPHAS).fit(design, values))
        return replace(self, alphas=(main.alpha_, all_terms.alpha_))

    def fit(self, shares: np.ndarray, values: np.ndarray) -> Predict:
        from sklearn.linear_model import Ridge

        strengths = iter(self.alphas or ())
        _, model, terms = self._designs(shares, lambda design: Ridge(next(strengths)).fit(design, values))
        return lambda wanted: terms(wanted) @ model.coef_ + model.intercept_

    def _designs(self, shares: np.ndarray, fit: Callable[[np.ndarray], Any]) -> tuple[Any, Any, Predict]:
        """The model of the main effects, that of all terms, and what makes terms of shares."""
        mean = shares.mean(axis=0)
        main_terms = _scaled(lambda wanted: self._main(wanted, mean), shares)
        main = fit(main_terms(shares))
        if not self.num_strongest:
            return main, fit(main_terms(shares)), main_terms
        strength = np.abs(main.coef_).reshape(-1, len(mean)).max(axis=0)
        strongest = np.argsort(-strength, kind="stable")[: self.num_strongest]
        products = _scaled(lambda wanted: _products(_logs(wanted, mean)[:, strongest]), shares)

        def terms(wanted: np.ndarray) -> np.ndarray:
            return np.hstack([main_terms(wanted), products(wanted)])

        return main, fit(terms(shares)), terms

    def _main(self, shares: np.ndarray, mean: np.ndarray) -> np.ndarray:
        parts = [shares] if self.uses_shares else []
        return np.hstack([*parts, _logs(shares, mean)] if self.uses_logs else parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trees:
    name: str = "trees"

    def num_terms(self, num_sources: int) -> int:
        return num_sources

    def tuned(self, _shares: np.ndarray, _values: np.ndarray) -> "_Trees":
        return self

    def fit(self, shares: np.ndarray, values: np.ndarray) -> Predict:
        from sklearn.ensemble import GradientBoostingRegressor

        options: dict[str, Any] = {"max_depth": 3, "min_samples_leaf": 3, "subsample": 0.7, "random_state": 0}
        return GradientBoostingRegressor(n_estimators=100, learning_rate=0.08, **options).fit(shares, values).predict


Surrogate = _Linear | _Trees

SURROGATES: tuple[Surrogate, ...] = (
    _Linear(name="shares", uses_shares=True, uses_logs=False),
    _Linear(name="log shares", uses_shares=False, uses_logs=True),
    _Linear(name="both", uses_shares=True, uses_logs=True),
    _Linear(name="interactions", uses_shares=False, uses_logs=True, num_strongest=_NUM_STRONGEST),
    _Trees(),
)
"""The kinds of model, the simplest first."""


def _logs(shares: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Logarithms that are 0 where a share is its mean."""
    return np.log((shares / np.maximum(mean, 1e-12) + _FLOOR) / (1 + _FLOOR))


def _products(logs: np.ndarray) -> np.ndarray:
    pairs = [(left, right) for left in range(logs.shape[1]) for right in range(left, logs.shape[1])]
    return np.stack([logs[:, left] * logs[:, right] for left, right in pairs], axis=1)


def _scaled(terms: Callable[[np.ndarray], np.ndarray], shares: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """The terms with mean 0 and variance 1 over the runs; those that are constant there are 0."""
    found = terms(shares)
    middle, spread = found.mean(axis=0), found.std(axis=0)
    factor = np.where(spread > 1e-9, 1 / np.maximum(spread, 1e-9), 0.0)
    return lambda wanted: (terms(wanted) - middle) * factor


@dataclass(frozen=True, kw_only=True, slots=True)
class Validated:
    """A model, tuned on all runs, and what it says of runs that it was not fitted on: (num_runs,) each."""

    surrogate: Surrogate
    predicted: np.ndarray
    of_mean: np.ndarray  # what the mean of the other runs says of a run
    errors: dict[str, float]  # root mean square error of every kind of model


def validated(shares: np.ndarray, values: np.ndarray, seed: int) -> Validated:
    """The model that the runs speak for, by errors on folds of runs."""
    num_runs = len(values)
    folds = np.argsort(np.argsort(uniforms(seed, num_runs, "folds"))) % min(_FOLDS, num_runs)
    kinds = SURROGATES if num_runs >= _LEAST_RUNS_OF_TREES else SURROGATES[:-1]
    predicted = {kind.name: np.empty(num_runs) for kind in kinds}
    of_mean = np.empty(num_runs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of scikit-learn, about designs with fewer runs than terms
        for fold in range(int(folds.max()) + 1):
            inside, outside = folds != fold, folds == fold
            of_mean[outside] = values[inside].mean()
            for kind in kinds:
                fitted = kind.tuned(shares[inside], values[inside]).fit(shares[inside], values[inside])
                predicted[kind.name][outside] = fitted(shares[outside])
        squares = {name: (found - values) ** 2 for name, found in predicted.items()}
        best = min(kinds, key=lambda kind: squares[kind.name].mean())
        chosen = next(kind for kind in kinds if not is_above(squares[kind.name] - squares[best.name], 1.0))
        tuned = chosen.tuned(shares, values)
    errors = {name: float(np.sqrt(each.mean())) for name, each in squares.items()}
    return Validated(surrogate=tuned, predicted=predicted[chosen.name], of_mean=of_mean, errors=errors)


def is_above(differences: np.ndarray, num_errors: float) -> bool:
    """Whether the mean of numbers is above 0 by more than so many standard errors."""
    return bool(differences.mean() > num_errors * differences.std() / np.sqrt(len(differences)))
