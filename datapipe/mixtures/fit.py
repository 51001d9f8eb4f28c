"""`datapipe mixtures fit`: the mixture that the results of runs speak for, or that they do not tell.

    results ─▶ a model of each metric (surrogates.py) ─▶ 100 refits to resampled runs ─┬▶ mean ─ search ─▶ the mixture
               └▶ errors on folds: better than the mean?                               └▶ intervals

The found mixture has the best mean prediction of the refits. Candidates are draws within the limits and within the shares that
runs tried, then moves around the best of them: one model says nothing of shares beyond its runs. Each interval holds 95 % of
the refits (percentiles of the bootstrap, Efron 1979): of the metric at the found mixture, of its difference from the mixture
now, and of each share at the refit's own best candidate. They are those of the expectation, without the noise of a single run.
"""

from collections.abc import Sequence

import numpy as np

from datapipe.dataclass import dataclass, replace
from datapipe.errors import UserError
from datapipe.mixtures.draws import dirichlet, normals, uniforms, within
from datapipe.mixtures.limits import Limits
from datapipe.mixtures.results import Results
from datapipe.mixtures.surrogates import Predict, Surrogate, Validated, is_above, validated
from datapipe.rng import seed_for

LEAST_RUNS = 8
_REFITS = 100
_CANDIDATES = 4000
_MOVES = 500
_ROUNDS = 24
_SURE = 2.0
"""Standard errors by which a model's squared errors are below those of the mean, for it to say anything. Of 100 tables
of noise (64 runs, 6 sources, linear models; 2026-11-30) none passed, and 7 would with one standard error."""

Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """What results say of the sum of their metrics, each times its weight."""

    limits: Limits  # of the search, with the shares of the mixture now
    models: tuple[tuple[str, Validated], ...]  # by metric
    rmse: float  # of runs that a model was not fitted on
    rmse_of_mean: float
    shares: np.ndarray  # of the found mixture, (num_sources,)
    share_intervals: tuple[Interval, ...]
    found: float  # the metric, as predicted
    found_interval: Interval
    now: float
    difference_interval: Interval  # found - now
    doubts: tuple[str, ...]  # why the data cannot tell; empty where they can
    notes: tuple[str, ...]

    @property
    def tells(self) -> bool:
        return not self.doubts


def fit(results: Results, limits: Limits, weights: Sequence[float], *, maximizes: bool = False, seed: int = 0) -> Fit:
    """Fits models to results and searches the best shares. Raises UserError for too few runs, and where no
    shares are within the limits and the runs.

    Args:
        limits: of the sources of the results, in their order.
        weights: of the metrics.
    """
    if len(results.values) < LEAST_RUNS:
        raise UserError(f"found {len(results.values)} runs with results, expected at least {LEAST_RUNS}. Train more runs")
    seed, signs = seed_for(seed, "mixtures", "fit"), np.array(weights) * (-1.0 if maximizes else 1.0)
    models = [validated(results.shares, column, seed) for column in results.values.T]
    wanted = results.values @ signs  # (num_runs,): the smaller, the better
    errors = sum(sign * model.predicted for sign, model in zip(signs, models)) - wanted
    mean_errors = sum(sign * model.of_mean for sign, model in zip(signs, models)) - wanted
    searched = _within_runs(limits, results.shares)
    refits = _refits(results, [model.surrogate for model in models], signs, seed)
    points, predicted = _search(searched, refits, results.shares[np.argsort(wanted)[:8]], seed)
    best = int(predicted.mean(axis=0).argmin())
    now = np.array([refit(limits.shares[None])[0] for refit in refits])
    own_best = points[predicted.argmin(axis=1)]  # (num_refits, num_sources)
    difference = _interval(predicted[:, best] - now)
    sign = -1.0 if maximizes else 1.0
    return Fit(
        limits=searched,
        models=tuple(zip(results.metrics, models)),
        rmse=float(np.sqrt((errors**2).mean())),
        rmse_of_mean=float(np.sqrt((mean_errors**2).mean())),
        shares=points[best],
        share_intervals=tuple(map(_interval, own_best.T)),
        found=sign * float(predicted[:, best].mean()),
        found_interval=_turned(_interval(predicted[:, best]), sign),
        now=sign * float(now.mean()),
        difference_interval=_turned(difference, sign),
        doubts=tuple(_doubts(errors, mean_errors, difference)),
        notes=tuple(_notes(results, searched, models, points[best])),
    )


def _within_runs(limits: Limits, shares: np.ndarray) -> Limits:
    """The limits, narrowed to shares that runs had."""
    low, high = np.maximum(limits.low, shares.min(axis=0)), np.minimum(limits.high, shares.max(axis=0))
    apart = [name for name, least, most in zip(limits.names, low, high) if least > most]
    if apart or low.sum() > 1 + 1e-9 or high.sum() < 1 - 1e-9:
        named = f": '{apart[0]}' had other shares in every run" if apart else ""
        raise UserError(f"no mixture is within the limits and the shares that runs had{named}. Train runs that obey the limits")
    return replace(limits, low=low, high=high)


def _refits(results: Results, surrogates: Sequence[Surrogate], signs: np.ndarray, seed: int) -> list[Predict]:
    """What the models of all metrics say together, fitted to runs that are drawn with replacement."""
    num_runs = len(results.values)

    def refit(number: int) -> Predict:
        rows = (uniforms(seed, num_runs, "refit", number) * num_runs).astype(np.int64)
        parts = [each.fit(results.shares[rows], column[rows]) for each, column in zip(surrogates, results.values.T)]
        return lambda shares: sum((sign * part(shares) for sign, part in zip(signs, parts)), np.zeros(len(shares)))

    return [refit(number) for number in range(_REFITS)]


def _search(limits: Limits, refits: Sequence[Predict], starts: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Candidates (num_points, num_sources), and what every refit predicts of them (num_refits, num_points).

    Rounds move from the best candidates so far, ever less: half of the moves change all shares, half of them two sources.
    """
    num_sources = len(limits.names)
    alphas = np.full(num_sources, 1.0) if num_sources < 16 else np.maximum(starts.mean(axis=0) * num_sources, 0.05)
    drawn = dirichlet(limits.names, alphas, _CANDIDATES, seed)
    points = within(np.concatenate([limits.shares[None], starts, drawn]), limits.low, limits.high)
    predicted = np.stack([refit(points) for refit in refits])
    for number in range(_ROUNDS):
        best = np.argsort(predicted.mean(axis=0), kind="stable")[:10]
        chosen = points[best[np.arange(_MOVES) % len(best)]]
        steps = normals(seed, _MOVES * num_sources, "moves", number).reshape(_MOVES, num_sources) * 0.85**number
        order = np.argsort(uniforms(seed, _MOVES * num_sources, "pairs", number).reshape(_MOVES, num_sources), axis=1)
        steps[::2][order[::2] > 1] = 0.0
        moved = within((chosen + 1e-4) * np.exp(steps), limits.low, limits.high)
        points = np.concatenate([points, moved])
        predicted = np.concatenate([predicted, np.stack([refit(moved) for refit in refits])], axis=1)
    return points, predicted


def _doubts(errors: np.ndarray, mean_errors: np.ndarray, difference: Interval) -> list[str]:
    doubts, rmse, rmse_of_mean = [], *(float(np.sqrt((each**2).mean())) for each in (errors, mean_errors))
    if not is_above(mean_errors**2 - errors**2, _SURE):
        doubts.append(
            f"no model predicts runs that it was not fitted on better than their mean does, beyond chance: the error is "
            f"{rmse:.4g}, that of the mean {rmse_of_mean:.4g}"
        )
    if difference[1] >= 0 or -sum(difference) / 2 < rmse:
        holds_0 = difference[1] >= 0
        why = "the interval of the difference holds 0" if holds_0 else f"the difference is below that error, {rmse:.4g}"
        doubts.append(f"the found mixture is not better than the mixture now: {why}")
    return doubts


def _notes(results: Results, limits: Limits, models: Sequence[Validated], found: np.ndarray) -> list[str]:
    notes, num_runs = [], len(results.values)
    constant = [name for name, column in zip(limits.names, results.shares.T) if np.ptp(column) < 1e-9]
    if constant:
        notes.append(f"the same share in all runs, which says nothing of them: {_listed(constant)}")
    flat = [metric for metric, column in zip(results.metrics, results.values.T) if not np.ptp(column)]
    if flat:
        notes.append(f"the same value in all runs: {_listed(flat)}")
    num_terms = max(model.surrogate.num_terms(len(limits.names) - len(constant)) for model in models)
    if num_runs <= num_terms:
        notes.append(
            f"{num_runs} runs cannot identify {num_terms} terms: only the strongest are told apart. Train more runs, or search "
            f"fewer sources"
        )
    edge = [
        name
        for name, share, low, high in zip(limits.names, found, limits.low, limits.high)
        if high - low > 1e-9 and high - share < 0.01 * (high - low) and name not in limits.reasons
    ]
    if edge:
        notes.append(f"at the largest share that a run had, so more may be better: {_listed(edge)}")
    if results.num_open:
        notes.append(f"rows without a metric, left out: {results.num_open}")
    return notes


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _interval(values: np.ndarray) -> Interval:
    low, high = np.quantile(values, (0.025, 0.975)).tolist()
    return low, high


def _turned(interval: Interval, sign: float) -> Interval:
    return interval if sign > 0 else (-interval[1], -interval[0])
